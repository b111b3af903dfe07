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
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from r3bench.devices import cpu_cores, gpu_ids  # noqa: F401, used by the executors
from r3bench.sweep.attempts import Failure, WorkerFailed
from r3bench.sweep.child import log_file, name_of, reply_in, unpack

DUMP_SECONDS = 0.5  # between asking for a stack dump and asking to stop
PRELOAD = (
    "torch", "trl", "r3bench.training.run", "r3bench.evaluation.driver", "r3bench.evaluation.lm",
    "r3bench.evaluation.hf", "lm_eval.api.task", "r3bench.training.warm:warm",
)  # fmt: skip
# glibc gives what a step frees back to the kernel and takes it anew, page by page; so it keeps up to half a gigabyte
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(512 << 20)}


class ProcessFuture(Future[Any]):
    """A future whose work is a process that leads its own group."""

    def __init__(self) -> None:
        super().__init__()
        self.pid: int | None = None
        self._ending: tuple[float, bool] | None = None

    def started(self, pid: int) -> None:
        """The process exists; end it if that was asked for meanwhile."""
        self.pid = pid
        if self._ending is not None:
            self.stop(*self._ending)

    def stop(self, grace: float, dump: bool = False) -> None:
        """Ask the process to save and stop, kill its group after `grace` seconds; `dump` stacks to its log first."""
        self._ending = grace, dump
        if self.done() or self.pid is None:
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
        self._waiting: dict[int, tuple[ProcessFuture, Path]] = {}
        self._next = 0

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
            self._waiting[number] = (future, log_file(work))
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
            idle = not self._waiting
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
                [sys.executable, "-m", "r3bench.sweep.forkserver", *self.preload],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches the dispatcher only
            )
            threading.Thread(target=self._read, args=(self._server,), daemon=True).start()
        return self._server

    def _read(self, server: "subprocess.Popen[bytes]") -> None:
        assert server.stdout is not None
        ready = False
        for line in server.stdout:
            message = json.loads(line)
            if "ready" in message:
                ready = True
            elif "pid" in message:
                with self._lock:
                    future, _ = self._waiting[message["id"]]
                future.started(message["pid"])
            else:
                with self._lock:
                    future, log = self._waiting.pop(message["id"])
                unpack(message["reply"], message["status"], log).settle(future)
        code = server.wait()
        with self._lock:
            lost, self._waiting = self._waiting, {}
        failure = (
            Failure("preempted", f"the fork server ended with exit code {code}")
            if ready
            else Failure("bug", f"the fork server can't import {', '.join(self.preload)}; see the traceback above")
        )
        for future, _ in lost.values():
            future.set_exception(WorkerFailed(failure))


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
            with tempfile.TemporaryDirectory(prefix="r3bench-") as folder:
                job, result = Path(folder) / "job.json", Path(folder) / "result.json"
                job.write_text(json.dumps(work))
                command = [sys.executable, "-m", "r3bench.sweep.child", function, str(job), str(result)]
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
        finally:
            self._free.put(devices)
