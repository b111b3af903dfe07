"""Locks: they name their holder, go with their process, and looking at one is never in a taker's way."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from r3bench import lock
from r3bench.lock import Locked, exclusive, holder

WATCHER = """
import sys
from pathlib import Path
from r3bench import lock
lock.LOOKS = lock.LOOKS and sys.argv[2] == "looks"
print("watching", flush=True)
while True:
    lock.holder(Path(sys.argv[1]))
"""
HOLDER = """
import sys, time
from pathlib import Path
from r3bench.lock import exclusive
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def started(script, *arguments):
    process = subprocess.Popen([sys.executable, "-c", script, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline()
    return process


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run.lock"


@pytest.fixture(params=["looks", "takes"])
def way(request, monkeypatch):
    """With locks that can be looked at, and as on systems without them."""
    monkeypatch.setattr(lock, "LOOKS", lock.LOOKS and request.param == "looks")
    return request.param


def test_no_taker_is_refused_beside_watchers(file, way):
    with exclusive(file):
        pass
    watchers = [started(WATCHER, file, way) for _ in range(2)]
    try:
        for _ in range(2000 if way == "looks" else 50):
            with exclusive(file):
                assert os.stat(file).st_size
    finally:
        for watcher in watchers:
            watcher.kill()
            watcher.wait()


def test_looking_takes_nothing(file, monkeypatch):
    """Neither a lock nor a write: any call but the one that asks is an error."""
    if not lock.LOOKS:
        pytest.skip("locks can't be looked at on this system")
    with exclusive(file):
        pass
    asked = []

    def only(descriptor, command, argument):
        asked.append(command)
        return original(descriptor, command, argument)

    original = lock.fcntl.fcntl
    monkeypatch.setattr(lock.fcntl, "fcntl", only)
    monkeypatch.setattr(lock.fcntl, "flock", lambda *_: pytest.fail("took a lock to look at it"))
    file.chmod(0o444)
    assert holder(file) is None
    assert asked == [lock.fcntl.F_OFD_GETLK]


def test_a_holder_is_named_and_a_killed_one_holds_nothing(file, way):
    process = started(HOLDER, file)
    if way == "takes":  # it holds the other kind
        process.kill()
        process.wait()
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER.replace("with", "import r3bench.lock as l; l.LOOKS = False\nwith"), file],
            stdout=subprocess.PIPE,
        )
        assert process.stdout.readline()
    try:
        assert holder(file)["pid"] == process.pid
        said = f"held by process {process.pid} on .* since 2.*: it is being measured"
        with pytest.raises(Locked, match=said), exclusive(file, means="it is being measured"):
            pass
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert holder(file) is None and file.read_text()
    with exclusive(file):
        assert holder(file)["pid"] == os.getpid()
    assert holder(file) is None and not file.read_text()


def test_one_that_waits_gets_it(file):
    process = started(HOLDER, file)
    seen = []

    def waiting(taken):
        seen.append(taken.holder["pid"])
        process.kill()

    with exclusive(file, waiting):
        assert seen == [process.pid] and holder(file)["pid"] == os.getpid()
    process.wait()


def test_a_full_disk_takes_the_name_and_not_the_lock(file, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(lock.os, "pwrite", full)
    monkeypatch.setattr(lock, "MOMENT", 0.05)
    with exclusive(file):
        assert holder(file) == {}
        start = time.monotonic()
        with pytest.raises(Locked, match=r"run\.lock: held by another process"), exclusive(file):
            pass
        assert time.monotonic() - start < 5
    assert holder(file) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"[" * 4096, b"\xff\xfe", b'{"pid": 1}'])
def test_any_content_of_a_lock_is_no_error(file, content, monkeypatch):
    monkeypatch.setattr(lock, "MOMENT", 0.05)
    with exclusive(file):
        file.write_bytes(content)
        assert holder(file) == {}
        with pytest.raises(Locked), exclusive(file):
            pass
