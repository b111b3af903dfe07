"""The dispatcher on toy cells with real files."""

import json
import multiprocessing
import os
import shutil
import tempfile
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from killing import in_child
from toy import run_toy

from r3bench.analysis import render_tables
from r3bench.errors import StateError
from r3bench.files import read_json, read_jsonl
from r3bench.lock import Locked, exclusive
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.dispatch.dispatcher import Dispatcher
from r3bench.sweep.dispatch.index import index_file
from r3bench.sweep.executors.inline import InlineExecutor
from r3bench.sweep.grid import parse_grid
from r3bench.sweep.opening import open_study


def executions(home):
    return Counter(r["run"] for r in read_jsonl(home / "runs" / "toy" / "executions.jsonl"))


def quiet(line):
    pass


@pytest.fixture
def grid(home, grid_values):
    return parse_grid(grid_values, "toy.yaml")


def trouble(home, grid, name, words):
    """Make the first seed of the cell called `name` go wrong, once per word."""
    cell = next(c for c in open_study(grid, home / "runs").cells if c.name == name)
    path = home / "runs" / "toy" / "trouble" / cell.run_id
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(words)
    return cell


def test_every_cell_once_and_nothing_the_second_time(home, grid):
    report = ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)
    assert report.complete and len(report.finished) == 9
    record = report.finished[next(r for r in report.finished if r.startswith("replay+bonus-s1"))]
    assert record.factors == {"replay": "on", "bonus": "on"} and record.seed == 1
    base = next(r for r in report.finished.values() if r.name == "base-model")
    assert base.factors == {"base": "model"} and base.train.steps == 0 and base.eval["embedded"]["samples"] == 2
    assert len(executions(home)) == 8 and set(executions(home).values()) == {1}
    before = {p: p.stat().st_mtime_ns for p in (home / "runs").rglob("*") if p.is_file() and p.suffix != ".lock"}
    again = ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)
    after = {p: p.stat().st_mtime_ns for p in (home / "runs").rglob("*") if p.is_file() and p.suffix != ".lock"}
    assert again.complete and before == after


def test_checkpoints_go_after_a_verified_evaluation_and_the_model_stays(home, grid):
    ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)
    run = next((home / "runs" / "toy").glob("base-s0-*"))
    assert (run / "model" / "weights").exists() and not (run / "checkpoints").exists()


def test_more_samples_do_not_train_again(home, grid, grid_values):
    ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)
    grid_values["eval"] = {"samples": 4}
    report = ablate(
        parse_grid(grid_values, "toy.yaml"), home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet
    )
    assert all(r.eval["embedded"]["samples"] == 4 for r in report.finished.values())
    assert set(executions(home).values()) == {1}


@pytest.mark.parametrize(
    ("change", "again"), [({"limit": 30}, True), ({"temperature": 0.5}, True), ({"limit": 10}, False), ({}, False)]
)
def test_a_wider_or_different_measurement_is_made_and_a_smaller_one_is_there(home, grid_values, change, again):
    grid_values["eval"] = {"samples": 2, "limit": 20}
    ablate(parse_grid(grid_values, "toy.yaml"), home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)
    grid_values["eval"] |= change
    study = open_study(parse_grid(grid_values, "toy.yaml"), home / "runs")
    assert {study.state(cell)[0] for cell in study.cells} == {"to_do" if again else "finished"}


def test_a_seed_can_be_added_but_a_changed_grid_is_refused(home, grid, grid_values):
    ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)
    grid_values["seeds"] = [0, 1, 2]
    report = ablate(
        parse_grid(grid_values, "toy.yaml"), home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet
    )
    assert len(report.finished) == 13 and set(executions(home).values()) == {1}
    grid_values["set"] = {"trainer.max_steps": 7}
    with pytest.raises(StateError, match="another version of this grid"):
        ablate(parse_grid(grid_values, "toy.yaml"), home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)


