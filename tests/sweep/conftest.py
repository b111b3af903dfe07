import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def hangups():
    """SIGHUP ends a process, as in a terminal, also where the tests themselves were started under nohup."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    if ignored:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    if ignored:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


@pytest.fixture
def grid_values():
    """A 2 x 2 grid with 2 seeds on the embedded model."""
    return {
        "name": "toy",
        "recipe": "quickstart",
        "factors": {
            "replay": ["off", "on"],
            "bonus": {"off": {"reward.length_bonus": False}, "on": {"reward.length_bonus": True}},
        },
        "seeds": [0, 1],
        "eval": {"samples": 2},
        "disk_floor_gb": 0.0,
        "retries": {"bug": 1, "out_of_memory": 2, "preempted": 2, "timeout": 1},
    }


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty working directory, so that no user files of the caller are found."""
    monkeypatch.chdir(tmp_path)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return tmp_path


@dataclass(frozen=True)
class PostgreSQL:
    """A server of our own, which can be stopped, started, frozen and thawed."""

    url: str
    data: Path
    start: Callable[[], None]
    stop: Callable[[], None]

    def freeze(self):
        """No process of it answers any more; its connections stay."""
        _signal_all(self.data, signal.SIGSTOP)

    def thaw(self):
        """As before."""
        thaw(self.data)


def thaw(data):
    """Let a frozen server go on."""
    _signal_all(data, signal.SIGCONT)


def _signal_all(data, number):
    """The server's main process and the one behind each connection."""
    file = Path(data) / "postmaster.pid"
    main = int(file.read_text().split()[0]) if file.exists() else None
    for status in Path("/proc").glob("[0-9]*/stat") if main else ():
        with contextlib.suppress(OSError):
            pid, parent = int(status.parent.name), int(status.read_text().rpartition(")")[2].split()[1])
            if main in (pid, parent):
                os.kill(pid, number)


@pytest.fixture
def postgres(tmp_path):
    """A PostgreSQL server of our own on a free port; skipped with a reason where there is none."""
    pytest.importorskip("psycopg2", reason="no PostgreSQL driver (psycopg2) installed")
    found = shutil.which("initdb") or max(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), default=None)
    if found is None:
        pytest.skip("no PostgreSQL server (initdb) installed")
    folder = os.path.dirname(os.path.realpath(found))
    data, user = tmp_path / "pg", getpass.getuser()
    as_user = []
    if os.geteuid() == 0:  # the server refuses to run as root
        user = "postgres"
        if subprocess.run(["id", user], capture_output=True, check=False).returncode:
            pytest.skip("running as root without a 'postgres' user")
        as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        data = _root_folder(user)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    subprocess.run([*as_user, found, "-D", data, "-A", "trust", "-U", "r3"], check=True, capture_output=True)
    options = f"-p {port} -k {data} -c listen_addresses=127.0.0.1"
    control = [*as_user, f"{folder}/pg_ctl", "-D", data, "-w"]

    def start():
        subprocess.run([*control, "-o", options, "-l", f"{data}/log", "start"], check=True, stdout=subprocess.DEVNULL)

    def stop():
        subprocess.run([*control, "-m", "immediate", "stop"], check=True, stdout=subprocess.DEVNULL)

    start()
    yield PostgreSQL(f"postgresql+psycopg2://r3:s3cretPW@127.0.0.1:{port}/postgres", data, start, stop)
    thaw(data)
    subprocess.run([*control, "-m", "immediate", "stop"], check=False, stdout=subprocess.DEVNULL)
    shutil.rmtree(data, ignore_errors=True)


def _root_folder(user):
    folder = tempfile.mkdtemp(prefix="r3bench-pg-")
    shutil.chown(folder, user)
    return folder
