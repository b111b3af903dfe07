"""A vLLM server of our own: started on a free port, waited for, and gone with the process that started it."""

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from r3bench.devices import alone
from r3bench.errors import ConfigError, Lost, StateError
from r3bench.installation import install_line
from r3bench.serving.guard import end_orphans

HOST = "127.0.0.1"  # reachable from this machine only, unless asked otherwise
PORTS = 3  # ports tried when another program takes the one that was free
EVERY = 0.5  # seconds between two looks at a server that starts
SAY = 10.0  # seconds between two lines about it
NOTICED = 3.0  # seconds until the end of a server has been noticed by what watches it
TAIL = 15  # lines of its log that are shown when it ends
TAKEN = ("address already in use", "errno 98", "errno 48")  # in the log of a server that lost its port
TRAINING = {  # what TRL 1.16 asks of a server it trains with: its samples' log-probs, and new weights every step
    "--weight-transfer-config": json.dumps({"backend": "nccl"}),
    "--logprobs-mode": "processed_logprobs",
    "--max-logprobs": "-1",
}


@dataclass(frozen=True)
class Serving:
    """What is served, and how."""

    model: str  # folder or hub id
    training: bool = False  # whether TRL trains with it (opens the endpoints that change weights)
    devices: Sequence[str] | None = None  # for CUDA_VISIBLE_DEVICES; None: what this process sees
    tensor_parallel: int = 1  # GPUs over which one copy of the model is spread
    host: str = HOST  # address to listen on
    port: int | None = None  # None: a free one
    timeout: float = 1800.0  # seconds it may take to start
    options: Mapping[str, str] = field(default_factory=dict)  # further arguments of `vllm serve`: '--x' -> value
    extra: Sequence[str] = ()  # and more, as they are


