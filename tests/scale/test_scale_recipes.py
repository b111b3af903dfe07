"""Shipped recipes: which there are, and that every line with a value says where the value comes from."""

import re
from pathlib import Path

import pytest

from r3bench import catalog
from r3bench.config.load import load_recipe
from r3bench.sweep.strategy import check_numbers

RECIPES = catalog.names("ablations", ".yaml", "recipes")
SOURCE = re.compile(
    r"\bours\b|\bsection \d|\bEq\. \d|\bconclusion\b|\bthe paper|\bDeepScaleR|\barXiv \d|https?://|LoRA Without Regret|"
    r"TRL's paper index|\[(script|config|loss|workers|reward)\]"  # the last: files named at the recipe's head
)


def unsourced(text: str) -> list[str]:
    """Lines of a recipe that set a value without saying whose it is."""
    found = []
    for line in text.splitlines():
        setting, _, comment = line.partition(" #")
        key, _, value = setting.strip().partition(":")
        if value.strip() and not key.startswith("#") and not SOURCE.search(comment):
            found.append(line.strip())
    return found


@pytest.mark.parametrize("name", RECIPES)
def test_every_value_has_a_source_or_is_ours(name: str) -> None:
    assert not unsourced(RECIPES[name].read_text())


def test_a_value_without_a_source_is_found() -> None:
    text = "# arXiv 1234.5678\nmodel: x  # ours\ntrainer:\n  beta: 0.1  # small\n  epsilon: 0.2\n  # top_p: 1\n"
    assert unsourced(text) == ["beta: 0.1  # small", "epsilon: 0.2"]


def test_the_recipes_of_the_papers_and_for_one_gpu_are_there() -> None:
    wanted = {"r3_1.5b", "r3_7b", "rrl_math", "deepscaler_8k", "dapo", "dr_grpo", "gspo", "cispo"}
    assert wanted | {"r3_1.5b_lora_24gb", "r3_1.5b_80gb", "r3_7b_lora_80gb"} <= RECIPES.keys()


@pytest.mark.parametrize("name", RECIPES)
def test_the_numbers_work_on_the_gpus_a_recipe_is_for(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    eight = name in ("r3_1.5b", "r3_7b", "deepscaler_8k")
    check_numbers(load_recipe(name), 8 if eight else 1, 1, "ddp")


@pytest.mark.parametrize("name", RECIPES)
def test_the_line_in_the_list_is_a_whole_sentence(name: str) -> None:
    about = catalog.about(RECIPES[name])
    assert about.endswith(".") and len(about) > 20
