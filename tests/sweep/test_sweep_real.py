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
from pathlib import Path

import pytest

from r3bench.analysis import render_tables
from r3bench.config.load import parse_recipe
from r3bench.files import read_json, read_jsonl, write_json
from r3bench.records import RunPaths
from r3bench.seals import sealed
from r3bench.sweep.cell_run import run_cell
from r3bench.sweep.grid import parse_grid
from r3bench.sweep.opening import open_study
from r3bench.sweep.progress import saved as safe

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
KILLS = 40
ROLES = ("worker", "fork server", "worker", "dispatcher")  # in turn; a grader whenever there is one
SCRIPT = """
import json, sys
from pathlib import Path
from r3bench.sweep.dispatch.ablate import ablate
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


def tree(root):
    """Processes below `root`, itself among them: pid -> its command line."""
    parents, words = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, fields = int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                parents[pid], words[pid] = int(fields[1]), (stat.parent / "cmdline").read_text().replace("\0", " ")
        except (OSError, ValueError):
            continue
    found, new = {}, {root} & words.keys()
    while new:
        found |= {pid: words[pid] for pid in new}
        new = {pid for pid, parent in parents.items() if parent in new} - found.keys()
    return found


def victims(root):
    """Role -> pids. A worker is a child of the fork server, a grader one of a worker's processes."""
    below = tree(root)
    servers = [pid for pid, words in below.items() if "r3bench.sweep.executors.forkserver" in words]
    graders = [pid for pid, words in below.items() if "r3bench.grading.worker" in words]
    main = [pid for pid in servers if stat_parent(pid) == root]
    return {
        "dispatcher": [root],
        "fork server": main,
        "worker": [p for p in servers if p not in main],
        "grader": graders,
    }


def stat_parent(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def names(study):
    """Files of a study, without those of checkpoints that come and go, and a copy's."""
    kept = [path.relative_to(study) for path in study.rglob("*") if path.is_file() and "checkpoints" not in path.parts]
    return sorted(str(path) for path in kept)


def progress(study):
    """What no kill takes back: checkpoints' steps, trained models, stored answers."""
    return sum(saved[1] + saved[0] + saved[2] for saved in (safe(RunPaths(p.parent)) for p in study.glob("*/run.lock")))


def test_forty_random_kills(home):
    """Of the dispatcher, the fork server, its workers and their grading processes."""
    command = [sys.executable, "-c", SCRIPT, json.dumps(VALUES)]
    (home / "calm").mkdir()
    subprocess.run(command, cwd=home / "calm", check=True)
    calm = open_study(parse_grid(VALUES, "real.yaml"), home / "calm" / "runs")
    study, draw, kills = home / "runs" / "real", random.Random(0), Counter()
    process, finished, seen = subprocess.Popen(command, cwd=home), {}, {}
    while sum(kills.values()) < KILLS:
        role = ROLES[sum(kills.values()) % len(ROLES)]
        goal = progress(study) + draw.randint(1, 2)
        while progress(study) < goal and not (role == "fork server" and draw.random() < 0.01):  # also while it imports
            assert process.poll() is None, f"it ended after {dict(kills)}"
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.3))
        finished |= {p: p.read_bytes() for p in study.glob("*/run.json") if p not in finished}
        seen |= tree(process.pid)
        below = victims(process.pid)
        role = "grader" if below["grader"] and kills["grader"] < KILLS // 4 else role
        if not (alive := below[role]):
            continue
        try:
            os.kill(draw.choice(alive), signal.SIGKILL)
        except ProcessLookupError:
            continue
        kills[role] += 1
        if role == "dispatcher":
            process.wait()
            process = subprocess.Popen(command, cwd=home)
    assert process.wait() == 0
    print(dict(kills))
    assert sum(kills.values()) == KILLS and min(kills[role] for role in ROLES) >= 5
    assert not [pid for pid in seen if "r3bench" in tree(pid).get(pid, "")]  # no stray process
    assert names(study) == names(calm.root)  # and no stray file
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
    assert not any(line["event"] == "gave_up" for lines in noted.values() for line in lines)
    assert tables(study, home / "a" / "real") == tables(calm.root, home / "b" / "real")


def test_a_cell_is_the_run_of_its_recipe(home):
    """What the dispatcher hands over is exactly what `config.json` says."""
    cell = open_study(parse_grid(VALUES, "real.yaml"), home / "runs").cells[1]
    run_cell(cell.recipe, home / "one" / cell.run_id, cell.factors, quiet=True)
    again = parse_recipe(read_json(home / "one" / cell.run_id / "config.json"), "config.json")
    run_cell(again, home / "two" / cell.run_id, cell.factors, quiet=True)
    assert outcome(home / "one" / cell.run_id) == outcome(home / "two" / cell.run_id)