class Server:
    """A running server; a context manager that ends it.

    Args:
        serving: what is served.
        log: file that takes what the server prints.
        say: takes a line for the user now and then while it starts.

    Raises:
        ConfigError: vLLM is missing.
        Lost: it was killed while it started.
        StateError: it ended or took too long; the end of its log is in the message or above it.
    """

    def __init__(self, serving: Serving, log: Path, say: Callable[[str], None]) -> None:
        self.serving, self.log, self._say = serving, log, say
        self._program = program()
        log.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(1 if serving.port else PORTS):
            self.port = serving.port or free_port(serving.host)
            self._start()
            try:
                if self._wait(last=attempt + 1 == (1 if serving.port else PORTS)):
                    return
            except BaseException:  # Ctrl-C while it starts, too
                self.stop()
                raise
            say(f"server: port {self.port} was taken meanwhile, trying another")

    @property
    def url(self) -> str:
        """Without a path; `/v1` below it speaks OpenAI's protocol."""
        host = HOST if self.serving.host in ("0.0.0.0", "::", "") else self.serving.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process that watches over the server; SIGTERM ends both."""
        return self._guard.pid

    def wait(self) -> None:
        """Until it ends by itself.

        Raises:
            Lost: it was killed.
            StateError: it ended by itself.
        """
        self._guard.wait()
        raise self._end()

    def check(self, error: BaseException) -> None:
        """After `error` of something that uses it.

        Raises:
            Lost: it was killed, which explains the error.
            StateError: it has ended by itself.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):  # its end is noticed a moment after its connections'
            self._guard.wait(NOTICED)
        if self._guard.poll() is not None:
            raise self._end() from error

    def stop(self) -> None:
        """End it and all it started, once."""
        if self._session.closed:
            return
        self._guard.terminate()
        self._guard.wait()
        with self._session:
            session = self._session.read()
        if session and self._guard.returncode < 0:  # the guard was killed, so nobody ended what it watched over
            end_orphans(int(session))

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        serving = self.serving
        options = {
            "--host": serving.host,
            "--port": str(self.port),
            "--generation-config": "vllm",  # else a model's own top-k, repetition penalty or cap act unseen
            **({"--tensor-parallel-size": str(serving.tensor_parallel)} if serving.tensor_parallel > 1 else {}),
            **(TRAINING if serving.training else {}),
            **serving.options,
        }
        command = [*self._program, "serve", serving.model, *(part for pair in options.items() for part in pair)]
        environment = alone(dict(os.environ))
        if serving.training:
            environment["VLLM_SERVER_DEV_MODE"] = "1"
        if serving.devices is not None:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(serving.devices)
        with open(self.log, "ab") as log:
            self._from = log.tell()  # an earlier server's lines come before
            asked, told = os.pipe()
            guard = [sys.executable, "-P", "-m", "r3bench.serving.guard", str(os.getpid()), str(told)]
            self._guard = subprocess.Popen(
                [*guard, *command, *serving.extra], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=environment, start_new_session=True, pass_fds=[told],
            )  # fmt: skip
            os.close(told)
            self._session = os.fdopen(asked)  # gives the server's session, once it runs

    def _wait(self, last: bool) -> bool:
        """Whether it answers; False where it lost its port to another program and that is not the `last` try."""
        start = told = time.monotonic()
        while True:
            if self._guard.poll() is not None:
                lost = any(sign in self.output().lower() for sign in TAKEN)
                if lost and not last:
                    return False
                raise self._end()
            if _healthy(self.url) and listens(self._guard.pid, self.port):
                return True
            now = time.monotonic()
            if now - start > self.serving.timeout:
                raise StateError(
                    f"server: no answer at {self.url}/health after {self.serving.timeout:.0f} s; its log: {self.log}"
                )
            if now - told > SAY:
                told = now
                lines = self.output().strip().splitlines()
                self._say(f"server: starting for {now - start:.0f} s: {lines[-1][:100] if lines else '...'}")
            time.sleep(EVERY)

    def output(self) -> str:
        """What it printed."""
        with open(self.log, "rb") as file:
            file.seek(self._from)
            return file.read()[-200_000:].decode(errors="replace")

    def _end(self) -> StateError:
        """Why it ended: `Lost` where it was killed, while it started as well as later."""
        code = self._guard.returncode
        killed = code < 0 or code > 128  # the guard, or the server by way of it
        return (Lost if killed else StateError)(self._ended())

    def _ended(self) -> str:
        lines = self.output().rstrip().splitlines()
        print("\n".join(lines[-TAIL:]), file=sys.stderr)
        cause = next((line.strip() for line in reversed(lines) if "Error" in line), "see the end of its log above")
        return f"server: ended with exit code {self._guard.returncode}: {cause[:300]}; its log: {self.log}"


def program() -> list[str]:
    """The command that runs vLLM: this Python's own, else the one on the path.

    Raises:
        ConfigError: there is none.
    """
    beside = Path(sys.executable).with_name("vllm")
    found = str(beside) if beside.is_file() else shutil.which("vllm")
    if found is None:
        raise ConfigError(f"vLLM is not installed (no program 'vllm'); {install_line('vllm')}")
    return [found]


def free_port(host: str = HOST) -> int:
    """A port nobody listens on at the moment.

    Raises:
        ConfigError: `host` is no address of this machine.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family) as probe:
            probe.bind(address)
            return int(probe.getsockname()[1])
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--host: got '{host}', expected an address of this machine: {error}") from error


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def listens(pid: int, port: int) -> bool:
    """Whether `pid` or a process below it, and no other program, listens on `port`; True where it can't be told."""
    tables = [Path(name) for name in ("/proc/net/tcp", "/proc/net/tcp6")]
    if not tables[0].is_file():
        return True
    sockets = set()
    for table in tables:
        with contextlib.suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                columns = line.split()
                if columns[3] == "0A" and int(columns[1].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{columns[9]}]")
    return any(_holds(process, sockets) for process in below(pid))


def below(pid: int) -> list[int]:
    """`pid` and the processes it and they started, from /proc."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [pid]
    for process in found:
        found += parents.get(process, [])
    return found


def _holds(pid: int, sockets: set[str]) -> bool:
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(descriptor) in sockets:
                    return True
    return False
