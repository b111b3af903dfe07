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
TESTBED = {name for name in RECIPES if name.startswith("testbed_")}
# one update per sampled batch on purpose: they claim no method with a clip
OUR_OWN = {"quickstart", "smollm2_gsm8k", "entropy_bonus", *TESTBED}


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
    trainer = {**trainer, "max_completion_length": 64}
    (folder / "mine.yaml").write_text(yaml.safe_dump({"trainer": trainer}))
    result = r3bench("validate", "./mine.yaml")
    assert result.exit_code == 0
    assert result.stderr.startswith(f"warning: trainer: {said} can't act: each sampled batch is used up in one update")
    (folder / "mine.yaml").write_text(yaml.safe_dump({"trainer": {**trainer, "num_iterations": 2}}))
    assert r3bench("validate", "./mine.yaml").stderr == ""


def test_a_clip_that_acts_on_stored_answers_alone(r3bench: Callable[..., Result], folder: Path) -> None:
    for components, said in (
        ({"replay": {"weight": "ppo"}}, "epsilon_high: 0.3 can't act but on stored answers (weight: ppo): each"),
        ({"repo": True}, "epsilon_high: 0.3 can't act but on stored answers (weight: ppo): each"),
        ({"replay": {"weight": "decoupled"}}, "epsilon_high: 0.3 can't act: each"),
    ):
        recipe = {"trainer": {"epsilon_high": 0.3, "max_completion_length": 64}, "components": components}
        (folder / "mine.yaml").write_text(yaml.safe_dump(recipe))
        result = r3bench("validate", "./mine.yaml")
        assert said in result.stderr
        assert ("no clip acts but on stored answers" in result.stdout) == ("stored" in said)


def test_a_grid_is_warned_about_as_many_processes_as_it_has(r3bench: Callable[..., Result], folder: Path) -> None:
    trainer = {"generation_batch_size": 64, "per_device_train_batch_size": 16, "epsilon_high": 0.3}
    trainer["max_completion_length"] = 64
    (folder / "mine.yaml").write_text(yaml.safe_dump({"trainer": trainer}))
    grid = {"recipe": "./mine.yaml", "factors": {"replay": ["off", "on"]}, "seeds": [0]}
    for gpus, warned in ((1, False), (4, True)):
        (folder / "grid.yaml").write_text(yaml.safe_dump({**grid, "executor": {"kind": "slurm", "gpus": gpus}}))
        for command in ("plan", "validate"):
            result = r3bench(command, "./grid.yaml")
            assert result.exit_code == 0, result.stderr
            assert ("can't act" in result.stderr) == warned


KAHAN = "or model.compensation: kahan"
OPTIMISERS = [  # trainer fields, dtype, what is said
    ({}, "bfloat16", KAHAN),
    ({"learning_rate": 1e-3}, "bfloat16", None),
    ({"optim": "adafactor"}, "bfloat16", "1.9 % of them can move"),
    ({"optim": "adamw_8bit"}, "bfloat16", "1.9 % of them can move"),
    ({"optim": "lion_8bit", "learning_rate": 1e-7}, "bfloat16", "0.12 % of them can move"),
    ({"optim": "sgd", "learning_rate": 1e-3}, "bfloat16", "of them can move"),  # a gradient's norm is over all weights
    ({"optim": "sgd", "learning_rate": 1e-3, "max_grad_norm": 0.0}, "bfloat16", "of them can move"),
    ({"optim": "stable_adamw"}, "bfloat16", None),
    ({"optim": "stable_adamw", "optim_args": "kahan_sum=True"}, "bfloat16", None),
    ({"optim": "adamw_anyprecision", "optim_args": "use_kahan_summation=True"}, "bfloat16", None),
    ({"optim": "adamw_anyprecision"}, "bfloat16", "1.9 % of them can move"),
    ({"optim": "adamw_torch_8bit", "optim_args": "bf16_stochastic_round=True"}, "bfloat16", "at random"),
    ({"optim": "sgd", "learning_rate": 1e-3}, "float32", None),
    ({"learning_rate": 1e-10}, "float32", "use a higher rate"),
]  # fmt: skip


@pytest.mark.parametrize(("trainer", "dtype", "said"), OPTIMISERS)
def test_what_is_said_of_updates(trainer: dict[str, Any], dtype: str, said: str | None) -> None:
    found = warnings_of(parse_recipe({"model": {"dtype": dtype}, "trainer": trainer}, "x"))
    assert len(found) == (said is not None)
    assert said is None or said in found[0]
    if found and trainer.get("optim"):
        assert KAHAN not in found[0]  # refused beside another optimiser


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
    both = json.loads(r3bench("plan", "./mine.yaml", "--effect", "0.0001", "--json").stdout)["warnings"]
    assert any(pure in line for line in both) and any("can't resolve" in line for line in both)  # the design's own stay


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
