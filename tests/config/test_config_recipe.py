"""What a good recipe becomes: defaults, overrides, identity, and a round trip through JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import Result

from r3bench import catalog, project
from r3bench.config.load import apply_overrides, config_hash, load_recipe, parse_recipe, resolved, run_id
from r3bench.config.yaml_file import read_value
from r3bench.errors import ConfigError


@pytest.mark.parametrize("kind", ["recipe", "grid"])
def test_every_shipped_recipe_and_grid_is_valid_and_described(r3bench: Callable[..., Result], kind: str) -> None:
    entries = catalog.entries(f"{kind}s")
    assert entries
    for entry in entries:
        result = r3bench("validate", str(entry.path), "--json")
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.stdout)[kind]["name"] == entry.name
        assert entry.about, f"{entry.path}: no line that says what it is"


def test_resolved_writes_every_default_out_and_reads_back_unchanged(folder: Path) -> None:
    recipe = load_recipe("quickstart", ["model.lora.rank=4", "data=gsm8k", "components.replay=true"])
    written = json.loads(json.dumps(resolved(recipe), allow_nan=False))
    assert parse_recipe(written, "config.json") == recipe
    assert written["data"]["name"] == "gsm8k"
    lora = {"rank": 4, "alpha": 32, "dropout": 0.0, "target_modules": "all-linear", "merge": True}
    assert written["model"]["lora"] == lora
    assert set(written["components"]["replay"]) > {"rows"}


def test_the_hash_is_of_what_a_run_depends_on(folder: Path) -> None:
    base = load_recipe("quickstart")
    assert config_hash(base) == config_hash(load_recipe("quickstart", ["eval.samples=64", "name=other"]))
    changed = ["seed=1", "trainer.beta=0.1", "data.limit=5", "model.dtype=bfloat16", "reward.timeout=1"]
    hashes = {config_hash(load_recipe("quickstart", [change])) for change in [*changed, "components.replay=on"]}
    assert len(hashes | {config_hash(base)}) == 7
    assert config_hash(load_recipe("quickstart", ["components.replay=off"])) == config_hash(base)
    told = load_recipe("quickstart", ["trainer.report_to=tensorboard", "trainer.run_name=mine"])
    assert config_hash(told) == config_hash(base) and told.trainer["report_to"] == "tensorboard"


def test_spelling_a_number_differently_is_the_same_run(folder: Path) -> None:
    spellings = ["1e-4", "0.0001", "1.0e-4", "'1e-4'"]
    assert len({run_id(load_recipe("quickstart", [f"trainer.learning_rate={s}"])) for s in spellings}) == 1


def test_run_id_is_a_folder_name(folder: Path) -> None:
    assert run_id(load_recipe("quickstart", ["seed=7"])).startswith("quickstart-s7-")
    assert run_id(load_recipe("quickstart", ["name='../a b/c'"])).startswith("a-b-c-s0-")
    assert len(run_id(load_recipe("quickstart", [f"name={'x' * 500}"]))) < 100


def test_overrides_reach_into_shorthand_and_switches(folder: Path) -> None:
    values: dict[str, Any] = {"model": "embedded", "components": {"replay": True}}
    changed = apply_overrides(values, ["model.dtype=bfloat16", "components.replay.rows=2", "eval.tasks=[a, b]"])
    assert changed == {
        "model": {"name": "embedded", "dtype": "bfloat16"},
        "components": {"replay": {"rows": 2}},
        "eval": {"tasks": ["a", "b"]},
    }
    assert values == {"model": "embedded", "components": {"replay": True}}


def test_the_users_recipe_comes_before_the_shipped_one(r3bench: Callable[..., Result], folder: Path) -> None:
    (folder / "ablations" / "recipes").mkdir(parents=True)
    mine = folder / "ablations" / "recipes" / "quickstart.yaml"
    mine.write_text("# Mine\nseed: 9\n")
    assert load_recipe("quickstart").seed == 9
    listed = json.loads(r3bench("list", "recipes", "--json").stdout)["recipes"]
    entry = next(e for e in listed if e["name"] == "quickstart")
    assert entry == {"name": "quickstart", "path": str(mine), "shipped": False, "about": "Mine"}


def test_yaml_words_stay_what_they_say() -> None:
    assert read_value("on: off\nno: 2024-01-01\n1: ~") == {"on": False, "no": "2024-01-01", "1": None}
    assert parse_recipe({"trainer": {"save_strategy": False}}, "x").trainer == {"save_strategy": "no"}


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab:-[]{}&*!?|>'\"%@`#,. \n\t0e+~<", max_size=40))
def test_any_text_is_plain_data_or_one_error(text: str) -> None:
    try:
        value = read_value(text)
    except ConfigError as error:
        assert "\n" not in str(error)
    else:
        json.dumps(value, allow_nan=False)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(["name", "rank", "lora", "tasks", "samples", "timeout", "limit", "beta", "max_steps", "replay"])
SECTIONS = st.sampled_from(["model", "data", "trainer", "reward", "components", "eval", "seed", "name"])


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(SECTIONS, JSON_VALUES | st.dictionaries(KEYS, JSON_VALUES, max_size=3), max_size=4))
def test_any_values_are_a_recipe_or_one_error(values: dict[str, Any]) -> None:
    try:
        recipe = parse_recipe(values, "x.yaml")
    except ConfigError as error:
        assert str(error).startswith("x.yaml: ")
    else:
        assert parse_recipe(json.loads(json.dumps(resolved(recipe), allow_nan=False)), "x.yaml") == recipe


def test_a_runs_configuration_is_read_in_the_project_that_it_was_made_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that `train RUN/config.json` finds what the recipe named, from any directory."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "questions.jsonl").write_text('{"problem": "1+1", "answer": "2"}\n')
    (tmp_path / "mine" / "recipe.yaml").write_text("model: embedded\ndata: {name: ./questions.jsonl}\n")
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("mine/recipe.yaml")
    run = tmp_path / "runs" / "study" / run_id(recipe)
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps(resolved(recipe)))
    (run / "environment.json").write_text(json.dumps({"project": "../../../mine"}))
    monkeypatch.chdir(run)
    again = load_recipe(str(run / "config.json"))
    assert run_id(again) == run_id(recipe) and project.located(again.data.name).is_file()
    for broken in ("{", "[]", '{"project": 3}', '{"project": "../../../nowhere"}'):
        (run / "environment.json").write_text(broken)
        assert run_id(load_recipe(str(run / "config.json"))) == run_id(recipe)
