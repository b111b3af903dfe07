"""Cells as jobs: through submitit's local executor, and on a one-node SLURM where one can be brought up."""

import pytest
from toy import run_toy

pytest.importorskip("submitit", reason="submitit is not installed")

from r3bench.files import read_json, read_jsonl
from r3bench.sweep.ablate import ablate, open_study
from r3bench.sweep.grid import ExecutorSection, parse_grid
from r3bench.sweep.slurm import SlurmExecutor


def test_a_study_of_jobs_with_a_bug_and_a_death(home, grid_values, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(__import__("pathlib").Path(__file__).parent))
    grid_values |= {"seeds": [0], "base_model": False}
    grid = parse_grid(grid_values, "toy.yaml")
    cells = {c.name: c for c in open_study(grid, home / "runs").cells}
    (home / "runs" / "toy" / "trouble").mkdir(parents=True)
    (home / "runs" / "toy" / "trouble" / cells["replay"].run_id).write_text("bug")
    (home / "runs" / "toy" / "trouble" / cells["bonus"].run_id).write_text("oom")
    with SlurmExecutor(ExecutorSection(kind="slurm"), cluster="local", poll=0.1) as pool:
        report = ablate(grid, home / "runs", run=run_toy, executor=pool, slots=4, say=lambda line: None)
    assert report.complete and len(report.finished) == 4
    kinds = {
        name: [r["kind"] for r in read_jsonl(home / "runs" / "toy" / c.run_id / "attempts.jsonl") if "kind" in r]
        for name, c in cells.items()
    }
    assert kinds == {"base": [], "bonus": ["out_of_memory"], "replay": ["bug"], "replay+bonus": []}
    assert read_json(home / "runs" / "toy" / cells["base"].run_id / "slurm.json")["job"]
