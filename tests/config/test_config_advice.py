"""What is said of recipes that run but don't do what they say: shipped ones have nothing of it, users' are told."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import Result

from r3bench import catalog
from r3bench.config.advice import warnings_of
from r3bench.config.clipping import ratio_moves, updates_per_rollout
from r3bench.config.correction import FIELDS
from r3bench.config.load import load_recipe, parse_recipe
from r3bench.config.precision import check_strategy_precision, precision
from r3bench.config.trainer_fields import trainer_value
from r3bench.errors import ConfigError

RECIPES = sorted(catalog.names("ablations", ".yaml", "recipes"))
OUR_OWN = {"quickstart", "smollm2_gsm8k"}  # one update per sampled batch on purpose: they claim no method with a clip


def faults(recipe: Any) -> list[str]:
    """What no shipped recipe may resolve to."""
    found = []
    values = recipe.trainer
    if precision(recipe).weights != "float32":
        found.append("trained weights below float32")
    if recipe.name not in OUR_OWN and not ratio_moves(recipe):
        found.append("a clip that can't act")
    if trainer_value(values, "use_vllm"):
        if FIELDS[0] not in values or (values[FIELDS[0]] and FIELDS[1] not in values):
            found.append("an unset sampler correction")
        elif values[FIELDS[0]] and values[FIELDS[1]].startswith("sequence"):
            found.append("a correction that multiplies over an answer")
    if trainer_value(values, "beta") and trainer_value(values, "use_bias_correction_kl"):
        found.append("a KL term with a ratio, which no source has")
    return found + warnings_of(recipe)


@pytest.mark.parametrize("name", RECIPES)
def test_shipped_recipes_train_what_they_say(name: str) -> None:
    assert not faults(load_recipe(name))


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("model.dtype=bfloat16", "trained weights below float32"),
        ("model.dtype=auto", "trained weights below float32"),
        ("trainer.gradient_accumulation_steps=16", "a clip that can't act"),
        ("trainer.vllm_importance_sampling_mode=sequence_truncate", "a correction that multiplies over an answer"),
        ("trainer.use_bias_correction_kl=true", "a KL term with a ratio, which no source has"),
    ],
)
def test_a_recipe_that_does_not_is_found(override: str, fault: str) -> None:
    assert faults(load_recipe("r3_1.5b", [override]))[0] == fault


def test_an_unset_correction_is_found() -> None:
    values = yaml.safe_load(catalog.recipe_path("r3_1.5b").read_text())
    del values["trainer"]["vllm_importance_sampling_mode"]
    assert faults(parse_recipe({"name": "x", **values}, "x"))[0] == "an unset sampler correction"


@pytest.mark.parametrize(
    ("trainer", "updates", "moves"),
    [
        ({}, 1, False),
        ({"gradient_accumulation_steps": 4}, 1, False),
        ({"num_iterations": 2}, 2, True),
        ({"steps_per_generation": 4}, 4, True),
        ({"steps_per_generation": 4, "gradient_accumulation_steps": 4}, 1, False),
        ({"steps_per_generation": 2, "gradient_accumulation_steps": 4}, 0.5, False),
        ({"steps_per_generation": 3, "gradient_accumulation_steps": 2}, 1.5, True),
        (
            {"steps_per_generation": 2, "gradient_accumulation_steps": 3},
            2 / 3,
            True,
        ),  # inside every other
        ({"generation_batch_size": 64, "per_device_train_batch_size": 16}, 4, True),
    ],
)
def test_when_the_policy_changes_while_a_batch_is_used(trainer: dict[str, Any], updates: float, moves: bool) -> None:
    recipe = parse_recipe({"trainer": trainer}, "x")
    assert updates_per_rollout(recipe) == updates
    window = int(updates * trainer.get("gradient_accumulation_steps", 1) + 0.5)
    every = trainer.get("gradient_accumulation_steps", 1)
    inside = any(step % window for step in range(every, 50 * every, every))  # an update within a batch's use
    assert ratio_moves(recipe) == moves == inside


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        ({"epsilon_high": 0.28}, "epsilon_high: 0.28"),
        ({"delta": 2.0}, "delta: 2"),
        ({"loss_type": "cispo"}, "loss_type: cispo"),
        ({"importance_sampling_level": "sequence"}, "importance_sampling_level: sequence"),
    ],
)
def test_a_users_clip_that_can_not_act(
    r3bench: Callable[..., Result], folder: Path, trainer: dict[str, Any], said: str
) -> None:
    (folder / "mine.yaml").write_text(yaml.safe_dump({"trainer": trainer}))
    result = r3bench("validate", "./mine.yaml")
    assert result.exit_code == 0
    assert result.stderr.startswith(f"warning: trainer: {said} can't act: each sampled batch is used up in one update")
    (folder / "mine.yaml").write_text(yaml.safe_dump({"trainer": {**trainer, "num_iterations": 2}}))
    assert r3bench("validate", "./mine.yaml").stderr == ""


def test_validate_says_it_of_a_recipe_without_a_word_on_clips(r3bench: Callable[..., Result]) -> None:
    result = r3bench("validate", "quickstart", "seed=1")
    assert "one update per sampled batch: ratios are 1, no clip acts" in result.stdout
    assert result.stderr == ""


def test_plan_and_a_grid_say_it_too(r3bench: Callable[..., Result], folder: Path) -> None:
    pure = "model.dtype: bfloat16 weights under adamw_torch_fused"
    found = json.loads(r3bench("plan", "r3_1.5b", "model.dtype=bfloat16", "--json").stdout)
    assert [line for line in found["warnings"] if line.startswith(pure)]
    grid = {"recipe": "r3_1.5b", "factors": {"replay": ["off", "on"]}, "seeds": [0], "set": {"model.dtype": "bfloat16"}}
    (folder / "mine.yaml").write_text(yaml.safe_dump({**grid, "executor": {"kind": "local", "gpus": 8}}))
    for command in ("plan", "validate"):
        stderr = r3bench(command, "./mine.yaml").stderr
        assert stderr.count(pure) == 1 and "warning: cell " in stderr


REFUSED = [
    ({"trainer": {"model_init_kwargs": {"attn_implementation": "sdpa"}}}, "model_init_kwargs", "TRL ignores it"),
    ({"trainer": {"use_transformers_continuous_batching": True}}, "use_transformers_continuous_batching", "rounds the"),
    ({"model": {"dtype": "float16"}}, "model.dtype", "trainer.fp16: true"),
    ({"model": {"compensation": "kahan"}}, "model.dtype", "expected 'bfloat16'"),
    ({"model": {"dtype": "bfloat16", "compensation": "kahan", "lora": {}}}, "model.lora", "expected null"),
    (
        {"model": {"dtype": "bfloat16", "compensation": "kahan"}, "trainer": {"optim": "adafactor"}},
        "trainer.optim", "expected one of adamw_torch",
    ),
    ({"model": {"attention": "kernels-community/flash-attn2"}}, "model.attention", "expected one of sdpa, eager"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "key", "why"), REFUSED)
def test_what_would_not_be_trained_as_written_is_refused(values: dict[str, Any], key: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_recipe(values, "x")
    assert key in str(caught.value) and why in str(caught.value)


def test_an_attention_that_is_not_installed(r3bench: Callable[..., Result]) -> None:
    name = "model.attention=flash_attention_2"
    said = "model.attention: 'flash_attention_2' needs the package flash-attn, which is not installed here"
    assert said in r3bench("validate", "quickstart", name).stderr
    result = r3bench("train", "quickstart", name)
    assert result.exit_code == 2 and result.stderr.startswith(f"r3bench: {said}")


@pytest.mark.parametrize("strategy", ["fsdp2", "zero2", "zero3"])
def test_a_strategy_never_changes_the_precision(strategy: str) -> None:
    half = parse_recipe({"model": {"name": "org/x", "dtype": "bfloat16"}}, "x")
    with pytest.raises(ConfigError, match="it would be another experiment"):
        check_strategy_precision(half, strategy, "x")
    with pytest.raises(ConfigError, match="the checkpoint's weights"):
        check_strategy_precision(parse_recipe({"model": {"name": "org/x", "dtype": "auto"}}, "x"), strategy, "x")
    check_strategy_precision(half, "ddp", "x")
    check_strategy_precision(parse_recipe({"model": {"name": "org/x"}}, "x"), strategy, "x")


def test_new_settings_at_their_defaults_leave_old_runs_their_names() -> None:
    from r3bench.config.load import config_hash

    plain = {"model": {"name": "embedded"}}
    named = {"model": {"name": "embedded", "compensation": None, "attention": None}, "reward": {"thinking": "ignored"}}
    assert config_hash(parse_recipe(plain, "x")) == config_hash(parse_recipe(named, "x"))
    other = {"reward": {"thinking": "required"}}
    assert config_hash(parse_recipe(plain, "x")) != config_hash(parse_recipe({**plain, **other}, "x"))
