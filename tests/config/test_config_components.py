"""A user's own component: found in ./components, configured like a shipped one, and refused with its file named."""

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from r3bench.config.load import check_sources, config_hash, load_recipe, parse_recipe, resolved
from r3bench.errors import ConfigError, StateError

NUDGE = '''"""Adds a constant to every reward."""

from dataclasses import dataclass

from r3bench.errors import ConfigError
from r3bench.component import Component


@dataclass(frozen=True)
class NudgeConfig:
    amount: float = 0.1  # added to every reward

    def __post_init__(self):
        if self.amount < 0:
            raise ValueError(f"amount: got {self.amount}, expected 0 or above")


class Nudge(Component):
    name = "nudge"
    Config = NudgeConfig
    presets = {"strong": {"amount": 0.5}}
    shapes_reward = True

    @classmethod
    def check(cls, config, trainer, lowest_correct, where):
        if config.amount >= lowest_correct:
            raise ConfigError(f"{where}.amount: got {config.amount}, expected less than {lowest_correct}")
'''


@pytest.fixture
def components(folder: Path) -> Path:
    (folder / "components").mkdir()
    return folder / "components"


def test_a_users_component_is_listed_and_configured(r3bench: Callable[..., Result], components: Path) -> None:
    (components / "nudge.py").write_text(NUDGE)
    assert "nudge" in r3bench("list", "components").stdout
    assert "Adds a constant to every reward." in r3bench("list", "components").stdout
    for spelling, amount in (("true", 0.1), ("strong", 0.5), ("{amount: 0.3}", 0.3)):
        assert load_recipe("quickstart", [f"components.nudge={spelling}"]).components == {"nudge": {"amount": amount}}
    assert load_recipe("quickstart", ["components.nudge=false"]).components == {}


def test_a_setting_that_came_later_leaves_run_ids_alone_at_its_default(components: Path) -> None:
    file = components / "nudge.py"
    file.write_text(NUDGE)
    before = load_recipe("quickstart", ["components.nudge=true"])
    known = config_hash(before)
    newer = NUDGE.replace("    def __post_init__", "    sign: int = 1  # of the constant\n\n    def __post_init__", 1)
    file.write_text(newer.replace("    shapes_reward", '    later = ("sign",)\n    shapes_reward'))

    def identity(override: str) -> str:
        recipe = load_recipe("quickstart", [f"components.nudge={override}"])
        return config_hash(dataclasses.replace(recipe, sources=before.sources))  # the file has changed, too

    assert identity("true") == identity("{sign: 1}") == known
    assert identity("{sign: -1}") != known


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("components.nudge.amuont=1", "components.nudge.amuont: got 1 for an unknown key; did you mean 'amount'?"),
        ("components.nudge.amount=x", "components.nudge.amount: got 'x', expected a number"),
        ("components.nudge.amount=-1", "components.nudge: amount: got -1.0, expected 0 or above"),
        ("components.nudge.amount=1", "components.nudge.amount: got 1.0, expected less than 1.0"),
        (
            "components.nudge=strng",
            "components.nudge: got 'strng', expected true, false, settings, or a preset; did you mean 'strong'?",
        ),
    ],
)
def test_its_settings_are_checked_like_a_shipped_ones(
    r3bench: Callable[..., Result], components: Path, override: str, message: str
) -> None:
    (components / "nudge.py").write_text(NUDGE)
    (components.parent / "mine.yaml").write_text("seed: 1\n")
    result = r3bench("validate", "mine.yaml", override)
    assert (result.stderr, result.exit_code) == (f"r3bench: command line: {message}\n", 2)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def broken(:\n", "can't be imported: SyntaxError: invalid syntax"),
        ("import no_such_package_anywhere\n", "can't be imported: ModuleNotFoundError: No module named 'no_such"),
        ("print(nothing)\n", "can't be imported: NameError: name 'nothing' is not defined"),
        ("import sys\nsys.exit('bye')\n", "can't be imported: SystemExit: bye"),
        ("x = 1\n", "no Component subclass with name = 'nudge'"),
        (NUDGE.replace('name = "nudge"', 'name = "other"'), "no Component subclass with name = 'nudge'"),
        (NUDGE.replace("    Config = NudgeConfig\n", ""), "Nudge.Config: got None, expected a frozen dataclass"),
    ],
    ids=["syntax", "import", "name", "exit", "empty", "other_name", "no_config"],
)
def test_a_file_that_is_no_component_is_named(
    r3bench: Callable[..., Result], components: Path, source: str, message: str
) -> None:
    path = components / "nudge.py"
    path.write_text(source)
    with pytest.raises(ConfigError) as caught:
        load_recipe("quickstart", ["components.nudge=true"])
    assert str(caught.value).startswith(f"{path}: {message}")
    assert r3bench("list", "components").exit_code == 0


def test_a_users_component_takes_the_place_of_a_shipped_one(r3bench: Callable[..., Result], components: Path) -> None:
    (components / "replay.py").write_text(NUDGE.replace('"nudge"', '"replay"'))
    assert load_recipe("quickstart", ["components.replay=on"]).components == {"replay": {"amount": 0.1}}


def test_another_source_is_another_run(components: Path) -> None:
    (components / "nudge.py").write_text(NUDGE)
    on, off = ["components.nudge=true"], ["components.nudge=false"]
    before, plain = load_recipe("quickstart", on), load_recipe("quickstart", off)
    assert config_hash(before) == config_hash(load_recipe("quickstart", on))
    (components / "nudge.py").write_text(NUDGE.replace("shapes_reward = True", "shapes_reward = False"))
    after = load_recipe("quickstart", on)
    assert config_hash(after) != config_hash(before) and plain.sources == {}
    assert config_hash(load_recipe("quickstart", off)) == config_hash(plain)
    assert parse_recipe(resolved(before), "config.json") == before  # a finished run stays what it was


def test_an_edited_source_is_the_one_that_is_loaded_and_an_old_recipe_is_not_trained_with_it(
    components: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = components / "nudge.py"
    file.write_text(NUDGE)
    os.utime(file, (1e9, 1e9))
    before = load_recipe("quickstart", ["components.nudge=true"])
    check_sources(before)
    file.write_text(NUDGE.replace("amount: float = 0.1", "amount: float = 0.2"))
    os.utime(file, (1e9, 1e9))  # as old and as long as it was
    assert load_recipe("quickstart", ["components.nudge=true"]).components == {"nudge": {"amount": 0.2}}
    with pytest.raises(StateError, match=r"component 'nudge': its file was .* when this run was resolved"):
        check_sources(before)


def test_a_shipped_component_is_covered_by_the_commit(folder: Path) -> None:
    assert load_recipe("quickstart", ["components.replay=on"]).sources == {}


def test_a_component_in_the_place_of_a_shipped_one_is_another_run(components: Path) -> None:
    shipped = load_recipe("quickstart", ["components.ranking=on"])
    (components / "replay.py").write_text(NUDGE.replace('"nudge"', '"replay"'))
    assert set(load_recipe("quickstart", ["components.replay=on"]).sources) == {"replay"}
    assert config_hash(load_recipe("quickstart", ["components.ranking=on"])) == config_hash(shipped)
