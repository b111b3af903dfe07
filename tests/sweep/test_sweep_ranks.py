"""Cells of several processes: what is said when one of them ends, and that the cell goes on."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from toy import run_toy

from r3bench.files import read_jsonl, write_json
from r3bench.sweep.attempts import Failure, WorkerFailed, classify, failures, note_failure
from r3bench.sweep.cell_run import run_job
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.executors.child import reply_in, unpack
from r3bench.sweep.executors.inline import InlineExecutor
from r3bench.sweep.grid import ExecutorSection, parse_grid
from r3bench.sweep.opening import open_study

CLOSED = "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:41055"
HANG = 600  # seconds after which what never happens is given up


def test_a_rank_that_lost_another_is_not_at_fault():
    assert classify(RuntimeError(CLOSED)).kind == "preempted"
    assert classify(RuntimeError("shapes don't match")).kind == "bug"


def test_a_ranks_own_failure_comes_before_the_word_of_those_that_lost_it(tmp_path):
    result = tmp_path / "result.json"
    assert reply_in(result) is None
    for rank, kind in enumerate(["preempted", "out_of_memory", "bug"]):
        write_json(tmp_path / f"failed-{rank}.json", {"failure": {"kind": kind, "message": kind, "detail": ""}})
        os.utime(tmp_path / f"failed-{rank}.json", (rank, rank))
    assert reply_in(result)["failure"]["kind"] == "out_of_memory"
    (tmp_path / "failed-1.json").unlink()
    (tmp_path / "failed-2.json").unlink()
    assert reply_in(result)["failure"]["kind"] == "preempted"
    write_json(result, {"result": 1})
    assert reply_in(result) == {"result": 1}


def test_several_processes_that_end_without_a_word_were_killed(tmp_path):
    assert unpack(None, 1, tmp_path / "log.txt").error.failure.kind == "bug"
    assert unpack(None, 1, tmp_path / "log.txt", processes=2).error.failure.kind == "preempted"


def test_a_failure_that_the_first_rank_saw_as_another_counts_as_what_it_is(tmp_path, monkeypatch, grid_values):
    """The first rank notes that it lost another one; what ended that one decides about retries."""
    monkeypatch.chdir(tmp_path)
    grid_values |= {"seeds": [0], "base_model": False, "design": "list", "cells": [{"replay": "on"}]}
    grid_values |= {"factors": {"replay": ["off", "on"]}, "retries": {"bug": 1, "preempted": 9}}
    grid, calls = parse_grid(grid_values, "toy.yaml"), []

    def run(work):
        calls.append(work)
        if len(calls) > 5:
            return run_toy(work)
        note_failure(Path(work["directory"]), Failure("preempted", CLOSED))
        raise WorkerFailed(Failure("bug", "a mistake"))

    report = ablate(grid, tmp_path / "runs", run=run, executor=InlineExecutor(), say=lambda line: None)
    (failure,) = report.failed.values()
    assert failure.kind == "bug" and len(calls) == 2


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def siblings(pid):
    """Processes with the same parent."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if parent(folder.name) == parent(pid) and int(folder.name) != pid:
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@pytest.mark.slow
def test_a_killed_rank_ends_the_others_and_the_cell_goes_on(tmp_path, monkeypatch):
    """Real training of a cell on two processes."""
    pytest.importorskip("submitit", reason="submitit is not installed")
    from r3bench.sweep.executors.slurm import SlurmExecutor

    monkeypatch.chdir(tmp_path)
    values = {
        "name": "ranks", "recipe": "quickstart", "factors": {"replay": ["off", "on"]}, "design": "list",
        "cells": [{"replay": "on"}], "seeds": [0], "base_model": False, "disk_floor_gb": 0.1,
        "set": {
            "trainer.max_steps": 30, "trainer.per_device_train_batch_size": 8, "trainer.save_steps": 2,
            "trainer.max_completion_length": 16, "data.limit": 8,
        },
        "eval": {"samples": 1, "limit": 4}, "retries": {"preempted": 1},
    }  # fmt: skip
    study = open_study(parse_grid(values, "ranks.yaml"), tmp_path / "runs")
    run = study.paths(study.cells[0])
    pids = []

    def kill():
        deadline = time.monotonic() + HANG
        while len(read_jsonl(run.metrics)) < 5 and time.monotonic() < deadline:
            time.sleep(0.05)
        pids.append(read_jsonl(run.root / "attempts.jsonl")[0]["pid"])
        (other,) = siblings(pids[0])
        pids.append(other)
        os.kill(other, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with SlurmExecutor(ExecutorSection(kind="slurm", gpus=2), cluster="local", poll=0.1) as pool:
        report = ablate(study.grid, tmp_path / "runs", run=run_job, executor=pool, slots=1, say=lambda line: None)
    thread.join()
    assert report.complete and len(pids) == 2
    assert [line["event"] for line in read_jsonl(run.root / "attempts.jsonl")] == ["start", "failure", "start"]
    assert [failure.kind for failure in failures(run.root)] == ["preempted"]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert [line["step"] for line in read_jsonl(run.metrics)] == list(range(1, 31))
    assert report.finished[study.cells[0].run_id].train.processes == 2
