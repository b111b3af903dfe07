"""Grading processes that can be killed. One item is out per worker, so a hang costs that item and nothing else."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import r3bench
from r3bench.errors import StateError

START_TIMEOUT = 300.0  # seconds for a worker to import its libraries, on a very busy machine
WALL_FACTOR = 6.0  # wall-clock seconds per CPU second before a worker that sleeps or starves is killed


@dataclass
class _Worker:
    process: "subprocess.Popen[bytes]"
    buffer: bytearray = field(default_factory=bytearray)
    ready: bool = False
    item: int | None = None
    deadline: float = 0.0


def _stop(processes: "dict[int, subprocess.Popen[bytes]]") -> None:
    """Kill all processes of the table and empty it."""
    for process in list(processes.values()):
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
    processes.clear()


class Pool:
    """Up to `workers` grading processes, started on first use, replaced after a time-out or crash."""

    def __init__(self, timeout: float, workers: int) -> None:
        self.timeout = timeout  # CPU seconds an item may take
        self.workers = workers
        self._idle: list[_Worker] = []
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _stop, self._processes)

    def run(self, items: Sequence[tuple[str, str]]) -> list[tuple[bool, str, bool]]:
        """Grade (answer, gold) pairs; per pair (correct, reason, timed out), in order.

        Raises:
            StateError: a worker can't be started.
        """
        if os.getpid() != self._owner:  # after a fork the pipes belong to the parent
            self._idle, self._owner = [], os.getpid()
            self._processes.clear()
        results: list[tuple[bool, str, bool]] = [(False, "", False)] * len(items)
        queue = deque(range(len(items)))
        busy: list[_Worker] = []
        try:
            with selectors.DefaultSelector() as selector:
                while queue or busy:
                    self._hand_out(items, queue, busy, selector)
                    wait = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
                    for key, _ in selector.select(wait):
                        self._read(key.data, items, queue, busy, selector, results)
                    now = time.monotonic()
                    for worker in [w for w in busy if w.deadline <= now]:
                        if not worker.ready:
                            raise StateError(f"a grading process did not start within {START_TIMEOUT:.0f} s")
                        self._drop(worker, busy, selector)
                        assert worker.item is not None
                        results[worker.item] = (False, "grading timed out", True)
        except BaseException:
            _stop(self._processes)
            self._idle = []
            raise
        return results

    def close(self) -> None:
        """End all processes. The pool can be used again."""
        if os.getpid() == self._owner:
            _stop(self._processes)
        self._idle = []

    def _hand_out(
        self,
        items: Sequence[tuple[str, str]],
        queue: "deque[int]",
        busy: list[_Worker],
        selector: selectors.BaseSelector,
    ) -> None:
        starting = sum(not worker.ready for worker in busy)
        while len(queue) > starting and len(busy) < self.workers:
            worker = self._idle.pop() if self._idle else self._start()
            busy.append(worker)
            assert worker.process.stdout is not None
            selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            if worker.ready:
                self._send(worker, items, queue)
            else:
                starting += 1
                worker.deadline = time.monotonic() + START_TIMEOUT

    def _start(self) -> _Worker:
        root = str(Path(r3bench.__file__).parent.parent)
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), root]))
        # -P: a file of the user's called sympy.py in the working directory must not be imported
        command = [sys.executable, "-P", "-m", "r3bench.grading.worker", str(self.timeout)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
        )
        self._processes[process.pid] = process
        return _Worker(process)

    def _send(self, worker: _Worker, items: Sequence[tuple[str, str]], queue: "deque[int]") -> None:
        worker.item = queue.popleft()
        answer, gold = items[worker.item]
        worker.deadline = time.monotonic() + self.timeout * WALL_FACTOR + 1.0
        assert worker.process.stdin is not None
        try:
            worker.process.stdin.write(json.dumps({"answer": answer, "gold": gold}).encode() + b"\n")
        except BrokenPipeError:
            pass  # it died between two items; the read side reports it

    def _read(
        self,
        worker: _Worker,
        items: Sequence[tuple[str, str]],
        queue: "deque[int]",
        busy: list[_Worker],
        selector: selectors.BaseSelector,
        results: list[tuple[bool, str, bool]],
    ) -> None:
        assert worker.process.stdout is not None
        chunk = os.read(worker.process.stdout.fileno(), 65536)
        if not chunk:
            code = worker.process.wait()
            self._drop(worker, busy, selector)
            if not worker.ready or worker.item is None:
                raise StateError(
                    f"a grading process ended with code {code} while starting; try: "
                    f"{sys.executable} -m r3bench.grading.worker 5 </dev/null"
                )
            timed_out = code == -signal.SIGPROF
            results[worker.item] = (
                False,
                "grading timed out" if timed_out else f"grader crashed (code {code})",
                timed_out,
            )
            return
        worker.buffer += chunk
        while b"\n" in worker.buffer:
            line, _, rest = bytes(worker.buffer).partition(b"\n")
            worker.buffer = bytearray(rest)
            reply = json.loads(line)
            if "ready" in reply:
                worker.ready = True
            else:
                assert worker.item is not None
                results[worker.item] = (reply["correct"], reply["reason"], False)
            worker.item = None
            if queue:
                self._send(worker, items, queue)
            else:
                busy.remove(worker)
                selector.unregister(worker.process.stdout)
                self._idle.append(worker)

    def _drop(self, worker: _Worker, busy: list[_Worker], selector: selectors.BaseSelector) -> None:
        assert worker.process.stdout is not None and worker.process.stdin is not None
        busy.remove(worker)
        selector.unregister(worker.process.stdout)
        worker.process.kill()
        worker.process.wait()
        worker.process.stdin.close()
        worker.process.stdout.close()
        self._processes.pop(worker.process.pid, None)
