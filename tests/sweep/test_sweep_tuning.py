"""Tuning inside cells: finds what is planted, gives every cell the same, never looks at a benchmark."""

import math

import pytest
from toy import TOY, run_toy

from r3bench.errors import ConfigError
from r3bench.evaluation.settings import KEY, settings
from r3bench.files import read_json, read_jsonl
from r3bench.records import TrainRecord
from r3bench.sweep.cell_run import Steps
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.executors.inline import InlineExecutor
from r3bench.sweep.grid import load_grid, parse_grid
from r3bench.sweep.opening import open_study
from r3bench.sweep.tuning import run_search

BEST = 3e-4


def planted_train(recipe, paths, quiet=False):
    """Leaves the learning rate behind as its model."""
    if recipe.trainer["learning_rate"] > 5e-3:
        return TrainRecord("diverged", "loss is nan", 1, 1, 1.0, "toy", 1)
    paths.model.mkdir(parents=True)
    (paths.model / "weights").write_text(str(recipe.trainer["learning_rate"]))
    return TrainRecord("finished", None, recipe.trainer["max_steps"], 100, 1.0, "toy", 1)


def planted_evaluate(model, section, out, *, default_max_tokens, quiet=False):
    """Best at `BEST`; only ever asked for validation."""
    assert section.tasks == ("embedded-validation",)
    with open(f"{model}/weights") as file:
        rate = float(file.read())
    value = math.exp(-(math.log10(rate / BEST) ** 2))
    told = {"questions": 6, "samples": section.samples, KEY: settings(section, default_max_tokens)}
    return {task: {**told, f"avg@{section.samples}": value} for task in section.tasks}


def planted_search(work):
    return run_search(work, Steps(planted_train, planted_evaluate, TOY.environment, TOY.start_model))


@pytest.fixture
def values(grid_values):
    grid_values["tuning"] = {
        "trials": 12,
        "space": {
            "trainer.learning_rate": {"low": 1e-6, "high": 1e-2, "log": True},
            "components.replay.rows": [1, 2, 3],
        },
    }
    return grid_values


def run(home, values):
    grid = parse_grid(values, "toy.yaml")
    report = ablate(
        grid, home / "runs", run=run_toy, search=planted_search, executor=InlineExecutor(), say=lambda line: None
    )
    return report, open_study(grid, home / "runs")


def test_every_cell_gets_its_own_winner_and_equal_trials(home, values):
    report, study = run(home, values)
    assert report.complete
    for cell in study.cells[1:]:
        found = read_json(home / "runs" / "toy" / "tuning" / cell.name / "tuning.json")
        assert len(found["trials"]) == 12
        assert ("components.replay.rows" in found["space"]) == (cell.factors["replay"] == "on")
        best = max((t for t in found["trials"] if t["value"] is not None), key=lambda t: t["value"])
        assert found["params"] == best["params"] and best["value"] > 0.7
        assert cell.recipe.trainer["learning_rate"] == best["params"]["trainer.learning_rate"]
        assert cell.seed in (0, 1) and cell.recipe.eval.tasks == ("embedded",)
        assert any(t["pruned"] for t in found["trials"])
        if "replay" in cell.recipe.components:
            assert cell.recipe.components["replay"]["rows"] == best["params"]["components.replay.rows"]


def test_trials_use_the_tuning_seed_and_an_interrupted_search_goes_on_the_same(home, values, tmp_path):
    run(home, values)
    folder = home / "runs" / "toy" / "tuning" / "base"
    whole = (folder / "tuning.json").read_bytes()
    assert read_json(folder / "trial-0" / "config.json")["seed"] == 1000
    (folder / "tuning.json").unlink()
    import shutil

    for number in range(7, 12):
        shutil.rmtree(folder / f"trial-{number}", ignore_errors=True)
    report, _ = run(home, values)
    assert report.complete and (folder / "tuning.json").read_bytes() == whole
    executions = read_jsonl(home / "runs" / "toy" / "executions.jsonl")
    assert len(executions) == 8  # the runs themselves were not repeated


