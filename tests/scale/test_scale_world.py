"""Numbers that don't fit the number of processes are refused at once; the strategies are accelerate's own."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import Result

from r3bench.config.world import check_world
from r3bench.errors import ConfigError
from r3bench.sweep import strategy

BATCH = "trainer.per_device_train_batch_size"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [f"{BATCH}=2", "--gpus", "3"],
            "r3bench: trainer: per_device_train_batch_size 2 x gradient_accumulation_steps 1 x 3 processes = 6 rows "
            "sampled together can't be cut into groups of num_generations 8; nearest that works: "
            "per_device_train_batch_size=8 or gradient_accumulation_steps=4 or processes=4\n",
        ),
        (
            [f"{BATCH}=8", "trainer.generation_batch_size=16", "--gpus", "3"],
            "r3bench: trainer.generation_batch_size: got 16, expected a multiple of per_device_train_batch_size 8 x 3 "
            "processes and of num_generations 8; nearest that works: generation_batch_size=24\n",
        ),
        (
            [
                "trainer.use_vllm=true",
                "trainer.vllm_mode=colocate",
                "trainer.vllm_tensor_parallel_size=3",
                "--gpus",
                "4",
            ],
            "r3bench: trainer.vllm_tensor_parallel_size: got 3, expected a divisor of the 4 GPUs of a node; "
            "nearest that works: vllm_tensor_parallel_size=2\n",
        ),
        (
            ["trainer.eval_strategy=steps", "trainer.per_device_eval_batch_size=3", "--gpus", "2"],
            "r3bench: trainer: per_device_eval_batch_size 3 x 2 processes can't be cut into groups of 8; "
            "nearest that works: per_device_eval_batch_size=4\n",
        ),
        (["--strategy", "fsdp"], "r3bench: --strategy: got 'fsdp'; did you mean 'fsdp2'?\n"),
        (["--gpus", "0"], "r3bench: --gpus: got 0, expected at least 1\n"),
        (
            ["--gpus", "2", "--nodes", "2"],
            "r3bench: --master: missing, expected HOST:PORT of one of the nodes, the same on all of them\n",
        ),
        (
            ["--gpus", "2", "--strategy", "fsdp2"],
            "r3bench: --strategy fsdp2: needs GPUs and none is visible; on CPU only ddp works\n",
        ),
        (
            ["--strategy", "zero2"],
            "r3bench: --strategy zero2: splits a model over processes, expected --gpus 2 or more\n",
        ),
    ],
)
def test_refused_in_one_line(
    r3bench: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = r3bench("train", "quickstart", *arguments)
    assert (result.exit_code, result.stderr) == (2, message)


def test_more_gpus_than_there_are(r3bench: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    result = r3bench("train", "quickstart", "--gpus", "4")
    assert result.stderr == "r3bench: --gpus: got 4, but this machine offers 2; nearest that works: --gpus 2\n"
    lora = r3bench("train", "quickstart", "model.lora.rank=4", "--gpus", "2", "--strategy", "fsdp2")
    assert lora.stderr.startswith("r3bench: --strategy fsdp2: adapters are merged by one process")


@given(
    device=st.integers(1, 12), steps=st.integers(1, 6), world=st.integers(1, 16), group=st.integers(2, 16)
)  # fmt: skip
def test_what_is_suggested_works(device: int, steps: int, world: int, group: int) -> None:
    values = {
        "per_device_train_batch_size": device, "gradient_accumulation_steps": steps, "num_generations": group,
    }  # fmt: skip
    if device * steps * world % group == 0:
        check_world(values, world)
        return
    with pytest.raises(ConfigError) as caught:
        check_world(values, world)
    suggestions = re.findall(r"(\w+)=(\d+)", str(caught.value).partition("nearest that works: ")[2])
    assert len(suggestions) == 3
    for key, number in suggestions:
        if key == "processes":
            check_world(values, int(number))
        else:
            check_world({**values, key: int(number)}, world)


@pytest.mark.parametrize("name", strategy.STRATEGIES)
def test_the_variables_are_accelerates(name: str) -> None:
    file = str(strategy.FOLDER / f"{name}.yaml")
    parsed = launch_command_parser().parse_args(["--config_file", file, "--num_processes", "2", "script.py"])
    parsed, _, _ = _validate_launch_command(parsed)
    parsed.deepspeed_fields_from_accelerate_config = ""  # set by `accelerate launch` in between
    assert (parsed.use_fsdp, parsed.use_deepspeed) == (name == "fsdp2", name.startswith("zero"))
    made = prepare_deepspeed_cmd_env(parsed)[1] if parsed.use_deepspeed else prepare_multi_gpu_env(parsed)
    ours = strategy.variables(name)
    assert ours == {key: made.get(key) for key in ours}
    switches = {key for key in made if key.startswith("ACCELERATE_USE_")}
    assert switches == {key for key in ours if key.startswith("ACCELERATE_USE_")}


def test_the_check_loads_no_torch() -> None:
    code = "import sys, r3bench.sweep.executors.launch; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"  # noqa: PLW1510


def test_a_grids_cells_are_checked_before_anything_starts(
    r3bench: Callable[..., Result], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    grid = "recipe: quickstart\nset: {{{}}}\nfactors: {{replay: [off, on]}}\nseeds: [0]\nexecutor: {{gpus: {}, {}}}\n"
    (folder / "odd.yaml").write_text(grid.format("trainer.per_device_train_batch_size: 2", 3, "kind: local"))
    refused = r3bench("ablate", "odd.yaml")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "can't be cut into groups of num_generations 8; nearest that works: " in refused.stderr
    assert not (folder / "runs").exists()
    (folder / "one.yaml").write_text(grid.format("", 1, "strategy: fsdp2"))
    assert "splits a model over processes" in r3bench("validate", "one.yaml").stderr


def test_a_cell_is_started_with_its_strategy(folder: Path) -> None:
    """`child` under torchrun sees what accelerate reads, from the job that the dispatcher wrote."""
    (folder / "job.json").write_text(json.dumps({"directory": str(folder), "strategy": "fsdp2"}))
    (folder / "probe_child.py").write_text("import os\ndef look(work): return dict(os.environ)\n")
    child = "r3bench.sweep.executors.child"
    command = [sys.executable, "-m", child, "probe_child:look", "job.json", "result.json", "2"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(folder)}, check=False)
    assert done.returncode == 0, (folder / "log.txt").read_text()
    seen = json.loads((folder / "result.json").read_text())["result"]
    assert seen["WORLD_SIZE"] == "2"
    assert strategy.variables("fsdp2").items() <= seen.items()
