"""`plan`: cells, resolution, cost, alternatives; and that it needs neither torch nor TRL."""

import json
import shutil
import subprocess
import sys

import pytest

from r3bench import catalog
from r3bench.analysis.statistics.power import VarianceAssumptions
from r3bench.errors import ConfigError
from r3bench.sweep.cells import enumerate_cells
from r3bench.sweep.grid import load_grid, parse_grid
from r3bench.sweep.planning.cost import _rates, parameters, questions_of, run_cost
from r3bench.sweep.planning.plan import plan
from r3bench.sweep.planning.spending import Machines, makespan
from r3bench.sweep.planning.text import hours_text, millions, plan_data, plan_text

GRIDS = sorted(catalog.names("ablations", ".yaml"))
RECIPES = sorted(catalog.names("ablations", ".yaml", "recipes"))


@pytest.mark.parametrize("name", GRIDS)
def test_every_shipped_grid_loads_and_plans(home, name):
    cells, _ = enumerate_cells(load_grid(name))
    assert len(cells) >= 5 and load_grid(name).description
    made = plan(name)
    assert len(made.runs) == len(cells) and made.benchmarks and made.training_tokens > 0
    assert name in plan_text(made)
    json.dumps(plan_data(made), allow_nan=False)


def test_the_grids_the_papers_need_are_there():
    assert {"quickstart", "r3", "r3_leave_one_out", "controls", "baselines", "rivals"} <= set(GRIDS)
    assert len(enumerate_cells(load_grid("r3"))[0]) == 16 * 3 + 1
    names = {c.name for c in enumerate_cells(load_grid("r3_leave_one_out"))[0]}
    assert {"reflection+ranking", "replay+ranking", "replay+reflection", "replay+reflection+ranking"} <= names


@pytest.mark.parametrize("name", RECIPES)
def test_every_shipped_recipe_can_be_a_base(home, name):
    grid = {"name": "g", "recipe": name, "factors": {"trainer.beta": [0.0, 0.04]}, "seeds": [0]}
    assert len(enumerate_cells(parse_grid(grid, "g.yaml"))[0]) == 3


def test_main_effect_is_the_formula_written_out(home, grid_values):
    """With one declared variance the power is that of a noncentral t; with one for every cell it takes more."""
    from scipy import stats

    own = plan(parse_grid(grid_values, "toy.yaml")).benchmarks[0].effects["main"]
    made = plan(parse_grid({**grid_values, "analysis": {"variance": "pooled"}}, "toy.yaml"))
    a = VarianceAssumptions(within_question=0.12)
    variance = a.run_sd**2 + (a.run_question_sd**2 + a.within_question / 2) / 400
    expected = made.benchmarks[0].effects["main"]
    found = stats.nct.sf(stats.t.ppf(0.975, 4), 4, expected / (variance / 2) ** 0.5)
    assert found == pytest.approx(0.8, abs=0.02)
    assert own > 1.1 * expected


def test_more_seeds_and_more_samples_see_more_and_cost_more(home, grid_values):
    made = {a.change: a for a in plan(parse_grid(grid_values, "toy.yaml")).alternatives}
    now = made["2 seeds x 2 samples"]
    assert now.cost == pytest.approx(1.0)
    assert made["3 seeds x 2 samples"].effect < now.effect and made["3 seeds x 2 samples"].cost == pytest.approx(1.5)
    assert made["2 seeds x 4 samples"].effect < now.effect and 1 < made["2 seeds x 4 samples"].cost < 2
    assert made["2 seeds x 1 samples"].effect > now.effect and made["2 seeds x 1 samples"].cost < 1


def test_a_wish_the_grid_can_not_see_is_said_with_the_cheapest_that_can(home, grid_values):
    grid = parse_grid(grid_values, "toy.yaml")
    made = plan(grid, effect=0.02)
    assert any("can't resolve an effect of 2.0 points" in w for w in made.warnings)
    best = made.alternatives[-1]
    assert best.change.startswith("cheapest that resolves 2 points") and best.effect <= 0.02
    assert not plan(grid, effect=0.2).warnings
    hopeless = plan(grid, effect=0.0001)
    assert any("no number of seeds gets there" in w for w in hopeless.warnings)
    assert not any(a.change.startswith("cheapest") for a in hopeless.alternatives)