@pytest.mark.parametrize(
    ("spec", "low", "high"),
    [
        ("{low: 1e-6, high: 1e-2, log: true}", 1e-6, 1e-2),
        ("[1e-6, 1E-2]", 1e-6, 1e-2),
        ("{low: 0, high: 1e-2, step: 1e-3}", 0, 1e-2),
    ],
)
def test_a_number_that_yaml_reads_as_text_is_a_number(home, spec, low, high):
    (home / "written.yaml").write_text(
        "recipe: quickstart\nfactors: {replay: [off, on]}\nseeds: [0]\nbase_model: false\n"
        f"tuning: {{trials: 3, space: {{trainer.learning_rate: {spec}}}}}\n"
    )
    grid = load_grid("written.yaml")
    ablate(grid, home / "runs", run=run_toy, search=planted_search, executor=InlineExecutor(), say=lambda line: None)
    for cell in ("base", "replay"):
        found = read_json(home / "runs" / "written" / "tuning" / cell / "tuning.json")
        rates = [trial["params"]["trainer.learning_rate"] for trial in found["trials"]]
        assert len(rates) == 3 and all(type(rate) is float and low <= rate <= high for rate in rates)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "embedded"}, "choosing by test questions"),
        ({"task": "math500"}, "choosing by test questions"),
        ({"space": {"eval.temperature": [0.6, 1.0]}}, "can't be tuned"),
        ({"space": {"trainer.learning_rate": {"low": 1e-3, "high": 1e-5}}}, "low < high"),
        ({"space": {"trainer.learning_rate": 1e-3}}, "a list of choices"),
        ({"trials": 0}, "at least 1"),
        ({"samples": 0}, "samples: got 0"),
        ({"seed": 2**32}, "seed: got 4294967296"),
        ({"space": {"trainer.learning_rat": [1e-5, 1e-4]}}, "did you mean 'learning_rate'"),
        ({"space": {"trainr.learning_rate": [1e-5, 1e-4]}}, "did you mean 'trainer'"),
        ({"space": {"components.replay.row": [1, 2]}}, "did you mean 'rows'"),
        ({"space": {"components.ranking.weight": [1, 2]}}, "no cell has this component on"),
        ({"space": {"trainer.learning_rate": [1e-5, "fast"]}}, "'fast': trainer.learning_rate: got 'fast'"),
        ({"space": {"trainer.num_generations": {"low": 1, "high": 8}}}, "at least 2"),
        ({"space": {"trainer.num_generations": {"low": 2, "high": 9, "step": 0.5}}}, "step: got 0.5"),
        ({"space": {"trainer.learning_rate": {"low": 0, "high": 1e-3, "log": True}}}, "above 0 with log"),
        ({"space": {"trainer.learning_rate": {"low": 1e-5, "high": 1e-3, "log": "yes"}}}, "true or false"),
        (
            {"space": {"trainer.learning_rate": {"low": 1e-5, "high": 1e-3, "log": True, "step": 1e-5}}},
            "exclude each other",
        ),
        ({"space": {"trainer.learning_rate": {"low": 1e-5, "high": 1e-3, "step": -1e-5}}}, "step: got -1e-05"),
        ({"space": {"reward.length_bonus": [True, False]}}, "factor 'bonus' sets it as well"),
        ({"space": {"trainer.learning_rate": [[1e-5], [1e-4]]}}, "as choices"),
    ],
)
def test_bad_searches_are_refused(home, values, change, message):
    values["tuning"] |= change
    with pytest.raises(ConfigError, match=message):
        open_study(parse_grid(values, "toy.yaml"), home / "runs")


def test_a_level_with_slashes_stays_in_the_tuning_folder_and_gets_its_winner(home, values):
    levels = {"off": {"reward.length_bonus": False}, "../../../evil/a": {"reward.length_bonus": True}}
    values |= {"factors": {"replay": ["off", "on"], "bonus": levels}}
    values["tuning"] |= {"trials": 2, "space": {"trainer.learning_rate": [2e-4, 3e-4]}}
    report, study = run(home, values)
    assert report.complete
    assert len(list((home / "runs" / "toy" / "tuning").glob("*/tuning.json"))) == 4
    assert {path.name for path in home.iterdir()} == {"runs"}
    rates = {cell.recipe.trainer["learning_rate"] for cell in study.cells if cell.name != "base-model"}
    assert rates <= {2e-4, 3e-4}
