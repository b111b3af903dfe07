"""What YAML 1.1 reads otherwise than it looks is refused, with the line and how to write what was meant."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from r3bench.config.load import load_recipe
from r3bench.config.yaml_file import read_value
from r3bench.errors import ConfigError
from r3bench.sweep.grid import factors_of, parse_grid

MISREAD = [
    "010",
    "-010",
    "+07",
    "0x1F",
    "0b11",
    "1:30",
    "1:30:00",
    "-1:30",
    "1:30.5",
    "0_7",
    "00",
    "190:20:30",
]
PLAIN = {
    "10": 10, "0": 0, "-3": -3, "+4": 4, "1_000": 1000, "0.5": 0.5, ".5": 0.5, "5.": 5.0, "1.0e+3": 1000.0,
    "1e3": "1e3", "089": "089", "0o17": "0o17", "'010'": "010", '"1:30"': "1:30", "1:3x": "1:3x", "12:99": "12:99",
    "2024-01-01": "2024-01-01", "off": False, "yes": True, "n": "n", "y": "y", "'no'": "no", "~": None,
}  # fmt: skip


@pytest.mark.parametrize("text", MISREAD)
def test_a_number_that_is_not_what_it_looks_like_is_refused(text: str) -> None:
    for around in ("{}", "[1, {}]", "a: {{b: [{}]}}", "a: 1\nb: {}"):
        with pytest.raises(
            ConfigError, match=r"line \d: got .*which YAML reads as the number -?[\d.]+; .*'.*' in quotes"
        ):
            read_value(around.format(text))


@pytest.mark.parametrize("text", PLAIN)
def test_everything_else_is_read_as_before(text: str) -> None:
    found = read_value(text)
    assert (type(found), found) == (type(PLAIN[text]), PLAIN[text])


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("seeds", "seeds: [010]"), ("seeds", "seeds: [1:30]"), ("set", "set: {trainer.max_steps: 0x10}"),
        ("eval", "eval: {samples: 010}"), ("factor", "budget: {steps: 1:00}"),
    ],
)  # fmt: skip
def test_in_a_grid_it_is_one_line_with_file_and_line(
    r3bench: Callable[..., Result], folder: Path, where: str, text: str
) -> None:
    Path("g.yaml").write_text(f"recipe: quickstart\nfactors: {{replay: [off, on]}}\n{text}\n")
    for command in ("validate", "plan", "ablate"):
        result = r3bench(command, "./g.yaml")
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
        assert "g.yaml: line 3: got " in result.stderr
    Path("g.yaml").write_text("recipe: quickstart\nfactors: {trainer.max_steps: [10, 010]}\n")
    assert "g.yaml: line 2: got 010" in r3bench("validate", "./g.yaml").stderr


def test_in_a_recipe_and_an_override(r3bench: Callable[..., Result], folder: Path) -> None:
    Path("recipes").mkdir()
    Path("r.yaml").write_text("model: embedded\nseed: 010\n")
    assert "r.yaml: line 2: got 010" in r3bench("validate", "./r.yaml").stderr
    with pytest.raises(ConfigError, match="override 'seed=1:30': got 1:30, which YAML reads as the number 90"):
        load_recipe("quickstart", ["seed=1:30"])


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("name", True, "YAML reads a bare on or yes as true: quote it"),
        ("data.name", False, "YAML reads a bare off or no as false: quote it"),
        ("model.dtype", False, "YAML reads a bare off or no as false: quote it"),
        ("name", 12, "quote it if it is meant as a text: '12'"),
        ("trainer.lr_scheduler_type", False, "YAML reads a bare off or no as false: quote it"),
    ],
)
def test_a_truth_value_or_number_where_a_text_is_meant_is_said(key: str, value: object, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_recipe("quickstart", [f"{key}={value}"])
    assert hint in str(error.value)


def test_a_level_called_no_is_told_from_off() -> None:
    values = {
        "recipe": "quickstart", "design": "list", "cells": [{"bonus": False}],
        "factors": {"bonus": {"no": {"reward.length_bonus": False}, "yes": {"reward.length_bonus": True}}},
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"no level 'off'.*YAML reads a bare no or off as 'off'.*quote"):
        parse_grid(values, "g.yaml")
    assert parse_grid({**values, "cells": [{"bonus": "no"}]}, "g.yaml").cells[0] == {"bonus": "no"}


@pytest.mark.parametrize(
    "factors",
    [
        {"trainer.save_strategy": ["steps", False]},
        {"trainer.save_strategy": {"a": "steps", "b": False}},
        {"saving": {"a": {"trainer.save_strategy": "steps"}, "b": {"trainer.save_strategy": False}}},
        {"model.name": ["embedded", True]},
    ],
)
def test_a_truth_value_among_texts_is_refused(factors: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"beside the text '(steps|embedded)'; YAML reads a bare"):
        factors_of(parse_grid({"recipe": "quickstart", "factors": factors}, "g.yaml"))


def test_a_component_level_is_what_it_is_called() -> None:
    for levels in ({"off": "on", "on": "off"}, {"off": True, "x": False}, {"on": False, "x": True}):
        with pytest.raises(ConfigError, match="the opposite of what the level is called"):
            factors_of(parse_grid({"recipe": "quickstart", "factors": {"replay": levels}}, "g.yaml"))
    for levels in (["off", "on"], [False, True], {"off": False, "on": "literal"}, [False, "literal"]):
        factors_of(parse_grid({"recipe": "quickstart", "factors": {"replay": levels}}, "g.yaml"))
