"""Machines that fail: lost fork servers, full logs and notes, closed pipes. No cell is given up for that."""

import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from toy import TOY, run_toy

from r3bench.files import no_room, read_jsonl
from r3bench.records import TrainRecord
from r3bench.sweep import attempts
from r3bench.sweep.attempts import classify
from r3bench.sweep.cell_run import run_job
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.executors import local
from r3bench.sweep.executors.inline import InlineExecutor
from r3bench.sweep.executors.local import DeviceExecutor, ForkExecutor
from r3bench.sweep.grid import parse_grid
from r3bench.sweep.opening import open_study


def quiet(line):
    pass


@pytest.fixture
def grid(home, grid_values):
    no_retries = {"bug": 0, "out_of_memory": 0, "preempted": 0, "timeout": 0}
    return parse_grid(grid_values | {"seeds": [0], "retries": no_retries}, "toy.yaml")


def trouble(home, grid, words, name="bonus"):
    cell = next(c for c in open_study(grid, home / "runs").cells if c.name == name)
    path = home / "runs" / "toy" / "trouble" / cell.run_id
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(words)
    return cell


def events(home, kind="failure"):
    files = (home / "runs" / "toy").glob("*/attempts.jsonl")
    return [record for path in files for record in read_jsonl(path) if record["event"] == kind]


def preload(home, monkeypatch, body):
    """A module that a fork server imports; `count` is how often it has been begun before."""
    (home / "preloading.py").write_text(
        "import os, signal, time\n"
        f"file = {str(home / 'imports')!r}\n"
        "count = os.path.getsize(file) if os.path.exists(file) else 0\n"
        "open(file, 'a').write('.')\n" + body
    )
    monkeypatch.syspath_prepend(home)
    return ("preloading", "toy")


@pytest.mark.parametrize(
    "number", ["SIGKILL", *(pytest.param(n, marks=pytest.mark.slow) for n in ("SIGSEGV", "SIGTERM"))]
)
def test_a_fork_server_that_is_lost_while_it_imports_costs_no_cell_anything(home, grid, monkeypatch, number):
    """Not even without retries: nothing was attempted."""
    modules = preload(home, monkeypatch, f"if count < 3: time.sleep(0.3); os.kill(os.getpid(), signal.{number})\n")
    with ForkExecutor(preload=modules) as pool:
        report = ablate(grid, home / "runs", run=run_toy, executor=pool, slots=2, say=quiet)
    assert report.complete and not events(home) and (home / "imports").stat().st_size == 4


@pytest.mark.parametrize(
    "body", ["os.kill(os.getpid(), signal.SIGKILL)", "import absent_module_of_mine", "os._exit(3)"]
)
def test_a_fork_server_that_can_not_start_pauses_the_study(home, grid, monkeypatch, body):
    modules = preload(home, monkeypatch, body + "\n")
    with ForkExecutor(preload=modules) as pool:
        report = ablate(grid, home / "runs", run=run_toy, executor=pool, slots=2, say=quiet)
    assert not report.failed and len(report.left) == 5 and "fork server" in report.reason and not events(home)
    assert (home / "imports").stat().st_size <= local.TIMES + 2  # an import error isn't tried again by this call
    with ForkExecutor(preload=("toy",)) as pool:
        assert ablate(grid, home / "runs", run=run_toy, executor=pool, slots=2, say=quiet).complete


def test_a_slow_import_is_no_hang(home, grid_values, monkeypatch):
    grid = parse_grid(grid_values | {"seeds": [0], "hang_after": 1.0, "retries": {"timeout": 0}}, "toy.yaml")
    modules = preload(home, monkeypatch, "time.sleep(4)\n")
    with ForkExecutor(preload=modules) as pool:
        report = ablate(grid, home / "runs", run=run_toy, executor=pool, slots=2, say=quiet)
    assert report.complete and not events(home)


