"""Cells as jobs: through submitit's local executor, and on a one-node SLURM where one can be brought up."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from toy import run_toy

pytest.importorskip("submitit", reason="submitit is not installed")

from r3bench.files import read_json, read_jsonl
from r3bench.records import RunPaths
from r3bench.sweep.cell_run import run_cell
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.executors.slurm import SlurmExecutor
from r3bench.sweep.grid import ExecutorSection, parse_grid
from r3bench.sweep.opening import open_study


def test_a_study_of_jobs_with_a_bug_and_a_death(home, grid_values, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    grid_values |= {"seeds": [0], "base_model": False}
    grid = parse_grid(grid_values, "toy.yaml")
    cells = {c.name: c for c in open_study(grid, home / "runs").cells}
    (home / "runs" / "toy" / "trouble").mkdir(parents=True)
    (home / "runs" / "toy" / "trouble" / cells["replay"].run_id).write_text("bug")
    (home / "runs" / "toy" / "trouble" / cells["bonus"].run_id).write_text("oom")
    with SlurmExecutor(ExecutorSection(kind="slurm"), cluster="local", poll=0.1) as pool:
        report = ablate(grid, home / "runs", run=run_toy, executor=pool, slots=4, say=lambda line: None)
    assert report.complete and len(report.finished) == 4
    kinds = {
        name: [r["kind"] for r in read_jsonl(home / "runs" / "toy" / c.run_id / "attempts.jsonl") if "kind" in r]
        for name, c in cells.items()
    }
    assert kinds == {"base": [], "bonus": ["out_of_memory"], "replay": ["bug"], "replay+bonus": []}
    assert read_json(home / "runs" / "toy" / cells["base"].run_id / "slurm.json")["job"]


CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
SlurmctldPort={port}
SlurmdPort={other}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/d.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerParameters=sched_interval=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def slurm(tmp_path_factory, monkeypatch):
    """A SLURM of one node, our own; skipped with a reason where it can't be brought up."""
    missing = [name for name in ("munged", "slurmctld", "slurmd", "sbatch", "scontrol") if not shutil.which(name)]
    if missing or os.geteuid() != 0:
        pytest.skip(f"no SLURM to bring up: {', '.join(missing) or 'not root'} (apt-get install slurm-wlm munge)")
    folder = tmp_path_factory.mktemp("slurm")
    for parent in [folder, *folder.parents][:3]:
        parent.chmod(0o755)
    (folder / "state").mkdir(), (folder / "spool").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    munge = ["key-file=munge.key", "socket=munge.sock", "pid-file=munge.pid", "log-file=munge.log", "seed-file=seed"]
    options = [f"--{name}={folder}/{value}" for name, value in (pair.split("=") for pair in munge)]
    subprocess.run(["munged", "--force", *options], check=True, capture_output=True)
    values = {"host": socket.gethostname(), "folder": folder, "port": _free_port(), "other": _free_port()}
    (folder / "slurm.conf").write_text(CONFIGURATION.format(**values, cpus=os.cpu_count()))
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    subprocess.run(["slurmctld"], check=True)
    subprocess.run(["slurmd"], check=True)
    deadline = time.monotonic() + 30
    while "idle" not in subprocess.run(["sinfo"], capture_output=True, text=True, check=False).stdout:
        if time.monotonic() > deadline:
            pytest.skip(f"SLURM didn't come up: {(folder / 'ctld.log').read_text()[-500:]}")
        time.sleep(0.5)
    yield folder
    for job in subprocess.run(["squeue", "-h", "-o", "%A"], capture_output=True, text=True, check=False).stdout.split():
        subprocess.run(["scancel", job], check=False)
    deadline = time.monotonic() + 30  # steps whose daemon is gone would stay
    while subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=False).stdout.strip():
        if time.monotonic() > deadline:
            break
        time.sleep(0.3)
    for name in ("d.pid", "ctld.pid", "munge.pid"):
        if (folder / name).exists():
            os.kill(int((folder / name).read_text()), signal.SIGTERM)


SCRIPT = """
import json, sys
from pathlib import Path
from test_sweep_slurm import run_slowly, slurm_pool
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.grid import parse_grid
with slurm_pool() as pool:
    grid = parse_grid(json.loads(sys.argv[1]), "toy.yaml")
    report = ablate(grid, Path("runs"), run=run_slowly, executor=pool, slots=99)
print("COMPLETE", report.complete)
"""


