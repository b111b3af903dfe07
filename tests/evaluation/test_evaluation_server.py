"""The server backend against a small server that speaks the protocol."""

import json
import select
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from r3bench.config.sections import EvalSection
from r3bench.errors import ConfigError, StateError
from r3bench.evaluation import shards
from r3bench.evaluation.backends import server as server_module
from r3bench.evaluation.backends.sampling import Draw, Sampling
from r3bench.evaluation.backends.server import ServerBackend
from r3bench.evaluation.driver import evaluate


class Fake:
    """Answers depend on the question and the seed; `failures` are HTTP codes (or 'drop') sent before a good reply."""

    def __init__(self):
        self.failures, self.requests, self.models = [], [], [{"id": "tiny", "max_model_len": 4096}]
        self.held, self.cut, self.released = 0, 0, threading.Event()  # requests without a reply until `released`
        self.hold = lambda place: False  # which requests wait for that, by their place
        self.lock = threading.Lock()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def reply(self, code, value):
                content = json.dumps(value).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def do_GET(self):
                self.reply(200, {"data": fake.models})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with fake.lock:
                    failure = fake.failures.pop(0) if fake.failures else None
                    if failure is None:
                        fake.requests.append((self.path, body, self.headers.get("Authorization")))
                    place = len(fake.requests)
                if fake.hold(place):
                    with fake.lock:
                        fake.held += 1
                    while not fake.released.wait(0.05):
                        if select.select([self.connection], [], [], 0)[0]:  # the client has gone
                            with fake.lock:
                                fake.cut += 1
                            return
                if failure == "drop":
                    self.connection.close()
                elif failure == "nonsense":
                    self.reply(200, {"choices": []})
                elif failure:
                    self.reply(failure, {"error": {"message": "no such luck"}})
                else:
                    value = body["seed"] % 10
                    ended = "length" if value == 3 else "stop"
                    self.reply(200, {
                        "choices": [{"message": {"content": rf"so \boxed{{{value}}}"}, "finish_reason": ended}],
                        "usage": {"completion_tokens": value + 1},
                    })  # fmt: skip

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(server_module, "PAUSE", 0.001)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    found = Fake()
    yield found
    found.http.shutdown()
    found.http.server_close()


