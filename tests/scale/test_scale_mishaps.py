"""A rank that fails, is killed or is waited for in vain: the others end soon, and the cause is what is said."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from r3bench.sweep.executors.launch import _error

SHORT = ("trainer.per_device_train_batch_size=8", "eval.limit=4", "eval.samples=1", "--quiet")
HANG = 400  # seconds after which a process that should have ended is taken to hang; torchrun's own patience is 600
MISHAP = '''
"""A component that makes one rank fail."""
import os, signal, time
from dataclasses import dataclass
from r3bench.component import Component


@dataclass(frozen=True)
class MishapConfig:
    what: str = "nothing"  # raise, memory, kill: at `step`, on `rank`
    rank: int = 1
    step: int = 1
    deaf: bool = False  # the other ranks are then in a call that no signal interrupts, as in NCCL


class Mishap(Component):
    name = "mishap"
    Config = MishapConfig

    def observe(self, step):
        self.count("steps")
        if self.config.what == "nothing" or step.step != self.config.step:
            return
        if int(os.environ["RANK"]) != self.config.rank:
            while self.config.deaf:
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
                time.sleep(10)
        elif self.config.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.config.what == "memory":
            import torch
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        else:
            raise RuntimeError("something broke")
'''


@pytest.fixture
def mishap(folder: Path) -> Path:
    (folder / "components").mkdir()
    (folder / "components" / "mishap.py").write_text(MISHAP)
    return folder


def start(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "r3bench.cli", "train", "quickstart", *SHORT, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def processes(folder: Path) -> list[int]:
    """Processes that work in `folder`."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "cwd").resolve() == folder.resolve() and int(path.name) != os.getpid():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def end(folder: Path) -> None:
    """Nothing that was started in `folder` lives on (graders end with the process they work for, a moment later)."""
    deadline = time.monotonic() + HANG
    while processes(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not processes(folder)


BROKE = {"kind": "bug", "message": "RuntimeError: something broke", "detail": "", "exit_code": None}
PEER = {**BROKE, "kind": "preempted", "message": "RuntimeError: Connection closed by peer"}
CONFIG = {**BROKE, "message": "trainer.x: got 1, expected 2", "exit_code": 2}


@pytest.mark.parametrize(
    ("failures", "said", "message"),
    [
        # what raised comes before what the agent then killed, however it had to
        ({1: 1, 0: -15}, {1: (BROKE, 5)}, "rank 1 failed: RuntimeError: something broke"),
        ({1: 1, 0: -9}, {1: (BROKE, 5)}, "rank 1 failed: RuntimeError: something broke"),
        ({0: 1, 1: 1}, {0: (PEER, 4), 1: (BROKE, 5)}, "rank 1 failed: RuntimeError: something broke"),
        # a rank killed from outside comes before those that then failed, whatever they make of it
        ({1: -9, 0: 1}, {0: (PEER, 5)}, "rank 1 was killed by SIGKILL (the system does that when memory runs out), "),
        ({1: -11, 0: 1}, {0: (BROKE, 5)}, "rank 1 was killed by SIGSEGV, the others were ended; the same command"),
        ({0: 1}, {0: (PEER, 5)}, "rank 0 failed: RuntimeError: Connection closed by peer"),
        ({1: 7, 0: -15}, {}, "rank 1 ended with exit code 7, the others were ended; the same command resumes"),
        ({1: -9, 0: 1}, {0: (CONFIG, 5)}, "trainer.x: got 1, expected 2"),
    ],
)
def test_the_cause_is_what_happened_first(
    failures: dict[int, int], said: dict[int, tuple[dict[str, Any], float]], message: str
) -> None:
    replies = {rank: {"failure": {**failure, "time": time}} for rank, (failure, time) in said.items()}
    error = _error(Path("run"), failures, replies)
    assert str(error).removeprefix("run: ").startswith(message)
    assert error.exit_code == (2 if message.startswith("trainer") else 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["what=raise"], "rank 1 failed: RuntimeError: something broke"),
        (["what=raise", "deaf=true"], "rank 1 failed: RuntimeError: something broke"),
        (
            ["what=memory", "rank=0"],
            "rank 0 failed: OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.",
        ),
        (
            ["what=kill", "deaf=true"],
            "rank 1 was killed by SIGKILL (the system does that when memory runs out), the others were ended; the same "
            "command resumes from the newest checkpoint",
        ),
    ],
)
def test_a_rank_that_fails_ends_the_run(mishap: Path, settings: list[str], message: str) -> None:
    launcher = start("--gpus", "2", "trainer.max_steps=4", *(f"components.mishap.{setting}" for setting in settings))
    _, err = launcher.communicate(timeout=HANG)
    assert launcher.returncode == 1
    assert re.fullmatch(rf"r3bench: runs/quickstart-s0-\w+: {re.escape(message)}", err.splitlines()[-1])
    assert ("Traceback" in err) == ("what=raise" in settings), "only a mistake in the code needs one"
    end(mishap)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_ends_the_run_on_the_other_node_too(mishap: Path, rank: int) -> None:
    """Two launchers as on two machines. The rank of the other one waits where no signal reaches it."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    where = ("--gpus", "1", "--nodes", "2", "--master", f"localhost:{port}", "trainer.max_steps=4")
    settings = ("components.mishap.what=raise", "components.mishap.deaf=true", f"components.mishap.rank={rank}")
    nodes = [start(*where, *settings) for _ in range(2)]
    said = sorted(node.communicate(timeout=HANG)[1].splitlines()[-1].partition(": runs/")[2] for node in nodes)
    assert [node.returncode for node in nodes] == [1, 1]
    assert said[0].endswith(
        ": another node of the run failed or has gone (its own message says more), and the ranks here were ended; the "
        "same command resumes from the newest checkpoint"
    )
    assert said[1].endswith(f": rank {rank} failed: RuntimeError: something broke")
    end(mishap)


def unfinished(run: Path) -> Iterator[Path]:
    """Checkpoints that are being written."""
    return (folder for folder in run.glob("checkpoints/checkpoint-*") if not (folder / "complete.json").exists())


def ranks(launcher: subprocess.Popen[str]) -> dict[int, int]:
    """rank -> process id of the launcher's children."""
    found = {}
    for task in Path(f"/proc/{launcher.pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            words = Path(f"/proc/{child}/environ").read_text().split("\0")
            found.update({int(word[5:]): int(child) for word in words if word.startswith("RANK=")})
    return found


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("elapsed", "crc32") and "time" not in k} for line in lines]