@pytest.mark.parametrize("seeds", [2, 3, 8])
def test_questions_like_these_never_need_less_than_these(home, grid_values, seeds):
    """Of two cells too, where few seeds make the interval on these questions the longer one."""
    two = {**grid_values, "factors": dict(list(grid_values["factors"].items())[:1])}
    for values in (grid_values, two):
        for made in plan(parse_grid({**values, "seeds": list(range(seeds))}, "toy.yaml")).benchmarks:
            assert all(made.like_these[kind] >= made.effects[kind] for kind in made.effects)


def test_the_alternatives_are_of_the_verdict(home, grid_values):
    made = plan(parse_grid(grid_values, "toy.yaml"))
    assert made.alternatives[0].effect == made.resolved > made.benchmarks[0].like_these["main"]
    assert made.limit < made.resolved and made.tested == "main"


def test_assumptions_can_be_given_and_are_printed(home, grid_values):
    grid = parse_grid(grid_values, "toy.yaml")
    noisy = plan(grid, assume={"run_sd": 0.05})
    assert noisy.benchmarks[0].effects["main"] > plan(grid).benchmarks[0].effects["main"]
    assert "run SD 5" in plan_text(noisy) and "(given)" in plan_text(noisy)
    with pytest.raises(ConfigError, match="did you mean 'run_sd'"):
        plan(grid, assume={"run_ds": 0.05})
    with pytest.raises(ConfigError, match="within_question"):
        plan(grid, assume={"within_question": 0.5})


def test_tokens_of_a_run_counted_by_hand(home):
    recipe = next(c.recipe for c in enumerate_cells(load_grid("quickstart"))[0] if c.name == "base")
    cost = run_cost(recipe, mean_length=0.5)
    assert cost.training_tokens == 50 * 64 * 24 and cost.evaluation_tokens == 400 * 4 * 24
    given = run_cost(recipe, rate=100.0)
    assert given.device_hours == {"given rate": pytest.approx((50 * 64 * 24 + 400 * 4 * 24) / 100 / 3600)}


def test_a_token_budget_is_the_token_count_and_lifts_the_step_limit(home, grid_values):
    grid_values["budget"] = {"generated_tokens": 64_000}
    made = plan(parse_grid(grid_values, "toy.yaml"))
    assert made.training_tokens == 8 * 64_000
    recipe = enumerate_cells(parse_grid(grid_values, "toy.yaml"))[0][1].recipe
    assert recipe.budget.generated_tokens == 64_000 and recipe.trainer["max_steps"] == 1000
    grid_values["set"] = {"trainer.lr_scheduler_type": "linear"}
    with pytest.raises(ConfigError, match="learning rate that doesn't depend on the number of steps"):
        plan(parse_grid(grid_values, "toy.yaml"))


def test_sizes_from_names_and_task_files(home):
    assert parameters("Qwen/Qwen2.5-7B-Instruct") == 7e9
    assert parameters("HuggingFaceTB/SmolLM2-135M-Instruct") == 135e6
    assert parameters("someone/model") is None
    assert questions_of("aime24") == 30 and questions_of("embedded") == 400 and questions_of("math500", 50) == 50


def test_questions_of_a_file_are_counted_and_small_figures_shown(home, grid_values):
    (home / "evals").mkdir()
    (home / "evals" / "mine.yaml").write_text("task: mine\ndataset_kwargs: {file: ../mine.jsonl}\n")
    (home / "mine.jsonl").write_text('{"problem": "1+1", "answer": "2"}\n\n' * 7)
    assert questions_of("mine") == 7 and questions_of("mine", 5) == 5
    (home / "mine.jsonl").unlink()
    assert questions_of("mine") is None
    assert (millions(None), millions(0.0), millions(49_152.0), millions(1.26e6)) == (
        "unknown",
        "0.0M",
        "49,152",
        "1.3M",
    )
    assert (hours_text(0.0042), hours_text(12.34), hours_text(0.0)) == ("0.0042", "12.3", "0.0")


def test_half_fraction_prints_its_aliases(home, grid_values):
    grid_values["factors"] |= {"ranking": ["off", "on"], "reflection": ["off", "on"]}
    grid_values["design"] = "half"
    text = plan_text(plan(parse_grid(grid_values, "toy.yaml")))
    assert "replay = bonus:ranking:reflection" in text and "replay:bonus = ranking:reflection" in text


