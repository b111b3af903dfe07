"""docs/components.md against the components: every setting with its default, every recipe snippet valid."""

import re

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


@pytest.mark.parametrize("snippet", re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL))
def test_every_snippet_is_a_valid_recipe(snippet):
    assert parse_recipe(yaml.safe_load(snippet), "docs/components.md").components


@pytest.mark.parametrize("name", RECIPES)
def test_shipped_recipes_load_and_say_where_their_values_come_from(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    head = catalog.recipe_path(name).read_text().split("model:")[0]
    assert "arXiv" in head or "https://" in head
