"""Weights that weren't kept: a measurement that needs them is refused before anything runs."""

import shutil

import pytest
from toy import TOY, run_toy

from r3bench.config.load import load_recipe
from r3bench.errors import StateError
from r3bench.files import read_json
from r3bench.sweep.cell_run import run_cell
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.executors.inline import InlineExecutor
from r3bench.sweep.grid import parse_grid


def test_one_more_task_after_the_weights_are_gone(home, grid_values):
    grid_values |= {"keep": "none", "seeds": [0]}
    more = grid_values | {"eval": grid_values["eval"] | {"tasks": ["embedded", "embedded-validation"]}}

    def go(values):
        grid = parse_grid(values, "toy.yaml")
        return ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=lambda line: None)

    first = go(grid_values)
    assert first.complete and not list(home.glob("runs/toy/*/model"))
    before = {path: path.read_bytes() for path in home.glob("runs/toy/*/*.json")}
    with pytest.raises(
        StateError, match=r"4 finished runs .* weights were not kept; remove base-s0-\w+ to train it"
    ) as e:
        go(more)
    assert "\n" not in str(e.value)
    assert before == {path: path.read_bytes() for path in home.glob("runs/toy/*/*.json")}
    assert go(grid_values).complete
    for run in home.glob("runs/toy/*-s0-*"):
        if not run.name.startswith("base-model"):
            shutil.rmtree(run)
    again = go(more)
    assert again.complete and all(len(record.eval) == 2 for record in again.finished.values())


def test_a_single_run_says_so_too(home, grid_values):
    run = home / "runs" / "one"
    run_cell(load_recipe("quickstart"), run, quiet=True, steps=TOY)
    before = read_json(run / "run.json")
    shutil.rmtree(run / "model")
    with pytest.raises(StateError, match="one: trained, but its weights were not kept"):
        run_cell(load_recipe("quickstart", ["eval.samples=9"]), run, quiet=True, steps=TOY)
    assert read_json(run / "run.json") == before
