"""Every shipped grid from `ablate` to `tables`: a few steps of the embedded model, with everything else as shipped."""

import json

import pytest
from typer.testing import CliRunner

from r3bench import catalog
from r3bench.cli import app
from r3bench.config.yaml_file import read_yaml
from r3bench.files import read_json, read_jsonl

pytestmark = pytest.mark.slow
ROLLOUTS = {"quickstart": 12, "r3_1.5b": 6}  # of 4 of the 8 questions (8 of 8 with four updates each), by recipe
SMALL = {  # what makes a cell quick; loss, scaling, clipping, beta, rates and components stay the grid's
    "model.name": "embedded",
    "model.dtype": "float32",
    "data.name": "embedded",
    "data.limit": 8,
    "trainer.per_device_train_batch_size": 32,
    "trainer.num_generations": 8,
    "trainer.gradient_accumulation_steps": 1,
    "trainer.max_completion_length": 18,  # cuts answers off
    "trainer.save_strategy": "no",
    "trainer.logging_steps": 1,
    "trainer.bf16": False,
    "trainer.use_vllm": False,
    "trainer.gradient_checkpointing": False,
}
REASONS = {  # component -> counters, of which one says why it changed nothing: something there, or nothing to work on
    "replay": ("replay/groups_no_history", "replay/groups_waiting"),
    "reflection": ("reflection/questions_without_exemplar", "!reflection/questions_hard"),
    "ranking": ("ranking/groups_without_domination", "!ranking/groups"),
    "retrospective": ("retrospective/steps_gate_closed", "!retrospective/states_collected"),
    "repo": ("!repo/rows_with_gradient",),
    "exgrpo": ("exgrpo/groups_no_history", "!exgrpo/groups_planned"),
    "rescue": ("!rescue/groups_all_wrong",),
    "dynamic_sampling": ("!dynamic_sampling/groups_dead",),
}


def small(name):
    """The shipped grid with small numbers."""
    values = read_yaml(catalog.grid_path(name))
    trained = read_yaml(catalog.recipe_path(values["recipe"]))["trainer"]
    values["set"] = SMALL | values.get("set", {})
    if trained.get("steps_per_generation"):  # of a recipe for many devices
        values["set"]["trainer.steps_per_generation"] = 2
    updates = values["set"].get("trainer.steps_per_generation", 1)
    values["set"]["trainer.max_steps"] = ROLLOUTS[values["recipe"]] * updates
    values.pop("budget", None)  # of tokens: more steps than there is time for
    tasks = values.get("eval", {}).get("tasks", ["embedded"])
    values["eval"] = {"tasks": tasks, "samples": 1, "limit": 8, "max_tokens": 20}
    return values | {"seeds": [0], "disk_floor_gb": 0.0, "executor": {"kind": "local", "slots": 2}, "retries": {}}


def explained(component, evidence):
    return any(
        evidence.get(counter.lstrip("!"), 0) == 0 if counter.startswith("!") else evidence.get(counter, 0) > 0
        for counter in REASONS[component]
    )


def effective(config, record):
    """What of a cell can have changed its weights: everything of its configuration but components that did nothing."""
    components = {c: settings for c, settings in config["components"].items() if record["acted"][c]}
    evidence = record["evidence"]
    if "replay" in components and not evidence.get("replay/groups_all_right"):  # nothing but positives is wanted
        components["replay"] = components["replay"] | {"labels": "both"}
    sections = {key: config[key] for key in ("model", "data", "trainer", "reward", "budget", "seed")}
    return json.dumps(sections | {"components": components}, sort_keys=True)


def run(*arguments):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, f"{result.stderr}\n{result.stdout}\n{result.exception!r}"
    return result.stdout


@pytest.mark.parametrize("name", ["baselines", "rivals", "controls", "r3_leave_one_out", "r3"])
def test_a_shipped_grid_runs_to_its_tables(home, name):
    (home / "ablations").mkdir()
    (home / "ablations" / f"{name}.yaml").write_text(json.dumps(small(name)))
    run("ablate", name, "--quiet")
    study = home / "runs" / name
    cells = [cell for cell in read_json(study / "study.json")["cells"] if "base" not in cell["factors"]]
    weights, differing, acted, named = {}, {}, set(), set()
    for cell in cells:
        folder = study / cell["run_id"]
        record, config = read_json(folder / "run.json")["train"], read_json(folder / "config.json")
        assert record["outcome"] == "finished", (cell["name"], record["reason"])
        assert set(record["acted"]) == set(config["components"])
        named |= set(config["components"])
        acted |= {component for component, did in record["acted"].items() if did}
        for component, did in record["acted"].items():
            assert did or explained(component, record["evidence"]), (cell["name"], component, record["evidence"])
        lines = read_jsonl(folder / "metrics.jsonl")
        assert len(lines) == record["steps"] == config["trainer"]["max_steps"]
        assert all(line["loss"] is not None and line["grad_norm"] is not None for line in lines)
        trained = (folder / "model" / "model.safetensors").read_bytes()
        weights.setdefault(trained, []).append(cell["name"])
        differing.setdefault(effective(config, record), set()).add(trained)
    print(name, sorted(weights.values()), sorted(acted))
    # what differs in anything that acted is trained differently, and the same is trained the same
    assert len(weights) == len(differing), sorted(weights.values())
    assert all(len(found) == 1 for found in differing.values())
    assert len(weights) > 1 and acted == named  # every component in some cell
    table = run("tables", name).partition("\n\n")[2].partition("\n\n")[0].splitlines()
    assert len(table) == 2 + 1 + len(cells), table  # head, the untrained model, every cell
    assert sum(" yes" in row for row in table) >= len(acted)
