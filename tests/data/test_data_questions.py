"""Generated questions and prompts."""

import re
import subprocess
import sys

import pytest

from r3bench import prompts
from r3bench.errors import ConfigError
from r3bench.training.questions.embedded import SIZES, Chain, questions

OPERATION = re.compile(r"(add|subtract) (\d+)")


def solve(problem: str, cap: int) -> int:
    """Reads the text back and follows it."""
    start = re.fullmatch(r"Start with (\d+), (.+)\.", problem)
    assert start, problem
    value = int(start[1])
    steps = OPERATION.findall(start[2])
    assert 1 <= len(steps) <= 4 and ", ".join(f"{a} {b}" for a, b in steps) == start[2]
    for verb, operand in steps:
        assert int(operand) > 0
        value += int(operand) if verb == "add" else -int(operand)
        assert 0 <= value <= cap
    return value


@pytest.mark.parametrize("cap", [9, 20])
def test_answers_follow_from_the_text_and_splits_are_disjoint(cap: int) -> None:
    splits = {split: questions(split, cap) for split in SIZES}
    assert {split: len(rows) for split, rows in splits.items()} == SIZES
    problems = [row["problem"] for rows in splits.values() for row in rows]
    ids = [row["id"] for rows in splits.values() for row in rows]
    assert len(set(problems)) == len(problems) and len(set(ids)) == len(ids)
    for rows in splits.values():
        for row in rows:
            assert int(row["answer"]) == solve(row["problem"], cap)


def test_questions_never_change() -> None:
    """Other draws would silently be another benchmark, so the first ones are written down."""
    assert questions("test", 9, 2) == [
        {"id": "embedded-9-test-0000", "problem": "Start with 0, add 3.", "answer": "3"},
        {"id": "embedded-9-test-0001", "problem": "Start with 4, subtract 1, subtract 2.", "answer": "1"},
    ]
    assert questions("train", 20, 1)[0]["id"] == "embedded-20-train-0000"
    assert questions("train", 9, 5) == questions("train", 9)[:5]


def test_working_is_right() -> None:
    chain = Chain(7, (-1, 5))
    assert chain.problem == "Start with 7, subtract 1, add 5."
    assert chain.working == "7-1=6 6+5=11" and chain.answer == "11"


@pytest.mark.parametrize(("split", "cap"), [("dev", 9), ("train", 3)])
def test_impossible_requests_are_refused(split: str, cap: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        questions(split, cap)  # type: ignore[arg-type]


def test_no_torch_is_loaded() -> None:
    code = (
        "import sys; from r3bench.training.questions import embedded; embedded.questions('test');"
        " print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_prompt_styles() -> None:
    for style, asks in {"boxed": True, "r1": True, "plain": False}.items():
        (message,) = prompts.render(" What is 1+1? \n", style)  # type: ignore[arg-type]
        assert message["role"] == "user"
        assert message["content"].startswith("What is 1+1?")
        assert ("\\boxed{}" in message["content"]) is asks
    assert "<think>" in prompts.instruct("x", "r1")
    with pytest.raises(ConfigError, match="did you mean 'boxed'"):
        prompts.render("x", "boxd")  # type: ignore[arg-type]
