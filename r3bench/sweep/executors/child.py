"""What a worker process does around a cell: die with its parent, log to the run directory, leave a result behind."""

import contextlib
import ctypes
import faulthandler
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from r3bench.files import no_room, read_json, write_json
from r3bench.serving.training import ranks, split_devices
from r3bench.sweep.attempts import Failure, WorkerFailed, classify
from r3bench.sweep.cell_run import lead
from r3bench.sweep.executors.outcome import Outcome
from r3bench.sweep.executors.signals import passing_on, stoppable

PR_SET_PDEATHSIG = 1
NO_ROOM_CODE = 74  # EX_IOERR: ends a worker that found no room for its reply
# ends that come from outside; SIGBUS: a file in memory whose disk is full or gone
KILLED = tuple(-number for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP, signal.SIGBUS))
SAVING = 600  # seconds the ranks of a cell get to finish the batch and save after a signal


def die_with_parent() -> None:
    """Ask the kernel (Linux) for SIGTERM when the parent ends, so that no cell outlives its dispatcher unseen."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def log_file(work: Mapping[str, Any]) -> Path:
    """Where a cell's output goes."""
    return Path(work["directory"]) / "log.txt"


def redirect(work: Mapping[str, Any]) -> None:
    """Send this process's output to the cell's log, and stack dumps on SIGUSR1 with it."""
    path = log_file(work)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    os.close(nothing)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)


def name_of(function: Callable[..., Any]) -> str:
    """'module:name' of a module-level function."""
    if "." in function.__qualname__ or function.__module__ == "__main__":
        where = f"{function.__module__}:{function.__qualname__}"
        raise TypeError(f"{where}: only a function at the top of an importable module can be run in another process")
    return f"{function.__module__}:{function.__qualname__}"


def call(
    function: str, work: Mapping[str, Any], prepare: Callable[[Mapping[str, Any]], None] | None = None
) -> dict[str, Any]:
    """Import and call 'module:name' on `work`, after `prepare`; {"result": ...} or {"failure": ...}, JSON-ready."""
    with Outcome(everything=True) as outcome:
        if prepare is not None:
            prepare(work)
        module, _, name = function.partition(":")
        outcome.value = getattr(importlib.import_module(module), name)(work)
    if outcome.error is not None:
        return {"failure": asdict(classify(outcome.error))}
    return {"result": outcome.value}


