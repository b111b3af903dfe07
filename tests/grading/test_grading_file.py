"""`grade_file`: anyone's outputs, one verdict a line, and errors that name the line."""

import json

import pytest

from r3bench.errors import ConfigError, DataError
from r3bench.grading import ExactGrader, Grader, grade_file


def write(path, *rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


def test_verdicts_in_file_order(tmp_path):
    path = write(
        tmp_path / "a.jsonl",
        {"id": "q1", "problem": "?", "answer": "27", "response": r"\boxed{27}"},
        {"id": "q2", "answer": r"\frac{1}{2}", "response": "The answer is 0.5."},
        "",
        {"answer": 5, "response": "no idea"},
        {"id": "q4", "answer": "5", "response": r"\boxed{6}"},
    )
    rows = list(grade_file(path))
    assert [set(row) for row in rows] == [{"id", "correct", "extracted", "reason", "timed_out"}] * 4
    assert [(row["id"], row["correct"], row["extracted"]) for row in rows] == [
        ("q1", True, "27"),
        ("q2", True, "0.5"),
        ("4", False, None),
        ("q4", False, "6"),
    ]
    assert [row["correct"] for row in grade_file(path, require_boxed=True)] == [True, False, False, False]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not valid JSON"),
        pytest.param("[" * 200_000, "line 2: not usable JSON .nested too deeply", id="nested"),
        pytest.param(f'{{"answer": {"1" * 5000}}}', "line 2: not usable JSON .Exceeds the limit", id="digits"),
        ("[1]", "line 2: got list, expected an object"),
        ('{"response": "x"}', "line 2: answer: got None, expected a text"),
        ('{"answer": "1", "response": ["x"]}', r"line 2: response: got \['x'\], expected a text"),
        ('{"answer": " ", "response": "x"}', "line 2: answer: empty"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = write(tmp_path / "a.jsonl", {"answer": "1", "response": "1"}, line)
    with pytest.raises(DataError, match=message):
        list(grade_file(path))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="can't be read"):
        list(grade_file(tmp_path / "none.jsonl"))


def test_the_second_grader_compares_spelling_only():
    responses, golds = [r"\boxed{\dfrac{1}{2}}", r"\boxed{0.5}", "1/2"], [r"\frac12"] * 3
    assert [v.correct for v in ExactGrader().grade(responses, golds)] == [True, False, False]
    with Grader() as grader:
        assert [v.correct for v in grader.grade(responses, golds)] == [True, True, False]
        assert grader.name != ExactGrader().name


def test_lengths_must_match():
    with Grader() as grader, pytest.raises(ValueError, match="2 responses but 1 gold"):
        grader.grade(["a", "b"], ["1"])
