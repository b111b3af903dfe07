"""JSON that is valid but not ours, in every file of a study: one line that names the file."""

import json

import pytest
from toy import run_toy
from typer.testing import CliRunner

from r3bench.cli import app
from r3bench.seals import sealed
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.executors.inline import InlineExecutor
from r3bench.sweep.grid import parse_grid

READERS = {
    "status": ("status", "toy"),
    "tables": ("tables", "toy"),
    "report": ("report", "toy", "--no-figures"),
    "analyze": ("analyze", "runs/toy"),
    "trace": ("trace", "toy", "all off"),
}
ALL = tuple(READERS)


@pytest.fixture
def study(home, grid_values):
    grid_values["factors"].pop("bonus")
    grid = parse_grid(grid_values, "toy.yaml")
    assert ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=lambda line: None).complete
    return home / "runs" / "toy"


def edited(path, **changes):
    return json.dumps(json.loads(path.read_text()) | changes)


@pytest.mark.parametrize("text", ["[]", "{}", '{"cells": [{}]}', '{"cells": {}}', "3", "[" * 100_000, "1" * 5000])
def test_a_foreign_study_file(study, text):
    (study / "study.json").write_text(text)
    for name in ALL:
        result = CliRunner().invoke(app, READERS[name])
        assert (result.exit_code, result.stderr.count("\n")) == (3, 1), (name, result.exception)
        assert "toy/study.json: " in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("change", [{"eval": "text"}, {"eval": {"embedded": 3}}, {"train": []}, {"factors": None}])
def test_a_foreign_run_record(study, change):
    record = next(study.glob("base-s1-*/run.json"))
    values = json.loads(record.read_text()) | change
    for written in (values, sealed(values), {k: v for k, v in values.items() if k not in ("schema", "digest")}):
        record.write_text(json.dumps(written))
        left_out(study, record)
        states = [
            cell["state"] for cell in json.loads(CliRunner().invoke(app, ["status", "toy", "--json"]).stdout)["cells"]
        ]
        assert states.count("finished") == len(states) - ("factors" not in change or written is values)


def left_out(study, record):
    """Everything else is shown, with a note that names the file."""
    for name in ALL[1:]:
        result = CliRunner().invoke(app, READERS[name])
        assert result.exit_code == 0, (name, result.exception, result.stderr)
        if name in ("tables", "analyze"):
            assert f"{record.parent.name}/run.json: " in result.stdout, name


def test_a_run_record_that_is_a_folder(study):
    record = next(study.glob("base-s1-*/run.json"))
    record.unlink()
    record.mkdir()
    left_out(study, record)
    assert f"{record.parent.name}/run.json: is a folder" in CliRunner().invoke(app, READERS["tables"]).stdout
    assert "torn" in CliRunner().invoke(app, ["status", "toy", "--json"]).stdout


@pytest.mark.parametrize("text", ["[]", "3"])
def test_a_foreign_environment_is_said_to_be_missing(study, text):
    for path in study.glob("*/environment.json"):
        path.write_text(text)
    for name in ALL:
        assert CliRunner().invoke(app, READERS[name]).exit_code == 0, name
    assert "environment.json: got" in CliRunner().invoke(app, READERS["trace"]).stdout


def test_a_foreign_attempt(study):
    run = next(study.glob("base-s1-*"))
    (run / "run.json").unlink()
    (run / "attempts.jsonl").write_text('{"event": "failure"}\n')
    for command in (["status", "toy"], ["ablate", "toy.yaml"]):
        (study.parents[1] / "toy.yaml").write_text(json.dumps(json.loads((study / "study.json").read_text())["grid"]))
        result = CliRunner().invoke(app, command)
        assert (result.exit_code, result.stderr.splitlines()[-1].count("kind: missing")) == (3, 1), result.exception
        assert f"{run.name}/attempts.jsonl: " in result.stderr


@pytest.mark.parametrize("text", ['{"embedded": 3}', "[]"])
def test_a_foreign_overlap(study, text):
    (study / "overlap.json").write_text(text)
    for name in ALL[1:]:
        result = CliRunner().invoke(app, READERS[name])
        assert result.exit_code == 3 and "overlap.json: " in result.stderr, name
