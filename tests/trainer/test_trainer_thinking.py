"""`reward.thinking: required`: what counts as an answer of a model that thinks first."""

from types import SimpleNamespace

import pytest

from r3bench.config.load import parse_recipe
from r3bench.config.sections import RewardSection
from r3bench.errors import ConfigError
from r3bench.grading import Grader
from r3bench.records import RunPaths
from r3bench.training import run
from r3bench.training.rewards import reward_functions

BOX = r"\boxed{4}"
CASES = [  # response, right where thinking is ignored, right where it is required
    (f"<think>2 and 2</think> So {BOX}", True, True),
    (f"2 and 2</think> So {BOX}", True, True),  # the template opened the thought
    (f"<think>I think {BOX}, but let me", True, False),
    (f"So {BOX}", True, False),
    (f"<think>{BOX}</think> So it is.", True, False),
    (f"<think>a</think> no <think>b</think> {BOX}", True, True),
    (f"<think>a</think> {BOX} <think>wait", True, True),
    (f"<think>a</think> <think>wait {BOX}", True, False),
    (r"<think>a</think> \boxed{5}", False, False),
    ("", False, False),
]


@pytest.mark.parametrize("required", [False, True])
def test_an_unfinished_thought_with_a_box_in_it_is_no_answer(required):
    logged = {}
    section = RewardSection(thinking="required" if required else "ignored", length_bonus=True, length_max=100)
    with Grader() as grader:
        correctness, bonus = reward_functions(section, grader)
        found = correctness([c[0] for c in CASES], ["4"] * len(CASES), log_metric=logged.__setitem__)
    assert found == [float(case[2] if required else case[1]) for case in CASES]
    assert [b > 0 for b in bonus([[1]] * len(CASES))] == [f == 1 for f in found], "the length bonus follows"
    assert logged.get("grading/unfinished_thoughts") == (pytest.approx(0.3) if required else None)


def test_a_tokenizer_that_hides_the_end_of_thoughts_is_refused(tmp_path, monkeypatch):
    real = run.load_model

    def hiding(section):
        model, tokenizer = real(section)
        tokenizer.add_special_tokens({"additional_special_tokens": ["</think>"]})
        return model, tokenizer

    recipe = parse_recipe({"reward": {"thinking": "required"}, "trainer": {"bf16": False}}, "x")
    monkeypatch.setattr(run, "load_model", hiding)
    with pytest.raises(ConfigError, match=r"reward\.thinking: got 'required'.*special token"):
        run.build_trainer(recipe, RunPaths(tmp_path), SimpleNamespace())