def test_each_start_is_told_with_what_is_to_come_and_the_time_left(home, grid, monkeypatch):
    """Every run takes a minute by the dispatcher's clock: nothing is foretold before the first, then a minute a run."""
    now = [1000.0]
    monkeypatch.setattr("r3bench.sweep.dispatch.dispatcher.time.monotonic", lambda: now[0])

    def run(work):
        now[0] += 60.0
        return run_toy(work)

    lines = []
    ablate(grid, home / "runs", run=run, executor=InlineExecutor(), say=lines.append)
    cells = open_study(grid, home / "runs").cells
    told = [line for line in lines if line.startswith(("started", "["))]
    assert len(told) == 2 * len(cells) == 18
    for number, cell in enumerate(cells):
        start, end = told[2 * number : 2 * number + 2]
        left = 8 - number
        # the untrained model is no measure of what training takes
        foretold = "" if number < 2 else f", about {left}:00 left"
        assert start == f"started {cell.run_id} (1 running, {left} to come{foretold})"
        assert end.startswith(f"[{number + 1}/9] {cell.run_id}: embedded ")
    again = []
    ablate(grid, home / "runs", run=run, executor=InlineExecutor(), say=again.append)
    assert again == ["9 of 9 runs are finished already"]
    gone = open_study(grid, home / "runs").paths(cells[-1]).root
    shutil.rmtree(gone)
    ablate(grid, home / "runs", run=run, executor=InlineExecutor(), say=again.append)
    assert again[1] == "8 of 9 runs are finished already"
    # what earlier calls trained (a second each, by their records) tells how long the rest takes
    assert again[2].startswith(f"started {gone.name} (1 running, 0 to come, about 0:0")


def test_the_time_left_counts_runs_side_by_side(home, grid):
    from r3bench.sweep.dispatch.dispatcher import _Running

    study = open_study(grid, home / "runs")
    dispatcher = Dispatcher(study, InlineExecutor(), slots=2, say=quiet)
    dispatcher.todo.extend(study.cells[2:5])
    begun = time.monotonic() - 40
    dispatcher.running = {Future(): _Running(study.cells[0], begun=begun), Future(): _Running(study.cells[1])}
    assert dispatcher._state() == "2 running, 3 to come"
    dispatcher.lengths = [90.0, 110.0]
    # 60 + 100 s of the two, 300 of the others, on two slots
    assert dispatcher._state() in ("2 running, 3 to come, about 3:50 left", "2 running, 3 to come, about 3:49 left")
    dispatcher.todo.clear()
    assert "about 1:39 left" in dispatcher._state() or "about 1:40 left" in dispatcher._state()  # the longer one


def test_a_bug_is_retried_as_often_as_allowed_then_given_up_while_the_rest_goes_on(home, grid):
    cell = trouble(home, grid, "replay", "bug bug")
    report = ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)
    assert list(report.failed) == [cell.run_id] and report.failed[cell.run_id].kind == "bug"
    assert "ZeroDivisionError: a mistake" in report.failed[cell.run_id].message
    assert len(report.finished) == 8 and executions(home)[cell.run_id] == 2
    events = [r["event"] for r in read_jsonl(home / "runs" / "toy" / cell.run_id / "attempts.jsonl")]
    assert events == ["start", "failure", "start", "failure", "gave_up"]
    assert ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet).complete


def test_out_of_memory_halves_the_micro_batch_and_keeps_the_configuration(home, grid):
    cell = trouble(home, grid, "replay", "oom oom")
    assert ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet).complete
    run = home / "runs" / "toy" / cell.run_id
    assert [r["halvings"] for r in read_jsonl(run / "attempts.jsonl") if r["event"] == "start"] == [0, 1, 2]
    assert read_json(run / "config.json")["trainer"]["per_device_train_batch_size"] == 64


def test_diverged_is_an_outcome(home, grid):
    cell = trouble(home, grid, "bonus", "diverged")
    report = ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)
    assert report.complete
    record = report.finished[cell.run_id]
    assert record.train.outcome == "diverged" and "nan" in record.train.reason and record.eval == {}
    ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)
    assert executions(home)[cell.run_id] == 1


def test_a_full_disk_stops_the_study_and_it_goes_on_later(home, grid):
    cell = trouble(home, grid, "bonus", "disk")
    report = ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)
    assert "No space left" in report.reason and cell.run_id in report.left and not report.failed
    assert ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet).complete


def test_the_disk_floor_is_checked_before_every_start(home, grid_values):
    grid_values["disk_floor_gb"] = 1e9
    report = ablate(
        parse_grid(grid_values, "toy.yaml"), home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet
    )
    assert "below disk_floor_gb" in report.reason and len(report.left) == 9 and not executions(home)


