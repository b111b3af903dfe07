"""docs/components.md against the components: every setting with its default, every recipe snippet valid."""

import re

import company
import pytest
import yaml
from settings_table import PAGE, filled

from r3bench import catalog
from r3bench.config.load import load_recipe, parse_recipe

TEXT = PAGE.read_text()
RECIPES = ("dapo", "dr_grpo", "gspo", "cispo", "deepscaler_8k", "r3_1.5b", "r3_7b", "rrl_math")


def test_the_page_lists_every_component_with_its_settings():
    for name in catalog.component_names():
        assert f"<!-- settings {name} -->" in TEXT, name
    assert filled(TEXT) == TEXT, "run python tests/components/settings_table.py"


def test_the_page_says_who_may_see_whose_rows():
    assert company.filled(TEXT) == TEXT, "run python tests/components/company.py"


@pytest.mark.parametrize("name", catalog.component_names())
@pytest.mark.parametrize("channel", list(company.CHANNELS)[:4])
def test_no_component_takes_anothers_rows_for_its_own(name, channel):
    assert company.effects(name, channel) == []


def test_provenances_that_are_let_in_are_seen(monkeypatch):
    """The measure can fail: with `into_provenance` and `from_provenance` opened, every channel shows."""
    opened = {"into_provenance": ["fresh", "reflection", "continuation"]}
    monkeypatch.setitem(company.SETTINGS, "ranking", {**company.SETTINGS["ranking"], **opened})
    assert company.effects("ranking", "reflection groups") == ["rewards"]
    stored = {"from_provenance": ["fresh", "reflection", "continuation"]}
    monkeypatch.setitem(company.SETTINGS, "replay", {**company.SETTINGS["replay"], **stored})
    assert company.effects("replay", "stored continuation answers") == ["mixing"]


@pytest.mark.parametrize("snippet", re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL))
def test_every_snippet_is_a_valid_recipe(snippet):
    assert parse_recipe(yaml.safe_load(snippet), "docs/components.md").components


@pytest.mark.parametrize("name", RECIPES)
def test_shipped_recipes_load_and_say_where_their_values_come_from(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    head = catalog.recipe_path(name).read_text().split("model:")[0]
    assert "arXiv" in head or "https://" in head
