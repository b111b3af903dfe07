"""The commands that train and measure, end to end on the embedded model, a few steps and questions."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from json_page import documented
from typer.testing import Result

SHORT = ("trainer.max_steps=2", "trainer.per_device_train_batch_size=16", "trainer.save_steps=1", "eval.limit=8")
GRID = """
description: Replay off and on, short.
recipe: quickstart
set: {trainer.per_device_train_batch_size: 16}
factors: {replay: [off, on]}
seeds: [0, 1]
budget: {steps: 2}
eval: {limit: 8, samples: 2}
"""


def test_train_then_measure_more(r3bench: Callable[..., Result], folder: Path) -> None:
    first = r3bench("train", "quickstart", *SHORT, "eval.samples=2", "--json")
    assert first.exit_code == 0, first.stderr
    record = documented(first.stdout, "train")
    run = folder / "runs" / record["run_id"]
    assert record["train"]["steps"] == 2
    assert record["train"]["outcome"] == "finished"
    assert record["train"]["generated_tokens"] > 0
    assert record["eval"]["embedded"]["samples"] == 2
    written = json.loads((run / "run.json").read_text())
    assert written.pop("digest") and written.pop("schema") and record == written  # both are of the file alone
    for name in ("config.json", "environment.json", "metrics.jsonl", "model/model.safetensors", "eval/embedded"):
        assert (run / name).exists(), name

    again = r3bench("train", "quickstart", *SHORT, "eval.samples=2", "--json")
    assert json.loads(again.stdout) == record | {"schema": "r3bench.train/1"}, "a finished run was run again"

    answers = {path.name: path.read_bytes() for path in (run / "eval" / "embedded").iterdir()}
    more = r3bench("eval", record["run_id"], "--samples", "4", "--json")
    assert more.exit_code == 0, more.stderr
    assert documented(more.stdout, "eval")["embedded"]["samples"] == 4
    for name, content in answers.items():
        assert (run / "eval" / "embedded" / name).read_bytes() == content, "a stored answer was drawn again"
    updated = json.loads((run / "run.json").read_text())
    assert updated["eval"]["embedded"]["samples"] == 4
    assert updated["train"] == record["train"]

    other = r3bench("eval", record["run_id"], "temperature=0.5")
    assert (other.exit_code, other.stderr.count("\n")) == (3, 1), "answers drawn otherwise must not be mixed in"


def test_measure_a_model(r3bench: Callable[..., Result], folder: Path) -> None:
    result = r3bench("eval", "embedded", "--tasks", "embedded", "--samples", "2", "limit=8", "--json", "--out", "base")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["embedded"]["questions"] == 8
    assert list((folder / "base" / "embedded").glob("*.parquet"))
    assert r3bench("eval", "embeded").stderr == (
        "r3bench: model.name: 'embeded' is neither built in nor a folder nor a hub id 'org/name'; "
        "did you mean 'embedded'?\n"
    )
    assert r3bench("eval", "embedded", "temperatur=1").stderr == (
        "r3bench: command line: eval.temperatur: got 1 for an unknown key; did you mean 'temperature'?\n"
    )
    assert "did you mean 'embedded'?" in r3bench("eval", "embedded", "--tasks", "embeded").stderr


@pytest.mark.slow
def test_a_grid_from_end_to_end(r3bench: Callable[..., Result], folder: Path) -> None:
    (folder / "ablations").mkdir()
    (folder / "ablations" / "short.yaml").write_text(GRID)
    result = r3bench("ablate", "short", "--json", "--quiet")
    assert result.exit_code == 0, result.stderr
    report = documented(result.stdout, "ablate")
    assert len(report["finished"]) == 5  # two cells with two seeds, and the untrained model
    assert not report["failed"]
    assert not report["left"]
    study = folder / "runs" / "short"
    assert sorted(path.parent.name for path in study.glob("*/run.json")) == sorted(report["finished"])
    before = {path: path.stat().st_mtime_ns for path in study.glob("*/run.json")}
    assert r3bench("ablate", "short", "--quiet").stdout == "runs/short\n"
    assert before == {path: path.stat().st_mtime_ns for path in study.glob("*/run.json")}, "a finished cell ran again"
    shown = r3bench("tables", "short")
    assert shown.exit_code == 0, shown.stderr
    assert "replay" in shown.stdout
    traced = json.loads(r3bench("trace", "short", "replay", "--json").stdout)["runs"][0]
    again = [word for word in shlex.split(traced["again"]) if not word.startswith("OMP_NUM_THREADS=")]
    repeated = r3bench(*again[1:], "--quiet")
    assert repeated.exit_code == 0, repeated.stderr
    first, second = (top / traced["run"] / "model" / "model.safetensors" for top in (study, folder / "again"))
    assert first.read_bytes() == second.read_bytes(), "the command that repeats a run made another model"
    (folder / "ablations" / "short.yaml").write_text(GRID.replace("steps: 2", "steps: 3"))
    changed = r3bench("ablate", "short", "--quiet")
    assert (changed.exit_code, changed.stderr.count("\n")) == (3, 1), "another grid must not share the folder"


def test_a_budget_of_generated_tokens_ends_a_run(r3bench: Callable[..., Result], folder: Path) -> None:
    result = r3bench("train", "quickstart", *SHORT, "trainer.max_steps=50", "budget.generated_tokens=300", "--json")
    assert result.exit_code == 0, result.stderr
    train = json.loads(result.stdout)["train"]
    tokens = [json.loads(line) for line in (folder / "runs").glob("*/metrics.jsonl").__next__().open()]
    assert train["outcome"] == "finished"
    assert 300 <= train["generated_tokens"] < 300 + 16 * 48  # ends after the batch that reached it
    assert train["steps"] == tokens[-1]["step"] < 50


@pytest.mark.slow
def test_quickstart(r3bench: Callable[..., Result], folder: Path) -> None:
    result = r3bench("quickstart", "--quiet", "--json")
    assert result.exit_code == 0, result.stderr
    assert documented(result.stdout, "quickstart")["cells"]
    assert "| cell |" in r3bench("tables", "quickstart").stdout
    assert list((folder / "runs" / "quickstart" / "tables").iterdir())