def test_many_slots_and_a_second_dispatcher_run_each_cell_once(home, grid_values):
    grid_values["seeds"] = [0, 1, 2, 3]
    grid_values["base_model"] = False
    context = multiprocessing.get_context("fork")
    gate, outcomes = context.Barrier(2), context.Queue()
    second = context.Process(target=_dispatch, args=(home, grid_values, gate, outcomes))
    first = context.Process(target=_dispatch, args=(home, grid_values, gate, outcomes))
    first.start(), second.start()
    found = [outcomes.get(timeout=600), outcomes.get(timeout=600)]
    first.join(), second.join()
    assert "complete" in found and all(f == "complete" or "held by" in f for f in found)
    assert len(executions(home)) == 16 and set(executions(home).values()) == {1}


def _dispatch(home, values, gate, outcomes):
    os.chdir(home)
    gate.wait()
    try:
        with ThreadPoolExecutor(64) as pool:
            report = ablate(
                parse_grid(values, "toy.yaml"), home / "runs", run=run_toy, executor=pool, slots=64, say=quiet
            )
        outcomes.put("complete" if report.complete else "incomplete")
    except Locked as error:
        outcomes.put(str(error))


def test_a_second_dispatcher_is_told_who_holds_the_study(home, grid):
    (home / "runs" / "toy").mkdir(parents=True)
    with (
        exclusive(home / "runs" / "toy" / "study.lock"),
        pytest.raises(Locked, match=rf"held by process {os.getpid()}"),
    ):
        ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)


@pytest.mark.parametrize("name", ["run.json", "train.json", "config.json", "environment.json", "attempts.jsonl"])
def test_a_torn_file_is_made_again_without_training_again(home, grid, name):
    ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)
    run = next((home / "runs" / "toy").glob("replay-s0-*"))
    whole = read_json(run / "run.json")
    (run / name).write_bytes((run / name).read_bytes()[:-9])
    if name != "run.json":
        (run / "run.json").unlink()
    report = ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)
    assert report.complete
    made = read_json(run / "run.json")
    for values in (made, whole):  # the toy's log has its lines twice when it trains again
        for key in ("ended", "started", "digest", "files"):
            del values[key]
        del values["train"]["files"]
    assert made == whole
    assert executions(home)[run.name] == (2 if name == "train.json" else 1)


@pytest.mark.parametrize("harm", ["torn", "deleted"])
def test_a_torn_or_lost_study_file_is_made_again(home, grid, harm):
    ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)
    file = home / "runs" / "toy" / "study.json"
    whole = file.read_bytes()
    file.write_bytes(whole[:100]) if harm == "torn" else file.unlink()
    ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)
    assert file.read_bytes() == whole and set(executions(home).values()) == {1}


def test_a_copied_run_directory_is_ignored_beside_and_refused_in_place(home, grid):
    import shutil

    ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)
    study = home / "runs" / "toy"
    runs = sorted(study.glob("replay-s*"))
    tables = render_tables(study, "csv")
    for copy in ("copy", f"{runs[0].name} (2)"):
        shutil.copytree(runs[0], study / copy)
    assert ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet).complete
    assert list(open_study(grid, home / "runs").foreign()) == ["copy", f"{runs[0].name} (2)"]
    assert render_tables(study, "csv") == tables and set(executions(home).values()) == {1}
    shutil.rmtree(runs[1])
    shutil.copytree(runs[0], runs[1])
    with pytest.raises(StateError, match=f"is the record of {runs[0].name}, not of {runs[1].name}"):
        ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)


