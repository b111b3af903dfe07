"""Sampling processes that fail: what is said, how soon, and what is left of them."""

import dataclasses
import os
import signal
import threading

import pytest
from test_serving_server import gone

from r3bench.config.sections import EvalSection
from r3bench.config.strict import plain
from r3bench.errors import StateError
from r3bench.evaluation.backends import pool
from r3bench.evaluation.backends.sampling import Draw, Sampling
from r3bench.evaluation.driver import evaluate
from r3bench.evaluation.settings import deciding, measured, settings


class Fake:
    """In place of `pool.Worker`: the first that is asked to sample is at it until it is closed, the second fails."""

    def __init__(self, *_):
        self.closed, self.asked = threading.Event(), None

    def send(self, message):
        if "draws" in message:
            with Fake.lock:
                self.asked = Fake.turn
                Fake.turn += 1

    def receive(self):
        if self.asked is None:
            return {"ready": {"context": None, "fingerprint": "f", "details": {}}}
        if self.asked == 0:
            Fake.begun.set()
            raise StateError("ended" if self.closed.wait(20) else "nobody ended it")
        Fake.begun.wait(20)
        raise StateError("the cause")

    def close(self):
        self.closed.set()
        Fake.last.wait(0.5)  # by then whoever sampled with the first one has said so


@pytest.fixture
def two(monkeypatch, model_path):
    Fake.lock, Fake.turn, Fake.begun, Fake.last = threading.Lock(), 0, threading.Event(), threading.Event()
    monkeypatch.setattr(pool, "Worker", Fake)
    return pool.Pool(str(model_path), EvalSection(batch_size=1), workers=2, tensor_parallel=1, vllm=False)


def draws(count):
    return [Draw(f"q{i}", 0, i, f"{i}") for i in range(count)]


def test_a_process_that_fails_is_not_waited_for_behind_one_that_works(two):
    with pytest.raises(StateError, match="the cause"):
        two.generate(draws(8), Sampling(1.0, 1.0, 4), lambda _: None)  # two stretches, a process each


def test_the_first_failure_is_the_one_that_is_said(two):
    """Shards are sampled from several threads; one that ends on account of another's failure is no reason."""
    said = []

    def sample():
        try:
            two.generate(draws(1), Sampling(1.0, 1.0, 4), lambda _: None)
        except StateError as error:
            said.append(str(error))

    threads = [threading.Thread(target=sample) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == ["the cause", "the cause"]


def test_an_engine_goes_with_the_process_that_started_it(standin, model_path, tmp_path, monkeypatch):
    """Forked, it holds the pipe by which answers come, so that its end could not be told from a long answer."""
    monkeypatch.setenv("STANDIN_ENGINE", str(tmp_path / "engine"))
    worker, said = pool.Worker(None, 1), []

    def receive():
        try:
            worker.receive()
        except StateError as error:
            said.append(str(error))

    try:
        worker.send({"model": str(model_path), "section": plain(EvalSection()), "tensor_parallel": 1, "vllm": True})
        assert "ready" in worker.receive()
        os.kill(worker._process.pid, signal.SIGKILL)
        thread = threading.Thread(target=receive, daemon=True)
        thread.start()
        thread.join(60)
        assert said and "was killed by SIGKILL" in said[0]
        assert gone([int((tmp_path / "engine").read_text())])
    finally:
        worker.close()


def test_a_line_that_a_process_died_in(monkeypatch):
    worker = pool.Worker(None, 1)
    try:
        worker._process.kill()
        worker._process.wait()
        monkeypatch.setattr(worker._process.stdout, "readline", lambda: '{"answers": [{"te', raising=False)
        with pytest.raises(StateError, match="was killed by SIGKILL"):
            worker.receive()
    finally:
        worker.close()


@pytest.mark.slow
def test_engine_arguments_that_change_answers_are_not_mixed(standin, model_path, tmp_path):
    section = EvalSection(limit=2, samples=1, engine={"max_model_len": 400})
    assert deciding(section.engine) is None and deciding({"quantization": "fp8"}) == '{"quantization": "fp8"}'
    summary = evaluate(f"vllm:{model_path}", section, tmp_path, default_max_tokens=8, quiet=True)
    other = dataclasses.replace(section, engine={"seed": 1})
    assert measured(summary, section, 8) and not measured(summary, other, 8)
    assert settings(other, 8)["engine"] == '{"seed": 1}'
    with pytest.raises(StateError, match=r"engine None \(now '\{\"seed\": 1\}'\)"):
        evaluate(f"vllm:{model_path}", other, tmp_path, default_max_tokens=8, quiet=True)
    evaluate(f"vllm:{model_path}", section, tmp_path, default_max_tokens=8, quiet=True)


def test_answers_of_another_dtype_are_not_mixed(loaded, tmp_path):
    import copy

    import torch

    model, tokenizer = loaded
    section = EvalSection(limit=2, samples=1)
    evaluate(loaded, section, tmp_path, default_max_tokens=4, quiet=True)
    half = copy.deepcopy(model).to(torch.bfloat16)
    with pytest.raises(StateError, match=r"dtype 'float32' \(now 'bfloat16'\)"):
        evaluate((half, tokenizer), section, tmp_path, default_max_tokens=4, quiet=True)
