"""Signals while cells or searches run: the caller decides what to do, running work is asked to save and stop."""

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

DRAIN_GRACE = 120.0  # seconds running work gets to save when it is interrupted


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
