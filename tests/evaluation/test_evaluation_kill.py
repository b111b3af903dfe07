"""SIGKILL while an evaluation runs; resumed, it ends with the records of one that was never interrupted."""

import os
import random
import signal
import time

import pytest

from r3bench.config.sections import EvalSection
from r3bench.evaluation import shards
from r3bench.evaluation.driver import evaluate


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(shards, "QUESTIONS", 8)


def section(temperature):
    return EvalSection(
        tasks=("embedded",), samples=1 if temperature == 0 else 3, temperature=temperature, limit=30, batch_size=8
    )


def run(loaded, out, temperature):
    return evaluate(loaded, section(temperature), out, default_max_tokens=32, quiet=True)


def in_child(action):
    """Run `action` in a forked child; its exit status (negative: the signal that ended it)."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def contents(out):
    return {path.name: shards.read_shard(path) for path in shards.files(out / "embedded")}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_killed_at_every_write_and_resumed(loaded, tmp_path, small_shards, temperature):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    summary = run(loaded, whole, temperature)
    kills = 0
    for nth in range(1, 40):

        def dies(nth=nth):
            left = nth
            for name in ("fsync", "replace"):
                original = getattr(os, name)

                def counted(*arguments, original=original):
                    nonlocal left
                    left -= 1
                    if left == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return original(*arguments)

                setattr(os, name, counted)
            run(loaded, broken, temperature)

        status = in_child(dies)
        if status == 0:
            break
        assert status == -signal.SIGKILL
        kills += 1
        # what is there is whole
        assert all(shard == contents(whole)[name] for name, shard in contents(broken).items())
    assert kills >= 4
    assert run(loaded, broken, temperature) == summary
    assert contents(broken) == contents(whole)
    assert not list((broken / "embedded").glob(".*.tmp"))


def test_killed_at_random_moments_and_resumed(loaded, tmp_path, small_shards):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    start = time.perf_counter()
    summary = run(loaded, whole, 1.0)
    took = time.perf_counter() - start
    rng, kills = random.Random(0), 0
    for _ in range(6):
        pid = os.fork()
        if pid == 0:
            try:
                run(loaded, broken, 1.0)
            finally:
                os._exit(0)
        time.sleep(rng.random() * took / 2)
        os.kill(pid, signal.SIGKILL)
        kills += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert kills
    assert run(loaded, broken, 1.0) == summary
    assert contents(broken) == contents(whole)
