"""`train` on two processes (gloo), through the command line: a whole run, a killed rank, a signal."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from r3bench.component import Summary

SHORT = ("trainer.per_device_train_batch_size=8", "eval.limit=4", "eval.samples=1", "--gpus", "2")
HANG = 900  # seconds after which a process that should have ended is taken to hang


def start(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "r3bench.cli", "train", "quickstart", *SHORT, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ranks(launcher: subprocess.Popen[str]) -> dict[int, int]:
    """rank -> process id of the launcher's children."""
    found = {}
    for task in Path(f"/proc/{launcher.pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            variables = dict(
                item.split("=", 1) for item in Path(f"/proc/{child}/environ").read_text().split("\0") if "=" in item
            )
            if "RANK" in variables:
                found[int(variables["RANK"])] = int(child)
    return found


def steps(folder: Path) -> list[int]:
    """Steps in the metrics of the only run."""
    lines = [line for path in folder.glob("runs/*/metrics.jsonl") for line in path.read_text().splitlines()]
    return [json.loads(line)["step"] for line in lines if line.endswith("}")]


def wait_for_steps(folder: Path, launcher: subprocess.Popen[str], count: int) -> None:
    while len(steps(folder)) < count:
        assert launcher.poll() is None, launcher.communicate()
        time.sleep(0.1)


def test_a_run_on_two_processes(folder: Path) -> None:
    launcher = start("trainer.max_steps=2", "components.replay=on", "--json")
    out, err = launcher.communicate()
    assert launcher.returncode == 0, err
    record = json.loads(out)
    assert record.pop("schema") == "r3bench.train/1"
    assert record["train"]["processes"] == 2
    assert record["train"]["steps"] == 2
    assert record["eval"]["embedded"]["questions"] == 4
    run = folder / "runs" / record["run_id"]
    written = json.loads((run / "run.json").read_text())
    assert (
        written.pop("digest") and written.pop("schema") and record == written
    )  # the file's own digest is of the file alone
    assert not list(run.glob("checkpoints/.*"))


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_and_the_same_command_resumes(folder: Path) -> None:
    arguments = ("trainer.max_steps=40", "trainer.save_steps=2", "--quiet")
    launcher = start(*arguments)
    wait_for_steps(folder, launcher, 5)
    members = ranks(launcher)
    assert sorted(members) == [0, 1]
    os.kill(members[1], signal.SIGKILL)
    _, err = launcher.communicate(timeout=HANG)
    assert launcher.returncode == 1
    last = err.splitlines()[-1]
    assert "rank 1 was killed by SIGKILL" in last
    assert last.endswith("the same command resumes from the newest checkpoint")
    assert "Traceback" not in err
    assert not any(Path(f"/proc/{pid}").exists() for pid in members.values())
    reached = max(steps(folder))
    assert 5 <= reached < 40

    again = start(*arguments)
    _, err = again.communicate()
    assert again.returncode == 0, err
    assert steps(folder) == list(range(1, 41))
    assert len(list(folder.glob("runs/*/run.json"))) == 1


@pytest.mark.slow
def test_a_signal_saves_on_every_rank(folder: Path) -> None:
    launcher = start("trainer.max_steps=400", "--quiet")
    wait_for_steps(folder, launcher, 3)
    members = ranks(launcher)
    launcher.send_signal(signal.SIGTERM)
    _, err = launcher.communicate(timeout=HANG)
    assert launcher.returncode == 75, err
    assert "stopped at step" in err.splitlines()[-1]
    assert not any(Path(f"/proc/{pid}").exists() for pid in members.values())
    (saved,) = folder.glob("runs/*/checkpoints/checkpoint-*")
    assert int(saved.name.split("-")[1]) == max(steps(folder))


@pytest.mark.slow
def test_two_nodes_on_one_machine(folder: Path) -> None:
    """The same command twice, as on two machines that share the run directory."""
    import socket

    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    where = ("trainer.max_steps=2", "--gpus", "1", "--nodes", "2", "--master", f"localhost:{port}", "--quiet")
    nodes = [start(*where), start(*where)]
    outputs = [node.communicate() for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    (record,) = folder.glob("runs/*/run.json")
    assert json.loads(record.read_text())["train"]["processes"] == 2


def trajectories(checkpoint: Path) -> tuple[list[int], set[tuple[str, int]]]:
    """How many each rank has stored, and all of them as (question, number)."""
    shares = [json.loads(path.read_text())["rows"] for path in sorted((checkpoint / "r3bench").glob("history-*.json"))]
    names = [field.name for field in dataclasses.fields(Summary)]
    question, serial = names.index("question"), names.index("serial")
    return [len(share) for share in shares], {(row[question], row[serial]) for share in shares for row in share}


@pytest.mark.slow
def test_another_number_of_processes_keeps_the_history(folder: Path) -> None:
    """2, then 1, then 4 processes: what was stored stays, each has its share, and the steps go on."""
    common = ("trainer.save_steps=2", "trainer.save_total_limit=20", "components.replay=on", "--quiet")
    stored: set[tuple[str, int]] = set()
    for processes, until in ((2, 3), (1, 8), (4, None)):
        launcher = start("trainer.max_steps=30", *common, "--gpus", str(processes))
        if until is not None:
            wait_for_steps(folder, launcher, until)
            launcher.send_signal(signal.SIGTERM)
        _, err = launcher.communicate(timeout=HANG)
        assert launcher.returncode == (75 if until else 0), err
        checkpoints = sorted(folder.glob("runs/*/checkpoints/checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))
        shares, found = trajectories(checkpoints[-1])
        assert len(shares) == processes
        assert all(shares)
        assert sum(shares) == len(found), "a trajectory is stored twice"
        assert stored < found
        stored = found
    assert steps(folder) == list(range(1, 31))
    assert len(list(folder.glob("runs/*/run.json"))) == 1
