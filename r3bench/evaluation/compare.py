"""Two runs on the same questions: paired per-question differences, their interval and a sign-flip test.

The test is about these two models; it says nothing about other training seeds (`r3bench analyze` does).
"""

from pathlib import Path
from typing import Any

import numpy as np

from r3bench.errors import StateError
from r3bench.evaluation.runs import answers, task_names, task_settings
from r3bench.evaluation.summary import counts

EXACT = 16  # questions with a difference up to which all sign patterns are enumerated
FLIPS = 20_000  # random sign patterns above that
ENOUGH = 12  # questions with a difference, from which on their variance can be trusted
UNSEEN = 0.3  # how much of the way to a whole question one that wasn't seen may differ beyond the largest seen


def sign_flip_p(differences: np.ndarray, seed: int = 0) -> float:
    """Two-sided p-value of the mean of paired differences (questions,) under exchange of the two runs per question.

    Every pattern of signs is tried for up to `EXACT` non-zero differences, else `FLIPS` random ones, the observed one
    counted in (so p is never 0).
    """
    moved = differences[differences != 0]
    if moved.size == 0:
        return 1.0
    observed = abs(moved.sum()) - 1e-12 * np.abs(moved).sum()
    if moved.size <= EXACT:
        patterns = np.arange(2**moved.size)[:, None] >> np.arange(moved.size) & 1
        return float(np.mean(np.abs((2 * patterns - 1) @ moved) >= observed))
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(FLIPS, moved.size))
    return float((1 + np.sum(np.abs(signs @ moved) >= observed)) / (1 + FLIPS))


def mean_variance(differences: np.ndarray) -> float:
    """Variance of the mean of paired differences (questions,), two or more.

    Where few questions differ, their number varies more than their values tell, and those that weren't drawn may
    differ by more: intervals of the plain variance then hold at 84 % (30 questions, 1 to 3 % of the answers right).
    There one more difference is allowed for, a bit larger than the largest; it fades out towards `ENOUGH`.
    """
    n, moved = len(differences), int(np.count_nonzero(differences))
    largest = float(np.abs(differences).max())
    missing = max(0.0, 1 - moved / ENOUGH) * ((largest + UNSEEN * (1 - largest)) / n) ** 2
    return float(differences.var(ddof=1)) / n + missing


def paired_interval(d: np.ndarray, confidence: float = 0.95) -> tuple[float | None, float | None]:
    """Limits of the mean of paired differences (questions,); None where they tell nothing of other questions."""
    from scipy import stats

    if len(d) < 2 or np.ptp(d) == 0:
        return None, None
    half = float(stats.t.ppf((1 + confidence) / 2, len(d) - 1) * np.sqrt(mean_variance(d)))
    return float(d.mean()) - half, float(d.mean()) + half


def paired(a: np.ndarray, b: np.ndarray, confidence: float = 0.95) -> dict[str, Any]:
    """The paired comparison of per-question accuracies `a` and `b`, both (questions,).

    Returns:
        `a`, `b` (means), `difference` (a - b), `low`, `high` (t interval over questions, longer where few differ; None
        for one question, and where all differ alike or not at all, which says nothing of how other questions vary),
        `p` (`sign_flip_p`), and how many questions are `better`, `worse` and `equal` in a.
    """
    d = a - b
    low, high = paired_interval(d, confidence)
    return {
        "a": float(a.mean()),
        "b": float(b.mean()),
        "difference": float(d.mean()),
        "low": low,
        "high": high,
        "p": sign_flip_p(d),
        "better": int((d > 0).sum()),
        "worse": int((d < 0).sum()),
        "equal": int((d == 0).sum()),
    }


def compare_runs(
    a: Path, b: Path, tasks: tuple[str, ...] | None = None, confidence: float = 0.95
) -> list[dict[str, Any]]:
    """The paired test of two runs on every task both have answers for.

    Args:
        a, b: run directories or folders of answers.
        tasks: the tasks to compare; None: all common ones.
        confidence: level of the intervals.

    Returns:
        One dict per task: `task`, `questions` (in both), `unmatched` (in one only), `samples` (fewest per question in a
        and b), `notes` (what differs between the two beside the model) and the values of `paired`.

    Raises:
        StateError: no task, or no question of a task, in common.
    """
    common = tasks if tasks is not None else tuple(t for t in task_names(a) if t in task_names(b))
    if not common:
        raise StateError(f"{a} and {b} have no task in common: {task_names(a)} and {task_names(b)}")
    task_names(a, common)
    task_names(b, common)
    rows = []
    for task in common:
        answers_a, answers_b = answers(a, task), answers(b, task)
        counts_a, counts_b = counts(answers_a), counts(answers_b)
        questions = [question for question in counts_a if question in counts_b]
        if not questions:
            raise StateError(f"{a} and {b}: no question of task '{task}' in common")
        samples = [min(found[q][0] for q in questions) for found in (counts_a, counts_b)]
        graders = [", ".join(sorted({row["grader"] for row in found})) for found in (answers_a, answers_b)]
        settings_a, settings_b = (
            {**task_settings(run, task), "grader": grader, "answers to a question": k}
            for run, grader, k in zip((a, b), graders, samples, strict=True)
        )
        notes = [
            f"{key}: {settings_a.get(key)} and {settings_b.get(key)}"
            for key in dict.fromkeys([*settings_a, *settings_b])
            if key not in ("model", "seed") and settings_a.get(key) != settings_b.get(key)
        ]
        rows.append(
            {
                "task": task,
                "questions": len(questions),
                "unmatched": len(set(counts_a) ^ set(counts_b)),
                "samples": samples,
                "notes": notes,
                **paired(_accuracy(counts_a, questions), _accuracy(counts_b, questions), confidence),
            }
        )
    return rows


def _accuracy(found: dict[str, tuple[int, int]], questions: list[str]) -> np.ndarray:
    return np.array([found[question][1] / found[question][0] for question in questions])
