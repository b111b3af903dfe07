"""Hangs, crashes, kills and forks cost the answer they concern and nothing else."""

import atexit
import os
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from r3bench.errors import StateError
from r3bench.grading import Grader
from r3bench.grading import pool as pool_module
from r3bench.grading.worker import MEMORY

HANG = r"\boxed{9^{9^{9^{9^{9}}}}}"
SLOW = r"\boxed{\sum_{n=1}^{10^{12}} \frac{1}{n^{3}+\sqrt{n}}}"


def test_a_hang_costs_its_time_out_and_the_rest_is_graded():
    responses = [
        HANG,
        r"\boxed{\frac{2}{4}}",
        HANG.replace("9", "8"),
        r"\boxed{2/3}",
        r"\boxed{\sqrt{4}}",
        r"\boxed{1}",
    ]
    golds = ["3", r"\frac{1}{2}", "3", r"\frac{1}{2}", "2", "1"]
    with Grader(timeout=0.5, workers=2) as grader:
        verdicts = grader.grade(responses, golds)
        assert [v.timed_out for v in verdicts] == [True, False, True, False, False, False]
        assert [v.correct for v in verdicts] == [False, True, False, False, True, True]
        assert grader.timeouts == 2
        # the pool is whole again
        assert grader.grade([r"\boxed{\sqrt{9}}"], ["3"])[0].correct


def test_the_time_out_is_cpu_time_of_one_answer():
    with Grader(timeout=0.5, workers=1) as grader:
        grader.grade([r"\boxed{\sqrt{9}}"], ["3"])  # started
        before = os.times().children_user + os.times().children_system
        grader.grade([HANG, HANG, HANG], ["3", "3", "3"])  # equal answers are graded once
        spent = os.times().children_user + os.times().children_system - before
    assert grader.timeouts == 3
    assert spent < 4  # the start of the worker, its one budget of 0.5 s, and slack


def test_every_item_of_a_long_batch_gets_its_own_verdict():
    responses = [rf"\boxed{{\sqrt{{{i * i + 2 * i + 1}}}}}" for i in range(60)]
    golds = [str(i) if i % 2 else str(i + 1) for i in range(60)]
    with Grader(workers=2) as grader:
        verdicts = grader.grade(responses, golds)
    assert [v.correct for v in verdicts] == [i % 2 == 0 for i in range(60)]


def test_a_killed_worker_is_replaced():
    with Grader(workers=1) as grader:
        assert grader.grade([r"\boxed{\sqrt{9}}"], ["3"])[0].correct
        (pid,) = grader._pool._processes
        os.kill(pid, signal.SIGKILL)
        verdict = grader.grade([r"\boxed{\sqrt{16}}"], ["4"])[0]
        assert verdict.correct and not verdict.timed_out
        assert grader.grade([r"\boxed{\sqrt{25}}"], ["5"])[0].correct


def test_memory_is_bounded():
    with Grader(workers=1) as grader:
        grader.grade([r"\boxed{\sqrt{9}}"], ["3"])
        (pid,) = grader._pool._processes
        assert resource.prlimit(pid, resource.RLIMIT_AS)[0] <= MEMORY


def test_no_process_for_what_spelling_settles():
    with Grader() as grader:
        verdicts = grader.grade(
            [r"\boxed{27}", r"\boxed{26}", r"\boxed{\dfrac{2}{4}}", r"\boxed{1/3}", "none"],
            ["27", "27", r"\frac12", "0.5", "1"],
        )
        assert [v.correct for v in verdicts] == [True, False, True, False, False]
        assert not grader._pool._processes


def test_close_ends_the_processes_and_they_do_not_outlive_a_killed_parent(tmp_path):
    with Grader(workers=2) as grader:
        grader.grade([r"\boxed{\sqrt{9}}", r"\boxed{\sqrt{16}}"], ["3", "4"])
        pids = list(grader._pool._processes)
        assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)

    script = (
        "import time\nfrom r3bench.grading import Grader\ng = Grader(workers=1)\n"
        r"g.grade([r'\boxed{\sqrt{9}}'], ['3'])"
        "\nprint(*g._pool._processes, flush=True)\ntime.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for _ in range(3000):
        if not Path(f"/proc/{worker}").exists():
            break
        time.sleep(0.02)
    assert not Path(f"/proc/{worker}").exists()


def test_a_worker_that_cannot_start_is_an_error(monkeypatch):
    monkeypatch.setattr(pool_module.sys, "executable", "/bin/false")
    with Grader() as grader, pytest.raises(StateError, match="while starting"):
        grader.grade([r"\boxed{\sqrt{9}}"], ["3"])


def test_a_file_of_the_users_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "sympy.py").write_text("raise RuntimeError")
    (tmp_path / "json.py").write_text("raise RuntimeError")
    monkeypatch.chdir(tmp_path)
    with Grader() as grader:
        assert grader.grade([r"\boxed{\sqrt{9}}"], ["3"])[0].correct


def test_a_fork_that_exits_leaves_the_parents_workers_alone():
    with Grader(workers=1) as grader:
        grader.grade([r"\boxed{\sqrt{9}}"], ["3"])
        (worker,) = grader._pool._processes
        pid = os.fork()
        if pid == 0:
            atexit._run_exitfuncs()
            os._exit(0)
        os.waitpid(pid, 0)
        assert grader.grade([r"\boxed{\sqrt{16}}"], ["4"])[0].correct
        assert list(grader._pool._processes) == [worker]


def test_several_threads_share_a_grader():
    with Grader(workers=2) as grader, ThreadPoolExecutor(4) as threads:
        jobs = [
            threads.submit(grader.grade, [rf"\boxed{{\sqrt{{{n * n}}}}}", r"\boxed{\sqrt{3}}"], [str(n)] * 2)
            for n in range(2, 12)
        ]
        assert all([v.correct for v in job.result()] == [True, False] for job in jobs)


def test_after_a_fork_the_child_has_its_own_workers():
    with Grader(workers=1) as grader:
        grader.grade([r"\boxed{\sqrt{9}}"], ["3"])
        pid = os.fork()
        if pid == 0:
            right = grader.grade([r"\boxed{\sqrt{16}}"], ["4"])[0].correct
            grader.close()
            os._exit(0 if right else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert grader.grade([r"\boxed{\sqrt{25}}"], ["5"])[0].correct


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_kill_from_outside_changes_no_verdict(number):
    """Of a process that waits between two batches."""
    with Grader(timeout=30.0, workers=1) as grader:
        assert grader.grade([r"\boxed{\sqrt{9}}"], ["3"])[0].correct
        (process,) = pool_of(grader)._processes.values()
        os.kill(process.pid, number)
        time.sleep(0.2)
        verdict = grader.grade([r"\boxed{\sqrt{16}}"], ["4"])[0]
        assert verdict.correct and "crashed" not in verdict.reason


def pool_of(grader):
    return next(value for value in vars(grader).values() if isinstance(value, pool_module.Pool))


def test_processes_that_are_killed_again_and_again_are_the_machines_failure(monkeypatch):
    from r3bench.errors import Lost

    pool = pool_module.Pool(5.0, 1)
    original = pool._start

    def start():
        worker = original()
        worker.process.kill()
        return worker

    monkeypatch.setattr(pool, "_start", start)
    with pytest.raises(Lost, match="killed by SIGKILL 5 times"):
        pool.run([("1", "1")])
    monkeypatch.undo()
    assert pool.run([("1", "1")])[0][0]
    pool.close()
