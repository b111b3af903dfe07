"""Worker processes: forked and separate, dying, hanging, drained."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from toy import run_toy

from r3bench.files import read_jsonl
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.executors.local import DeviceExecutor, ForkExecutor
from r3bench.sweep.grid import parse_grid
from r3bench.sweep.opening import open_study

PRELOAD = ("toy",)
HANG = 600  # seconds after which what never happens is given up


def quiet(line):
    pass


def executors():
    return {"fork": lambda: ForkExecutor(preload=PRELOAD), "process": lambda: DeviceExecutor(["", ""])}


@pytest.fixture(params=["fork", "process"])
def executor(request):
    with executors()[request.param]() as made:
        yield made


def executions(home):
    return Counter(r["run"] for r in read_jsonl(home / "runs" / "toy" / "executions.jsonl"))


def trouble(home, grid, name, words):
    cell = next(c for c in open_study(grid, home / "runs").cells if c.name == name)
    path = home / "runs" / "toy" / "trouble" / cell.run_id
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(words)
    return cell


def test_deaths_bugs_and_hangs_of_workers(home, grid_values, executor):
    grid_values |= {"hang_after": 4.0, "seeds": [0]}
    grid = parse_grid(grid_values, "toy.yaml")
    died = trouble(home, grid, "replay", "die")
    hung = trouble(home, grid, "bonus", "hang")
    broken = trouble(home, grid, "base", "bug bug")
    report = ablate(grid, home / "runs", run=run_toy, executor=executor, slots=2, say=quiet)
    assert list(report.failed) == [broken.run_id] and len(report.finished) == 4
    attempts = {c.run_id: read_jsonl(home / "runs" / "toy" / c.run_id / "attempts.jsonl") for c in (died, hung, broken)}
    kinds = {run: [r["kind"] for r in lines if r["event"] == "failure"] for run, lines in attempts.items()}
    assert kinds == {died.run_id: ["preempted"], hung.run_id: ["timeout"], broken.run_id: ["bug", "bug"]}
    assert "ZeroDivisionError" in (home / "runs" / "toy" / broken.run_id / "log.txt").read_text()
    assert "_go_wrong" in (home / "runs" / "toy" / hung.run_id / "log.txt").read_text()  # the stack dump


SCRIPT = """
import sys, json
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import toy
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.grid import parse_grid
from r3bench.sweep.executors.local import ForkExecutor
if __name__ == "__main__":
    grid = parse_grid(json.loads(sys.argv[2]), "toy.yaml")
    with ForkExecutor(preload=("toy",)) as pool:
        report = ablate(grid, Path("runs"), run=getattr(toy, sys.argv[3]), executor=pool, slots=4)
    print("LEFT", len(report.left), report.reason, flush=True)
