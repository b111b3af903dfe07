"""Real training cells: random kills change nothing, and a grid's result is the single runs' result."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from r3bench.config.load import parse_recipe
from r3bench.files import read_json, read_jsonl
from r3bench.sweep.ablate import open_study
from r3bench.sweep.grid import parse_grid
from r3bench.sweep.worker import run_cell

pytestmark = pytest.mark.slow
VALUES = {
    "name": "real",
    "recipe": "quickstart",
    "factors": {"replay": ["off", "on"]},
    "seeds": [0, 1],
    "base_model": False,
    "set": {
        "trainer.max_steps": 12,
        "trainer.per_device_train_batch_size": 16,
        "trainer.save_steps": 1,
        "data.limit": 8,
    },
    "eval": {"samples": 2, "limit": 20},
    "retries": {"preempted": 1000},
    "executor": {"slots": 2},
    "keep": "all",
    "disk_floor_gb": 0.1,
}
SCRIPT = """
import json, sys
from pathlib import Path
from r3bench.sweep.ablate import ablate
from r3bench.sweep.grid import parse_grid
if __name__ == "__main__":
    report = ablate(parse_grid(json.loads(sys.argv[1]), "real.yaml"), Path("runs"))
    sys.exit(0 if report.complete else 1)
"""


def outcome(run):
    """What a run came to, without its times: weights, figures, answers."""
    record = read_json(run / "run.json")
    for key in ("started", "ended", "commit"):
        record.pop(key)
    record["train"].pop("train_seconds")
    answers = {str(p.relative_to(run)): p.read_bytes() for p in sorted(run.rglob("*.parquet"))}
    return json.dumps(record, sort_keys=True), answers, (run / "model" / "model.safetensors").read_bytes()


def workers(study):
    """Processes that hold a run's lock."""
    found = []
    for lock in study.glob("*/run.lock"):
        text = lock.read_text()
        if text:
            found.append(int(json.loads(text)["pid"]))
    return found


def test_thirty_random_kills_of_workers_and_dispatchers(home):
    calm = home / "calm"
    grid = parse_grid(VALUES, "real.yaml")
    for cell in open_study(grid, calm).cells:
        run_cell(cell.recipe, calm / "real" / cell.run_id, cell.factors, quiet=True)
    study, draw, kills = home / "runs" / "real", random.Random(0), Counter()
    command = [sys.executable, "-c", SCRIPT, json.dumps(VALUES)]
    process = subprocess.Popen(command, cwd=home)
    while process.poll() is None:
        time.sleep(draw.uniform(0.5, 3.0))
        if sum(kills.values()) >= 30:
            process.wait()
            break
        alive = workers(study)
        if alive and draw.random() < 0.9:
            try:
                os.kill(draw.choice(alive), signal.SIGKILL)
                kills["worker"] += 1
            except ProcessLookupError:
                continue
        elif alive:
            process.kill()
            process.wait()
            kills["dispatcher"] += 1
            process = subprocess.Popen(command, cwd=home)
    assert process.returncode == 0
    print(dict(kills))
    runs = sorted(p.parent.name for p in study.glob("*/run.json"))
    assert runs == sorted(p.parent.name for p in (calm / "real").glob("*/run.json")) and len(runs) == 4
    for run in runs:
        assert outcome(study / run) == outcome(calm / "real" / run), run
    assert sum(kills.values()) >= 10
    noted = [r["kind"] for run in runs for r in read_jsonl(study / run / "attempts.jsonl") if r["event"] == "failure"]
    assert set(noted) == {"preempted"}


def test_a_cell_is_the_run_of_its_recipe(home):
    """What the dispatcher hands over is exactly what `config.json` says."""
    cell = open_study(parse_grid(VALUES, "real.yaml"), home / "runs").cells[1]
    run_cell(cell.recipe, home / "one" / cell.run_id, cell.factors, quiet=True)
    again = parse_recipe(read_json(home / "one" / cell.run_id / "config.json"), "config.json")
    run_cell(again, home / "two" / cell.run_id, cell.factors, quiet=True)
    assert outcome(home / "one" / cell.run_id) == outcome(home / "two" / cell.run_id)
