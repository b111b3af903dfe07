"""Adapters through the command line: saved, merged, measured; probe; trackers."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import Result

from r3bench.config.load import load_recipe
from r3bench.errors import ConfigError
from r3bench.records import RunPaths
from r3bench.training.models import model_folder
from r3bench.training.run import training_arguments

SHORT = ("trainer.max_steps=2", "trainer.per_device_train_batch_size=16", "eval.limit=4", "eval.samples=1")


def test_adapters_are_saved_merged_and_measured(r3bench: Callable[..., Result], folder: Path) -> None:
    lora = ("model.lora.rank=4", "model.lora.alpha=12", "trainer.learning_rate=1e-2")
    result = r3bench("train", "quickstart", *SHORT, *lora, "--probe", "--json")
    assert result.exit_code == 0, result.stderr
    assert "probe: 2 updates of 16 rows a process, answers of 48 tokens: peak" in result.stderr
    record = json.loads(result.stdout)
    run = folder / "runs" / record["run_id"]
    adapter = load_file(run / "model" / "adapter" / "adapter_model.safetensors")
    settings = json.loads((run / "model" / "adapter" / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (4, 12)
    merged = load_file(run / "model" / "model.safetensors")
    base = load_file(Path(model_folder("embedded"), "model.safetensors"))
    names = [key.removeprefix("base_model.model.").removesuffix(".lora_A.weight") for key in adapter if "lora_A" in key]
    assert names
    moved = 0.0
    for name in names:
        a, b = (adapter[f"base_model.model.{name}.lora_{side}.weight"] for side in "AB")
        update = 12 / 4 * b @ a
        moved = max(moved, float(np.abs(update).max()))
        np.testing.assert_allclose(merged[f"{name}.weight"], base[f"{name}.weight"] + update, atol=1e-5)
    assert moved > 1e-3, "nothing was learnt"
    rest = base.keys() - {f"{name}.weight" for name in names}
    assert all(np.array_equal(merged[key], base[key]) for key in rest & merged.keys())
    assert record["eval"]["embedded"]["questions"] == 4
    card = (run / "model" / "README.md").read_text()
    assert "| Adapters | merged, rank 4; also in adapter/ |" in card
    assert "| embedded | avg@1 |" in card


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("tensorbord", "trainer.report_to: got 'tensorbord'; did you mean 'tensorboard'?"),
        ("[mlflow]", "but the package mlflow is missing (pip install mlflow)"),
    ],
)
def test_a_tracker_that_is_not_there(folder: Path, monkeypatch: pytest.MonkeyPatch, value: str, message: str) -> None:
    monkeypatch.setattr("r3bench.training.tracking.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        training_arguments(load_recipe("quickstart", [f"trainer.report_to={value}"]), RunPaths(folder / "run-s0"))
    assert str(caught.value).endswith(message)


def test_a_tracker_that_is_there_is_passed_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("r3bench.training.tracking.find_spec", lambda name: object())
    recipe = load_recipe("quickstart", ["trainer.report_to=[wandb,trackio]"])
    found = training_arguments(recipe, RunPaths(folder / "run-s0"))
    assert list(found.report_to) == ["wandb", "trackio"]
    assert found.run_name == "run-s0"


def test_tensorboard_gets_the_components_figures(r3bench: Callable[..., Result], folder: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    result = r3bench("train", "quickstart", *SHORT, "trainer.report_to=tensorboard", "components.replay=on")
    assert result.exit_code == 0, result.stderr
    (events,) = folder.rglob("events.out.tfevents.*")
    content = events.read_bytes()
    assert b"train/reward" in content
    assert b"replay/" in content
