"""A limit on how long the user's code may take before anything is started, and a place for what it prints."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

from r3bench.errors import ConfigError

SECONDS = 60.0  # for one call: a judge that is a model needs some, one that hangs shouldn't cost the night
VARIABLE = "R3BENCH_PATIENCE"  # another number of seconds; 0: no limit


class _Late(BaseException):
    """Not an `Exception`: the user's code may catch those."""


def patience() -> float:
    """Seconds that one call of the user's code may take.

    Raises:
        ConfigError: the variable holds no number.
    """
    said = os.environ.get(VARIABLE, "").strip()
    try:
        seconds = float(said) if said else SECONDS
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise ConfigError(f"{VARIABLE}: got '{said}', expected seconds, or 0 for no limit")
    return seconds


@contextlib.contextmanager
def within(where: str) -> Iterator[None]:
    """Run the user's code with what it prints on stderr, and stop it after `patience()` seconds.

    The limit is a timer signal, which ends Python code, sleeps and waits, and which only a main thread can set; it
    comes again every second, for code that catches everything.

    Raises:
        ConfigError: it took longer.
    """
    seconds = patience()
    with contextlib.redirect_stdout(sys.stderr):
        if not seconds or threading.current_thread() is not threading.main_thread():
            yield
            return
        over = False

        def late(number: int, frame: FrameType | None) -> None:
            if not over:
                raise _Late

        began, before = time.monotonic(), signal.signal(signal.SIGALRM, late)
        left, every = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
        try:
            yield
        except _Late:
            raise ConfigError(
                f"{where} gave nothing within {seconds:g} s, so it would hold up every batch; {VARIABLE}=N waits N "
                "seconds, 0 without end"
            ) from None
        finally:
            over = True
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            if left:
                signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), 1e-3), every)
