"""Run under accelerate with FSDP2 on two CPU ranks: replay, a checkpoint, a resume and the saved model."""

import json
import os
import sys
from pathlib import Path

import torch
from accelerate import DistributedType, PartialState
from trainer_tools import Recorder, arguments, questions

from r3bench import R3Trainer
from r3bench.training.checkpoint import is_complete
from r3bench.training.run import save_model


def scripted(completion_ids, question_id, trainer_state, **_):
    epoch = int(trainer_state.epoch or 0)
    return [float((int(q[1:]) + epoch) % 2) for q in question_id]


def build(model, folder):
    components = {"replay": {"mode": "append", "truncated_negatives": True}}
    values = {"per_device_train_batch_size": 4, "max_steps": 6, "save_strategy": "steps", "save_steps": 4}
    args = arguments(folder, components=components, **values)
    assert args.device.type == "cpu"  # asking sets the process group up
    # accelerate offers FSDP to accelerators only; everything behind that check works on CPU as well.
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    return R3Trainer(model=model, reward_funcs=Recorder(scripted), train_dataset=questions(6), args=args)


def main(model, folder):
    rank = int(os.environ["RANK"])
    whole = build(model, f"{folder}/whole")
    whole.train()
    save_model(whole, Path(folder, "model"))
    cut = build(model, f"{folder}/cut")
    cut.train(resume_from_checkpoint=f"{folder}/whole/checkpoint-4")
    keys = ("loss", "grad_norm", "reward", "entropy")
    streams = [
        [{k: line[k] for k in keys} for line in trainer.state.log_history if "loss" in line] for trainer in (whole, cut)
    ]
    report = {
        "sharded": any(type(p).__name__ == "DTensor" for p in whole.model.parameters()),
        "streams": streams,
        "evidence": whole.evidence,
        "digest": whole.history.digest(),
        "complete": is_complete(Path(folder, "whole", "checkpoint-4")),
    }
    Path(f"{folder}/rank-{rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
