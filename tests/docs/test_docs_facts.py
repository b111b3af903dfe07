"""What the pages say in numbers and names is what the code has: settings, defaults, recipes, exit codes, bounds."""

import dataclasses
import re
from typing import Any

import pytest
import yaml
from walk import DOCS

from r3bench import catalog, errors
from r3bench.config.load import load_recipe
from r3bench.config.sections import HistoryBounds
from r3bench.config.strict import build
from r3bench.config.trainer_fields import trainer_fields
from r3bench.sweep.grid import Grid, RetrySection
from r3bench.sweep.planning.cost import TRAINING_SETS
from r3bench.training.questions.embedded import SIZES


def page(name: str) -> str:
    return (DOCS / name).read_text()


def rows(text: str) -> list[list[str]]:
    """The cells of every table row."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def defaults(component: str) -> dict[str, Any]:
    config = catalog.component(component).Config
    return {field.name: field.default for field in dataclasses.fields(config)}


def same(said: str, value: Any) -> bool:
    """Whether the beginning of a table cell spells `value`; lists, flags and empty texts may be put in words."""
    first = re.split(r"[,;:]", said)[0].strip()
    if value is None:
        return first in ("none", "null")
    if isinstance(value, str):
        return first == value or not value
    return isinstance(value, bool | tuple) or float(first) == float(value)


@pytest.mark.parametrize("name", sorted(p.name for p in DOCS.glob("*.md")))
def test_settings_that_are_named_exist(name: str) -> None:
    known = catalog.component_names()
    for component, setting in re.findall(r"`(\w+)\.(\w+)[:`=]", page(name)):
        if component in known:
            assert setting in defaults(component), f"{name}: {component}.{setting}"
        elif component == "trainer":
            assert setting in trainer_fields(), f"{name}: trainer.{setting}"


def test_defaults_of_the_papers_symbols() -> None:
    checked = 0
    for cells in rows(page("papers.md")):
        found = re.match(r"`(\w+)\.(\w+)`", cells[1]) if len(cells) == 4 else None
        if found and found[1] in catalog.component_names():
            value = defaults(found[1])[found[2]]
            assert same(cells[2], value), f"{cells}: the default is {value!r}"
            checked += 1
    assert checked >= 12


def test_the_reconstruction_of_rrl_is_the_component() -> None:
    text = page("papers.md").partition("## RRL")[2].partition("## ")[0]
    table = [cells for cells in rows(text) if len(cells) == 3 and "`" in cells[1]]
    named = [name for cells in table for name in re.findall(r"`(\w+)`", cells[1])]
    assert len(named) >= 13 and set(named) <= defaults("retrospective").keys()
    known = defaults("retrospective")
    numbers = {
        "max_cuts": 8,
        "max_fraction": 0.7,
        "gate_auc": 0.6,
        "per_question": 4,
        "max_states": None,
        "retire": 0.5,
    }
    assert {key: known[key] for key in numbers} == numbers
    for key in ("gate_auc", "retire", "max_fraction"):
        assert str(numbers[key]) in text, key
    assert (known["share"], known["quantile"]) == (0.25, 0.75)  # "a quarter", "upper quarter"


def test_the_fields_of_r3s_recipe() -> None:
    recipe = load_recipe("r3_1.5b")
    text = page("papers.md").partition("### Training settings")[2].partition("### ")[0]
    checked = 0
    for names, values, _ in (cells for cells in rows(text) if len(cells) == 3):
        keys = re.findall(r"`(\w+)`", names)
        if keys and all(key in recipe.trainer for key in keys):
            found = [yaml.safe_load(value) for value in values.split(",")]
            assert [float(value) for value in found] == [float(recipe.trainer[key]) for key in keys], names
            checked += len(keys)
    assert checked >= 6
    rollout = recipe.trainer["per_device_train_batch_size"] * recipe.trainer["steps_per_generation"] * 8
    update = recipe.trainer["per_device_train_batch_size"] * recipe.trainer["gradient_accumulation_steps"] * 8
    assert (rollout / 8, update / 8) == (128, 64)


def test_bounds_of_the_history() -> None:
    text = page("training.md").partition("## The trajectory history")[2].partition("## ")[0]
    said = {cells[0].strip("`"): cells[1] for cells in rows(text) if cells[0].startswith("`")}
    bounds = build(HistoryBounds, {}, "")
    assert said.keys() == {field.name for field in dataclasses.fields(HistoryBounds)}
    for key, value in vars(bounds).items():
        assert said[key].startswith("none" if value is None else f"{value:,} "), key


def test_numbers_of_trouble() -> None:
    retries, text = RetrySection(), page("troubleshooting.md")
    hang = next(field.default for field in dataclasses.fields(Grid) if field.name == "hang_after")
    assert f"`hang_after` seconds ({hang:.0f})" in text
    assert retries.out_of_memory == 4 and "up to four times" in text
    assert retries.timeout == 1 and "tried again once" in text
    codes = {int(cells[0]) for cells in rows(text) if cells[0].isdigit()}
    ours = {value.exit_code for value in vars(errors).values() if hasattr(value, "exit_code")}
    assert codes == {0, *ours}


def test_sizes_of_the_known_sets() -> None:
    said = {}
    for cells in rows(page("models-and-data.md")):
        number = re.search(r"[\d,]*\d", cells[1])
        if len(cells) == 5 and number:
            said.update({name: int(number[0].replace(",", "")) for name in re.findall(r"`([\w-]+)`", cells[0])})
    assert {name: said[name] for name in TRAINING_SETS} == TRAINING_SETS
    assert {said["embedded"], said["embedded-20"], SIZES["train"]} == {1024}


def test_the_design_names_modules_that_are_there() -> None:
    """Every `module.py` of the design is a file; a bare name is one that stands in the folder named before it."""
    text = (DOCS.parent / "docs" / "design.md").read_text()
    names = {
        path.name for folder in ("r3bench", "components", "evals") for path in (DOCS.parent / folder).rglob("*.py")
    }
    said = re.findall(r"[`\s\[\"(]((?:\w+/)*\w+\.py)", text)
    assert len(said) > 40
    for name in said:
        if "/" in name:
            assert (DOCS.parent / "r3bench" / name).is_file() or (DOCS.parent / name).is_file(), name
        else:
            assert name in names, name
