"""A process that imports torch and TRL once and forks a child per cell: 0.05 s instead of 10 s of imports each.

JSON lines on stdin ({"id", "function", "work"}), JSON lines on stdout ({"id", "pid"}, then {"id", "status", "reply"}).
It ends with its stdin, after asking its children to save and stop. Only for CPU: a forked child can't use CUDA once its
parent has.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from typing import IO, Any

from r3bench.streams import steady
from r3bench.sweep.attempts import Failure
from r3bench.sweep.executors.child import call, die_with_parent, log_failure, redirect
from r3bench.sweep.executors.signals import stoppable

GRACE = 60.0  # seconds children get to save when the dispatcher is gone


class ForkServer:
    """Reads requests from `requests` (a file descriptor) and writes replies to `replies`."""

    def __init__(self, requests: int, replies: int) -> None:
        self.requests = requests
        self.replies = replies
        self.children: dict[int, tuple[int, IO[bytes]]] = {}  # pid -> id, result file
        self.buffer = b""
        self.wake, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the dispatcher's to handle
        self.wake_write = wake_write

    def serve(self) -> None:
        """Until stdin ends."""
        while True:
            ready, _, _ = select.select([self.requests, self.wake], [], [])
            if self.wake in ready:
                os.read(self.wake, 4096)
                self.reap()
            if self.requests in ready:
                chunk = os.read(self.requests, 1 << 20)
                if not chunk:
                    return self.close()
                self.buffer += chunk
                *lines, self.buffer = self.buffer.split(b"\n")
                for line in lines:
                    self.start(json.loads(line))

    def start(self, request: dict[str, Any]) -> None:
        """Fork a child for one request."""
        try:
            result = _buffer()
            pid = os.fork()
        except OSError as error:  # no process or memory left: nothing is wrong with the cell
            failure = Failure("machine", f"no process could be started: {error.strerror}")
            return self.reply({"id": request["id"], "status": 1, "reply": {"failure": asdict(failure)}})
        if pid == 0:
            self.child(request, result)
        self.children[pid] = (request["id"], result)
        self.reply({"id": request["id"], "pid": pid})

    def child(self, request: dict[str, Any], result: IO[bytes]) -> None:
        """Never returns."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.setsid()
            die_with_parent()
            for descriptor in (self.replies, self.wake, self.wake_write):  # `redirect` replaces 0, 1 and 2
                os.close(descriptor)
            with stoppable():
                reply = call(request["function"], request["work"], prepare=redirect)
            result.write(json.dumps(reply).encode())  # first: a log on a full disk takes nothing from it
            result.flush()
            status = 0
            log_failure(reply)
        finally:
            os._exit(status)

    def reap(self) -> None:
        """Report children that ended, and end what they left running."""
        while self.children:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(found.si_pid, signal.SIGKILL)  # before the pid is given up, so that it can't be another's
            pid, status = os.waitpid(found.si_pid, 0)
            if pid not in self.children:
                continue
            number, result = self.children.pop(pid)
            result.seek(0)
            content = result.read()
            result.close()
            reply = None
            with contextlib.suppress(json.JSONDecodeError):
                reply = json.loads(content) if content else None
            self.reply({"id": number, "status": os.waitstatus_to_exitcode(status), "reply": reply})

    def reply(self, message: dict[str, Any]) -> None:
        """One line to the dispatcher; it may be gone."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.replies, json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """The dispatcher is gone: let children save and stop, then end them."""
        for pid in self.children:
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        while self.children and time.monotonic() < deadline:
            select.select([self.wake], [], [], 0.2)
            self.reap()
        for pid in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def _buffer() -> IO[bytes]:
    """A nameless file, in memory where there is such a thing: a full disk keeps no reply back."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("reply"), "w+b")
    return tempfile.TemporaryFile()


def main(preload: list[str]) -> None:
    """Import the modules of `preload` and call its functions ('module:name'), then serve until stdin ends.

    Replies leave by a copy of stdout, so that stray prints can't spoil them.
    """
    steady()
    replies = os.dup(1)
    os.dup2(2, 1)
    for entry in preload:
        module, _, function = entry.partition(":")
        loaded = importlib.import_module(module)
        if function:
            getattr(loaded, function)()
    gc.collect()
    gc.freeze()  # children neither walk nor copy what is here already
    server = ForkServer(0, replies)
    server.reply({"ready": True})
    server.serve()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # taking torch apart would only keep the dispatcher waiting


if __name__ == "__main__":
    main(sys.argv[1:])
