"""`status`: every state a run can be in, from files alone."""

import json
import threading

import pytest
from toy import run_toy

from r3bench.errors import StateError
from r3bench.files import append_jsonl, read_json, write_json
from r3bench.lock import exclusive
from r3bench.seals import sealed
from r3bench.sweep.ablate import ablate, open_study
from r3bench.sweep.attempts import Failure, give_up, note, note_failure
from r3bench.sweep.grid import parse_grid
from r3bench.sweep.inline import InlineExecutor
from r3bench.sweep.status import status, status_data, status_table, studies, watch


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
    from rich.console import Console

    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(status_table(found))
    text = console.export_text()
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
