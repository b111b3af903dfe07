"""Scores from stored answers: pure functions on arrays, no I/O.

n = samples drawn for a question, c = right ones among them, k <= n = the budget a score is about.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from r3bench.grading.spelling.normalise import canonical

QUANTILES = (0.1, 0.5, 0.9)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that k draws without replacement from n answers, c of them right, hold a right one.

    The unbiased estimator 1 - C(n-c, k) / C(n, k) of Chen et al. (arXiv 2107.03374), as a product that can't overflow.

    Raises:
        ValueError: unless 0 <= c <= n and 1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"n={n}, c={c}, k={k}: expected 0 <= c <= n and 1 <= k <= n")
    if n - c < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))


def pass_curve(n: int, c: np.ndarray) -> np.ndarray:
    """Mean pass@k over questions for every k = 1..n; `c` is (questions,) right answers of n. Shape (n,)."""
    return np.array([np.mean([pass_at_k(n, int(right), k) for right in c]) for k in range(1, n + 1)])


def majority(answers: Sequence[tuple[str | None, bool]]) -> float:
    """maj@k of one question: the share of right answers among the most frequent answers.

    Args:
        answers: (extracted answer or None, right?) of each sample. Answers with the same canonical spelling, and all
            right answers (equal as mathematics to the gold), are one candidate; samples without an answer don't vote.

    Returns:
        1 or 0; with m candidates tied for the most votes, 1/m if the right one is among them, which is the
        expectation under a random choice between them. 0 when no sample has an answer.
    """
    votes: dict[Hashable, int] = {}
    for text, right in answers:
        if text is not None:
            key: Hashable = True if right else canonical(text)
            votes[key] = votes.get(key, 0) + 1
    if not votes:
        return 0.0
    most = max(votes.values())
    first = [key for key, count in votes.items() if count == most]
    return 1.0 / len(first) if True in first else 0.0


def token_figures(tokens: np.ndarray, correct: np.ndarray) -> dict[str, Any]:
    """Response length over all samples (both (samples,)): mean, quantiles of right and of wrong ones, per right one.

    `None` stands where there is no right (or wrong) answer.
    """

    def quantiles(values: np.ndarray) -> dict[str, float] | None:
        if values.size == 0:
            return None
        return {f"q{round(100 * q)}": float(np.quantile(values, q)) for q in QUANTILES} | {"mean": float(values.mean())}

    right = int(correct.sum())
    return {
        "mean_tokens": float(tokens.mean()),
        "total_tokens": int(tokens.sum()),
        "tokens_right": quantiles(tokens[correct]),
        "tokens_wrong": quantiles(tokens[~correct]),
        "tokens_per_correct": float(tokens.sum() / right) if right else None,
    }