"""


def _dispatcher(home, values, run="run_toy"):
    import json

    (home / "script.py").write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, "script.py", str(Path(__file__).parent), json.dumps(values), run],
        cwd=home,
        stdout=subprocess.PIPE,
        text=True,
    )


def _wait_for(condition, seconds=HANG):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "never happened"
        time.sleep(0.05)


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_ended_dispatcher_leaves_no_process_and_goes_on_when_started_again(home, grid_values, number):
    grid_values |= {"seeds": [0]}
    grid = parse_grid(grid_values, "toy.yaml")
    hung = trouble(home, grid, "bonus", "hang")
    process = _dispatcher(home, grid_values)
    log = home / "runs" / "toy" / hung.run_id / "attempts.jsonl"
    _wait_for(
        lambda: (
            any(r["event"] == "start" for r in read_jsonl(log))
            and len(list((home / "runs").glob("toy/*/run.json"))) == 4
        )
    )
    worker = read_jsonl(log)[0]["pid"]
    process.send_signal(number)
    output, _ = process.communicate(timeout=HANG)
    _wait_for(lambda: not _alive(worker))
    if number == signal.SIGTERM:
        assert "LEFT 1 SIGTERM received" in output and process.returncode == 0
    with ForkExecutor(preload=PRELOAD) as pool:
        assert ablate(grid, home / "runs", run=run_toy, executor=pool, slots=2, say=quiet).complete
    assert executions(home)[hung.run_id] == 2 and sum(executions(home).values()) == 5


def _ignores(pid, number):
    lines = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(lines["SigIgn"], 16) >> (number - 1) & 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_waits_for_running_cells_and_the_second_kills_them(home, grid_values, number):
    grid_values |= {"seeds": [0], "base_model": False, "retries": {"preempted": 0}}
    grid = parse_grid(grid_values, "toy.yaml")
    cell = trouble(home, grid, "bonus", "stubborn")
    process = _dispatcher(home, grid_values)
    log = home / "runs" / "toy" / cell.run_id / "attempts.jsonl"
    _wait_for(lambda: read_jsonl(log) and len(list((home / "runs").glob("toy/*/run.json"))) == 3)
    worker = read_jsonl(log)[0]["pid"]
    _wait_for(lambda: _ignores(worker, signal.SIGTERM))
    process.send_signal(number)
    time.sleep(1.5)
    assert process.poll() is None and _alive(worker)
    process.send_signal(number)
    output, _ = process.communicate(timeout=HANG)
    assert "LEFT 1 SIG" in output and not _alive(worker)
    assert [line["event"] for line in read_jsonl(log)] == ["start"]  # killed on request: no failure
    with ForkExecutor(preload=PRELOAD) as pool:
        assert ablate(grid, home / "runs", run=run_toy, executor=pool, slots=2, say=quiet).complete


def test_a_cell_that_had_its_record_when_it_was_killed_is_finished(home, grid_values):
    grid_values |= {"seeds": [0, 1], "base_model": False}  # which would be measured first and alone
    process = _dispatcher(home, grid_values, "run_lingering")
    _wait_for(lambda: len(list((home / "runs").glob("toy/*/run.json"))) == 4)  # of 8 cells, as many as slots
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert "LEFT 4 SIGTERM received" in output and "[4/8]" in output


def test_a_lost_fork_server_is_started_again(home, grid_values):
    grid = parse_grid(grid_values, "toy.yaml")
    with ForkExecutor(preload=PRELOAD) as pool:
        first = pool._running_server()
        os.kill(first.pid, signal.SIGKILL)
        assert ablate(grid, home / "runs", run=run_toy, executor=pool, slots=4, say=quiet).complete


@pytest.mark.slow
def test_a_cell_with_two_processes_under_torchrun(home, grid_values):
    """Every rank trains; one locks, evaluates and writes. A failure of any rank is the cell's."""
    grid_values |= {"seeds": [0], "base_model": False, "factors": {"replay": ["off", "on"]}}
    grid = parse_grid(grid_values, "toy.yaml")
    broken = trouble(home, grid, "replay", "always")
    with DeviceExecutor(["", ""], gpus_per_cell=2) as pool:
        assert pool.slots == 1
        report = ablate(grid, home / "runs", run=run_toy, executor=pool, slots=1, say=quiet)
    assert list(report.failed) == [broken.run_id] and "ZeroDivisionError" in report.failed[broken.run_id].message
    (whole,) = report.finished
    assert executions(home)[whole] == 2  # one per rank
    assert len(read_jsonl(home / "runs" / "toy" / whole / "attempts.jsonl")) == 1


def test_gpus_are_found_and_shared_out(monkeypatch):
    from r3bench.devices import gpu_ids
    from r3bench.errors import ConfigError
    from r3bench.sweep.executors.choose import make_executor
    from r3bench.sweep.grid import ExecutorSection

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0, 2,5,7,9")
    assert gpu_ids() == ["0", "2", "5", "7", "9"]
    pool, slots = make_executor(ExecutorSection(gpus=2))
    assert slots == 2 and sorted([pool._free.get(), pool._free.get()]) == ["0,2", "5,7"]
    with pytest.raises(ConfigError, match="at most the 5 GPUs"):
        make_executor(ExecutorSection(gpus=8))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu_ids() == []
