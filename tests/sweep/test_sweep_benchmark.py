"""The benchmark of grids measures what it says it does."""

import importlib.util
from pathlib import Path

import pytest

from r3bench.sweep.grid import load_grid
from r3bench.sweep.opening import open_study

FILE = Path(__file__).parents[2] / "benchmarks" / "grid.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("grid_benchmark", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("components", [False, True])
def test_sixteen_cells_of_the_quickstart_recipe(benchmark, tmp_path, components):
    study = open_study(benchmark.grid_of(50, components), tmp_path)
    assert len(study.cells) == benchmark.CELLS == 16
    shipped = open_study("quickstart", tmp_path).cells
    if not components:  # the same runs, and a fourth seed
        assert {c.run_id for c in shipped if c.seed == 0} - {c.run_id for c in study.cells} == {
            c.run_id for c in shipped if c.factors == {"base": "model"} and c.seed == 0
        }
    recipes = [cell.recipe for cell in study.cells]
    assert {recipe.trainer["max_steps"] for recipe in recipes} == {50}
    assert {(recipe.eval.samples, recipe.eval.limit) for recipe in recipes} == {(1, 1)}
    assert load_grid("quickstart").seeds == (0, 1, 2)
    if components:
        assert sorted(len(recipe.components) for recipe in recipes) == [0] + [1] * 4 + [2] * 6 + [3] * 4 + [4]