@pytest.mark.slow
def test_a_rank_killed_while_a_checkpoint_is_written(folder: Path) -> None:
    """Each rank in turn, at several moments of a save; the end is that of a run that nobody killed, bit for bit."""
    settings = (
        "--gpus", "2", "trainer.max_steps=10", "trainer.save_steps=2", "components.replay=on", "data.limit=4",
        "components.replay.warmup=0", "components.retrospective=on",
    )  # fmt: skip
    whole = start(*settings, "--runs", "whole")
    _, err = whole.communicate(timeout=HANG)
    assert whole.returncode == 0, err
    (run,) = (folder / "whole").glob("quickstart-s0-*")
    cut = folder / "cut" / run.name
    torn = []
    for rank, delay in ((1, 0.0), (0, 0.03), (1, 0.1)):
        launcher = start(*settings, "--runs", "cut")
        before = {path.name for path in unfinished(cut)}
        writing: list[Path] = []
        while not writing and launcher.poll() is None:
            writing = [path for path in unfinished(cut) if path.name not in before]
            before &= {path.name for path in unfinished(cut)}  # removed, and perhaps written anew
            time.sleep(0.001)
        assert launcher.poll() is None, launcher.communicate()
        time.sleep(delay)
        os.kill(ranks(launcher)[rank], signal.SIGKILL)
        _, err = launcher.communicate(timeout=HANG)
        assert launcher.returncode == 1
        assert f"rank {rank} was killed by SIGKILL" in err.splitlines()[-1]
        torn += [path.name for path in unfinished(cut)]
        end(folder)
    assert torn, "no checkpoint was torn"
    last = start(*settings, "--runs", "cut")
    _, err = last.communicate(timeout=HANG)
    assert last.returncode == 0, err
    assert metrics(cut) == metrics(run)
    one, other = (load_file(path / "model" / "model.safetensors") for path in (run, cut))
    assert one.keys() == other.keys()
    assert all((one[name] == other[name]).all() for name in one)
    records = [json.loads((path / "run.json").read_text())["train"] for path in (run, cut)]
    assert records[0]["evidence"] == records[1]["evidence"]
    assert records[0]["evidence"]["replay/rows"] > 0
    assert not list(unfinished(cut))
