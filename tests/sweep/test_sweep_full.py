"""No room, at every file a study writes: it pauses, gives no cell up, and the same command finishes it.

A quota is simulated (an audit hook refuses every write) and runs everywhere; a full disk and used up inodes are real,
on a tmpfs, where one can be mounted.
"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from filling import POINTS, WAYS, clear, fill, fill_at
from killing import in_child
from test_sweep_kill import outcome
from toy import run_toy
from typer.testing import CliRunner

from r3bench.cli import app
from r3bench.files import read_jsonl
from r3bench.lock import holder
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.executors.inline import InlineExecutor
from r3bench.sweep.executors.local import ForkExecutor
from r3bench.sweep.grid import parse_grid

FAST = [("record", "full"), *((point, "quota") for point in ("record", "attempts", "index", "table"))]


def quiet(line):
    pass


@pytest.fixture
def grid(home, grid_values):
    values = grid_values | {"seeds": [0], "factors": {"replay": ["off", "on"]}, "keep": "all"}
    return parse_grid(values | {"retries": {"bug": 0, "preempted": 0}}, "toy.yaml")


@pytest.fixture
def disk(tmp_path, request):
    """A folder; for what is real a tmpfs of 8 MB and 400 inodes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if "quota" in request.node.name:
        yield folder
        return
    command = ["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=400", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a tmpfs can't be mounted here (needs root)")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def go(grid, disk):
    return ablate(grid, disk, run=run_toy, executor=InlineExecutor(), say=quiet)


def command(name, disk):
    """`tables` or `report` of the study: 0, or 3 and a line that says so."""
    done = CliRunner().invoke(app, [name, str(disk / "toy"), *(["--no-figures"] if name == "report" else [])])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def whole(grid, disk, home):
    """Everything is there, as if there had always been room, and nothing is left behind."""
    calm = home / "calm"
    go(grid, calm)
    assert go(grid, disk).complete
    assert outcome(disk / "toy") == outcome(calm / "toy")
    for path in (disk / "toy").glob("*/attempts.jsonl"):
        assert not [line for line in read_jsonl(path) if line["event"] in ("failure", "gave_up")]
    import optuna

    trials = optuna.load_study(study_name="toy", storage=f"sqlite:///{disk}/toy/optuna.db").trials
    complete = sorted(t.user_attrs["run_id"] for t in trials if t.state.name == "COMPLETE")
    assert complete == sorted(path.parent.name for path in (disk / "toy").glob("*/run.json"))
    for name in ("tables", "report"):
        assert command(name, disk).exit_code == 0
    assert (disk / "toy" / "report.html").exists() and list((disk / "toy" / "tables").iterdir())
    assert not [path for path in disk.rglob("*") if path.name.endswith((".tmp", ".torn")) or "ballast" in path.name]


@pytest.mark.parametrize(
    ("point", "way"),
    [
        pytest.param(point, way, marks=[pytest.mark.slow] if (point, way) not in FAST else [])
        for point in POINTS
        for way in WAYS
    ],
)
def test_no_room_at_any_file(home, grid, disk, point, way):
    if point in ("table", "report"):
        go(grid, disk)

    def struck():
        hit = fill_at(point, disk, way)
        if point in ("table", "report"):
            done = command("tables" if point == "table" else "report", disk)
            assert done.exit_code == 3 and "r3bench: " in done.output, done.output
            assert ("No space left" if way != "quota" else "quota") in done.output, done.output
        else:
            report = go(grid, disk)
            assert not report.failed
            assert report.reason or report.complete
        assert hit[0], "never struck"

    assert in_child(struck) == 0
    assert holder(disk / "toy" / "study.lock") is None
    clear(disk)
    whole(grid, disk, home)


def run_filling(work):
    """A cell whose own print finds the disk full."""
    root = os.path.dirname(os.path.dirname(work["directory"]))
    if not os.path.exists(os.path.join(os.path.dirname(root), "filled")):
        open(os.path.join(os.path.dirname(root), "filled"), "w").close()
        fill(root, "full")
        print("a line of the user's" * 1000, flush=True)
    return run_toy(work)


def test_a_full_disk_under_the_log(home, grid, disk):
    """In a worker of its own: the print, the traceback of its failure, and the reply."""
    with ForkExecutor(preload=("toy", "test_sweep_full")) as pool:
        report = ablate(grid, disk, run=run_filling, executor=pool, slots=1, say=quiet)
    assert not report.failed and report.left and "No space left" in report.reason
    clear(disk)
    whole(grid, disk, home)


CLOCK = """
import json, os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import toy
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.grid import parse_grid
from r3bench.sweep.executors.local import ForkExecutor
def say(line):
    if line.startswith("[3/") and sys.argv[3] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
grid = parse_grid(json.loads(sys.argv[2]), "toy.yaml")
with ForkExecutor(preload=("toy",)) as pool:
    report = ablate(grid, Path("disk"), run=toy.run_toy, executor=pool, slots=2, say=say)
sys.exit(0 if report.complete else 1)
"""
LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


def same_as_calm(home, values, clock_back):
    records = [json.loads(path.read_text()) for path in (home / "disk" / "toy").glob("*/run.json")]
    ended = sorted(datetime.fromisoformat(record["ended"]) for record in records)
    assert (ended[-1] - ended[0]).total_seconds() > clock_back  # it was set back
    go(parse_grid(values, "toy.yaml"), home / "calm")
    assert outcome(home / "disk" / "toy") == outcome(home / "calm" / "toy")


@pytest.mark.slow
@pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed")
def test_a_clock_set_back_by_an_hour_while_the_dispatcher_is_away(home, grid_values):
    """Killed after three runs, gone on with an hour earlier, every process under libfaketime."""
    values = grid_values | {"keep": "all", "hang_after": 60.0}
    command = [sys.executable, "-c", CLOCK, str(Path(__file__).parent), json.dumps(values)]
    assert subprocess.run([*command, "killed"], cwd=home, check=False, timeout=300).returncode == -9
    earlier = os.environ | {"LD_PRELOAD": str(LIBRARY), "FAKETIME": "-1h"}
    subprocess.run([*command, "on"], cwd=home, env=earlier, check=True, timeout=300)
    same_as_calm(home, values, 3000)


def test_a_clock_set_back_by_an_hour_in_the_middle(home, grid_values, monkeypatch):
    """A stand-in that runs everywhere: the modules' clock jumps after the third cell, and the files' times with it."""
    from r3bench import lock
    from r3bench.sweep import attempts
    from r3bench.sweep import cell_run as worker

    back = [0.0]

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) - timedelta(seconds=back[0])

    for module in (attempts, worker, lock):
        monkeypatch.setattr(module, "datetime", Clock)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - back[0])
    count = [0]

    def run(work):
        count[0] += 1
        back[0] = 3600.0 * (count[0] > 3)
        reply = run_toy(work)
        for path in Path(work["directory"]).rglob("*"):
            os.utime(path, (real() - back[0], real() - back[0]))
        return reply

    values = grid_values | {"keep": "all"}
    with ThreadPoolExecutor(2) as pool:
        assert ablate(
            parse_grid(values, "toy.yaml"), home / "disk", run=run, executor=pool, slots=2, say=quiet
        ).complete
    back[0] = 0.0
    same_as_calm(home, values, 3000)
