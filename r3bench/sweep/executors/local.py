"""Cells on this machine: forked from a preloaded server on CPU, a process (or torchrun) per cell on GPUs."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, InvalidStateError
from pathlib import Path
from typing import Any

from r3bench.files import no_room
from r3bench.sweep.attempts import Failure, FailureKind, WorkerFailed
from r3bench.sweep.executors.child import log_file, name_of, reply_in, unpack

IMPORTING = 1800.0  # seconds the fork server gets to import
TIMES = 5  # servers in a row that may be lost before a cell begins; then the study waits for better times
DUMP_SECONDS = 0.5  # between asking for a stack dump and asking to stop
PRELOAD = (
    "torch", "trl", "r3bench.training.run", "r3bench.evaluation.driver", "r3bench.evaluation.lm",
    "r3bench.evaluation.backends.hf", "lm_eval.api.task", "r3bench.training.warm:warm",
)  # fmt: skip
# glibc gives what a step frees back to the kernel and takes it anew, page by page; so it keeps up to half a gigabyte
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(512 << 20)}


class ProcessFuture(Future[Any]):
    """A future whose work is a process that leads its own group."""

    def __init__(self) -> None:
        super().__init__()
        self.pid: int | None = None
        self._ending = False  # before there was a process

    @property
    def waiting(self) -> bool:
        """Whether there is no process yet."""
        return self.pid is None

    def started(self, pid: int) -> None:
        """The process exists; end it if that was asked for meanwhile."""
        self.pid = pid
        if self._ending:
            for kill in (os.killpg, os.kill):  # it may not lead its group yet
                with contextlib.suppress(ProcessLookupError):
                    kill(pid, signal.SIGKILL)

    def stop(self, grace: float, dump: bool = False) -> None:
        """Ask the process to save and stop, kill its group after `grace` seconds; `dump` stacks to its log first."""
        if self.done():
            return
        if self.pid is None:  # nothing has begun that could be saved
            self._ending = True
            with contextlib.suppress(InvalidStateError):
                self.set_exception(WorkerFailed(Failure("lost", "ended before the cell began")))
            return
        with contextlib.suppress(ProcessLookupError):
            if dump:
                os.kill(self.pid, signal.SIGUSR1)
                self._later(DUMP_SECONDS, grace)
            elif grace > 0:
                os.kill(self.pid, signal.SIGTERM)
                self._later(grace, 0.0)
            else:
                os.killpg(self.pid, signal.SIGKILL)

    def _later(self, seconds: float, grace: float) -> None:
        timer = threading.Timer(seconds, self.stop, [grace])
        timer.daemon = True
        timer.start()


class ForkExecutor(Executor):
    """Runs module-level functions on JSON-ready data in children of a preloaded fork server.

    Args:
        threads: OMP threads per cell.
        preload: modules imported and functions ('module:name') called once, in the server.

    As a context manager it starts the server on entry, to import while the caller gets ready.
    """

    def __init__(self, threads: int = 1, preload: Sequence[str] = PRELOAD) -> None:
        self.threads = threads
        self.preload = tuple(preload)
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._ready: subprocess.Popen[bytes] | None = None  # the newest that has imported everything
        self._waiting: dict[int, tuple[ProcessFuture, Path, subprocess.Popen[bytes]]] = {}
        self._next = 0
        self._lost = 0  # servers in a row that ended before a cell began

    def __enter__(self) -> "ForkExecutor":
        with self._lock:
            self._running_server()
        return self

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ProcessFuture:
        """Run `fn(work)` in a child; `work` has a `directory`, where the child's output goes."""
        (work,) = args
        future = ProcessFuture()
        future.set_running_or_notify_cancel()
        with self._lock:
            server = self._running_server()
            number = self._next
            self._next += 1
            self._waiting[number] = (future, log_file(work), server)
            request = {"id": number, "function": name_of(fn), "work": work}
            assert server.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # the reader notices and fails what waits
                server.stdin.write(json.dumps(request).encode() + b"\n")
                server.stdin.flush()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Close the server's stdin; it ends when its children have, at once if it has none."""
        with self._lock:
            server, self._server = self._server, None
            idle = all(future.done() or future.waiting for future, _, _ in self._waiting.values())
        if server is not None and server.stdin is not None:
            if idle:  # perhaps still importing, for nothing
                server.kill()
            server.stdin.close()
            if wait:
                server.wait()

    def _running_server(self) -> subprocess.Popen[bytes]:
        if self._server is None or self._server.poll() is not None:
            environment = {**ALLOCATOR, **os.environ}
            environment |= {"OMP_NUM_THREADS": str(self.threads), "TOKENIZERS_PARALLELISM": "false"}
            environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
            self._server = subprocess.Popen(
                [sys.executable, "-m", "r3bench.sweep.executors.forkserver", *self.preload],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches the dispatcher only
            )
            threading.Thread(target=self._read, args=(self._server,), daemon=True).start()
            timer = threading.Timer(IMPORTING, self._end_unready, [self._server])
            timer.daemon = True
            timer.start()
        return self._server

    def _read(self, server: "subprocess.Popen[bytes]") -> None:
        assert server.stdout is not None
        ready = False
        for line in server.stdout:
            message = json.loads(line)
            if "ready" in message:
                ready = True
                self._ready = server
            elif "pid" in message:
                with self._lock:
                    future, _, _ = self._waiting[message["id"]]
                    self._lost = 0
                future.started(message["pid"])
            else:
                with self._lock:
                    future, log, _ = self._waiting.pop(message["id"])
                with contextlib.suppress(InvalidStateError):  # ended before it began
                    unpack(message["reply"], message["status"], log).settle(future)
        code = server.wait()
        with self._lock:
            lost = {number: waiting for number, waiting in self._waiting.items() if waiting[2] is server}
            for number in lost:
                del self._waiting[number]
            self._lost += 1
            times = self._lost
        for future, _, _ in lost.values():
            begun = not future.waiting
            with contextlib.suppress(InvalidStateError):
                future.set_exception(WorkerFailed(self._failure(code, ready, begun, times)))

    def _failure(self, code: int, ready: bool, begun: bool, times: int) -> Failure:
        """What a server's end means for a cell; one that had not begun has made no attempt."""
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if begun:
            return Failure("preempted", f"the fork server {how}")
        if (ready or code < 0) and times < TIMES:
            return Failure("lost", f"the fork server {how} before the cell began")
        if ready or code < 0:
            return Failure("machine", f"the fork server {how} {times} times in a row; is there memory?")
        return Failure("machine", f"the fork server can't import {', '.join(self.preload)}; see its traceback above")

    def _end_unready(self, server: "subprocess.Popen[bytes]") -> None:
        """A server that imports for ever, from a disk that doesn't answer, is a lost one."""
        if self._ready is not server and server.poll() is None:
            server.kill()