@pytest.fixture
def open_home(home, monkeypatch):
    """A working directory that other users can reach; pytest's own are private."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.chdir(folder)
        yield Path(folder)


def refused(grid):
    """What a user who may not write below `runs` is told by the dispatcher."""
    study = open_study(grid, Path("runs"))  # before: our own files may be private too
    read, write = os.pipe()

    def dispatch():
        if os.geteuid() == 0:  # who could write there all the same
            os.setresuid(65534, 65534, 65534)
        try:
            Dispatcher(study, InlineExecutor(), slots=1, run=run_toy, say=quiet).dispatch()
        except StateError as error:
            os.write(write, str(error).encode())

    in_child(dispatch)
    os.close(write)
    with open(read) as told:
        return told.read()


def test_a_read_only_folder_is_a_plain_error(open_home, grid):
    (open_home / "runs").mkdir()
    (open_home / "runs").chmod(0o555)
    assert refused(grid) == "runs/toy/study.lock: can't be written: Permission denied"


def test_files_of_a_study_that_became_read_only_are_a_plain_error(open_home, grid):
    """Made by someone else, say; what is finished stays."""
    ablate(grid, open_home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)
    (open_home / "runs" / "toy" / "study.lock").chmod(0o444)
    before = {p: p.read_bytes() for p in open_home.rglob("run.json")}
    assert refused(grid) == "runs/toy/study.lock: can't be written: Permission denied"
    assert before == {p: p.read_bytes() for p in open_home.rglob("run.json")} and len(before) == 9


def test_a_file_system_without_locks_is_a_plain_error(home, grid, monkeypatch):
    import errno
    import fcntl

    from r3bench.sweep.status import status

    ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)

    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "fcntl", no_locks)
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(StateError, match=r"study\.lock: can't be locked \(No locks available\)"):
        ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)
    with pytest.raises(StateError, match=r"study\.lock: can't be locked"):
        status(home / "runs" / "toy")


def test_study_json_lists_the_cells(home, grid):
    ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)
    study = json.loads((home / "runs" / "toy" / "study.json").read_text())
    assert len(study["cells"]) == 9 and study["grid"]["seeds"] == [0, 1]
    assert all((Path(home) / "runs" / "toy" / c["run_id"] / "run.json").exists() for c in study["cells"])


@pytest.fixture
def small_disk(tmp_path):
    """A tmpfs of 400 kB; skipped with a reason where it can't be mounted."""
    import subprocess

    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("a tmpfs can't be mounted here (needs root)")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_fills_up_stops_the_study_and_it_goes_on_with_space(home, grid, small_disk):
    def dispatch():
        return Dispatcher(open_study(grid, small_disk), InlineExecutor(), slots=1, run=run_toy, say=quiet).dispatch()

    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 300_000)
    report = dispatch()
    assert "No space left" in report.reason and report.left and not report.failed
    assert not list(small_disk.rglob("*.tmp"))
    finished = {p: p.read_bytes() for p in small_disk.glob("toy/*/run.json")}
    assert all(json.loads(content) for content in finished.values())
    filler.unlink()
    assert dispatch().complete
    assert all(p.read_bytes() == content for p, content in finished.items())


def test_a_disk_without_room_for_the_index_runs_the_study_without_it(home, grid_values, small_disk):
    grid = parse_grid(grid_values | {"seeds": [0], "factors": {"replay": ["off", "on"]}}, "toy.yaml")
    (small_disk / "filler").write_bytes(b"x" * (os.statvfs(small_disk).f_bavail * 4096 - 20_000))
    lines = []
    report = ablate(grid, small_disk, run=run_toy, executor=InlineExecutor(), say=lines.append)
    assert any("database or disk is full" in line and "without an Optuna index" in line for line in lines)
    assert "No space left" in report.reason and not report.failed
    (small_disk / "filler").unlink()
    lines.clear()
    assert ablate(grid, small_disk, run=run_toy, executor=InlineExecutor(), say=lines.append).complete
    assert not any("Optuna" in line for line in lines) and index_file(small_disk / "toy").stat().st_size > 100_000


def test_a_clock_set_back_changes_nothing(home, grid):
    """Files from the future: nothing compares their times with the clock."""
    trouble(home, grid, "replay", "bug")
    ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet)
    for path in (home / "runs").rglob("*"):
        os.utime(path, (4e9, 4e9))
    for run in (home / "runs" / "toy").glob("replay-s*"):
        (run / "run.json").unlink()
    with ThreadPoolExecutor(2) as pool:
        report = ablate(grid, home / "runs", run=run_toy, executor=pool, slots=2, say=quiet)
    assert report.complete and set(executions(home).values()) == {1, 2}


def test_a_read_only_file_system_is_a_plain_error(home, grid, small_disk):
    import subprocess

    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StateError, match=r"can't be written: Read-only file system"):
        ablate(grid, small_disk, run=run_toy, executor=InlineExecutor(), say=quiet)


def test_runs_that_are_removed_meanwhile_are_not_called_finished(home, grid):
    """Someone tidies up while the study runs: what is gone is made again, once, and the rest is left alone."""

    def say(line):
        if line.startswith("[3/"):  # the index may write a file into the folder while it goes: all else must go, too
            shutil.rmtree(home / "runs" / "toy", ignore_errors=True)

    report = ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=say)
    assert not report.complete and len(report.left) == 3 and "removed while the study ran" in report.reason
    assert (home / "runs" / "toy" / "study.json").exists()
    assert ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet).complete
    assert set(executions(home).values()) == {1}  # the list of executions was removed as well
