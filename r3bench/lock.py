"""Operating-system locks that die with their process and name their holder. Looking at one never takes it."""

import contextlib
import errno
import fcntl
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from r3bench.errors import StateError
from r3bench.files import NO_ROOM

# Locks that belong to the open file, like flock's, but can be looked at without being taken. Only Linux has them; where
# they are missing (macOS), looking takes a shared lock for a moment, which `exclusive` waits out.
LOOKS = sys.platform == "linux"
WHOLE_FILE = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid
MOMENT = 0.5  # seconds in which a holder that has not written its name yet, or is just letting go, is waited for
EVERY = 0.01  # seconds between tries in that time
PATIENCE = 0.2  # seconds between tries of one that waits


class Locked(StateError):
    """Another process holds the lock."""

    def __init__(self, path: Path, holder: dict[str, Any], means: str = "") -> None:
        who = f"process {holder['pid']} on {holder['host']} since {holder['since']}" if holder else "another process"
        super().__init__(f"{path}: held by {who}{means and ': '}{means}")
        self.path = path
        self.holder = holder


@contextlib.contextmanager
def exclusive(path: Path, waiting: Callable[[Locked], None] | None = None, means: str = "") -> Iterator[None]:
    """Hold an exclusive advisory lock on `path` (created, never removed).

    The lock belongs to the open file, so it goes with the process however that ends; no lease, no clock. On NFS the
    kernel maps it to a server-side lock, so it also holds between nodes.

    Args:
        path: the file.
        waiting: called once when the lock is taken, which is then waited for; without it that is an error.
        means: what a taken lock means, for the message.

    Raises:
        Locked: it is taken.
        StateError: the file can't be written, or its file system has no locks.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        raise StateError(f"{path}: can't be written: {error.strerror}") from error
    try:
        taken = _take(descriptor, path, means)
        if taken is not None and waiting is None:
            raise taken
        if taken is not None and waiting is not None:
            waiting(taken)
            while not _try(descriptor, path):
                time.sleep(PATIENCE)
        me = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now(UTC).isoformat("T", "seconds")}
        with _name_may_be_missing():
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(me).encode(), 0)
        try:
            yield
        finally:
            with _name_may_be_missing():
                os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def holder(path: Path) -> dict[str, Any] | None:
    """Who holds the lock at `path`: None when free, a mapping (empty if it could not write its name) when taken."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return _seen(descriptor, path)
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path, means: str) -> Locked | None:
    """Take the lock; else who has it. A holder without a name is just taking it or letting go: that is waited for."""
    deadline = time.monotonic() + MOMENT
    while not _try(descriptor, path):
        owner = _owner(descriptor)
        if (owner and LOOKS) or time.monotonic() > deadline:  # where looking takes it, it may be only looked at
            return Locked(path, owner, means)
        time.sleep(EVERY)
    return None


def _seen(descriptor: int, path: Path) -> dict[str, Any] | None:
    deadline = time.monotonic() + MOMENT
    while _is_taken(descriptor, path):
        owner = _owner(descriptor)
        if owner or time.monotonic() > deadline:
            return owner
        time.sleep(EVERY)
    return None


def _try(descriptor: int, path: Path) -> bool:
    """Take the lock if it is free."""
    try:
        if LOOKS:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _whole_file())
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise StateError(_lockless(path, error)) from error
    return True


def _is_taken(descriptor: int, path: Path) -> bool:
    try:
        if LOOKS:
            found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _whole_file())
            return bool(struct.unpack(WHOLE_FILE, found)[0] != fcntl.F_UNLCK)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        raise StateError(_lockless(path, error)) from error
    return False


def _whole_file() -> bytes:
    return struct.pack(WHOLE_FILE, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


@contextlib.contextmanager
def _name_may_be_missing() -> Iterator[None]:
    """A full disk takes the holder's name from those who look, not the lock."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


def _lockless(path: Path, error: OSError) -> str:
    return (
        f"{path}: can't be locked ({error.strerror}); without locks two processes could do the same run: use a folder "
        "on a file system that has them (NFS: with a running lock service)"
    )


def _owner(descriptor: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
    except (ValueError, RecursionError):  # taken, its holder not yet written; or anything else
        return {}
    return found if isinstance(found, dict) and {"pid", "host", "since"} <= found.keys() else {}
