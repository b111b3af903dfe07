"""The rules as a list: they decide their examples, the documentation's page is theirs, and they can be shown."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from r3bench.cli import app
from r3bench.grading import Grader
from r3bench.grading.document import PARTS, page, rule_named

PAGE = Path(__file__).resolve().parents[2] / "docs" / "grading-rules.md"
RULES = [rule for _, _, rules in PARTS for rule in rules]


def test_the_page_of_the_documentation_is_the_rules():
    assert PAGE.read_text() == page(), "python -m r3bench.grading.document > docs/grading-rules.md"


def test_names_are_unique_and_every_rule_says_what_it_does():
    assert len({rule.name for rule in RULES}) == len(RULES) > 20
    assert all(rule.says.endswith(".") and rule.name == rule.name.lower() for rule in RULES)


def test_every_example_is_decided_by_its_rule():
    examples = [(rule, *example) for rule in RULES for example in rule.examples]
    with Grader() as grader:
        verdicts = grader.grade([rf"\boxed{{{answer}}}" for _, _, answer, _ in examples], [e[1] for e in examples])
    for (rule, gold, answer, right), verdict in zip(examples, verdicts, strict=True):
        assert verdict.correct is right, (rule.name, gold, answer, verdict)
        assert rule_named(verdict.reason) is rule, (rule.name, gold, answer, verdict)


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


ROWS = (
    {"id": "a", "answer": "3 kg", "response": r"\boxed{3 \text{ cm}}"},
    {"id": "b", "answer": "27", "response": "The answer is 27."},
    {"id": 7, "answer": "1", "response": r"\boxed{" + "9" * 1_000_000 + "}"},
)


def test_explain_shows_the_rule_for_a_row_of_a_file(tmp_path):
    path = write(tmp_path / "x.jsonl", *ROWS)
    done = CliRunner().invoke(app, ["grade", path, "a", "--explain"])
    assert done.exit_code == 0, done.output
    assert "a: wrong" in done.output and "boxed: unit: another unit" in done.output
    assert next(rule.says for rule in RULES if rule.name == "unit") in done.output
    (row,) = json.loads(CliRunner().invoke(app, ["grade", path, "7", "--explain", "--json"]).output)["answers"]
    assert row["reason"].startswith("boxed: length: ") and len(row["extracted"]) < 3000


def test_an_id_that_is_not_there_names_the_nearest(tmp_path):
    path = write(tmp_path / "x.jsonl", {"id": "question-1", "answer": "1", "response": "1"})
    done = CliRunner().invoke(app, ["grade", path, "question-2", "--explain"])
    assert done.exit_code != 0 and "question-1" in done.output
    assert CliRunner().invoke(app, ["grade", path, "--explain"]).exit_code != 0


def test_a_file_is_graded_as_eval_grades_and_help_says_so(tmp_path):
    path = write(tmp_path / "x.jsonl", *ROWS)
    lines = CliRunner().invoke(app, ["grade", path]).output.splitlines()
    assert lines[1].split()[:2] == ["b", "wrong"] and "0 of 3 right" in lines[-1]
    assert "1 of 3 right" in CliRunner().invoke(app, ["grade", path, "--any-form"]).output
    assert all(len(line) < 300 for line in lines)
    found = [json.loads(line) for line in CliRunner().invoke(app, ["grade", path, "--json"]).output.splitlines()]
    assert all(len(json.dumps(row)) < 3000 for row in found)
    text = " ".join(CliRunner().invoke(app, ["grade", "--help"], env={"COLUMNS": "200"}).output.split())
    assert "default: (--require-boxed, as for eval" in text or "default: --require-boxed, as for eval" in text


@pytest.mark.parametrize("reason", ["equal", "boxed: equal", "boxed: no such rule: equal", ""])
def test_a_reason_of_an_older_grader_names_no_rule(reason):
    assert rule_named(reason) is None
