"""Run with the stand-in on PYTHONPATH: trainings through TRL's server mode; results as one JSON file.

    python trl_traffic.py MODEL FOLDER

Stock GRPOTrainer and R3Trainer with all off, then components, each against the server as just started.
"""

import json
import os
import sys
import urllib.request
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / area) for area in ("trainer", "components")]

import torch  # noqa: E402
from components_ranks import FOUR, turning  # noqa: E402
from trainer_tools import Recorder, arguments, by_length, losses, questions  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

from r3bench import R3Config, R3Trainer  # noqa: E402
from r3bench.serving.server import Server, Serving, free_port  # noqa: E402

CASES = {
    "four": (FOUR, {}),
    "repo": ({"repo": {"rows": 3, "window": 4, "min_stored": 4}}, {"max_steps": 4}),
    "rescue": ({"rescue": True}, {"max_steps": 4}),
    "exgrpo": ({"exgrpo": {"start": 0.0}}, {"per_device_train_batch_size": 16, "max_steps": 9}),
    "resampling": ({"dynamic_sampling": True}, {"per_device_train_batch_size": 16, "max_steps": 4}),
}


def requests():
    return [json.loads(line) for line in Path(os.environ["STANDIN_LOG"]).read_text().splitlines()]


def train(server, port, folder, cls, config, rule, rows=6, **changes):
    urllib.request.urlopen(urllib.request.Request(f"{server.url}/standin/reset", b"{}"))
    before, recorder = len(requests()), Recorder(rule)
    trainer = cls(
        model=server.serving.model, reward_funcs=recorder, train_dataset=questions(rows),
        args=arguments(
            folder, config, use_vllm=True, vllm_mode="server", vllm_server_base_url=server.url, vllm_group_port=port,
            **changes,
        ),
    )  # fmt: skip
    trainer.train()
    trainer.vllm_generation.vllm_client.close_communicator()
    return trainer, {
        "requests": requests()[before:],
        "seen": recorder.seen,
        "losses": losses(trainer),
        "weights": {name: float(value.double().sum()) for name, value in trainer.model.state_dict().items()},
    }


def main(model, folder):
    found, port = {}, free_port()
    with Server(Serving(model, training=True), Path(folder) / "server.log", print) as server:
        for name, cls, config in (("stock", GRPOTrainer, GRPOConfig), ("ours", R3Trainer, R3Config)):
            _, found[name] = train(server, port, f"{folder}/{name}", cls, config, by_length)
        for name, (components, changes) in CASES.items():
            options = {"per_device_train_batch_size": 48, "max_steps": 9, "loss_type": "grpo", **changes}
            trainer, found[name] = train(
                server, port, f"{folder}/{name}", R3Trainer, R3Config, turning, 12, components=components, **options
            )
            found[name]["acted"] = {c.name: c.acted(trainer.evidence) for c in trainer.components}
            found[name]["evidence"] = trainer.evidence
    Path(folder, "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