def test_plan_and_status_load_neither_torch_nor_trl_nor_optuna():
    code = (
        "import sys; from r3bench.sweep.planning.plan import plan; from r3bench.sweep import status; "
        "from r3bench.sweep.planning import text; "
        "plan('quickstart'); print([m for m in ('torch', 'trl', 'optuna', 'pandas', 'datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_from_a_finished_study(home, grid_values):
    from toy import run_toy

    from r3bench.sweep.dispatch.ablate import ablate
    from r3bench.sweep.executors.inline import InlineExecutor

    grid = parse_grid(grid_values, "toy.yaml")
    ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=lambda line: None)
    made = plan(grid, from_study=home / "runs" / "toy")
    assert made.training_tokens == 8 * 200 and list(made.device_hours) == ["toy"]
    assert "toy" in made.benchmarks[0].source and made.benchmarks[0].assumptions != VarianceAssumptions()


@pytest.mark.parametrize("shared", [0.0, 0.4])
def test_what_runs_of_one_seed_share_is_taken_from_the_study_and_said(home, grid_values, monkeypatch, shared):
    from toy import run_toy

    from r3bench.sweep.dispatch.ablate import ablate
    from r3bench.sweep.executors.inline import InlineExecutor

    grid = parse_grid({**grid_values, "analysis": {"blocks": "seed"}}, "toy.yaml")
    ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=lambda line: None)
    found = VarianceAssumptions(run_sd=0.03, shared=shared)
    monkeypatch.setattr("r3bench.analysis.statistics.variance.assumptions_from", lambda results, task: found)
    made = plan(grid, from_study=home / "runs" / "toy")
    (line,) = [text for text in plan_text(made).splitlines() if text.strip().startswith("assuming for")]
    assert ("40 % of the run variance shared by runs of one seed" in line) == bool(shared)
    assert ("of the run variance" in line) == bool(shared) and "run SD 3," in line and "toy" in line
    none = plan(grid, assume={"run_sd": 0.03})
    if shared:  # declared blocks take it out
        assert made.benchmarks[0].effects["main"] < none.benchmarks[0].effects["main"]
    assert "40 % of the run variance" in plan_text(plan(grid, assume={"shared": 0.4}))


def test_tuning_is_said_with_its_tokens(home, grid_values):
    grid_values["tuning"] = {"trials": 5, "steps": 10, "space": {"trainer.learning_rate": [1e-4, 1e-3]}}
    (line,) = plan(parse_grid(grid_values, "toy.yaml")).warnings
    assert "5 trials in each of 4 cells" in line and f"{5 * 4 * 10 * 64 * 24 / 1e6:.1f}M more tokens" in line


def test_a_grid_for_cpus_is_planned_for_as_many_runs_as_there_are_cores(home, monkeypatch):
    monkeypatch.setattr("r3bench.sweep.planning.plan.gpu_ids", list)
    monkeypatch.setattr("r3bench.sweep.planning.plan.cpu_cores", lambda: 3)
    made = plan("quickstart")
    assert made.slots == 3 and ", with 3 runs at a time\n" in plan_text(made)
    assert plan("r3").slots == 1  # for a machine with GPUs: one set of them
    monkeypatch.setattr("r3bench.sweep.planning.plan.gpu_ids", lambda: [str(n) for n in range(16)])
    assert plan("r3").slots == 16 // load_grid("r3").executor.gpus


def test_hours_on_the_clock_are_those_of_the_fullest_slot(home):
    assert makespan([3.0, 3.0, 2.0, 2.0, 2.0], 2) == 7.0  # 3 2 2 and 3 2
    assert makespan([1.0] * 13, 8) == 2.0 and makespan([1.0], 8) == 1.0 and makespan([5.0, 1.0], 1) == 6.0


