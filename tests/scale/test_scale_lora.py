"""Adapters through the command line: saved, merged, measured; probe; trackers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from json_page import documented
from safetensors.numpy import load_file
from typer.testing import Result

from r3bench.config.load import load_recipe
from r3bench.config.sections import LoraSection, ModelSection
from r3bench.errors import ConfigError
from r3bench.evaluation.backends.hf import HFBackend
from r3bench.records import RunPaths
from r3bench.sweep.sharing.merge import merge as merge_adapters
from r3bench.training.models.load import model_folder
from r3bench.training.run import _adapters, training_arguments

SHORT = ("trainer.max_steps=2", "trainer.per_device_train_batch_size=16", "eval.limit=4", "eval.samples=1")


def test_adapters_are_saved_merged_and_measured(r3bench: Callable[..., Result], folder: Path) -> None:
    lora = ("model.lora.rank=4", "model.lora.alpha=12", "trainer.learning_rate=1e-2")
    result = r3bench("train", "quickstart", *SHORT, *lora, "--probe", "--json")
    assert result.exit_code == 0, result.stderr
    assert "probe: 2 updates of 16 rows a process, prompts of up to " in result.stderr
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


def test_adapters_name_the_revision_they_were_trained_on(
    r3bench: Callable[..., Result], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways of loading them ask for it; without it they would get the start model's newest weights."""
    import transformers

    section = ModelSection(name="org/name", revision="1a2b3c", lora=LoraSection(rank=4))
    config = _adapters(section)
    config.base_model_name_or_path = "org/name"
    config.save_pretrained(folder / "adapters")
    asked = []

    def load(name: str, **options: Any) -> None:
        asked.append(options.get("revision"))
        raise OSError("not here")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", load)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda name: None)
    with pytest.raises(ConfigError, match="can't be loaded: not here"):
        HFBackend.load(folder / "adapters", 1)
    with pytest.raises(ConfigError, match="can't be loaded: not here"):
        merge_adapters(folder / "adapters", folder / "merged")
    assert asked == ["1a2b3c", "1a2b3c"]


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


def test_tensorboard_gets_what_the_metrics_file_gets(r3bench: Callable[..., Result], folder: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    acting = ("data.limit=2", "components.replay.warmup=0", "trainer.max_steps=4")
    result = r3bench("train", "quickstart", *SHORT, *acting, "trainer.report_to=tensorboard")
    assert result.exit_code == 0, result.stderr
    (events,) = folder.glob("runs/*/tensorboard")  # not among the checkpoints, which may go
    found = accumulator.EventAccumulator(str(events))
    found.Reload()
    (metrics,) = folder.glob("runs/*/metrics.jsonl")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    shown = [key for key in lines[-1] if f"train/{key}" in found.Tags()["scalars"]]
    assert {"reward", "loss", "grad_norm", "groups/homogeneous"} <= set(shown)  # the last: of components
    for key in shown:
        written = {line["step"]: line[key] for line in lines if key in line}
        assert {event.step: event.value for event in found.Scalars(f"train/{key}")} == pytest.approx(written), key


GREEDY = ("--tasks", "embedded", "--samples", "1", "temperature=0", "limit=20", "max_tokens=48", "--quiet")


def answers(folder: Path) -> list[str]:
    """The answers below an evaluation's folder, by question."""
    rows = [row for path in sorted(folder.glob("embedded/*.parquet")) for row in pq.read_table(path).to_pylist()]
    return [row["response"] for row in sorted(rows, key=lambda row: row["question"])]


def test_adapters_alone_merged_and_merged_on_request_answer_alike(r3bench: Callable[..., Result], folder: Path) -> None:
    lora = (
        "model.lora.rank=4",
        "model.lora.alpha=16",
        "trainer.learning_rate=1e-2",
        "eval.temperature=0",
        "eval.limit=20",
    )
    settings = (*SHORT[:2], "eval.samples=1", *lora, "--quiet")
    runs = {}
    for name, merge in (("whole", "true"), ("alone", "false")):
        done = r3bench("train", "quickstart", *settings, f"model.lora.merge={merge}", "--runs", name, "--json")
        assert done.exit_code == 0, done.stderr
        runs[name] = folder / name / json.loads(done.stdout)["run_id"]
    assert runs["whole"].name == runs["alone"].name, "how it is saved is no part of the run"
    assert not (runs["alone"] / "model" / "model.safetensors").exists()
    assert "| Adapters | alone, rank 4; not merged |" in (runs["alone"] / "model" / "README.md").read_text()
    merged = r3bench("merge", runs["alone"].name, "merged", "--runs", "alone", "--json")
    assert merged.exit_code == 0, merged.stderr
    assert documented(merged.stdout, "merge")["made"] == ["merged"]
    assert (folder / "merged" / "model.safetensors").is_file()
    for model, out in (
        ("embedded", "base"), ("merged", "request"), (str(runs["whole"] / "model" / "adapter"), "adapter"),
    ):  # fmt: skip
        done = r3bench("eval", model, *GREEDY, "--out", out)
        assert done.exit_code == 0, done.stderr
    trained = answers(runs["whole"] / "eval")
    assert len(trained) == 20
    assert trained != answers(folder / "base"), "nothing was learnt"
    assert trained == answers(runs["alone"] / "eval") == answers(folder / "adapter") == answers(folder / "request")

    for words, message in (
        (("merge", runs["alone"].name, "merged", "--runs", "alone"), "merged: already there"),
        (("merge", "merged", "other"), "has no adapter_config.json"),
        (("eval", f"vllm:{runs['alone'] / 'model'}"), "holds adapters alone; `r3bench merge` makes whole weights"),
        (
            ("train", "quickstart", f"model={runs['alone'] / 'model'}", "--quiet"),
            "holds adapters alone, expected whole",
        ),
    ):
        refused = r3bench(*words)
        assert refused.exit_code in (2, 3)
        assert message in refused.stderr.splitlines()[-1]
    assert not (folder / "other").exists()