def test_two_signals_end_a_study_whose_server_still_imports(home, grid, monkeypatch):
    modules = preload(home, monkeypatch, "time.sleep(600)\n")
    script = (
        "import sys, json\nfrom pathlib import Path\nsys.path[:0] = sys.argv[1:3]\nimport toy\n"
        "from r3bench.sweep.dispatch.ablate import ablate\nfrom r3bench.sweep.grid import parse_grid\n"
        "from r3bench.sweep.executors.local import ForkExecutor\n"
        "grid = parse_grid(json.loads(sys.argv[3]), 'toy.yaml')\n"
        f"with ForkExecutor(preload={modules!r}) as pool:\n"
        "    report = ablate(grid, Path('runs'), run=toy.run_toy, executor=pool, slots=2)\n"
        "print('LEFT', len(report.left), len(report.failed), flush=True)\n"
    )
    (home / "script.py").write_text(script)
    values = json.dumps({"name": "toy", "recipe": "quickstart", "factors": {"replay": ["off", "on"]}, "seeds": [0]})
    process = subprocess.Popen(
        [sys.executable, "script.py", str(Path(__file__).parent), str(home), values],
        cwd=home, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not (home / "imports").exists():
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert "SIGHUP received" in output and "LEFT 3 0" in output


def ending(how):
    def train(recipe, paths, quiet=False):
        if recipe.name == "bonus":
            how()
        return TOY.train(recipe, paths, quiet=quiet)

    return train


def sys_exit():
    sys.exit(0)


def interrupt():
    raise KeyboardInterrupt


def leave_at_once():
    os._exit(0)


def textless():
    class Textless(Exception):
        def __str__(self):
            raise ValueError("no text")

    raise Textless


def run_ending(work):
    how = Path(work["directory"]).parent.with_name("how").read_text()
    from dataclasses import replace

    return run_job(work, replace(TOY, train=ending(globals()[how])))


ENDINGS = ("sys_exit", "interrupt", "leave_at_once", "textless")
EVERYWHERE = itertools.product(("fork", "process", "inline"), ENDINGS)
AT_ONCE = [
    *itertools.product(["fork"], ENDINGS),
    ("process", "leave_at_once"),
    ("inline", "sys_exit"),
    ("inline", "interrupt"),
]


@pytest.mark.parametrize(
    ("where", "how"), [case if case in AT_ONCE else pytest.param(*case, marks=pytest.mark.slow) for case in EVERYWHERE]
)
def test_an_exit_of_the_users_code_is_a_bug_and_not_tried_again(home, grid_values, where, how):
    if (where, how) == ("inline", "leave_at_once"):
        pytest.skip("would end this process")
    grid = parse_grid(grid_values | {"seeds": [0], "retries": {"bug": 0, "preempted": 10}}, "toy.yaml")
    (home / "runs").mkdir()
    (home / "runs" / "how").write_text(how)
    made = {
        "fork": lambda: ForkExecutor(preload=("toy", "test_sweep_machines")),
        "process": lambda: DeviceExecutor(["", ""]),
        "inline": InlineExecutor,
    }
    with made[where]() as pool:
        report = ablate(grid, home / "runs", run=run_ending, executor=pool, slots=2, say=quiet)
    assert [failure.kind for failure in report.failed.values()] == ["bug"]
    assert len(report.finished) == 4 and len(events(home)) == 1 and not report.interrupted


def test_an_exit_in_a_run_of_its_own_is_an_error(home, monkeypatch):
    from dataclasses import replace

    from r3bench.config.load import parse_recipe
    from r3bench.sweep.cell_run import run_cell

    with pytest.raises(RuntimeError, match=r"sys.exit\(0\) was called in a component, a reward or a task"):
        run_cell(parse_recipe({"name": "bonus"}, "r"), home / "run", steps=replace(TOY, train=ending(sys_exit)))


FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")


@FULL
@pytest.mark.parametrize("where", ["fork", "process"])
def test_a_full_log_takes_nothing_from_a_failure(home, grid, where):
    """A cell whose log can't be written and that fails by itself is known by its own failure."""
    cell = trouble(home, grid, "bug")
    root = home / "runs" / "toy" / cell.run_id
    root.mkdir()
    (root / "log.txt").symlink_to("/dev/full")
    with ForkExecutor(preload=("toy",)) if where == "fork" else DeviceExecutor(["", ""]) as pool:
        report = ablate(grid, home / "runs", run=run_toy, executor=pool, slots=2, say=quiet)
    assert report.failed[cell.run_id].kind == "bug" and "ZeroDivisionError" in report.failed[cell.run_id].message
    assert len(report.finished) == 4


def run_printing(work):
    print("a line of the user's" * 1000, flush=True)
    return run_toy(work)


def no_room_to_note(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "attempts.jsonl")


def run_noteless(work):
    """The note of the start finds no room, in the cell `bonus` and as long as a file says so."""
    if work["recipe"]["name"] == "bonus" and Path(work["directory"]).parent.with_name("full").exists():
        attempts.append_jsonl = no_room_to_note
    return run_toy(work)


@FULL
@pytest.mark.parametrize("what", ["print", "note"])
@pytest.mark.parametrize("where", ["fork", "process"])
def test_a_full_disk_under_a_cells_own_lines_pauses_the_study(home, grid, where, what):
    """The cell's print, the note of its start; nothing is given up."""
    cell = next(c for c in open_study(grid, home / "runs").cells if c.name == "bonus")
    root = home / "runs" / "toy" / cell.run_id
    root.mkdir(parents=True)
    if what == "print":
        (root / "log.txt").symlink_to("/dev/full")
    else:
        (home / "runs" / "full").touch()
    run = run_printing if what == "print" else run_noteless
    modules = ("toy", "test_sweep_machines")
    with ForkExecutor(preload=modules) if where == "fork" else DeviceExecutor(["", ""]) as pool:
        report = ablate(grid, home / "runs", run=run, executor=pool, slots=2, say=quiet)
    assert not report.failed and cell.run_id in report.left and "No space left" in report.reason
    (root / "log.txt" if what == "print" else home / "runs" / "full").unlink()
    with ForkExecutor(preload=modules) as pool:
        assert ablate(grid, home / "runs", run=run, executor=pool, slots=2, say=quiet).complete


def test_a_dispatcher_that_can_not_note_a_failure_pauses(home, grid, monkeypatch):
    """The worker died; the note that it did finds no room."""

    def run(work):
        if work["recipe"]["name"] == "bonus":
            monkeypatch.setattr(attempts, "append_jsonl", no_room_to_note)
            raise ZeroDivisionError("a mistake")
        return run_toy(work)

    report = ablate(grid, home / "runs", run=run, executor=InlineExecutor(), say=quiet)
    assert not report.failed and report.left and "No space left" in report.reason
    monkeypatch.undo()
    assert ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet).complete


