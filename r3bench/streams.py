"""Standard output and error that outlive their reader: a closed pipe or terminal never ends what is running."""

import contextlib
import errno
import os
import sys
from typing import Any

from r3bench.files import NO_ROOM

GONE = (errno.EPIPE, errno.EIO, errno.EBADF, errno.ECONNRESET)  # a pipe's reader, a terminal


class Steady:
    """A text stream whose writes go nowhere once nobody reads them; everything else is the stream's.

    Args:
        stream: standard output or error.
        forgiven: error numbers that are no error. What is lost on a full disk matters for a result, not for progress.
    """

    def __init__(self, stream: Any, forgiven: tuple[int, ...]) -> None:
        self._stream = stream
        self._forgiven = forgiven

    def write(self, text: str) -> int:
        """As the stream's."""
        try:
            return int(self._stream.write(text))
        except OSError as error:
            self._drop(error)
        return len(text)

    def flush(self) -> None:
        """As the stream's."""
        try:
            self._stream.flush()
        except OSError as error:
            self._drop(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _drop(self, error: OSError) -> None:
        """From now on into nothing, for what C libraries and the end of the interpreter write as well."""
        if error.errno not in self._forgiven:
            raise error
        with contextlib.suppress(OSError, ValueError):
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self._stream.fileno())
            os.close(nothing)
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def steady() -> None:
    """Make this process's standard streams steady. One that was closed before the start is opened to nothing: a file
    opened later would get its number, and with it every stray print."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)  # the lowest free number, so this one
    for name, number, forgiven in (("stdout", 1, GONE), ("stderr", 2, GONE + NO_ROOM)):
        stream = getattr(sys, name)
        if stream is None:
            stream = os.fdopen(number, "w", closefd=False)
        if not isinstance(stream, Steady):
            setattr(sys, name, Steady(stream, forgiven))
