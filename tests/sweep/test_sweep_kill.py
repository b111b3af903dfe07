"""Kill -9 at every write: the study ends the same as one left alone."""

import json
from collections import Counter
from pathlib import Path

import pytest
from killing import in_child, kill_at
from toy import run_toy

from r3bench.analysis import render_tables
from r3bench.files import read_jsonl
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.dispatch.dispatcher import Dispatcher
from r3bench.sweep.executors.inline import InlineExecutor
from r3bench.sweep.executors.local import ForkExecutor
from r3bench.sweep.grid import parse_grid
from r3bench.sweep.opening import open_study


def quiet(line):
    pass


@pytest.fixture
def grid(home, grid_values):
    grid_values["factors"].pop("bonus")
    return parse_grid(grid_values | {"seeds": [0], "retries": {"preempted": 1000}}, "toy.yaml")


def dispatch(grid, runs):
    return Dispatcher(open_study(grid, runs), InlineExecutor(), slots=1, run=run_toy, say=quiet).dispatch()


def outcome(study):
    """Everything tables are made from: records without their clock times, and the answers, byte for byte."""
    found = {}
    for run in sorted(p.parent for p in study.glob("*/run.json")):
        record = json.loads((run / "run.json").read_text())
        for key in ("started", "ended", "digest", "files"):  # times, and digests of files with times in them
            record.pop(key)
        record["train"].pop("files")
        found[run.name] = json.dumps(record, sort_keys=True)
        for shard in sorted(run.rglob("*.parquet")):
            found[str(shard.relative_to(study))] = shard.read_bytes()
        found[f"{run.name}/model"] = (run / "model" / "weights").read_text() if (run / "model").exists() else None
    return found


def finished(study):
    return {p: p.read_bytes() for p in study.glob("*/run.json")}


def executions(study):
    return Counter(r["run"] for r in read_jsonl(study / "executions.jsonl"))


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_dispatcher_killed_at_every_write(home, grid, step):
    assert dispatch(grid, home / "calm").complete
    expected = outcome(home / "calm" / "toy")
    assert len([k for k in expected if "/" not in k]) == 3
    tables = [render_tables(home / "calm" / "toy", to) for to in ("markdown", "csv")]
    kills = 0
    for n in range(1, 10_000, step):
        runs = home / f"kill-{n}"

        def killed(n=n, runs=runs):
            kill_at(n, runs)
            dispatch(grid, runs)

        status = in_child(killed)
        study = runs / "toy"
        before, ran = finished(study), executions(study)
        report = dispatch(grid, runs)
        assert report.complete and outcome(study) == expected, f"differs after a kill at write {n}"
        assert [render_tables(study, to) for to in ("markdown", "csv")] == tables, f"tables differ, write {n}"
        after = finished(study)
        assert all(after[path] == content for path, content in before.items()), (
            f"write {n}: a finished cell was rewritten"
        )
        done = {path.parent.name for path in before}
        assert all(executions(study)[run] == ran[run] for run in done), f"write {n}: a finished cell ran again"
        leftovers = list(study.rglob("*.tmp"))
        assert len(leftovers) <= 1, f"write {n}: {leftovers}"
        if status == 0:
            break
        kills += 1
    assert kills > 60 / step


def test_dispatcher_with_its_index_killed_again_and_again(home, grid):
    """One study, killed at ever later writes, Optuna's file included."""
    assert dispatch(grid, home / "calm").complete
    runs = home / "runs"

    def go(n):
        kill_at(n, runs)
        ablate(grid, runs, run=run_toy, executor=InlineExecutor(), say=quiet)

    for n in range(3, 150, 19):
        if in_child(lambda n=n: go(n)) == 0:
            break
    assert ablate(grid, runs, run=run_toy, executor=InlineExecutor(), say=quiet).complete
    assert outcome(runs / "toy") == outcome(home / "calm" / "toy")
    import optuna

    trials = optuna.load_study(study_name="toy", storage=f"sqlite:///{runs}/toy/optuna.db").trials
    complete = [t.user_attrs["run_id"] for t in trials if t.state.name == "COMPLETE"]
    assert sorted(complete) == sorted(p.parent.name for p in (runs / "toy").glob("*/run.json"))


def run_toy_until_killed(work):
    """Each attempt dies at a later write than the one before."""
    folder = Path(work["directory"])
    counter = folder.parent / f"attempts-{folder.name}"
    number = int(counter.read_text()) + 1 if counter.exists() else 1
    counter.write_text(str(number))
    kill_at(number, folder)
    return run_toy(work)


def test_workers_killed_at_every_write(home, grid):
    assert dispatch(grid, home / "calm").complete
    with ForkExecutor(preload=("test_sweep_kill",)) as pool:
        study = open_study(grid, home / "runs")
        report = Dispatcher(study, pool, slots=3, run=run_toy_until_killed, say=quiet).dispatch()
    assert report.complete and outcome(home / "runs" / "toy") == outcome(home / "calm" / "toy")
    for run in (home / "runs" / "toy").glob("*/run.json"):
        kinds = [r["kind"] for r in read_jsonl(run.parent / "attempts.jsonl") if r["event"] == "failure"]
        assert len(kinds) > 10 and set(kinds) == {"preempted"}
