"""`grade_file`: anyone's outputs, one verdict a line, and errors that name the line."""

import json

import pytest

from r3bench.errors import ConfigError, DataError
from r3bench.grading import ExactGrader, Grader, grade_file, grade_lines


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
    assert [row["correct"] for row in rows] == [True, False, False, False]  # as eval: only boxes
    rows = list(grade_file(path, require_boxed=False))
    assert [set(row) for row in rows] == [{"id", "correct", "extracted", "reason", "timed_out"}] * 4
    assert [(row["id"], row["correct"], row["extracted"]) for row in rows] == [
        ("q1", True, "27"),
        ("q2", True, "0.5"),
        ("4", False, None),
        ("q4", False, "6"),
    ]


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


def test_a_stream_gives_its_verdicts_up_to_the_bad_line():
    def lines():
        yield b"\xef\xbb\xbf" + json.dumps({"id": 1, "answer": "1", "response": r"\boxed{1}"}).encode()
        yield b'{"answer": "1", "response": "2"}\r\n'
        yield b"\xff\xfe\n"
        pytest.fail("read on after a bad line")

    found = []
    with pytest.raises(DataError, match="stdin: line 3: not UTF-8 text"):
        for row in grade_lines(lines(), "stdin"):
            found.append(row)
    assert [(row["id"], row["correct"]) for row in found] == [(1, True), ("2", False)]


def test_a_stream_is_not_held_in_memory():
    """100,000 long lines: what is kept is bounded by a batch, not by the stream."""
    import tracemalloc

    pad = "x" * 10_000

    def lines(count):
        for i in range(count):
            yield json.dumps({"answer": "1", "response": rf"{pad} \boxed{{{i % 7}}}"}).encode()

    def peak(count):
        tracemalloc.start()
        right = sum(row["correct"] for row in grade_lines(lines(count), "stdin"))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert right == len(range(1, count, 7))
        return most

    assert peak(6000) < 1.3 * peak(1000) < 50e6


def test_a_bad_line_of_a_file_is_said_before_anything_is_graded(tmp_path):
    path = write(tmp_path / "a.jsonl", {"answer": "1", "response": "1"}, "{")
    with pytest.raises(DataError, match="line 2"):
        next(grade_file(path))


def test_an_answer_of_any_length_is_kept_short_and_shown_whole():
    with Grader() as grader:
        (verdict,) = grader.grade([rf"\boxed{{{'9' * 100_000}}}"], ["1"])
        assert (
            len(verdict.extracted) == 100_000 and verdict.reason == "boxed: length: answer longer than 2000 characters"
        )
        assert max(len(text) for text, _ in grader._known) < 3000


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
