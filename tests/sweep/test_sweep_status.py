"""`status`: every state a run can be in, from files alone."""

import json
import os
import socket
import threading
import time
from pathlib import Path

import pytest
from status_cases import CASES
from toy import run_toy
from typer.testing import CliRunner

from r3bench.cli import app
from r3bench.commands.options import printable
from r3bench.errors import StateError
from r3bench.files import append_jsonl, read_json, write_json
from r3bench.lock import exclusive
from r3bench.seals import sealed
from r3bench.sweep.attempts import Failure, attempt, give_up, note, note_failure
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.executors.inline import InlineExecutor
from r3bench.sweep.grid import parse_grid
from r3bench.sweep.opening import open_study
from r3bench.sweep.status import status, status_data, studies
from r3bench.sweep.status_text import status_lines, watch


def test_every_state(home, grid_values):
    grid = parse_grid(grid_values, "toy.yaml")
    ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=lambda line: None)
    study = open_study(grid, home / "runs")
    roots = {(c.name, c.seed): study.paths(c).root for c in study.cells}
    for key in [("base", 1), ("bonus", 0), ("bonus", 1), ("replay", 0), ("replay", 1)]:
        (roots[key] / "run.json").unlink()
    (roots["base", 1] / "attempts.jsonl").unlink()  # never started
    note_failure(roots["bonus", 0], Failure("preempted", "lost"))  # interrupted
    note_failure(roots["bonus", 1], Failure("bug", "ZeroDivisionError: a mistake"))
    give_up(roots["bonus", 1])
    (roots["replay", 0] / "run.json").write_text("{")  # torn
    diverged = read_json(roots["replay+bonus", 0] / "run.json")
    diverged["train"] |= {"outcome": "diverged", "reason": "loss is nan"}
    write_json(roots["replay+bonus", 0] / "run.json", sealed({**diverged, "eval": {}}))
    note(roots["replay", 1], "start")
    (roots["replay", 1] / "metrics.jsonl").unlink()
    (roots["replay", 1] / "train.json").unlink()
    for step in (1, 5):
        append_jsonl(
            roots["replay", 1] / "metrics.jsonl", {"step": step, "elapsed": 2.0 * step, "generated_tokens": 30 * step}
        )
    with exclusive(roots["replay", 1] / "run.lock"), exclusive(study.lock):
        found = status(study.root)
    states = {(c.name, c.seed): c for c in found.cells}
    assert states["base", 0].state == "finished" and states["base", 0].accuracy == {
        "embedded": read_json(roots["base", 0] / "run.json")["eval"]["embedded"]["avg@2"]
    }
    assert states["base", 1].state == "to do"
    assert states["bonus", 0].state == "interrupted" and states["bonus", 0].failure == "preempted: lost"
    assert states["bonus", 1].state == "failed" and "ZeroDivisionError" in states["bonus", 1].failure
    assert states["replay", 0].state == "torn"
    assert states["replay+bonus", 0].state == "diverged" and states["replay+bonus", 0].failure == "loss is nan"
    running = states["replay", 1]
    assert (running.state, running.step, running.steps, running.tokens) == ("running", 5, 50, 150)
    assert running.rate == pytest.approx(15.0) and running.left == pytest.approx(90.0)
    assert "process" in found.dispatcher and status(study.root).dispatcher is None
    assert found.counts == {
        "finished": 3, "to do": 1, "interrupted": 1, "failed": 1, "torn": 1, "diverged": 1, "running": 1,
    }  # fmt: skip
    json.dumps(status_data(found), allow_nan=False)
    text = "\n".join(status_lines(found, 200))
    assert "4 of 9 runs finished" in text and "5/50" in text and "1:30" in text
    assert studies(home / "runs") == ["toy"]


def test_no_study_is_a_plain_error(home):
    with pytest.raises(StateError, match="no study here"):
        status(home / "runs" / "toy")


def test_watching_ends_with_the_last_run(home, grid_values):
    ablate(
        parse_grid(grid_values, "toy.yaml"),
        home / "runs",
        run=run_toy,
        executor=InlineExecutor(),
        say=lambda line: None,
    )
    record = next((home / "runs" / "toy").glob("base-s0-*")) / "run.json"
    whole, seen = record.read_bytes(), []
    record.unlink()

    def finish():
        seen.append(thread.is_alive())
        record.write_bytes(whole)

    thread = threading.Timer(0.5, finish)
    thread.start()
    watch(home / "runs" / "toy", every=0.05)
    assert seen == [True] and status(home / "runs" / "toy").counts == {"finished": 9}


