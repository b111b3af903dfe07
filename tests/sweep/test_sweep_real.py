"""Real training cells: random kills change nothing, and a grid's result is the single runs' result."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from r3bench.analysis import render_tables
from r3bench.config.load import parse_recipe
from r3bench.files import read_json, read_jsonl, write_json
from r3bench.records import RunPaths
from r3bench.seals import sealed
from r3bench.sweep.ablate import open_study
from r3bench.sweep.grid import parse_grid
from r3bench.sweep.progress import saved as safe
from r3bench.sweep.worker import run_cell

pytestmark = pytest.mark.slow
VALUES = {
    "name": "real",
    "recipe": "quickstart",
    "factors": {"replay": ["off", "on"]},
    "seeds": [0, 1, 2, 3],
    "base_model": False,
    "set": {
        "trainer.max_steps": 40,
        "trainer.max_completion_length": 16,
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
KILLS = 30
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
    record = timeless(run)
    for part in (record, record["train"]):  # digests of files with times in them
        part["files"] = {
            name: known for name, known in part["files"].items() if name.endswith((".parquet", ".safetensors"))
        }
    answers = {str(p.relative_to(run)): p.read_bytes() for p in sorted(run.rglob("*.parquet"))}
    return json.dumps(record, sort_keys=True), answers, (run / "model" / "model.safetensors").read_bytes()


def timeless(run):
    record = read_json(run / "run.json")
    record |= {"started": "2026-01-01T00:00:00+00:00", "ended": "2026-01-01T00:00:00+00:00", "commit": None}
    record["train"]["train_seconds"] = 1.0
    record.pop("digest")
    return record


def tables(study, folder):
    """The study's tables as text, all clocks set to the same."""
    shutil.copytree(study, folder, ignore=shutil.ignore_patterns("checkpoints", "model", "*.db*", "*.lock"))
    for path in folder.glob("*/run.json"):
        write_json(path, sealed(timeless(path.parent)))
    return {to: render_tables(folder, to) for to in ("markdown", "csv", "latex")}


def workers(study):
    """Processes that hold a run's lock."""
    found = []
    for lock in study.glob("*/run.lock"):
        text = lock.read_text()
        if text:
            found.append(int(json.loads(text)["pid"]))
    return found


def progress(study):
    """What no kill takes back: checkpoints' steps, trained models, stored answers."""
    return sum(saved[1] + saved[0] + saved[2] for saved in (safe(RunPaths(p.parent)) for p in study.glob("*/run.lock")))


def test_thirty_random_kills_of_workers_and_dispatchers(home):
    command = [sys.executable, "-c", SCRIPT, json.dumps(VALUES)]
    (home / "calm").mkdir()
    subprocess.run(command, cwd=home / "calm", check=True)
    calm = open_study(parse_grid(VALUES, "real.yaml"), home / "calm" / "runs")
    study, draw, kills = home / "runs" / "real", random.Random(0), Counter()
    process, finished = subprocess.Popen(command, cwd=home), {}
    while sum(kills.values()) < KILLS:
        goal = progress(study) + draw.randint(1, 2)
        while progress(study) < goal:
            assert process.poll() is None, f"it ended after {dict(kills)}"
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.3))
        finished |= {p: p.read_bytes() for p in study.glob("*/run.json") if p not in finished}
        if sum(kills.values()) % 8 == 7:
            process.kill()
            process.wait()
            kills["dispatcher"] += 1
            process = subprocess.Popen(command, cwd=home)
        elif alive := workers(study):
            try:
                os.kill(draw.choice(alive), signal.SIGKILL)
                kills["worker"] += 1
            except ProcessLookupError:
                continue
    assert process.wait() == 0
    print(dict(kills))
    assert sum(kills.values()) == KILLS and kills["dispatcher"] >= 3
    runs = sorted(p.parent.name for p in study.glob("*/run.json"))
    assert runs == sorted(cell.run_id for cell in calm.cells) and len(runs) == 8  # none lost
    assert all(path.read_bytes() == content for path, content in finished.items())  # none made again
    noted = {run: read_jsonl(study / run / "attempts.jsonl") for run in runs}
    for run in runs:
        assert outcome(study / run) == outcome(calm.root / run), run
        assert noted[run][-1]["event"] == "start"  # nothing after the attempt that made the record
    assert {line["kind"] for lines in noted.values() for line in lines if line["event"] == "failure"} == {"preempted"}
    killed = sum(line["event"] == "failure" for lines in noted.values() for line in lines)
    assert killed >= kills["worker"] / 2  # a kill that comes just after an attempt's end hits nothing
    assert tables(study, home / "a" / "real") == tables(calm.root, home / "b" / "real")


def test_a_cell_is_the_run_of_its_recipe(home):
    """What the dispatcher hands over is exactly what `config.json` says."""
    cell = open_study(parse_grid(VALUES, "real.yaml"), home / "runs").cells[1]
    run_cell(cell.recipe, home / "one" / cell.run_id, cell.factors, quiet=True)
    again = parse_recipe(read_json(home / "one" / cell.run_id / "config.json"), "config.json")
    run_cell(again, home / "two" / cell.run_id, cell.factors, quiet=True)
    assert outcome(home / "one" / cell.run_id) == outcome(home / "two" / cell.run_id)