def log_failure(reply: Mapping[str, Any]) -> None:
    """A failure's traceback, and what is still buffered, into the log. Its disk may be full: that is no failure."""
    with contextlib.suppress(OSError, ValueError):
        if "failure" in reply:
            print(reply["failure"]["detail"], file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()


def call_on(
    function: str,
    work: Mapping[str, Any],
    processes: int,
    prepare: Callable[[Mapping[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """`call`, under torchrun where a cell has several GPUs; for the job of a cluster's scheduler."""
    if processes == 1:
        return call(function, work, prepare)
    if prepare is not None:
        prepare(work)
    with tempfile.TemporaryDirectory(prefix="r3bench-") as folder:
        job, result = Path(folder) / "job.json", Path(folder) / "result.json"
        job.write_text(json.dumps(work))
        command = [sys.executable, "-m", __spec__.name, function, str(job), str(result), str(processes)]
        with subprocess.Popen(command) as process, passing_on(process):
            status = process.wait()
        reply = reply_in(result)
    outcome = unpack(reply, status, log_file(work), processes)
    return {"failure": asdict(classify(outcome.error))} if outcome.error else {"result": outcome.value}


def call_to(reply: str, function: str, work: Mapping[str, Any], processes: int) -> None:
    """`call_on` in a job whose scheduler doesn't hand results back: the reply goes to a file."""
    with stoppable(warned=True):
        answer = call_on(function, work, processes, redirect)
    try:
        write_json(Path(reply), answer)
    except OSError as error:
        if not no_room(error):
            raise
        os._exit(NO_ROOM_CODE)
    log_failure(answer)


def reply_in(result: Path) -> dict[str, Any] | None:
    """What a cell left in `result`, or of its ranks' failures beside it the first that is not about another rank."""
    if result.exists():
        found: dict[str, Any] = read_json(result)
        return found
    said = sorted(result.parent.glob("failed-*.json"), key=lambda path: path.stat().st_mtime_ns)
    replies = [read_json(path) for path in said]
    own = [reply for reply in replies if reply["failure"]["kind"] != "preempted"]
    return next(iter(own or replies), None)


def unpack(reply: Mapping[str, Any] | None, status: int, log: Path, processes: int = 1) -> Outcome:
    """A worker's reply and exit status (0, a code, or minus the signal) as an outcome.

    Of several processes one that fails says so, and torchrun's code is 1 whatever happened: without a reply one was
    killed.
    """
    outcome = Outcome()
    if reply and "result" in reply:
        outcome.value = reply["result"]
    elif reply and "failure" in reply:
        outcome.error = WorkerFailed(Failure(**reply["failure"]))
    else:
        what = f"killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
        kind = "disk" if status == NO_ROOM_CODE else "preempted" if status in KILLED or processes > 1 else "bug"
        tail = ""
        with contextlib.suppress(OSError):
            tail = log.read_text(errors="replace")[-4000:]
        outcome.error = WorkerFailed(Failure(kind, f"worker {what}; see {log}", tail))  # type: ignore[arg-type]
    return outcome


def set_devices(work: Mapping[str, Any], gpus: int) -> int:
    """How many processes train on a cell's `gpus`; those of a server that it trains with are set aside."""
    trainer = work.get("recipe", {}).get("trainer", {})
    processes = ranks(trainer, gpus) if gpus > 1 else 1
    os.environ.update(split_devices(trainer, processes))
    return processes


def main(arguments: list[str]) -> int:
    """`python -m (this module) FUNCTION JOB RESULT [PROCESSES]`: one cell in this process or under torchrun."""
    function, job_path, result_path, *rest = arguments
    work = json.loads(Path(job_path).read_text())
    processes = set_devices(work, int(rest[0])) if rest else 1
    if processes > 1:
        from r3bench.sweep.strategy import rank_environment

        die_with_parent()  # kept across exec
        redirect(work)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # kept as well: a scheduler's warning is for the job's process
        os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SAVING))
        os.environ.update(rank_environment(work.get("strategy", "ddp")))
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        os.execv(
            sys.executable,
            [sys.executable, *launcher, "-m", "r3bench.sweep.executors.child", function, job_path, result_path],
        )
    die_with_parent()
    result = Path(result_path)

    def leave(reply: Mapping[str, Any]) -> None:
        if "failure" in reply and "RANK" in os.environ:
            write_json(result.with_name(f"failed-{os.environ['RANK']}.json"), reply)
        elif lead():
            write_json(result, reply)

    if "RANK" in os.environ:
        exits_are_told(leave)
    with stoppable():
        reply = call(function, work, prepare=redirect)
    try:
        leave(reply)
    except OSError as error:
        if not no_room(error):
            raise
        return NO_ROOM_CODE
    log_failure(reply)
    return 0 if "result" in reply else 1


def exits_are_told(leave: Callable[[Mapping[str, Any]], None]) -> None:
    """In a rank: an `os._exit` in the user's code leaves a failure behind, by way of `leave`.

    To torchrun such a rank has finished, or failed like those that lost it; then none says why.
    """
    owner, leave_at_once = os.getpid(), os._exit

    def told(code: int) -> NoReturn:
        if os.getpid() == owner:  # a forked child ends like this
            where = "".join(traceback.format_stack())
            failure = Failure("bug", f"os._exit({code}) was called in a rank", where[-20_000:])
            with contextlib.suppress(OSError):
                leave({"failure": asdict(failure)})
        leave_at_once(code)

    os._exit = told  # type: ignore[assignment]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
