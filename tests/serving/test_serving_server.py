"""`r3bench serve` and the server of a run: health, ports, errors, and that nothing outlives its owner."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from json_page import documented
from typer.testing import CliRunner

from r3bench.cli import app
from r3bench.errors import ConfigError, Lost, StateError
from r3bench.serving.server import Server, Serving, free_port, listens
from r3bench.serving.training import GPUS, ranks, split_devices, wants_server

SERVER = {"use_vllm": True, "vllm_mode": "server"}


def gone(pids: list[int], seconds: float = 60) -> bool:
    """Whether all processes end within that time."""
    deadline = time.monotonic() + seconds
    while any(Path(f"/proc/{pid}").exists() and _running(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def command(tmp_path: Path, model: str, *options: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "r3bench.cli", "serve", model, "--json", "--runs", str(tmp_path / "runs"), *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def first_json(process: subprocess.Popen) -> dict:
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("}"):
            return documented("".join(lines), "serve")
    raise AssertionError(process.stderr.read())


@pytest.mark.parametrize("whose", ["server", "guard"])
def test_a_server_that_is_killed_while_it_starts_is_lost(standin, tiny, tmp_path, monkeypatch, whose):
    """A machine's failure, as later; one that ends by itself is an error of what was asked for."""
    pids = tmp_path / "pids"
    monkeypatch.setenv("STANDIN_FORK", str(pids))
    monkeypatch.setenv("STANDIN_SLOW", "60")

    def kill() -> None:
        while not pids.exists() or len(pids.read_text().split()) < 2:
            time.sleep(0.05)
        server = int(pids.read_text().split()[0])
        guard = int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(server if whose == "server" else guard, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(Lost, match="server: ended with exit code"):
        Server(Serving(model=tiny, training=True), tmp_path / "server.log", lambda _: None).__enter__()
    killer.join()
    assert gone([int(pid) for pid in pids.read_text().split()])


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_serve_answers_is_evaluated_and_leaves_nothing(standin, tiny, tmp_path, monkeypatch, number):
    monkeypatch.setenv("STANDIN_FORK", str(tmp_path / "pids"))
    process = command(tmp_path, tiny, "--", "--max-model-len", "200")
    told = first_json(process)
    pids = [told["pid"], *map(int, (tmp_path / "pids").read_text().split())]
    assert len(pids) == 3 and all(map(_running, pids))
    if number == signal.SIGTERM:
        words = [
            "eval",
            told["url"],
            "limit=3",
            "max_tokens=8",
            "--samples",
            "2",
            "--json",
            "--out",
            str(tmp_path / "o"),
        ]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["embedded"]["backend"] == "server"
        words[3] = "max_tokens=190"
        result = CliRunner().invoke(app, [*words[:-1], str(tmp_path / "long")])
        assert result.exit_code == 2 and "maximum context length is 200 tokens" in result.stderr
    process.send_signal(number)
    process.communicate(timeout=60)
    assert gone(pids), "a process of the server outlived its owner"
    if number != signal.SIGKILL:
        assert process.returncode == 0
    assert "VLLM_SERVER_DEV_MODE" not in os.environ
    paths = {json.loads(line)["path"] for line in standin.read_text().splitlines()}
    assert "/health" in paths


def test_a_port_that_another_program_takes_meanwhile(standin, tiny, tmp_path, monkeypatch):
    (tmp_path / "taken").touch()
    monkeypatch.setenv("STANDIN_TAKEN", str(tmp_path / "taken"))
    said = []
    with Server(Serving(tiny), tmp_path / "log", said.append) as server:
        assert any("was taken meanwhile, trying another" in line for line in said)
        assert listens(server.pid, server.port)
        pids = [server.pid]
    assert gone(pids)
    (tmp_path / "taken").touch()
    with pytest.raises(StateError, match=r"ended with exit code 1: OSError: .*Address already in use"):
        Server(Serving(tiny, port=free_port()), tmp_path / "log", said.append)


def test_another_program_that_says_it_is_healthy_is_not_taken_for_ours(standin, tiny, tmp_path, monkeypatch):
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Healthy(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            self.send_response(200)
            self.end_headers()

    other = HTTPServer(("127.0.0.1", 0), Healthy)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    monkeypatch.setenv("STANDIN_SLOW", "2")
    try:
        with pytest.raises(StateError, match="ended with exit code 1"):
            Server(Serving(tiny, port=other.server_port), tmp_path / "log", lambda _: None)
    finally:
        other.shutdown()
        other.server_close()


def test_a_server_that_dies_says_why(standin, tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("STANDIN_FAIL", "the model does not fit into 24 GB")
    process = command(tmp_path, tiny)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "INFO: loading" in errors and "Traceback" not in errors
    assert "r3bench: server: ended with exit code 1: ValueError: the model does not fit into 24 GB; its log:" in errors


def test_a_server_that_takes_too_long(standin, tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("STANDIN_SLOW", "60")
    monkeypatch.setattr("r3bench.serving.server.SAY", 0.0)
    said = []
    with pytest.raises(StateError, match=r"no answer at http://127.0.0.1:\d+/health after 1 s; its log: "):
        Server(Serving(tiny, timeout=1), tmp_path / "log", said.append)
    assert said and "starting with devices" in said[-1]


def test_without_vllm_nothing_is_started(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    if Path(sys.executable).with_name("vllm").exists():
        pytest.skip("vLLM is installed")
    with pytest.raises(ConfigError, match=r"vLLM is not installed .*pip install 'vllm<0\.31,>=0\.27'"):
        Server(Serving(tiny), tmp_path / "log", lambda _: None)


def test_a_host_that_is_none_of_this_machine(standin, tiny, tmp_path):
    for host in ("no-such-host.invalid", "203.0.113.7"):
        words = ["serve", tiny, "--host", host, "--runs", str(tmp_path)]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 2, result.output
        assert f"r3bench: --host: got '{host}', expected an address of this machine" in result.stderr


def test_free_ports_are_free():
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert listens(os.getpid(), port)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, True),
        ({"use_vllm": False}, False),
        ({"vllm_mode": "colocate"}, False),
        ({"vllm_server_base_url": "http://h:1"}, False),
        ({"vllm_server_host": "h"}, False),
        ({"vllm_server_port": 8001}, False),
    ],
)
def test_only_a_recipe_without_an_address_gets_a_server(changes, wanted):
    assert wants_server({**SERVER, **changes}) is wanted


def test_gpus_are_shared_between_training_and_server(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert split_devices(SERVER, 3) == {"CUDA_VISIBLE_DEVICES": "4,5,6", GPUS: "7"}
    wide = {**SERVER, "vllm_tensor_parallel_size": 2}
    assert split_devices(wide, 2) == {"CUDA_VISIBLE_DEVICES": "4,5", GPUS: "6,7"} and ranks(wide, 4) == 2
    assert split_devices({}, 3) == {} and ranks({}, 4) == 4
    with pytest.raises(ConfigError, match="takes 1 GPUs besides the 4 that train, but this machine offers 4"):
        split_devices(SERVER, 4)
    with pytest.raises(ConfigError, match=r"a cell has 1; nearest that works: executor.gpus 2"):
        ranks(SERVER, 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert split_devices(SERVER, 1) == {}