SNAPSHOTS = Path(__file__).with_name("status_snapshots")


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("name", CASES)
def test_the_text_at_two_widths(name, width):
    """With UPDATE_SNAPSHOTS=1 they are written anew; look at the difference then."""
    lines = status_lines(CASES[name], width)
    assert max(map(len, lines)) <= width
    file = SNAPSHOTS / f"{name}-{width}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(lines) + "\n")
    assert "\n".join(lines) + "\n" == file.read_text()


@pytest.mark.parametrize("width", [20, 40, 61, 80, 97, 120, 160, 300])
@pytest.mark.parametrize("errors", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_any_width_fits_and_tells_cells_apart(name, width, errors):
    found = CASES[name]
    lines = status_lines(found, width, errors=errors)
    assert max(map(len, lines)) <= max(width, 40)
    text = "".join(line.strip() for line in lines)
    assert all(cell.name in text for cell in found.cells)
    assert not any(set(line) & set("\x1b\u202e\t") for line in lines)
    whole = " ".join(" ".join(lines).split())
    for failed in (c for c in found.cells if c.failure) if errors and width >= 80 else ():
        assert " ".join(printable(failed.failure).split()) in whole
    if not errors and any(cell.failure for cell in found.cells):
        assert f"status {found.study} --errors" in whole


def test_little_room_shows_what_matters_first():
    lines = status_lines(CASES["many"], 80, height=14)
    assert len(lines) <= 14
    assert "late" in "".join(lines) and lines[-1].startswith("... and") and "finished" in lines[-1]
    assert len(status_lines(CASES["small"], 80, height=12)) <= 12


@pytest.fixture
def toy_study(home, grid_values):
    """A finished one."""
    grid = parse_grid(grid_values, "toy.yaml")
    ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=lambda line: None)
    return open_study(grid, home / "runs")


def test_an_evaluation_tells_its_progress_and_where_it_runs(toy_study, monkeypatch):
    root = next(toy_study.paths(c).root for c in toy_study.cells if (c.name, c.seed) == ("replay", 0))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")

    def seen():
        return next(c for c in status(toy_study.root).cells if c.run_id == root.name)

    (root / "run.json").unlink()
    for path in (root / "eval").glob("*/*.parquet"):
        path.unlink()
    (root / "eval" / "embedded" / "r0000-0007.q00000-00063.parquet").write_bytes(b"")
    (root / "eval" / "embedded" / ".r0008-0009.q00000-00063.jsonl").write_text("{}\n" * 11)
    write_json(root / "eval" / ".asked.json", {"embedded": 1280})
    with exclusive(root / "run.lock"), attempt(root, 0):
        cell = seen()
        assert (cell.state, cell.phase, cell.answers, cell.asked) == ("running", "evaluating", 512 + 10, 1280)
        assert cell.devices == "2,3" and cell.process == os.getpid() and cell.host == socket.gethostname()
        (root / "train.json").unlink()
        assert seen().phase == "training" and seen().answers is None
        (root / "metrics.jsonl").unlink()
        assert seen().phase == "starting"


def test_what_is_left_of_a_study_is_told_from_finished_runs(toy_study):
    assert status(toy_study.root).left is None, "nobody is at work"
    for cell in toy_study.cells[1:4]:
        toy_study.paths(cell).record.unlink()
        (toy_study.paths(cell).root / "attempts.jsonl").unlink()
    with exclusive(toy_study.lock):
        found = status(toy_study.root)
    assert found.counts == {"finished": 6, "to do": 3}
    assert found.left == pytest.approx(3 * 1.0, rel=0.5)  # toy runs say that they trained for one second


def test_watching_waits_for_a_study_and_then_for_its_dispatcher(home, grid_values):
    """It is opened before there is a study, and stays while no dispatcher has come, though every run has failed."""
    root = home / "runs" / "toy"
    grid = parse_grid(grid_values, "toy.yaml")
    thread = threading.Thread(target=watch, args=(root,), kwargs={"every": 0.02}, daemon=True)
    thread.start()
    time.sleep(0.2)
    study = open_study(grid, home / "runs")
    study.root.mkdir(parents=True)
    study.write()
    for cell in study.cells:
        note_failure(study.paths(cell).root, Failure("bug", "as before"))
        give_up(study.paths(cell).root)
    assert status(root).counts == {"failed": 9}
    time.sleep(0.3)
    assert thread.is_alive()
    with exclusive(study.lock):
        time.sleep(0.3)
        assert thread.is_alive()
    thread.join(5)
    assert not thread.is_alive()


def test_an_empty_folder_says_so(home):
    result = CliRunner().invoke(app, ["status"])
    assert (result.exit_code, result.stdout) == (0, "no studies below runs; r3bench ablate GRID starts one\n")
    assert json.loads(CliRunner().invoke(app, ["status", "--json"]).stdout)["studies"] == []
    assert CliRunner().invoke(app, ["status", "--watch"]).exit_code == 2
