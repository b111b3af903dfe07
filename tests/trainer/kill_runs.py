"""Run as a script: trains once undisturbed and once killed at random moments, in forked children. Prints a report."""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from r3bench.config.load import parse_recipe
from r3bench.records import RunPaths
from r3bench.training import run
from r3bench.training.run import train


def recipe(model, data):
    return parse_recipe(
        {
            "model": model,
            "data": {"name": data, "style": "plain"},
            "trainer": {
                "max_steps": 10, "per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 8,
                "learning_rate": 1e-2, "logging_steps": 1, "save_steps": 2, "gradient_checkpointing": False,
            },
            "reward": {"require_boxed": False},
            "components": {"replay": {"truncated_negatives": True, "mode": "replace", "warmup": 0}},
            "seed": 5,
        },
        "kill test",
    )  # fmt: skip


def correctness(completion_ids, question_id, trainer_state, **_):
    """Whole groups right or wrong by question and epoch, so that replay has work."""
    return [float((int(q[1:]) + int(trainer_state.epoch or 0)) % 2) for q in question_id]


def start(config, paths):
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        code = 1
        try:
            train(config, paths, quiet=True)
            code = 0
        finally:
            os._exit(code)
    return child


def main(model, data, folder, kills):
    torch.set_num_threads(1)
    run.reward_functions = lambda section, grader: [correctness]
    config = recipe(model, data)
    whole, cut = RunPaths(Path(folder, "whole")), RunPaths(Path(folder, "cut"))
    _, status = os.waitpid(start(config, whole), 0)
    assert status == 0, f"the undisturbed run ended with {status}"
    rng = random.Random(3)
    killed = []
    while True:
        child = start(config, cut)
        if len(killed) < int(kills):
            wait_for_steps(cut, rng.randrange(1, 5), child)
            time.sleep(rng.random() * 0.05)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            killed.append(len(cut.metrics.read_text().splitlines()) if cut.metrics.exists() else 0)
            continue
        assert status == 0, f"the resumed run ended with {status}"
        if len(killed) >= int(kills) or cut.train.exists():
            break
    print("REPORT " + json.dumps({"killed_at": killed}))


def wait_for_steps(paths, steps, child):
    """Wait until the child has logged `steps` more steps, or ended."""
    before = paths.metrics.stat().st_size if paths.metrics.exists() else 0
    seen = 0
    while seen < steps and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        now = paths.metrics.stat().st_size if paths.metrics.exists() else 0
        before = min(before, now)
        seen = paths.metrics.read_bytes()[before:].count(b"\n") if now > before else 0
        time.sleep(0.002)


if __name__ == "__main__":
    main(*sys.argv[1:])