def test_nodes_and_a_price(home, monkeypatch):
    monkeypatch.setattr("r3bench.sweep.planning.plan.gpu_ids", list)
    made = plan("r3", machines=Machines(nodes=3, price=2.5))  # 8 devices each, a run on `gpus` of them
    assert made.devices == 24 and made.slots == 24 // made.gpus
    run = made.left.device_hours["H100"] / 48  # of a trained run; measuring the start costs little
    rounds = -(-48 // made.slots)
    assert made.left.wall_hours["H100"] == pytest.approx(rounds * run / made.gpus, rel=0.02)
    assert made.left.cost["H100"] == pytest.approx(2.5 * made.device_hours["H100"])
    assert made.left.cost_held["H100"] == pytest.approx(2.5 * 24 * made.left.wall_hours["H100"])
    text = plan_text(made)
    assert "on 3 nodes of 8" in text and "at 2.5 for an hour of a device" in text and "held to the end" in text
    on_cpu = plan("quickstart", machines=Machines(nodes=2, per_node=4))
    assert on_cpu.slots == 8 and on_cpu.left.cost is None and "price" not in plan_text(on_cpu)
    for wrong in ({"nodes": 0}, {"per_node": 4}, {"price": -1.0}, {"price": float("nan")}):
        with pytest.raises(ConfigError, match="--"):
            Machines(**wrong)
    with pytest.raises(ConfigError, match="one run takes"):
        plan("r3", machines=Machines(nodes=1, per_node=made.gpus - 1))


def test_finished_runs_are_subtracted(home, grid_values):
    from toy import run_toy

    from r3bench.sweep.dispatch.ablate import ablate
    from r3bench.sweep.executors.inline import InlineExecutor
    from r3bench.sweep.opening import open_study

    grid = parse_grid(grid_values, "toy.yaml")
    ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=lambda line: None)
    study = open_study(grid, home / "runs")
    made = plan(study)
    left = made.left
    assert (left.finished, left.runs, left.measured) == (9, 0, 0) and left.device_hours == {}
    assert left.training_tokens == left.evaluation_tokens == 0 and made.training_tokens > 0
    assert "9 of 9 runs; left: 0 to train" in plan_text(made)
    gone, unmeasured = (study.paths(cell) for cell in study.cells[1:3])
    shutil.rmtree(gone.root)
    unmeasured.record.unlink()
    left = plan(study).left
    assert (left.finished, left.runs, left.measured) == (7, 1, 1)
    assert left.training_tokens == pytest.approx(made.training_tokens / 8)
    assert left.evaluation_tokens == pytest.approx(2 * made.evaluation_tokens / 9)
    assert 0 < left.device_hours["CPU core"] < 2 * made.device_hours["CPU core"] / 8
    fresh = plan(open_study(grid, home / "elsewhere"))
    assert fresh.left.finished == 0 and fresh.left.device_hours == pytest.approx(fresh.device_hours)


def test_schedulers_start_all_runs_at_once_and_need_disk_for_them(home, grid_values):
    one = plan(parse_grid({**grid_values, "executor": {"kind": "inline"}}, "toy.yaml"))
    for kind in ("slurm", "ray"):
        made = plan(parse_grid({**grid_values, "executor": {"kind": kind}}, "toy.yaml"))
        assert made.slots == 9
        checkpoint = one.peak_disk_gb - one.kept_disk_gb
        assert made.peak_disk_gb - made.kept_disk_gb == pytest.approx(9 * checkpoint)
        assert plan(parse_grid({**grid_values, "executor": {"kind": kind, "slots": 4}}, "toy.yaml")).slots == 4


def test_a_small_model_of_ones_own_has_hours_of_cpu_cores(home, grid_values):
    """Rates go through the two that were measured, and fall with the parameters."""
    shape = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 256}
    (home / "tiny-7b").mkdir()  # the folder says what it is, not its name
    (home / "tiny-7b" / "config.json").write_text(json.dumps({**shape, "vocab_size": 100, "tie_word_embeddings": True}))
    weights = 2 * (4 * 128 * 128 + 3 * 128 * 256) + 100 * 128
    assert parameters("./tiny-7b") == weights
    made = plan(parse_grid({**grid_values, "set": {"model.name": "./tiny-7b"}}, "toy.yaml"))
    assert set(made.device_hours) == {"CPU core"} and made.device_hours["CPU core"] > 0
    small, smollm = _rates("x", 0.23e6), _rates("x", 135e6)
    assert small == {"CPU core": pytest.approx(4000.0)} and smollm["CPU core"] == pytest.approx(10.0)
    assert _rates("x", 20e6)["CPU core"] > 10 and {"CPU core", "H100"} <= set(smollm)
    assert "CPU core" not in _rates("x", 1.78e9)


def test_cells_that_tell_no_effect_are_warned_of(home, grid_values):
    levels = {"replay": [False, "positives", True], "reflection": [False, "other", True]}
    cells = [{}, {"replay": "on", "reflection": "on"}, {"replay": "positives", "reflection": "other"}]
    values = {**grid_values, "factors": levels, "design": "list", "cells": cells}
    made = plan(parse_grid(values, "toy.yaml"), effect=0.02)
    assert "answers: none" in plan_text(made) and ["tell no effect" in w for w in made.warnings] == [True]
    values["cells"].append({"replay": "on"})
    assert plan(parse_grid(values, "toy.yaml")).benchmarks[0].effects and "none" not in plan_text(made).splitlines()[0]
