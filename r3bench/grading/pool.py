"""Grading processes that can be killed. One item is out per worker, so a hang costs that item and nothing else."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import r3bench
from r3bench.errors import Lost, StateError

START_TIMEOUT = 300.0  # seconds for a worker to import its libraries, on a very busy machine
WALL_FACTOR = 6.0  # wall-clock seconds per CPU second before a worker that sleeps or starves is killed


OUTSIDE = tuple(-number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
KILLS = 5  # from outside, at the same answer, until the batch is given up
CRASHES = 2  # at the same answer until that is its fault


@dataclass
class _Worker:
    process: "subprocess.Popen[bytes]"
    buffer: bytearray = field(default_factory=bytearray)
    ready: bool = False
    item: int | None = None
    deadline: float = 0.0


@dataclass
class _Batch:
    items: Sequence[tuple[str, str]]
    selector: selectors.BaseSelector
    queue: "deque[int]"  # items not handed out yet
    results: list[tuple[bool, str, bool]]
    busy: list[_Worker] = field(default_factory=list)
    deaths: Counter[int | None] = field(default_factory=Counter)  # per item, and of workers that were starting


def _stop(processes: "dict[int, subprocess.Popen[bytes]]", owner: int) -> None:
    """Kill all processes of the table and empty it; in a fork of their owner only forget them."""
    if os.getpid() == owner:
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
        self._own()

    def _own(self) -> None:
        """Begin without processes, as the property of this process."""
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._finalizer = weakref.finalize(self, _stop, self._processes, self._owner)

    def run(self, items: Sequence[tuple[str, str]]) -> list[tuple[bool, str, bool]]:
        """Grade (answer, gold) pairs; per pair (correct, reason, timed out), in order.

        Raises:
            Lost: workers are killed from outside, time and again.
            StateError: a worker can't be started.
        """
        if os.getpid() != self._owner:  # after a fork the pipes belong to the parent
            self._own()
        with self._lock, selectors.DefaultSelector() as selector:
            batch = _Batch(items, selector, deque(range(len(items))), [(False, "", False)] * len(items))
            try:
                while batch.queue or batch.busy:
                    self._hand_out(batch)
                    wait = max(0.0, min(worker.deadline for worker in batch.busy) - time.monotonic())
                    for key, _ in selector.select(wait):
                        self._read(key.data, batch)
                    self._expire(batch)
            except BaseException:  # Ctrl-C too: answers half read would go to the next batch; it goes on
                self.close()
                raise
        return batch.results

    def close(self) -> None:
        """End all processes. The pool can be used again."""
        _stop(self._processes, self._owner)
        self._idle = []

    def _hand_out(self, batch: _Batch) -> None:
        starting = sum(not worker.ready for worker in batch.busy)
        while len(batch.queue) > starting and len(batch.busy) < self.workers:
            worker = self._idle.pop() if self._idle else self._start()
            batch.busy.append(worker)
            assert worker.process.stdout is not None
            batch.selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            if worker.ready:
                self._send(worker, batch)
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

    def _send(self, worker: _Worker, batch: _Batch) -> None:
        worker.item = batch.queue.popleft()
        answer, gold = batch.items[worker.item]
        worker.deadline = time.monotonic() + self.timeout * WALL_FACTOR + 1.0
        assert worker.process.stdin is not None
        # a worker that died between two items is reported by the read side
        with contextlib.suppress(BrokenPipeError):
            worker.process.stdin.write(json.dumps({"answer": answer, "gold": gold}).encode() + b"\n")

    def _read(self, worker: _Worker, batch: _Batch) -> None:
        assert worker.process.stdout is not None
        chunk = os.read(worker.process.stdout.fileno(), 65536)
        if not chunk:
            self._died(worker, batch)
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
                batch.results[worker.item] = (reply["correct"], reply["reason"], False)
            worker.item = None
            if batch.queue:
                self._send(worker, batch)
            else:
                batch.busy.remove(worker)
                batch.selector.unregister(worker.process.stdout)
                self._idle.append(worker)

    def _died(self, worker: _Worker, batch: _Batch) -> None:
        """A kill from outside (the kernel's, when memory is short) says nothing about the answer: it is graded anew."""
        code = worker.process.wait()
        self._drop(worker, batch)
        timed_out = code == -signal.SIGPROF
        batch.deaths[worker.item] += 1
        times, outside = batch.deaths[worker.item], code in OUTSIDE
        if outside and times >= KILLS:
            raise Lost(f"a grading process was killed by {signal.Signals(-code).name} {times} times; is there memory?")
        if worker.item is None:
            if outside:
                return
            raise StateError(
                f"a grading process ended with code {code} while starting; try: "
                f"{sys.executable} -m r3bench.grading.worker 5 </dev/null"
            )
        if outside or (times < CRASHES and not timed_out):
            batch.queue.appendleft(worker.item)
            return
        reason = "grading timed out" if timed_out else f"grader crashed (code {code})"
        batch.results[worker.item] = (False, reason, timed_out)

    def _expire(self, batch: _Batch) -> None:
        now = time.monotonic()
        for worker in [w for w in batch.busy if w.deadline <= now]:
            if worker.item is None:
                raise StateError(f"a grading process did not start within {START_TIMEOUT:.0f} s")
            self._drop(worker, batch)
            batch.results[worker.item] = (False, "grading timed out", True)

    def _drop(self, worker: _Worker, batch: _Batch) -> None:
        assert worker.process.stdout is not None and worker.process.stdin is not None
        batch.busy.remove(worker)
        batch.selector.unregister(worker.process.stdout)
        worker.process.kill()
        worker.process.wait()
        worker.process.stdin.close()
        worker.process.stdout.close()
        self._processes.pop(worker.process.pid, None)
