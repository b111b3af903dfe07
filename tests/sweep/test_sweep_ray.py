"""Cells on a real local Ray cluster of two nodes."""

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from toy import run_toy

from r3bench.files import read_json, read_jsonl
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.executors.ray import RayExecutor
from r3bench.sweep.grid import ExecutorSection, parse_grid

ray = pytest.importorskip("ray", reason="ray is not installed")
pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(monkeypatch):
    """Two raylets: one with a made-up resource, one with a (claimed) GPU."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "resources": {"r3": 2}})
    made.add_node(num_cpus=2, num_gpus=1)
    made.wait_for_nodes()
    yield made.address
    if ray.is_initialized():
        ray.shutdown()
    made.shutdown()


def run_slowly(work):
    """Takes long enough to be caught in the middle."""
    time.sleep(4)
    return run_toy(work)


def ray_pool(address, **options):
    return RayExecutor(ExecutorSection(kind="ray", options={"address": address, **options}), poll=0.2)


@pytest.mark.parametrize("options", [{"num_gpus": 1}, {"num_gpus": 0, "resources": {"r3": 1}}])
def test_a_study_on_ray(home, grid_values, cluster, options):
    grid = parse_grid(grid_values | {"seeds": [0]}, "toy.yaml")
    with ray_pool(cluster, **options) as pool:
        report = ablate(grid, home / "runs", run=run_toy, executor=pool, slots=99, say=lambda line: None)
    assert report.complete and len(report.finished) == 5


SCRIPT = """
import json, sys
from pathlib import Path
from test_sweep_ray import run_slowly, ray_pool
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.grid import parse_grid
with ray_pool(sys.argv[2], num_gpus=0, resources={"r3": 1}) as pool:
    grid = parse_grid(json.loads(sys.argv[1]), "toy.yaml")
    report = ablate(grid, Path("runs"), run=run_slowly, executor=pool, slots=99)
print("COMPLETE", report.complete)
"""


def test_cells_outlive_a_killed_dispatcher_and_are_adopted_by_the_next(home, grid_values, cluster):
    values = json.dumps(grid_values | {"seeds": [0], "base_model": False})
    command = [sys.executable, "-c", SCRIPT, values, cluster]
    first = subprocess.Popen(command, cwd=home)
    study = home / "runs" / "toy"
    deadline = time.monotonic() + 120
    while len(list(study.glob("*/ray.json"))) < 4:
        assert time.monotonic() < deadline and first.poll() is None
        time.sleep(0.1)
    time.sleep(1.0)
    first.kill()
    first.wait()
    actors = {p.parent.name: read_json(p)["actor"] for p in study.glob("*/ray.json")}
    second = subprocess.run(command, cwd=home, capture_output=True, text=True, check=True, timeout=240)
    assert "COMPLETE True" in second.stdout
    assert {p.parent.name: read_json(p)["actor"] for p in study.glob("*/ray.json")} == actors
    assert Counter(r["run"] for r in read_jsonl(study / "executions.jsonl")) == dict.fromkeys(actors, 1)
