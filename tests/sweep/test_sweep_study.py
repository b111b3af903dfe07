"""`study.json` keeps the grid's order; what an analysis is to use must be in the grid; lost answers are drawn again."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from toy import TOY, run_toy, toy_evaluate

from r3bench.analysis.reading.study import load_study
from r3bench.config.load import load_recipe
from r3bench.errors import ConfigError
from r3bench.files import read_jsonl
from r3bench.records import RunPaths
from r3bench.sweep.cell_run import finished, run_cell
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.executors.inline import InlineExecutor
from r3bench.sweep.grid import parse_grid
from r3bench.sweep.opening import open_study
from r3bench.sweep.planning.plan import plan


def test_a_factors_first_level_is_the_reference_of_the_tables(home, grid_values):
    grid_values["factors"] = {
        "lr": {"small": {"trainer.learning_rate": 1.0e-4}, "big": {"trainer.learning_rate": 1.0}},
        "bonus": {"with": {"reward.length_bonus": True}, "off": {"reward.length_bonus": False}},
    }
    grid = parse_grid(grid_values, "toy.yaml")
    assert ablate(grid, Path("runs"), executor=InlineExecutor(), run=run_toy, say=lambda text: None).complete
    results = load_study(Path("runs/toy"))
    assert list(results.factors.items()) == [("lr", ("small", "big")), ("bonus", ("with", "off"))]
    kept = json.loads(Path("runs/toy/study.json").read_text())
    assert list(kept["grid"]["factors"]["lr"]) == ["small", "big"]
    assert list(kept["cells"][1]["factors"]) == ["lr", "bonus"]
    before = Path("runs/toy/study.json").stat().st_mtime_ns
    open_study(grid, Path("runs")).write()
    assert Path("runs/toy/study.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("analysis", "message"),
    [
        ({"primary": ["relpay"]}, "analysis.primary: no factor 'relpay' in this study; did you mean 'replay'"),
        ({"macro": ["embeded"]}, "analysis.macro: no benchmark 'embeded' in this study; did you mean 'embedded'"),
    ],
)
def test_names_that_the_analysis_declares_are_in_the_grid(home, grid_values, analysis, message):
    good = {**grid_values, "analysis": {"primary": ["replay"], "macro": ["embedded"]}}
    plan(parse_grid(good, "toy.yaml"))
    with pytest.raises(ConfigError) as caught:
        plan(parse_grid({**grid_values, "analysis": analysis}, "toy.yaml"))
    assert message in str(caught.value)


def test_a_run_whose_answers_are_gone_is_measured_again_without_training(home):
    recipe, paths = load_recipe("quickstart"), RunPaths(home / "run")
    first = run_cell(recipe, paths.root, steps=TOY)
    assert finished(recipe, paths) == first
    shutil.rmtree(paths.evaluation)
    assert finished(recipe, paths) is None
    asked = []

    def evaluate(*args, **options):
        asked.append(args)
        return toy_evaluate(*args, **options)

    again = run_cell(recipe, paths.root, steps=dataclasses.replace(TOY, evaluate=evaluate))
    assert len(asked) == 1 and again.eval == first.eval and any(paths.evaluation.glob("embedded/*.parquet"))
    assert len([e for e in read_jsonl(home / "executions.jsonl") if e["what"] == "train"]) == 1
    assert finished(recipe, paths) == again
