"""Error rates on labelled answers: all files in `labelled/`, and further ones in the folder $R3BENCH_GRADING_CASES.

A line has `id, answer, response, expected, kind, mode` ('boxed' or 'any'). `independent.jsonl` was made without
sight of the grader, and stays as it was made. By kind:
`python benchmarks/grading.py tests/grading/labelled/*.jsonl`. All of every file: `pytest -m slow tests/grading`.
"""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from r3bench.grading import Grader

FILES = sorted(Path(__file__).with_name("labelled").glob("*.jsonl"))
OTHERS = os.environ.get("R3BENCH_GRADING_CASES")
FALSE_POSITIVES, FALSE_NEGATIVES = 0.01, 0.03  # of the wrong and of the right answers
# Labels that rest on the problem, which no grader of an answer and a gold sees: the gold is a bare number, its unit
# in the question. They count in the rates that docs/evaluation.md gives, and not against the limits here.
OF_THE_PROBLEM = {
    "ind-042": "12 m for a gold of 12, in centimetres by the question",
    "ind-073": "18 cents for a gold of 18, in dollars by the question",
    "ind-492": "10 minutes for a gold of 10, in hours by the question",
}
SAMPLE = 150  # lines of a file that are looked at without `-m slow`


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def judged(rows):
    """(row, right?) of all rows."""
    out = []
    for boxed in (True, False):
        part = [row for row in rows if (row.get("mode", "boxed") != "any") == boxed]
        with Grader(require_boxed=boxed) as grader:
            verdicts = grader.grade([row["response"] for row in part], [row["answer"] for row in part])
        out += [(row, verdict.correct) for row, verdict in zip(part, verdicts, strict=True)]
    return out


def check(rows, by_kind):
    found = judged([row for row in rows if row["id"] not in OF_THE_PROBLEM])
    wrong = [
        (row["id"], row["kind"], row["answer"], row["response"][-80:])
        for row, right in found
        if right != row["expected"]
    ]
    print(f"{len(wrong)} of {len(found)} verdicts differ:", *wrong, sep="\n")
    groups = {"all": found}
    if by_kind:
        for row, right in found:
            groups.setdefault(row["kind"], []).append((row, right))
    for name, group in groups.items():
        count = Counter((row["expected"], right) for row, right in group)
        positives, negatives = count[True, True] + count[True, False], count[False, True] + count[False, False]
        # of few answers one may differ
        assert count[False, True] <= max(1, FALSE_POSITIVES * negatives), (name, count, wrong)
        assert count[True, False] <= max(1, FALSE_NEGATIVES * positives), (name, count, wrong)


def test_there_are_labelled_answers():
    rows = [row for path in FILES for row in rows_of(path)]
    assert len(rows) >= 1000 and len({row["kind"] for row in rows}) >= 20
    assert len({(path, row["id"]) for path in FILES for row in rows_of(path)}) == len(rows)
    assert min(Counter(row["expected"] for row in rows).values()) > 400


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_sample_of_a_file(path):
    rows = rows_of(path)
    check(rows[:: max(1, len(rows) // SAMPLE)], by_kind=False)


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_all_of_a_file(path):
    check(rows_of(path), by_kind=False)


@pytest.mark.slow
@pytest.mark.skipif(not OTHERS, reason="R3BENCH_GRADING_CASES is not set")
def test_files_kept_elsewhere():
    paths = sorted(Path(OTHERS).glob("grading_*.jsonl"))
    assert paths, f"no grading_*.jsonl in {OTHERS}"
    for path in paths:
        check(rows_of(path), by_kind=True)
