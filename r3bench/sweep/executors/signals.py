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


def asked_to_end() -> tuple[int, ...]:
    """The signals that ask for an end: also that of a terminal that is gone, unless that is ignored (`nohup`)."""
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hangup)


@contextmanager
def stoppable(*, warned: bool = False) -> Iterator[None]:
    """In a worker: SIGTERM, SIGINT and SIGHUP end the attempt with what it has; so does a scheduler's warning before
    the time limit (SIGUSR2) in the process that is `warned`.

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

    numbers = asked_to_end()
    for number in numbers:
        signal.signal(number, stop)
    if warned:
        signal.signal(signal.SIGUSR2, warn)
    try:
        yield
    finally:  # not as before: what is left is to hand over the result, and no late signal may keep it from that
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        if warned:
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)


@contextmanager
def passing_on(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """SIGTERM, SIGHUP and SIGUSR2 become SIGTERM for `process`, which does the work; this one waits for its end."""
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

    numbers = {*asked_to_end(), signal.SIGUSR2} - {signal.SIGINT}
    old = {number: signal.signal(number, pass_on) for number in sorted(numbers)}
    try:
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, signal.SIG_IGN if passed else before)


@contextmanager
def handling(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP go to `handler`; outside the main thread, which alone gets them, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = {number: signal.signal(number, handler) for number in asked_to_end()}
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