def run_slowly(work):
    """Takes long enough to be caught in the middle."""
    time.sleep(float(os.environ.get("SLOWLY", "4")))
    return run_toy(work)


def slurm_pool():
    return SlurmExecutor(ExecutorSection(kind="slurm", options={"gpus_per_node": None, "cpus_per_task": 1}), poll=0.3)


@pytest.mark.slow
def test_jobs_outlive_a_killed_dispatcher_and_are_adopted_by_the_next(home, grid_values, slurm):
    values = json.dumps(grid_values | {"seeds": [0], "base_model": False})
    command = [sys.executable, "-c", SCRIPT, values]
    first = subprocess.Popen(command, cwd=home)
    study = home / "runs" / "toy"
    deadline = time.monotonic() + 120
    while len(list(study.glob("*/slurm.json"))) < 4:
        assert time.monotonic() < deadline and first.poll() is None
        time.sleep(0.1)
    first.kill()
    first.wait()
    jobs = {p.parent.name: read_json(p)["job"] for p in study.glob("*/slurm.json")}
    second = subprocess.run(command, cwd=home, capture_output=True, text=True, check=True, timeout=240)
    assert "COMPLETE True" in second.stdout
    assert {p.parent.name: read_json(p)["job"] for p in study.glob("*/slurm.json")} == jobs  # none submitted twice
    assert Counter(r["run"] for r in read_jsonl(study / "executions.jsonl")) == dict.fromkeys(jobs, 1)


def test_a_cancelled_job_is_submitted_again(home, grid_values, slurm, monkeypatch):
    grid = parse_grid(
        grid_values | {"seeds": [0], "base_model": False, "factors": {"replay": ["off", "on"]}}, "toy.yaml"
    )
    monkeypatch.setenv("SLOWLY", "2")
    lines = []

    def say(line):
        lines.append(line)

    def cancel():
        deadline = time.monotonic() + 60
        study = home / "runs" / "toy"
        while time.monotonic() < deadline:
            known = list(study.glob("base-s0-*/slurm.json"))
            if known:
                subprocess.run(["scancel", read_json(known[0])["job"]], check=False)
                return
            time.sleep(0.1)

    thread = threading.Thread(target=cancel)
    thread.start()
    with slurm_pool() as pool:
        report = ablate(grid, home / "runs", run=run_slowly, executor=pool, slots=99, say=say)
    thread.join()
    assert report.complete and any("preempted, attempt 2" in line for line in lines)


@pytest.mark.slow
def test_training_that_slurm_warns_saves_and_goes_on_in_another_job(home, slurm):
    """The signal that comes before a time limit, sent early; real training, which ends as if nothing had happened."""
    values = {
        "name": "warned",
        "recipe": "quickstart",
        "factors": {"replay": ["off", "on"]},
        "design": "list",
        "cells": [{"replay": "on"}],
        "seeds": [0],
        "base_model": False,
        "set": {"trainer.max_steps": 12, "trainer.per_device_train_batch_size": 16, "data.limit": 8},
        "eval": {"samples": 1, "limit": 8},
        "retries": {"preempted": 0},
        "disk_floor_gb": 0.1,
    }
    study = open_study(parse_grid(values, "warned.yaml"), home / "runs")
    run = study.paths(study.cells[0])

    def warn():
        deadline = time.monotonic() + 300
        while len(read_jsonl(run.metrics)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        subprocess.run(["scancel", "--signal=USR2", read_json(run.root / "slurm.json")["job"]], check=False)

    thread = threading.Thread(target=warn)
    thread.start()
    with slurm_pool() as pool:
        report = ablate(study.grid, home / "runs", executor=pool, slots=1, say=lambda line: None)
    thread.join()
    assert report.complete
    assert [line["event"] for line in read_jsonl(run.root / "attempts.jsonl")] == ["start", "stopped", "start"]
    assert len(list((run.root / "slurm").glob("*submitted.pkl"))) == 2
    calm = RunPaths(home / "calm")
    run_cell(study.cells[0].recipe, calm.root, study.cells[0].factors, quiet=True)
    assert (run.model / "model.safetensors").read_bytes() == (calm.model / "model.safetensors").read_bytes()
    timings = ("elapsed", "step_time")
    lines = [
        [{k: v for k, v in line.items() if not any(t in k for t in timings)} for line in read_jsonl(paths.metrics)]
        for paths in (run, calm)
    ]
    assert lines[0] == lines[1] and len(lines[0]) == 12
