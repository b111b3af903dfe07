"""Signals while cells or searches run: the caller decides what to do, running work is asked to save and stop."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from r3bench.sweep.attempts import Stopped

DRAIN_GRACE = 600.0  # seconds running work gets to save when it is interrupted


@contextmanager
def stoppable(*, warned: bool = False) -> Iterator[None]:
    """In a worker: SIGTERM ends the attempt with what it has; so does a scheduler's warning before the time limit
    (SIGUSR2) in the process that is `warned`.

    Training takes SIGTERM over while it runs, and saves first; anywhere else `Stopped` is raised at once, since an
    evaluation keeps every finished block of answers. The warning counts once: SLURM sends it to a job's processes, and
    srun passes on what it gets itself.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()

    def stop(number: int, _frame: Any) -> None:
        if os.getpid() == owner:
            raise Stopped(f"{signal.Signals(number).name} received")
        signal.signal(number, signal.SIG_DFL)  # a forked child: as if we weren't here
        os.kill(os.getpid(), number)

    def warn(number: int, _frame: Any) -> None:
        if os.getpid() == owner:
            signal.signal(number, signal.SIG_IGN)
            os.kill(owner, signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    if warned:
        signal.signal(signal.SIGUSR2, warn)
    try:
        yield
    finally:  # not as before: what is left is to hand over the result, and no late signal may keep it from that
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if warned:
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)


@contextmanager
def passing_on(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """SIGTERM and SIGUSR2 become SIGTERM for `process`, which does the work; this one waits for its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    passed = False

    def pass_on(number: int, _frame: Any) -> None:
        nonlocal passed
        passed = True
        if number == signal.SIGUSR2:  # see `stoppable`
            signal.signal(number, signal.SIG_IGN)
        process.terminate()

    old = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGUSR2)}
    try:
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, signal.SIG_IGN if passed else before)


@contextmanager
def handling(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """SIGINT and SIGTERM go to `handler`; outside the main thread, which alone gets signals, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, before)


def end(future: Future[Any], grace: float, dump: bool = False) -> None:
    """Ask what is behind `future` to save and stop, within `grace` seconds; `dump` its stacks first."""
    stop = getattr(future, "stop", None)
    if stop is not None:
        stop(grace, dump)
    else:
        future.cancel()
