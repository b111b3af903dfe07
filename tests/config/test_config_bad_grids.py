"""Malformed grids, each with its one-line error through `r3bench validate`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

ON_OFF = "factors: {replay: [off, on]}\n"
GRIDS = [
    (
        "unknown_key",
        f"recipe: quickstart\nseads: [1]\n{ON_OFF}",
        "bad.yaml: seads: got [1] for an unknown key; did you mean 'seeds'?",
    ),
    ("no_recipe", ON_OFF, "bad.yaml: recipe: missing, expected a text"),
    (
        "unknown_recipe",
        f"recipe: quikstart\n{ON_OFF}",
        "recipe 'quikstart': not found in ./ablations/recipes or among the shipped ones; did you mean 'quickstart'?",
    ),
    (
        "seed_twice",
        f"recipe: quickstart\nseeds: [0, 0]\n{ON_OFF}",
        "bad.yaml: seeds: got [0, 0], expected a list of distinct seeds",
    ),
    (
        "unknown_factor",
        "recipe: quickstart\nfactors: {replays: [off, on]}\n",
        "bad.yaml: factors.replays: not a component and not a dotted config key, expected levels that set config keys, "
        "such as {off: {reward.length_bonus: false}}; did you mean 'replay'?",
    ),
    (
        "one_level",
        "recipe: quickstart\nfactors: {replay: [on]}\n",
        "bad.yaml: factors.replay: got levels ['on'], expected at least two distinct ones",
    ),
    (
        "impossible_cell",
        "recipe: quickstart\nfactors: {trainer.num_generations: [8, 7]}\n",
        "bad, cell num_generations.7: trainer: per_device_train_batch_size 64 x gradient_accumulation_steps 1 x 1 "
        "processes = 64 rows sampled together can't be cut into groups of num_generations 7; nearest that works: "
        "per_device_train_batch_size=63 or gradient_accumulation_steps=7 or processes=7",
    ),
    (
        "budget",
        f"recipe: quickstart\nbudget: {{steps: 0}}\n{ON_OFF}",
        "bad.yaml: budget: steps: got 0, expected at least 1",
    ),
    (
        "executor",
        f"recipe: quickstart\nexecutor: {{kind: slrm}}\n{ON_OFF}",
        "bad.yaml: executor.kind: got 'slrm', expected one of local, slurm, ray, inline; did you mean 'slurm'?",
    ),
    (
        "options of an executor without any",
        f"recipe: quickstart\nexecutor: {{kind: local, options: {{time: 3}}}}\n{ON_OFF}",
        "bad.yaml: executor: options: got {'time': 3} with kind 'local', which has none; expected them with slurm "
        "or ray",
    ),
    (
        "negative disk floor",
        f"recipe: quickstart\ndisk_floor_gb: -1\n{ON_OFF}",
        "bad.yaml: disk_floor_gb: got -1.0, expected 0 or above",
    ),
    (
        "a setting that a factor replaces",
        "recipe: quickstart\nset: {components.replay.alpha: 0.5}\nfactors: {replay: [off, on]}\n",
        "bad.yaml: set.components.replay.alpha: every level of factor 'replay' replaces it; expected the setting in "
        "the factor's levels, such as replay: {first: ..., second: ...}",
    ),
    (
        "the factor's own key",
        "recipe: quickstart\nset: {trainer.beta: 0.5}\nfactors: {trainer.beta: [0.0, 0.1]}\n",
        "bad.yaml: set.trainer.beta: every level of factor 'trainer.beta' replaces it; expected the setting in the "
        "factor's levels, such as trainer.beta: {first: ..., second: ...}",
    ),
]


def test_a_setting_that_some_level_leaves_alone_can_be_set(r3bench: Callable[..., Result], folder: Path) -> None:
    (folder / "mine.yaml").write_text(
        "recipe: quickstart\nset: {reward.length_max: 40}\n"
        "factors: {bonus: {off: {reward.length_bonus: true}, on: {reward.length_bonus: true, reward.length_max: 30}}}\n"
    )
    assert r3bench("validate", "mine.yaml").exit_code == 0


@pytest.mark.parametrize(("text", "message"), [case[1:] for case in GRIDS], ids=[case[0] for case in GRIDS])
def test_a_malformed_grid_is_one_line(r3bench: Callable[..., Result], folder: Path, text: str, message: str) -> None:
    (folder / "bad.yaml").write_text(text)
    result = r3bench("validate", "bad.yaml")
    assert (result.stderr, result.exit_code) == (f"r3bench: {message}\n", 2)


def test_overrides_are_validated_with_the_grid_that_they_change(r3bench: Callable[..., Result], folder: Path) -> None:
    (folder / "mine.yaml").write_text(f"recipe: quickstart\n{ON_OFF}")
    plain = json.loads(r3bench("validate", "mine.yaml", "--json").stdout)["grid"]["runs"]
    changed = json.loads(r3bench("validate", "mine.yaml", "trainer.max_steps=7", "--json").stdout)["grid"]["runs"]
    assert len(changed) == len(plain) and not set(changed) & set(plain)
    wrong = r3bench("validate", "mine.yaml", "trainer.max_stepz=7")
    assert wrong.exit_code == 2 and "did you mean 'max_steps'" in wrong.stderr
