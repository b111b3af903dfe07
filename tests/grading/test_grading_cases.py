"""Verdicts on cases from public reports (own wording; `thread` names the report) and on hostile answers."""

import json
from pathlib import Path

import pytest

from r3bench.grading import Grader

CASES = [json.loads(line) for line in Path(__file__).with_name("cases.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def graders():
    with Grader(require_boxed=True) as strict, Grader(require_boxed=False) as lenient:
        yield {True: strict, False: lenient}


def test_there_are_enough_cases():
    assert len(CASES) >= 60
    assert sum(case["thread"] is not None for case in CASES) >= 60
    assert {case["correct"] for case in CASES} == {True, False}


@pytest.mark.parametrize("case", CASES, ids=[f"{case['id']} {case['about']}" for case in CASES])
def test_case(case, graders):
    (verdict,) = graders[case["require_boxed"]].grade([case["response"]], [case["answer"]])
    assert verdict.correct is case["correct"], verdict
    assert not verdict.timed_out