def test_an_evaluation_through_a_server(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    section = EvalSection(tasks=("embedded",), samples=2, limit=12, temperature=0.7, top_p=0.9, max_tokens=100)
    summary = evaluate(fake.address, section, tmp_path, default_max_tokens=1, quiet=True)["embedded"]
    assert (summary["questions"], summary["samples"]) == (12, 2)
    assert len(fake.requests) == 24
    rows = shards.read(tmp_path / "embedded")
    for row in rows:
        value = row["seed"] % 2**31 % 10
        assert row["extracted"] == str(value) and row["tokens"] == value + 1 and row["truncated"] == (value == 3)
        assert row["correct"] == (row["gold"] == str(value))
    path, body, key = fake.requests[0]
    assert path == "/v1/chat/completions" and key == "Bearer secret"
    assert (body["model"], body["temperature"], body["top_p"], body["max_tokens"]) == ("tiny", 0.7, 0.9, 100)
    assert body["messages"][0]["role"] == "user" and "boxed" in body["messages"][0]["content"]
    assert len({body["seed"] for _, body, _ in fake.requests}) == 24
    evaluate(fake.address, section, tmp_path, default_max_tokens=1, quiet=True)
    assert len(fake.requests) == 24


def test_ctrl_c_waits_for_no_reply_and_loses_no_answer(fake, tmp_path):
    """The command ends while four requests are still without a reply; sixty that had one are not asked again."""
    fake.hold = lambda place: place > 60
    words = ["eval", fake.address, "limit=40", "max_tokens=100", "batch_size=4", "--samples", "2", "--quiet"]
    command = [sys.executable, "-m", "r3bench.cli", *words, "--out", str(tmp_path)]
    # Tests started in the background of a shell inherit an ignored SIGINT, which Python then leaves ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command)
    signal.signal(signal.SIGINT, before)
    kept = tmp_path / "embedded"
    assert eventually(lambda: fake.held == 4 and sum(len(p.read_text().split("\n")) - 2 for p in kept.glob(".*")) == 60)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0 and not fake.released.is_set()
    assert eventually(lambda: fake.cut == 4)  # the server need not go on
    assert not list(kept.glob("*.parquet"))
    fake.hold = lambda place: False
    asked = [body["seed"] for _, body, _ in fake.requests[:60]]
    fake.requests.clear()
    section = EvalSection(tasks=("embedded",), samples=2, limit=40, max_tokens=100)
    evaluate(fake.address, section, tmp_path, default_max_tokens=1, quiet=True)
    assert len(fake.requests) == 20 and not {body["seed"] for _, body, _ in fake.requests} & set(asked)
    assert len(shards.read(kept)) == 80 and not list(kept.glob(".*"))


def test_a_slow_answer_keeps_no_request_of_the_next_shard_waiting(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "QUESTIONS", 4)
    fake.hold = lambda place: place == 1
    section = EvalSection(tasks=("embedded",), samples=1, limit=20, max_tokens=100, batch_size=2)
    thread = threading.Thread(target=evaluate, args=(fake.address, section, tmp_path),
                              kwargs={"default_max_tokens": 1, "quiet": True}, daemon=True)  # fmt: skip
    thread.start()
    assert eventually(lambda: fake.held == 1 and len(fake.requests) == 20)
    assert eventually(lambda: len(shards.files(tmp_path / "embedded")) == 4)
    fake.released.set()
    thread.join(60)
    assert len(shards.read(tmp_path / "embedded")) == 20


def eventually(condition):
    for _ in range(1200):
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_failures_that_pass_are_tried_again(fake):
    backend = ServerBackend(fake.address, 1)
    fake.failures = [503, "drop", 429]
    draw = Draw("q", 0, 7, backend.chat([{"role": "user", "content": "?"}]))
    (answer,) = backend.generate([draw], Sampling(1.0, 1.0, 10), lambda _: None)
    assert answer.text == r"so \boxed{7}"


@pytest.mark.parametrize(
    ("failures", "kind", "message"),
    [
        ([400], ConfigError, "HTTP 400.*no such luck"),
        ([503] * 6, StateError, "no usable reply in 6 tries; last: HTTP 503"),
        (["nonsense"], StateError, "a reply without choices"),
    ],
)
def test_other_failures_are_said(fake, failures, kind, message):
    backend = ServerBackend(fake.address, 2)
    fake.failures = failures
    with pytest.raises(kind, match=message):
        backend.generate([Draw("q", 0, 7, "[]")], Sampling(1.0, 1.0, 10), lambda _: None)


def test_models_are_chosen_by_name(fake):
    fake.models = [{"id": "a"}, {"id": "large"}]
    assert ServerBackend(f"{fake.address}#large", 1).model == "large"
    with pytest.raises(ConfigError, match="several models"):
        ServerBackend(fake.address, 1)
    with pytest.raises(ConfigError, match="no model 'larg'; did you mean 'large'"):
        ServerBackend(f"{fake.address}#larg", 1)
    fake.models = []
    with pytest.raises(ConfigError, match="lists no model"):
        ServerBackend(fake.address, 1)


def test_a_cap_beyond_the_context_and_no_server_at_all(fake):
    with pytest.raises(ConfigError, match="the server's context is 4096"):
        ServerBackend(fake.address, 1).generate([Draw("q", 0, 7, "[]")], Sampling(1.0, 1.0, 5000), lambda _: None)
    with pytest.raises(StateError, match="no usable reply"):
        ServerBackend("http://127.0.0.1:9/v1", 1)
