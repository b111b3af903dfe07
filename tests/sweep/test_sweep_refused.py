"""Grids that would train something else than they say, write elsewhere or never end: refused before anything runs."""

import pytest
import yaml
from typer.testing import CliRunner

from r3bench.cli import app
from r3bench.errors import ConfigError
from r3bench.sweep.grid import parse_grid
from r3bench.sweep.opening import open_study

BONUS = {"off": {"reward.length_bonus": False}, "on": {"reward.length_bonus": True}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factors": {"base": {"small": {"model.name": "embedded"}, "model": {"model.name": "x"}}}}, "'base' marks"),
        ({"factors": {"eval.samples": [1, 2]}}, "the grid's 'eval' section"),
        ({"factors": {"how": {"a": {"eval.samples": 1}, "b": {"eval.samples": 2}}}}, "the grid's 'eval' section"),
        ({"factors": {"seed": [1, 2]}}, "the grid's 'seeds'"),
        ({"factors": {"name": ["a", "b"]}}, "the grid's 'name'"),
        ({"set": {"seed": 3}}, "set.seed: .*'seeds'"),
        (
            {"factors": {"replay": ["off", "on"], "components.replay": [True, False]}},
            "components.replay, which factor 'replay' sets as well",
        ),
        ({"factors": {"bonus": BONUS, "reward.length_bonus": [False, True]}}, "which factor 'bonus' sets as well"),
        ({"seeds": [4294967296]}, "seeds: got 4294967296, expected 0 to 4294967295"),
        ({"seeds": [-1]}, "seeds: got -1, expected 0 to 4294967295"),
    ],
)
def test_a_grid_that_would_not_do_what_it_says(home, grid_values, change, message):
    with pytest.raises(ConfigError, match=message):
        parse_grid(grid_values | change, "toy.yaml")


@pytest.mark.parametrize("name", ["../../evil", "a/b", "", ".", "..", "a\0b", ".hidden", "x" * 101, "a\nb", "-rf"])
def test_a_study_stays_below_the_runs(home, grid_values, name):
    with pytest.raises(ConfigError, match=r"toy.yaml: name: .* expected a plain folder name"):
        parse_grid(grid_values | {"name": name}, "toy.yaml")
    with pytest.raises(ConfigError, match=r"--study: .* expected a plain folder name"):
        open_study(parse_grid(grid_values, "toy.yaml"), home / "runs", name)
    assert not list(home.iterdir())


def test_a_study_can_have_a_usual_name(home, grid_values):
    grid = parse_grid(grid_values | {"name": "Größe 1.5B_v2+x-y"}, "toy.yaml")
    assert open_study(grid, home / "runs").root.name == grid.name


def test_a_grid_too_large_to_list_says_how_large(home, grid_values):
    factors = {f"f{i}": {"a": {f"trainer.x{i}": 1}, "b": {f"trainer.x{i}": 2}} for i in range(24)}
    (home / "big.yaml").write_text(yaml.safe_dump({"recipe": "quickstart", "seeds": [0], "factors": factors}))
    for command in ("validate", "plan", "ablate"):
        result = CliRunner().invoke(app, [command, "big.yaml"])
        assert result.exit_code == 2 and f"{2**24} runs, expected at most 100000" in result.stderr
    assert [path.name for path in home.iterdir()] == ["big.yaml"]
