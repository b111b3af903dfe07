"""What trackers hold after a grid, read back from the real clients' own files, offline."""

import json
import os
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from r3bench.config.load import load_recipe
from r3bench.records import RunPaths
from r3bench.training import trackers
from r3bench.training.trackers import described, facts, known_runs, log_scores, scores

GRID = """
recipe: quickstart
factors: {replay: [off, on]}
seeds: [3]
base_model: false
set:
  data.limit: 2
  trainer.per_device_train_batch_size: 16
  trainer.save_steps: 1
  trainer.logging_steps: 1
  trainer.report_to: [%s]
budget: {steps: 2}
eval: {limit: 4, samples: 1}
executor: {kind: inline}
"""
SECRET = "hf_" + "a1" * 14


@pytest.fixture
def offline(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No client finds a network, a home or an account; MLflow's store is in the folder."""
    for key in list(os.environ):
        if key.startswith(("WANDB_", "MLFLOW_", "TRACKIO_", "TENSORBOARD_")):
            monkeypatch.delenv(key)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("TRACKIO_DIR", str(folder / "trackio"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/tracked.db")
    monkeypatch.setenv("HF_TOKEN", SECRET)
    return folder


def ran(r3bench: Callable[..., Result], folder: Path, tracker: str) -> list[Path]:
    """The runs of a 2-cell grid, of which the second was measured again with more samples."""
    (folder / "ablations").mkdir()
    (folder / "ablations" / "mine.yaml").write_text(GRID % tracker)
    result = r3bench("ablate", "mine", "--quiet")
    assert result.exit_code == 0, result.stderr
    roots = sorted(path.parent for path in (folder / "runs" / "mine").glob("*/run.json"))
    more = r3bench("eval", str(roots[1]), "--samples", "2", "--json")
    assert more.exit_code == 0, more.stderr
    assert json.loads(more.stdout)["embedded"]["samples"] == 2, "a client's greetings are no result"
    assert "was not told" not in result.stderr + more.stderr
    return roots


def measured(root: Path) -> dict[str, Any]:
    """The scores of the record."""
    found: dict[str, Any] = json.loads((root / "run.json").read_text())["eval"]["embedded"]
    return found


def stored_records(content: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: a head of 7 bytes, then LevelDB's log format in blocks of 32 KiB.

    A piece has a checksum of 4 bytes, its length in 2 and its kind in 1: a whole record, or its first, middle, last.
    """
    place, parts = 7, b""
    while place + 7 <= len(content):
        if (rest := 32768 - place % 32768) < 7:  # too short for a piece
            place += rest
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def no_secret(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


def test_tensorboard(r3bench: Callable[..., Result], offline: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    base, replay = ran(r3bench, offline, "tensorboard")
    for root, level in ((base, "off"), (replay, "on")):
        found = accumulator.EventAccumulator(str(root / "tensorboard"))
        found.Reload()
        texts = {
            name: found.Tensors(f"{name}/text_summary")[0].tensor_proto.string_val[0].decode()
            for name in ("r3bench", "recipe")
        }
        assert f"replay: '{level}'" in texts["r3bench"]
        assert "study: mine" in texts["r3bench"]
        assert "max_steps: 2" in texts["recipe"]
        last = found.Scalars("eval/embedded/avg@2" if root == replay else "eval/embedded/avg@1")[-1]
        assert (last.step, last.value) == (2, pytest.approx(measured(root)[f"avg@{2 if root == replay else 1}"]))
        assert [event.step for event in found.Scalars("train/loss")] == [1, 2]
    no_secret(offline)


def test_wandb(r3bench: Callable[..., Result], offline: Path) -> None:
    pytest.importorskip("wandb", reason="no wandb here (pip install wandb)")
    from wandb.proto.wandb_internal_pb2 import Record

    roots = ran(r3bench, offline, "wandb")
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(offline.glob("wandb/offline-run-*/run-*.wandb")):
        for data in stored_records(file.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "run":
                told = found.setdefault(record.run.run_id, {"config": {}, "history": {}})
                told |= {"group": record.run.run_group or told.get("group"), "name": record.run.display_name,
                         "tags": list(record.run.tags) or told.get("tags"), "project": record.run.project}  # fmt: skip
                told["config"] |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
                current = told
            if record.WhichOneof("record_type") == "config":
                current["config"] |= {item.key: json.loads(item.value_json) for item in record.config.update}
            if record.WhichOneof("record_type") == "history":
                current["history"] |= {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
                }
    assert len(found) == 2, "a run for each cell, and none more for scores"
    for root, level, k in zip(roots, ("off", "on"), (1, 2), strict=True):
        told = found[known_runs(RunPaths(root))["wandb"]["id"]]
        assert told["group"] == "mine"
        assert told["project"] == "r3bench"
        assert sorted(told["tags"]) == [f"replay={level}", "seed=3"]
        assert told["config"]["r3bench"]["levels"] == {"replay": level}
        assert told["config"]["recipe"]["trainer"]["max_steps"] == 2
        assert told["history"][f"eval/embedded/avg@{k}"] == pytest.approx(measured(root)[f"avg@{k}"])
        assert told["history"]["train/global_step"] == 2
    no_secret(offline)


def test_mlflow(r3bench: Callable[..., Result], offline: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="no mlflow here (pip install mlflow-skinny)")
    roots = ran(r3bench, offline, "mlflow")
    client = mlflow.MlflowClient(tracking_uri=os.environ["MLFLOW_TRACKING_URI"])
    experiment = client.get_experiment_by_name("mine")
    found = {run.info.run_id: run for run in client.search_runs([experiment.experiment_id])}
    assert len(found) == 2
    for root, level, k in zip(roots, ("off", "on"), (1, 2), strict=True):
        run = found[known_runs(RunPaths(root))["mlflow"]["run_id"]]
        assert run.info.run_name == root.name
        tags = {key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.")}
        assert tags["level.replay"] == level
        assert (tags["study"], tags["seed"]) == ("mine", "3")
        assert run.data.params["recipe.trainer.max_steps"] == "2"
        assert run.data.metrics[f"eval/embedded/avg_at_{k}"] == pytest.approx(measured(root)[f"avg@{k}"])
    no_secret(offline)


def test_trackio(r3bench: Callable[..., Result], offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trackio", reason="no trackio here (pip install trackio)", exc_type=ImportError)
    import sqlite3

    for name, module in list(sys.modules.items()):  # whoever imported it first has chosen its folder
        if name.split(".")[0] == "trackio" and hasattr(module, "TRACKIO_DIR"):
            monkeypatch.setattr(module, "TRACKIO_DIR", offline / "trackio")
    roots = ran(r3bench, offline, "trackio")
    (file,) = (offline / "trackio").glob("mine*.db")  # the study is the project
    with sqlite3.connect(file) as database:
        config = dict(database.execute("select run_name, config from configs"))
        rows = list(database.execute("select run_name, step, metrics from metrics order by id"))
    assert set(config) == {root.name for root in roots}, "a run for each cell, and none more for scores"
    for root, level, k in zip(roots, ("off", "on"), (1, 2), strict=True):
        told = json.loads(config[root.name])
        assert told["levels"] == {"replay": level} and told["cell"] == ("replay" if level == "on" else "base")
        assert told["study"] == "mine" and sorted(told["tags"]) == [f"replay={level}", "seed=3"]
        assert told["recipe"]["trainer"]["max_steps"] == 2
        logged = [(step, json.loads(text)) for run, step, text in rows if run == root.name]
        score = f"eval/embedded/avg@{k}"
        assert [step for step, row in logged if "train/loss" in row] == [1, 2]
        assert [(step, row[score]) for step, row in logged if score in row][-1] == (
            2, pytest.approx(measured(root)[f"avg@{k}"]),
        )  # fmt: skip
    no_secret(offline)


STOPPING = """
import os
import signal
from pathlib import Path

def stops(completions, trainer_state=None, **kwargs):
    stopped = Path(__file__).with_name("stopped")
    if trainer_state is not None and trainer_state.global_step == 2 and not stopped.exists():
        stopped.touch()
        os.kill(os.getpid(), signal.SIGTERM)
    return [0.0] * len(completions)
"""


def test_training_that_is_resumed_goes_on_in_the_same_tracker_run(
    r3bench: Callable[..., Result], offline: Path
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="no mlflow here (pip install mlflow-skinny)")
    (offline / "mine.py").write_text(STOPPING)
    words = (
        "train", "quickstart", "data.limit=4", "trainer.per_device_train_batch_size=16", "trainer.save_steps=1",
        "trainer.logging_steps=1", "trainer.max_steps=4", "trainer.report_to=mlflow", "eval.limit=4", "eval.samples=1",
        "reward.functions=[accuracy,./mine.py:stops]", "--quiet",
    )  # fmt: skip
    first = r3bench(*words)
    assert first.exit_code == 75, (first.exit_code, first.stderr)  # stopped, its state saved
    (root,) = (offline / "runs").iterdir()
    known = known_runs(RunPaths(root))["mlflow"]["run_id"]
    client = mlflow.MlflowClient(tracking_uri=os.environ["MLFLOW_TRACKING_URI"])
    half = {point.step for point in client.get_metric_history(known, "loss")}
    assert half and max(half) < 4
    assert r3bench(*words).exit_code == 0
    assert known_runs(RunPaths(root))["mlflow"]["run_id"] == known
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    assert [run.info.run_id for run in client.search_runs(experiments)] == [known]
    assert {point.step for point in client.get_metric_history(known, "loss")} == {1, 2, 3, 4}
    (score,) = client.get_metric_history(known, "eval/embedded/avg_at_1")
    assert (score.step, score.value) == (4, pytest.approx(measured(root)["avg@1"]))


def test_what_the_user_has_set_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_RUN_GROUP", "theirs")
    monkeypatch.setenv("MLFLOW_TAGS", '{"mine": "1", "seed": "x"}')
    monkeypatch.delenv("WANDB_TAGS", raising=False)
    recipe, paths = load_recipe("quickstart", []), RunPaths(folder / "run")
    with described(facts(recipe, paths), paths):
        assert os.environ["WANDB_RUN_GROUP"] == "theirs"
        assert json.loads(os.environ["MLFLOW_TAGS"])["mine"] == "1"
        assert os.environ["WANDB_TAGS"] == "seed=0"
    assert os.environ["MLFLOW_TAGS"] == '{"mine": "1", "seed": "x"}'
    assert "WANDB_TAGS" not in os.environ


def test_a_tracker_that_fails_costs_a_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def down(*_: object) -> None:
        raise ConnectionError(f"https://user:{SECRET}@host is down")

    monkeypatch.setitem(trackers.LOGGERS, "mlflow", down)
    (folder / "trackers.json").write_text('{"mlflow": {"run_id": "1"}, "odd": 3}')
    log_scores(RunPaths(folder), {"t": {"avg@1": 0.5, "grader": "g", "ok": True}}, 2)
    said = capsys.readouterr().err
    assert said.startswith("warning: mlflow was not told")
    assert SECRET not in said
    assert scores({"t": {"avg@1": 0.5, "grader": "g", "ok": True}}) == {"eval/t/avg@1": 0.5}
    (folder / "trackers.json").write_text("{")
    log_scores(RunPaths(folder), {"t": {"avg@1": 0.5}}, 2)
