"""The Optuna index: what it shows, and what happens when it is lost, torn, or on a server."""

import dataclasses
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from wsgiref.util import setup_testing_defaults

import optuna
import pytest
from toy import run_toy

from r3bench.analysis import render_tables
from r3bench.errors import ConfigError
from r3bench.files import read_jsonl
from r3bench.lock import holder
from r3bench.sweep.dispatch import index as index_module
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.dispatch.mirror import Mirror, open_storage
from r3bench.sweep.executors.inline import InlineExecutor
from r3bench.sweep.grid import parse_grid
from r3bench.sweep.opening import open_study


@pytest.fixture
def grid(home, grid_values):
    return parse_grid(grid_values | {"seeds": [0]}, "toy.yaml")


def run(home, grid, lines=None, storage=None):
    say = (lines if lines is not None else []).append
    return ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), storage=storage, say=say)


def trials(url, name="toy"):
    """As optuna-dashboard reads them."""
    return optuna.load_study(study_name=name, storage=url).trials


def url(home):
    return f"sqlite:///{home / 'runs' / 'toy' / 'optuna.db'}"


def check(report, found):
    """One trial per cell, with its factors and its accuracy."""
    assert sorted(t.user_attrs["run_id"] for t in found) == sorted(report.finished)
    for trial in found:
        record = report.finished[trial.user_attrs["run_id"]]
        assert trial.params == {**record.factors, "seed": record.seed}
        if record.train.outcome == "finished":
            assert trial.state.name == "COMPLETE" and trial.values == [record.eval["embedded"]["avg@2"]]
        else:
            assert trial.state.name == "FAIL" and trial.user_attrs["record"]["outcome"] == "diverged"


def test_one_trial_per_cell_also_when_run_again(home, grid):
    cell = next(c for c in open_study(grid, home / "runs").cells if c.name == "replay")
    (home / "runs" / "toy" / "trouble").mkdir(parents=True)
    (home / "runs" / "toy" / "trouble" / cell.run_id).write_text("diverged")
    report = run(home, grid)
    check(report, trials(url(home)))
    run(home, grid)
    check(report, trials(url(home)))


def test_a_failed_cell_is_a_failed_trial_and_its_repetition_a_new_one(home, grid):
    cell = next(c for c in open_study(grid, home / "runs").cells if c.name == "replay")
    (home / "runs" / "toy" / "trouble").mkdir(parents=True)
    (home / "runs" / "toy" / "trouble" / cell.run_id).write_text("bug bug")
    run(home, grid)
    states = [t.state.name for t in trials(url(home)) if t.user_attrs["run_id"] == cell.run_id]
    assert states == ["FAIL"]
    run(home, grid)
    states = [t.state.name for t in trials(url(home)) if t.user_attrs["run_id"] == cell.run_id]
    assert states == ["FAIL", "COMPLETE"]