class DeviceExecutor(Executor):
    """Runs each cell as processes of their own on `gpus_per_cell` of the given GPUs.

    Args:
        devices: values for CUDA_VISIBLE_DEVICES, one per GPU.
        gpus_per_cell: more than one runs the cell under torchrun.
    """

    def __init__(self, devices: Sequence[str], gpus_per_cell: int = 1) -> None:
        self.gpus_per_cell = gpus_per_cell
        self._free: queue.Queue[str] = queue.Queue()
        for first in range(0, len(devices) - gpus_per_cell + 1, gpus_per_cell):
            self._free.put(",".join(devices[first : first + gpus_per_cell]))
        self.slots = self._free.qsize()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ProcessFuture:
        """Run `fn(work)` in a new process when a group of GPUs is free."""
        (work,) = args
        future = ProcessFuture()
        future.set_running_or_notify_cancel()
        threading.Thread(target=self._run, args=(future, name_of(fn), work), daemon=True).start()
        return future

    def _run(self, future: ProcessFuture, function: str, work: dict[str, Any]) -> None:
        devices = self._free.get()
        try:
            if future.done():  # ended while it waited
                return
            self._run_on(devices, future, function, work)
        except OSError as error:  # no process, or no room for its files: nothing is wrong with the cell
            kind: FailureKind = "disk" if no_room(error) else "machine"
            what = f"{error.filename or tempfile.gettempdir()}: {error.strerror or error}"
            future.set_exception(WorkerFailed(Failure(kind, f"no process could be started: {what}")))
        finally:
            self._free.put(devices)

    def _run_on(self, devices: str, future: ProcessFuture, function: str, work: dict[str, Any]) -> None:
        with tempfile.TemporaryDirectory(prefix="r3bench-") as folder:
            job, result = Path(folder) / "job.json", Path(folder) / "result.json"
            job.write_text(json.dumps(work))
            command = [sys.executable, "-m", "r3bench.sweep.executors.child", function, str(job), str(result)]
            environment = {**os.environ, "CUDA_VISIBLE_DEVICES": devices}
            environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
            process = subprocess.Popen(
                [*command, str(self.gpus_per_cell)],
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            future.started(process.pid)
            status = process.wait()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # anything the cell left running
            reply = reply_in(result)
        unpack(reply, status, log_file(work), self.gpus_per_cell).settle(future)
