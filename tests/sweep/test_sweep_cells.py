"""Grids to cells: designs, names, duplicates, bad grids."""

import csv
from itertools import product
from pathlib import Path

import pytest

from r3bench.config.load import parse_recipe, run_id
from r3bench.errors import ConfigError
from r3bench.files import read_json
from r3bench.sweep.cells import enumerate_cells
from r3bench.sweep.design import add_one, aliases, full, half, leave_one_out
from r3bench.sweep.grid import parse_grid
from r3bench.sweep.opening import open_study

RESULTS = Path(__file__).parents[2] / "results"
LEVELS = {"a": ["off", "on"], "b": ["off", "on"], "c": ["off", "on"], "d": ["off", "on"]}


def test_full_factorial_is_every_combination_once():
    assert [tuple(c.values()) for c in full(LEVELS)] == list(product(["off", "on"], repeat=4))


def test_half_fraction_is_balanced_and_its_aliases_are_the_columns_that_coincide():
    cells = half(LEVELS)
    assert len(cells) == 8 and {"a": "off", "b": "off", "c": "off", "d": "off"} in cells

    def column(effect):
        signs = []
        for cell in cells:
            sign = 1
            for factor in effect.split(":"):
                sign *= 1 if cell[factor] == "on" else -1
            signs.append(sign)
        return signs

    named = aliases(list(LEVELS))
    assert ("a", "b:c:d") in named and ("a:b", "c:d") in named and len(named) == 4 + 3
    for effect, other in named:
        assert column(effect) in (column(other), [-x for x in column(other)])
    for factor in LEVELS:
        assert sum(column(factor)) == 0


def test_runs_that_are_on_record_keep_their_ids(home):
    """A setting that is newer than they are must not make other runs of them: they would be trained again."""
    with (RESULTS / "quickstart" / "cells.csv").open() as file:
        recorded = {run[-15:] for row in csv.DictReader(file) for run in row["runs"].split()}  # -s<seed>-<hash>
    assert len(recorded) > 10
    assert recorded <= {cell.run_id[-15:] for cell in open_study("quickstart", home / "runs").cells}


def test_a_recipe_that_is_on_record_is_still_its_run():
    recipe = parse_recipe(read_json(RESULTS / "smollm2_gsm8k" / "config.json"), "config.json")
    assert run_id(recipe) == read_json(RESULTS / "smollm2_gsm8k" / "run.json")["run_id"]


def test_leave_one_out_and_add_one():
    out = leave_one_out({"a": ["off", "weak", "on"], "b": ["off", "on"]})
    assert out[0] == {"a": "on", "b": "on"}
    assert out[1:] == [{"a": "off", "b": "on"}, {"a": "weak", "b": "on"}, {"a": "on", "b": "off"}]
    add = add_one({"a": ["off", "weak", "on"], "b": ["off", "on"]})
    assert add[0] == {"a": "off", "b": "off"} and {"a": "weak", "b": "off"} in add and len(add) == 4


def test_cells_carry_their_settings(home, grid_values):
    cells, duplicates = enumerate_cells(parse_grid(grid_values, "toy.yaml"))
    assert not duplicates
    assert [c.name for c in cells[:5]] == ["base-model", "base", "bonus", "replay", "replay+bonus"]
    assert len(cells) == 9 and len({c.run_id for c in cells}) == 9
    by_name = {c.name: c for c in cells if c.seed == 1}
    assert by_name["replay+bonus"].recipe.reward.length_bonus and "replay" in by_name["replay+bonus"].recipe.components
    assert not by_name["base"].recipe.reward.length_bonus and not by_name["base"].recipe.components
    assert by_name["base"].recipe.seed == 1 and by_name["base"].recipe.eval.samples == 2


def test_equal_runs_are_removed_with_a_reason(home, grid_values):
    grid_values["factors"] = {"replay": ["off", "on"], "components.replay.rows": [1, 2]}
    cells, duplicates = enumerate_cells(parse_grid(grid_values, "toy.yaml"))
    assert len(cells) == 1 + 3 * 2 and len(duplicates) == 2
    assert "components.replay.rows has no effect while replay is off" in duplicates[0].reason
    assert duplicates[0].same_as == next(c.run_id for c in cells if c.name == "base")


def test_a_preset_is_a_level_and_settings_can_be_one(home, grid_values):
    from r3bench.catalog import component

    preset = sorted(component("replay").presets)[0]
    grid_values["factors"] = {"replay": {"off": False, "shown": preset, "two": {"rows": 2}}}
    cells, _ = enumerate_cells(parse_grid(grid_values, "toy.yaml"))
    names = {c.name: c for c in cells}
    assert names["replay.two"].recipe.components["replay"]["rows"] == 2
    assert (
        names["replay.shown"].recipe.components["replay"].items() >= dict(component("replay").presets[preset]).items()
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": "quikstart"}, "did you mean 'quickstart'"),
        ({"factor": {}}, "did you mean 'factors'"),
        ({"factors": {"relpay": ["off", "on"]}}, "did you mean 'replay'"),
        ({"factors": {"replay": ["on"]}}, "at least two distinct"),
        ({"factors": {"replay": ["off", "sometimes"]}}, "preset"),
        ({"factors": {"trainer.learning_rat": [1e-5, 1e-4]}}, "did you mean 'learning_rate'"),
        ({"factors": {"trainer.num_generations": [8, 1]}}, "cell num_generations.1"),
        ({"seeds": [1, 1]}, "distinct seeds"),
        ({"seeds": [-1]}, "expected 0 to"),
        ({"design": "halves"}, "did you mean 'half'"),
        ({"design": "half"}, "at least 3"),
        ({"design": "list"}, "cells: missing"),
        ({"design": "list", "cells": [{"replay": "maybe"}]}, "no level 'maybe'"),
        ({"budget": {"steps": 1, "generated_tokens": 1}}, "exactly one"),
        ({"executor": {"kind": "locl"}}, "did you mean 'local'"),
        ({"retries": {"bug": -1}}, "0 or above"),
        ({"tuning": {"space": {"trainer.learning_rate": [1e-5]}, "seed": 1}}, "one of the grid's seeds"),
        ({"disk_floor_gb": "much"}, "expected a number"),
    ],
)
def test_bad_grids_are_one_line_errors_that_name_the_place(home, grid_values, change, message):
    with pytest.raises(ConfigError) as caught:
        enumerate_cells(parse_grid({**grid_values, **change}, "toy.yaml"))
    assert message in str(caught.value) and "\n" not in str(caught.value)