@pytest.mark.parametrize("harm", ["deleted", "torn", "garbage", "empty"])
def test_a_lost_or_broken_index_is_made_again(home, grid, harm):
    report = run(home, grid)
    file = home / "runs" / "toy" / "optuna.db"
    content = file.read_bytes()
    file.unlink()
    if harm == "torn":
        file.write_bytes(content[: len(content) // 2])
    if harm == "garbage":
        file.write_bytes(b"not a database" * 1000)
    if harm == "empty":
        file.write_bytes(b"")
    lines = []
    run(home, grid, lines)
    check(report, trials(url(home)))
    if harm in ("torn", "garbage"):
        assert any("set aside and made again" in line for line in lines) and file.with_suffix(".db.torn").exists()


def test_a_storage_that_can_not_be_opened_is_a_plain_error(home, grid):
    with pytest.raises(ConfigError, match="can't be opened"):
        run(home, grid, storage=f"sqlite:///{home}/absent/optuna.db")


def asked(application, path):
    """A GET request to a WSGI application: its status and its body."""
    status = []

    def start(line, _headers, _trouble=None):
        status.append(int(line.split()[0]))

    environment = {"QUERY_STRING": "limit=1000"}
    setup_testing_defaults(environment)
    body = b"".join(application(environment | {"PATH_INFO": path, "REQUEST_METHOD": "GET"}, start))
    return status[0], body


def test_optuna_dashboard_shows_the_study(home, grid):
    """Every cell with its levels and its accuracy, also one that failed."""
    dashboard = pytest.importorskip("optuna_dashboard", reason="optuna-dashboard is not installed")
    cell = next(c for c in open_study(grid, home / "runs").cells if c.name == "replay")
    (home / "runs" / "toy" / "trouble").mkdir(parents=True)
    (home / "runs" / "toy" / "trouble" / cell.run_id).write_text("bug bug")
    report = run(home, grid)
    application = dashboard.wsgi(url(home))
    status, page = asked(application, "/dashboard")
    assert status == 200 and b"<html" in page.lower()
    status, body = asked(application, "/api/studies")
    (study,) = json.loads(body)["study_summaries"]
    assert status == 200 and study["study_name"] == "toy"
    status, body = asked(application, f"/api/studies/{study['study_id']}")
    detail = json.loads(body)
    assert status == 200 and detail["objective_names"] == ["embedded accuracy"]
    shown = {}
    for trial in detail["trials"]:
        attributes = {item["key"]: item["value"] for item in trial["user_attrs"]}
        levels = {item["name"]: item["param_external_value"] for item in trial["params"]}
        shown[attributes["run_id"]] = (trial["state"], trial.get("values"), levels)
    assert set(shown) == {c.run_id for c in open_study(grid, home / "runs").cells}
    assert shown[cell.run_id][:2] == ("Fail", None)
    for run_id, record in report.finished.items():
        levels = {**record.factors, "seed": str(record.seed)}
        assert shown[run_id] == ("Complete", [record.eval["embedded"]["avg@2"]], levels)


def complete(found):
    """Run ids with a COMPLETE trial, as often as there is one."""
    return sorted(t.user_attrs["run_id"] for t in found if t.state.name == "COMPLETE")


def everything(home, name="toy"):
    return sorted(path.parent.name for path in (home / "runs" / name).glob("*/run.json"))


CHANGES = {
    "a level": {"factors": {"replay": ["off", "on", "literal"], "bonus": "="}},
    "a factor": {"factors": {"replay": "=", "bonus": "=", "epochs": {"one": {}, "two": {"trainer.num_iterations": 2}}}},
    "a seed": {"seeds": [0, 5]},
    "a cell": {"design": "list", "cells": [{}, {"replay": "on"}, {"replay": "on", "bonus": "on"}]},
    "a task": {"eval": {"samples": 2, "tasks": ["embedded", "embedded-20"]}},
    "samples": {"eval": {"samples": 3}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_grid_that_grows_has_a_complete_index_after_the_next_call(home, grid_values, change):
    grid_values |= {"seeds": [0]}
    old = grid_values["factors"]
    if change == "a cell":
        grid_values |= {"design": "list", "cells": [{}, {"replay": "on"}]}
    run(home, parse_grid(grid_values, "toy.yaml"))
    before = everything(home)
    shape = CHANGES[change]
    if "factors" in shape:
        shape = {"factors": {name: old[name] if levels == "=" else levels for name, levels in shape["factors"].items()}}
    grown = parse_grid(grid_values | shape, "toy.yaml")
    lines = []
    report = run(home, grown, lines)
    assert report.complete and len(report.finished) >= (4 if change == "a cell" else 5)
    assert set(before) <= set(everything(home))
    trained = Counter(r["run"] for r in read_jsonl(home / "runs" / "toy" / "executions.jsonl"))
    assert set(trained.values()) == {1}, "what was trained is not trained again"
    assert "replay" in render_tables(home / "runs" / "toy")
    assert not [line for line in lines if "Optuna" in line]
    levels = {c.run_id: {**c.factors, "seed": c.seed} for c in open_study(grown, home / "runs").cells}
    found = trials(url(home))
    assert complete(found) == everything(home) == sorted(levels) and len(found) == len(levels)
    assert all(t.params == levels[t.user_attrs["run_id"]] for t in found)
    optuna.load_study(study_name="toy", storage=url(home)).ask()  # Optuna itself finds it consistent


@pytest.mark.parametrize("started", [True, False])
def test_two_measurements_that_ended_at_one_time_leave_the_later_one(home, grid, started, tmp_path):
    """A clock that was set back, or is coarse, gives a run's second record the time of its first."""
    report = run(home, grid)
    study = open_study(grid, home / "runs")
    cell = next(c for c in study.cells if c.name == "replay")
    old = report.finished[cell.run_id]
    scores = old.eval["embedded"]
    new = dataclasses.replace(old, eval={"embedded": {**scores, "avg@2": 0.875}})
    before = dataclasses.replace(old, eval={"embedded": {**scores, "avg@2": 0.125}})
    mirror = Mirror(open_storage(f"sqlite:///{tmp_path / 'index.db'}"), study, own=True)
    for record in (before, new):
        if started:
            mirror.take(cell, None, None)
        mirror.take(cell, record, None)
        mirror.take(cell, record, None)  # told twice
    mirror.tidy()
    (trial,) = mirror.storage.get_all_trials(mirror.study_id)
    assert trial.state.name == "COMPLETE" and trial.values == [0.875]


def test_failures_stay_when_the_index_is_made_again(home, grid_values):
    grid_values |= {"seeds": [0]}
    grid = parse_grid(grid_values, "toy.yaml")
    cell = next(c for c in open_study(grid, home / "runs").cells if c.name == "replay")
    (home / "runs" / "toy" / "trouble").mkdir(parents=True)
    (home / "runs" / "toy" / "trouble" / cell.run_id).write_text("bug bug")
    run(home, grid)
    grid_values["factors"]["replay"] = ["off", "on", "literal"]
    run(home, parse_grid(grid_values, "toy.yaml"))
    states = [t.state.name for t in trials(url(home)) if t.user_attrs["run_id"] == cell.run_id]
    assert states == ["FAIL", "COMPLETE"]


@pytest.mark.parametrize("harm", ["behind", "foreign", "double", "measured again"])
def test_an_index_that_is_off_is_put_right(home, grid, harm):
    report = run(home, grid)
    run_id = everything(home)[0]
    study = optuna.load_study(study_name="toy", storage=url(home))
    mine = next(t for t in study.trials if t.user_attrs["run_id"] == run_id)
    if harm == "behind":
        kept = [t for t in study.trials if t.user_attrs["run_id"] != run_id]
        optuna.delete_study(study_name="toy", storage=url(home))
        made = optuna.create_study(study_name="toy", storage=url(home), directions=["maximize"])
        made.add_trials(kept)
    elif harm == "foreign":
        mine.user_attrs["run_id"] = "of-another-study"
        study.add_trial(mine)
    elif harm == "double":
        study.add_trial(mine)
    else:
        shutil.rmtree(home / "runs" / "toy" / run_id)
    report = run(home, grid)
    found = trials(url(home))
    check(report, found)
    assert complete(found) == everything(home) and len(found) == len(everything(home))


def test_studies_of_one_name_in_one_database_are_told_apart(home, grid):
    """Also one that is a copy of the other; a study that was moved or whose mark is lost keeps its own."""
    shared, lines = f"sqlite:///{home}/shared.db", []

    def go(folder):
        return ablate(grid, home / folder, run=run_toy, executor=InlineExecutor(), storage=shared, say=lines.append)

    reports = [go("runs"), go("others")]
    shutil.copytree(home / "runs", home / "copies")
    reports.append(go("copies"))
    names = optuna.get_all_study_names(shared)
    assert len(names) == 3 and names[0] == "toy" and all(name.startswith("toy-") for name in names[1:])
    for name, report in zip(names, reports, strict=True):
        check(report, trials(shared, name))
    (home / "others").rename(home / "moved")
    go("moved")
    (home / "runs" / "toy" / ".optuna.json").unlink()
    go("runs")
    assert optuna.get_all_study_names(shared) == names
    for name, report in zip(names, reports, strict=True):
        check(report, trials(shared, name))


URLS = (
    "postgresql+psycopg2://me:s3cretPW@127.0.0.1:9/r3",
    "postgresql+psycopg2://me:s3cret%2FPW%40@127.0.0.1:9/r3",
    "postgresql+psycopg2://me:s3cretPW@ss/w@nowhere.invalid/r3",
    "postgresql+psycopg2://127.0.0.1:9/r3?user=me&password=s3cretPW",
    "postgresql+psycopg2://me:s3cretPW@127.0.0.1:notaport/r3",
    "nosuchdriver://me:s3cretPW@h/r3",
    "postgresql+nosuchdriver://me:s3cretPW@h/r3",
    "me:s3cretPW@h/r3?password=s3cretPW",
    "://me:s3cretPW@h",
)


@pytest.mark.parametrize("storage", URLS)
def test_no_password_in_what_is_said_of_a_storage(home, grid, storage, capfd):
    lines = []
    with pytest.raises(ConfigError, match="can't be opened") as caught:
        run(home, grid, lines, storage)
    printed = capfd.readouterr()
    texts = [str(caught.value), *lines, printed.out, printed.err]
    texts += [path.read_text(errors="replace") for path in (home / "runs").rglob("*") if path.is_file()]
    assert not [text for text in texts if "s3cret" in text or "ss/w" in text]
    assert "***" in str(caught.value)


@pytest.fixture
def short(monkeypatch):
    """Limits that a test can wait for."""
    monkeypatch.setattr(index_module, "SILENCE", 1.0)
    monkeypatch.setattr(index_module, "HURRIED", (1.0, 0.5))


class Frozen:
    """A storage that stops answering after some writes, as a server that was stopped with SIGSTOP."""

    def __init__(self, monkeypatch, writes):
        self.left, self.thawed = writes, threading.Event()
        original = index_module.Mirror.take

        def take(mirror, *note):
            self.left -= 1
            if self.left < 0:
                self.thawed.wait(120)
            return original(mirror, *note)

        monkeypatch.setattr(index_module.Mirror, "take", take)


@pytest.mark.parametrize("writes", [0, 3])
def test_a_storage_that_stops_answering_holds_nothing(home, grid, monkeypatch, short, writes):
    frozen = Frozen(monkeypatch, writes)
    lines, start = [], time.monotonic()
    report = run(home, grid, lines)
    assert report.complete and time.monotonic() - start < 60
    assert re.search(r"optuna.db doesn't answer and misses \d+ entries; the next `ablate` adds them", lines[-1])
    assert holder(home / "runs" / "toy" / "study.lock") is None
    frozen.thawed.set()
    frozen.left = 1000
    for thread in threading.enumerate():  # of the first study: it has been given up, and writes what it held
        if thread.name == "optuna-index":
            thread.join(60)
    monkeypatch.setattr(index_module, "SILENCE", 60.0)  # a slow machine is no silent storage
    monkeypatch.setattr(index_module, "HURRIED", (60.0, 60.0))
    check(run(home, grid), trials(url(home)))


def test_two_signals_end_the_wait_at_once(home, grid, monkeypatch):
    frozen = Frozen(monkeypatch, 0)
    study, signals = open_study(grid, home / "runs"), [0]
    study.write()
    watcher = index_module.Index(study, None, lambda line: None, lambda: signals[0])
    watcher.started(study.cells[0])
    threading.Timer(0.5, lambda: signals.__setitem__(0, 2)).start()
    start = time.monotonic()
    watcher.__exit__()
    assert 0.3 < time.monotonic() - start < 3
    frozen.thawed.set()


def test_a_storage_that_never_answers_is_refused_at_the_start(home, grid, monkeypatch, short):
    hold = threading.Event()
    monkeypatch.setattr(index_module, "open_storage", lambda url: hold.wait(120))
    with pytest.raises(ConfigError, match=r"storage 'mysql://me:\*\*\*@h/x': can't be opened: no answer in 1 s"):
        run(home, grid, storage="mysql://me:s3cretPW@h/x")
    lines = []
    assert run(home, grid, lines).complete  # its own file, on a dead network disk
    assert any("optuna.db doesn't answer; going on without" in line for line in lines)
    hold.set()


def test_a_server_that_is_away_for_a_while_gets_what_it_missed(home, grid, monkeypatch):
    """A driver's own error in the middle, and again when the storage is opened anew."""
    fails = [3, 4, 5]  # which calls
    calls = [0]
    original = index_module.Mirror.take

    def take(mirror, *note):
        calls[0] += 1
        if calls[0] in fails:
            raise ConnectionResetError("server closed the connection unexpectedly")
        return original(mirror, *note)

    monkeypatch.setattr(index_module.Mirror, "take", take)
    lines = []
    report = run(home, grid, lines)
    check(report, trials(url(home)))
    assert sum("missed an entry: server closed the connection" in line for line in lines) >= 1


def test_the_index_on_postgresql(home, grid, postgres):
    report = run(home, grid, storage=postgres.url)
    check(report, trials(postgres.url))
    assert not (home / "runs" / "toy" / "optuna.db").exists()
    run(home, grid, storage=postgres.url)
    check(report, trials(postgres.url))


SLOW = [pytest.param(what, marks=pytest.mark.slow) for what in ("restarted", "thawed")]


@pytest.mark.parametrize("what", ["stopped", "frozen", *SLOW])
def test_a_postgresql_that_fails_in_the_middle(home, grid_values, postgres, monkeypatch, what):
    """No run suffers, nothing is held, and the index is complete after the next call."""
    monkeypatch.setattr(index_module, "SILENCE", 8.0)
    monkeypatch.setattr(index_module, "HURRIED", (8.0, 0.5))
    grid = parse_grid(grid_values | {"seeds": [0]}, "toy.yaml")
    count = [0]

    def failing(work):
        count[0] += 1
        if count[0] == 2:
            (postgres.stop if what in ("stopped", "restarted") else postgres.freeze)()
        if count[0] == 4 and what in ("restarted", "thawed"):
            time.sleep(0.3)
            (postgres.start if what == "restarted" else postgres.thaw)()
        return run_toy(work)

    lines, start = [], time.monotonic()
    report = ablate(grid, home / "runs", run=failing, executor=InlineExecutor(), storage=postgres.url, say=lines.append)
    assert report.complete and time.monotonic() - start < 60
    assert holder(home / "runs" / "toy" / "study.lock") is None
    assert not [line for line in lines if "s3cretPW" in line]
    if what in ("restarted", "thawed"):
        check(report, trials(postgres.url))
    else:
        assert re.search(r"psycopg2://r3:\*\*\*@.* misses \d entries; the next `ablate` adds them", lines[-1])
        (postgres.start if what == "stopped" else postgres.thaw)()
    assert run(home, grid, storage=postgres.url).complete
    check(report, trials(postgres.url))


SCRIPT = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import toy
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.grid import parse_grid
from r3bench.sweep.executors.inline import InlineExecutor
def run(work):
    Path("at").write_text(str(len(list(Path("runs/toy").glob("*/run.json")))))
    while not Path("go").exists():
        time.sleep(0.05)
    return toy.run_toy(work)
grid = parse_grid(json.loads(sys.argv[2]), "toy.yaml")
report = ablate(grid, Path("runs"), run=run, executor=InlineExecutor(), storage=sys.argv[3])
print("COMPLETE", report.complete, flush=True)
"""


def test_two_interrupts_end_a_dispatcher_whose_postgresql_is_frozen(home, grid_values, postgres):
    """With the limits as they are: the second Ctrl-C is the last that is needed."""
    (home / "script.py").write_text(SCRIPT)
    arguments = [str(Path(__file__).parent), json.dumps(grid_values | {"seeds": [0]}), postgres.url]
    process = subprocess.Popen([sys.executable, "script.py", *arguments], cwd=home, stdout=subprocess.PIPE, text=True)
    while not (home / "at").exists():
        time.sleep(0.05)
    postgres.freeze()
    (home / "go").touch()
    while len(everything(home)) < 5:
        time.sleep(0.05)
    time.sleep(1)
    assert process.poll() is None and holder(home / "runs" / "toy" / "study.lock")["pid"] == process.pid
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=20)
    assert "doesn't answer and misses" in output and "COMPLETE True" in output and "s3cretPW" not in output
    assert holder(home / "runs" / "toy" / "study.lock") is None
