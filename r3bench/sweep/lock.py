"""Operating-system locks that die with their process and name their holder."""

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from r3bench.errors import StateError


class Locked(StateError):
    """Another process holds the lock."""

    def __init__(self, path: Path, holder: dict[str, Any]) -> None:
        who = f"process {holder['pid']} on {holder['host']} since {holder['since']}" if holder else "another process"
        super().__init__(f"{path}: held by {who}")
        self.path = path
        self.holder = holder


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold an exclusive advisory lock on `path` (created, never removed); `Locked` at once when it is taken.

    The lock belongs to the open file, so it goes with the process however that ends; no lease, no clock. On NFS the
    kernel maps it to a server-side lock, so it also holds between nodes.

    Raises:
        Locked: it is taken.
        StateError: the file can't be written, or its file system has no locks.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StateError(f"{path}: can't be written: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Locked(path, _holder(descriptor)) from None
        except OSError as error:
            raise StateError(_lockless(path, error)) from error
        me = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now(UTC).isoformat("T", "seconds")}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(me).encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def holder(path: Path) -> dict[str, Any] | None:
    """Who holds the lock at `path`: None when free, a mapping (possibly empty) when taken."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _holder(descriptor)
        except OSError as error:
            raise StateError(_lockless(path, error)) from error
        return None
    finally:
        os.close(descriptor)


def _lockless(path: Path, error: OSError) -> str:
    return (
        f"{path}: can't be locked ({error.strerror}); without locks two processes could do the same run: use a folder "
        "on a file system that has them (NFS: with a running lock service)"
    )


def _holder(descriptor: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
    except json.JSONDecodeError:  # taken, its owner not yet written
        return {}
    return found if isinstance(found, dict) and {"pid", "host", "since"} <= found.keys() else {}