QUOTAS = {
    "quota": lambda: OSError(errno.EDQUOT, "Disk quota exceeded"),
    "wrapped": lambda: _chained(ValueError("can't save"), OSError(errno.ENOSPC, "No space left on device")),
    "during": lambda: _during(OSError(errno.EDQUOT, "Disk quota exceeded")),
    "words": lambda: Exception("Error while writing: No space left on device (os error 28)"),
    "arrow": lambda: OSError("[Errno 28] Error writing bytes to file. Detail: No space left on device"),
    "sqlite": lambda: RuntimeError("(sqlite3.OperationalError) database or disk is full"),
}


def _chained(error, cause):
    error.__cause__ = cause
    return error


def _during(first):
    try:
        try:
            raise first
        except OSError:
            raise KeyError("state")  # noqa: B904, with the first as its context
    except KeyError as error:
        return error


@pytest.mark.parametrize("name", QUOTAS)
def test_no_room_is_recognised_through_what_wraps_it(name):
    assert no_room(QUOTAS[name]()) and classify(QUOTAS[name]()).kind == "disk"


def test_quotas_pause_a_study_and_the_same_command_finishes_it(home, grid):
    for make in QUOTAS.values():
        count = [0]

        def run(work, make=make, count=count):
            count[0] += 1
            if count[0] == 2:
                raise make()
            return run_toy(work)

        report = ablate(grid, home / "runs", run=run, executor=InlineExecutor(), say=quiet)
        assert not report.failed and not events(home)
        assert report.complete or report.reason
    assert ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=quiet).complete


STREAMS = """
import sys, json, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import toy
from r3bench.streams import steady
from r3bench.commands.options import progress
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.grid import parse_grid
from r3bench.sweep.executors.local import ForkExecutor
steady()
print("first", flush=True)
time.sleep(0.5)
say = progress(False) if sys.argv[3] == "stderr" else print
with ForkExecutor(preload=("toy",)) as pool:
    grid = parse_grid(json.loads(sys.argv[2]), "toy.yaml")
    report = ablate(grid, Path("runs"), run=toy.run_toy, executor=pool, say=say)
print("x" * 100_000)
Path("end").write_text(str(report.complete))
"""


ENDINGS = ("2>&1 | head -1", "2>&1 | true", ">&- 2>&-", "2>/dev/full", "2>&- | head -1")
CLOSED = [(say, ending) for ending in ENDINGS for say in ("stdout", "stderr")]


