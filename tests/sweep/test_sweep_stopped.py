"""A job that is told to stop (SLURM's warning before the time limit) saves, ends, and goes on without a failure."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from toy import QUESTIONS, TOY, toy_evaluate, toy_train

pytest.importorskip("submitit", reason="submitit is not installed")

from r3bench.errors import Interrupted
from r3bench.files import append_jsonl, read_jsonl
from r3bench.sweep.cell_run import Steps, run_job
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.executors.slurm import SlurmExecutor, warning_before
from r3bench.sweep.grid import ExecutorSection, parse_grid

PATIENCE = 600  # seconds until a test that waits in vain fails


def told(paths, ranks=1):
    """Tell the test that this process is ready for its signal, one of `ranks` that are, then wait for it."""
    pids = [os.getpid()]
    if "WORLD_SIZE" in os.environ:  # SLURM signals all of a job's processes: itself, torchrun's agent, the ranks
        agent = os.getppid()
        pids += [agent, int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1])]
    append_jsonl(paths.root.parent / "ready.jsonl", {"pids": pids, "ranks": ranks})
    time.sleep(PATIENCE)


def patient_train(recipe, paths, quiet=False):
    """Saves and stops like real training when it gets SIGTERM; resumes from its checkpoint."""
    if not (paths.checkpoints / "checkpoint-1").exists():

        def save(number, frame):
            (paths.checkpoints / "checkpoint-1").mkdir(parents=True, exist_ok=True)
            raise Interrupted("stopped at step 1 and saved")

        before = signal.signal(signal.SIGTERM, save)
        try:
            told(paths, int(os.environ.get("WORLD_SIZE", "1")))
        finally:
            signal.signal(signal.SIGTERM, before)
    return toy_train(recipe, paths, quiet)


def patient_evaluate(model, section, out, *, default_max_tokens, quiet=False):
    """Is told to stop with half of the answers stored."""
    found = toy_evaluate(model, section, out, default_max_tokens=default_max_tokens)
    if not (out / "embedded" / "half").exists():
        (out / "embedded" / "half").touch()
        (out / "embedded" / "repeat-1.parquet").unlink()
        from r3bench.records import RunPaths

        told(RunPaths(out.parent))
    return found


def stubborn_train(recipe, paths, quiet=False):
    """Never gets anywhere."""
    told(paths)


def patient(work):
    return run_job(work, Steps(patient_train, toy_evaluate, TOY.environment, TOY.start_model))


def patient_later(work):
    return run_job(work, Steps(toy_train, patient_evaluate, TOY.environment, TOY.start_model))


def stubborn(work):
    return run_job(work, Steps(stubborn_train, toy_evaluate, TOY.environment, TOY.start_model))


SCRIPT = """
import contextlib, os, signal, sys, time
from pathlib import Path
from r3bench.files import read_jsonl
done = []
while True:
    lines = read_jsonl(Path(sys.argv[1]))
    while lines and len(lines) >= lines[0]["ranks"]:
        together, lines = lines[:lines[0]["ranks"]], lines[lines[0]["ranks"]:]
        if (last := together[-1]["pids"]) in done:
            continue
        done.append(last)
        pids = sorted({pid for line in together for pid in line["pids"]})
        for pid in pids * 2:  # srun passes on what it gets as well
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR2)
            time.sleep(0.02)
    time.sleep(0.05)
"""


def study(home, values, run, monkeypatch, gpus=1, preempted=0):
    """Run one cell as a submitit job on this machine; each time it waits it gets SIGUSR2, as SLURM sends it."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    values |= {"seeds": [0], "base_model": False, "factors": {"replay": ["off", "on"]}, "design": "list"}
    values |= {"cells": [{"replay": "on"}], "retries": {"preempted": preempted}}
    grid = parse_grid(values, "toy.yaml")
    ready = home / "runs" / "toy" / "ready.jsonl"
    warner = subprocess.Popen([sys.executable, "-c", SCRIPT, str(ready)])
    lines = []
    try:
        with SlurmExecutor(ExecutorSection(kind="slurm", gpus=gpus), cluster="local", poll=0.1) as pool:
            report = ablate(grid, home / "runs", run=run, executor=pool, slots=1, say=lines.append)
    finally:
        warner.kill()
        warner.wait()
    (attempts,) = (home / "runs" / "toy").glob("replay-s0-*/attempts.jsonl")
    return report, [line["event"] for line in read_jsonl(attempts)], lines


def test_training_that_is_warned_saves_and_goes_on(home, grid_values, monkeypatch):
    report, events, lines = study(home, grid_values, patient, monkeypatch)
    assert report.complete and events == ["start", "stopped", "start"]  # though no retries are allowed
    assert any("asked to stop from outside; it has saved and goes on" in line for line in lines)


def test_evaluation_that_is_warned_keeps_its_answers_and_goes_on(home, grid_values, monkeypatch):
    report, events, _ = study(home, grid_values, patient_later, monkeypatch)
    assert report.complete and events == ["start", "stopped", "start"]
    assert next(iter(report.finished.values())).eval["embedded"]["questions"] == QUESTIONS
    assert len(read_jsonl(home / "runs" / "toy" / "executions.jsonl")) == 1  # trained once


def test_a_job_that_gets_no_further_between_two_warnings_is_a_failure(home, grid_values, monkeypatch):
    report, events, _ = study(home, grid_values, stubborn, monkeypatch, preempted=1)
    (failure,) = report.failed.values()
    assert failure.kind == "preempted" and "before it got any further" in failure.message
    assert events == ["start", "stopped", "failure", "start", "stopped", "failure", "gave_up"]


@pytest.mark.slow
def test_a_job_of_several_processes_passes_the_warning_on(home, grid_values, monkeypatch):
    report, events, _ = study(home, grid_values, patient, monkeypatch, gpus=2)
    assert report.complete and events == ["start", "stopped", "start"]


@pytest.mark.slow
def test_an_evaluation_after_training_on_several_processes_keeps_its_answers(home, grid_values, monkeypatch):
    report, events, _ = study(home, grid_values, patient_later, monkeypatch, gpus=2)
    assert report.complete and events == ["start", "stopped", "start"]


def test_the_warning_leaves_time_to_save_and_time_to_work():
    assert [warning_before(minutes) for minutes in ("1-00:00", 1440, 40, 10, 1)] == [600, 600, 600, 150, 15]
    spelled = ("5", "5:00", "00:05:00", "0-0:5", "1-0", "UNLIMITED")  # as SLURM takes them
    assert [warning_before(limit) for limit in spelled] == [75, 75, 75, 75, 600, 600]
    from submitit.slurm.slurm import _make_sbatch_string

    script = _make_sbatch_string(command="x", folder="x", signal_delay_s=warning_before())
    assert "--time=5\n" in script and "USR2@75" in script  # a job that names no limit isn't warned at its start
