"""From stored answers to a task's summary."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from r3bench.errors import StateError
from r3bench.evaluation.metrics import majority, pass_curve, token_figures
from r3bench.grading.spelling.normalise import same_spelling


def counts(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Question -> (samples, right ones): the stored unit every score is made from."""
    found: dict[str, tuple[int, int]] = {}
    for row in rows:
        n, c = found.get(row["question"], (0, 0))
        found[row["question"]] = (n + 1, c + bool(row["correct"]))
    return found


def summarise(rows: Sequence[dict[str, Any]], samples: int | None = None) -> dict[str, Any]:
    """The scores of one task.

    Args:
        rows: stored answers (`records.ANSWER_COLUMNS`), each (question, repeat) once.
        samples: k; the repeats below k are used. None: as many as every question has.

    Returns:
        `questions`, `samples`, `avg@k`, `pass@k`, `maj@k` (k written out), `pass_curve` (pass@1..k), `mean_tokens`,
        `total_tokens`, `tokens_right`, `tokens_wrong`, `tokens_per_correct`, rates `truncated`, `no_answer` and
        `timeouts`, `grader`, and `agreement`, the share of verdicts that equal spelling gives as well.

    Raises:
        StateError: there are no answers, or fewer than k for some question.
    """
    if not rows:
        raise StateError("no stored answers")
    k = samples if samples is not None else min(n for n, _ in counts(rows).values())
    rows = [row for row in rows if row["repeat"] < k]
    per_question = counts(rows)
    short = [question for question, (n, _) in per_question.items() if n != k]
    if short:
        raise StateError(f"question {short[0]} has {per_question[short[0]][0]} answers, expected {k}")
    right = np.array([c for _, c in per_question.values()])
    answers: dict[str, list[tuple[str | None, bool]]] = {}
    for row in rows:
        answers.setdefault(row["question"], []).append((row["extracted"], bool(row["correct"])))
    curve = pass_curve(k, right)
    correct = np.array([bool(row["correct"]) for row in rows])

    def rate(column: str) -> float:
        return sum(bool(row[column]) for row in rows) / len(rows)

    return {
        "questions": len(per_question),
        "samples": k,
        f"avg@{k}": float(right.mean() / k),
        f"pass@{k}": float(curve[-1]),
        f"maj@{k}": sum(majority(answers[question]) for question in per_question) / len(per_question),
        "pass_curve": [float(value) for value in curve],
        **token_figures(np.array([row["tokens"] for row in rows]), correct),
        "truncated": rate("truncated"),
        "no_answer": sum(row["extracted"] is None for row in rows) / len(rows),
        "timeouts": rate("timed_out"),
        "agreement": sum(same_spelling(r["extracted"], r["gold"]) == bool(r["correct"]) for r in rows) / len(rows),
        "grader": ", ".join(sorted({row["grader"] for row in rows})),
    }