@pytest.mark.parametrize(
    ("say", "ending"),
    [pytest.param(*case, marks=[] if n in (1, 4) else [pytest.mark.slow]) for n, case in enumerate(CLOSED)],
)
def test_a_closed_output_never_ends_a_sweep(home, grid_values, ending, say):
    (home / "script.py").write_text(STREAMS)
    values = json.dumps(grid_values | {"seeds": [0], "base_model": False})
    words = [sys.executable, "script.py", str(Path(__file__).parent), values, say]
    command = " ".join(f"'{word}'" for word in words)
    subprocess.run(["bash", "-c", f"{command} {ending}; exit ${{PIPESTATUS[0]}}"], cwd=home, check=True)
    for _ in range(100):  # `true` doesn't wait
        if (home / "end").exists():
            break
        time.sleep(0.1)
    assert (home / "end").read_text() == "True"


def shell(home, command):
    return subprocess.run(["bash", "-c", command], cwd=home, capture_output=True, text=True, check=False)


def test_a_result_that_finds_no_room_is_an_error(home):
    """Unlike progress: what is lost there is the result."""
    script = "from r3bench import cli\nimport sys\nsys.argv[1:] = ['list', 'recipes']\ncli.main()\n"
    (home / "script.py").write_text(script)
    if Path("/dev/full").exists():
        done = shell(home, f"'{sys.executable}' script.py > /dev/full")
        assert done.returncode == 3 and "No space left on device" in done.stderr and "Traceback" not in done.stderr
    done = shell(home, f"'{sys.executable}' script.py | true; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (0, "")


SILENT = TrainRecord("finished", None, 2, 200, 1.0, "toy", 2)  # of a rank that writes nothing


def run_slowly(work):
    """Ranks that wait for each other's end, as at a collective; the first attempts say so and are killed."""
    folder = Path(work["directory"])
    words = folder.parent.with_name("how")
    how = words.read_text() if words.exists() else "wait"

    def train(recipe, paths, quiet=False):
        attempt = len(list(folder.parent.glob("rank-0-*")))
        rank = os.environ["RANK"]
        (folder.parent / f"rank-{rank}-{os.getpid()}").touch()
        if how == "leave_at_once" and rank == "1":
            os._exit(0)
        if attempt < 2 or how == "leave_at_once":
            time.sleep(60 if how == "wait" else 5)
            raise RuntimeError("connection closed by peer")
        return TOY.train(recipe, paths, quiet=quiet) if rank == "0" else SILENT

    from dataclasses import replace

    return run_job(work, replace(TOY, train=train))


def two_ranks(home, grid_values, how):
    values = {"seeds": [0], "factors": {"replay": ["off", "on"]}, "base_model": False}
    grid = parse_grid(grid_values | values | {"retries": {"bug": 0, "preempted": 10}}, "toy.yaml")
    (home / "runs").mkdir()
    (home / "runs" / "how").write_text(how)
    return grid


@pytest.mark.slow
def test_killed_ranks_and_launchers_of_torchrun_are_lost_attempts(home, grid_values):
    grid = two_ranks(home, grid_values, "wait")
    killed = []

    def kill():
        """One rank, then the launcher of the next attempt."""
        for part in ("r3bench.sweep.executors.child", "torch.distributed.run"):
            before = set((home / "runs" / "toy").glob("rank-*"))
            while len(set((home / "runs" / "toy").glob("rank-*")) - before) < 2:
                time.sleep(0.1)
            for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
                words = cmdline.read_bytes().decode(errors="replace") if cmdline.exists() else ""
                environment = cmdline.with_name("environ").read_bytes() if part in words else b""
                rank = part != "r3bench.sweep.executors.child" or b"RANK=" in environment
                if part in words and rank and str(os.readlink(cmdline.with_name("cwd"))) == str(home):
                    os.kill(int(cmdline.parent.name), signal.SIGKILL)
                    killed.append(part)
                    break

    import threading

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    with DeviceExecutor(["", ""], gpus_per_cell=2) as pool:
        report = ablate(grid, home / "runs", run=run_slowly, executor=pool, slots=1, say=quiet)
    assert report.complete and len(killed) == 2
    assert {record["kind"] for record in events(home)} == {"preempted"}


@pytest.mark.slow
def test_a_rank_that_leaves_at_once_is_a_bug(home, grid_values):
    """torchrun takes it for a finished one; the other only sees that its peer is gone."""
    grid = two_ranks(home, grid_values, "leave_at_once")
    with DeviceExecutor(["", ""], gpus_per_cell=2) as pool:
        report = ablate(grid, home / "runs", run=run_slowly, executor=pool, slots=1, say=quiet)
    assert {failure.kind for failure in report.failed.values()} == {"bug"} and len(report.failed) == 2
    assert all("os._exit(0) was called in a rank" in failure.message for failure in report.failed.values())
