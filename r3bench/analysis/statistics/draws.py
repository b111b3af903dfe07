"""What k answers drawn from n are worth: pass@k and maj@k without bias, as pure functions of counts.

Both are averages over all subsets of k of the n answers to a question, drawn without replacement (U-statistics), so
that their expectation is that of k fresh answers. For k = 1 both are the share of right answers.
"""

from functools import lru_cache

import numpy as np
from scipy import special

MOST = 1024  # answers to a question up to which binomial coefficients are floating-point numbers
Votes = tuple[int, tuple[int, ...], int]  # right answers, votes of each wrong answer, answers without a value


def pass_at(samples: np.ndarray, correct: np.ndarray, k: int) -> np.ndarray:
    """1 - C(n-c, k) / C(n, k) of every question (Chen et al., arXiv 2107.03374); NaN where n < k.

    Args:
        samples: n, answers to each question, any shape.
        correct: c, right ones among them, the same shape.
        k: how many are drawn.
    """
    left, drawn = (samples - correct).astype(float), samples.astype(float)
    missed = np.ones(samples.shape)
    for i in range(k):  # a product of ratios below 1: nothing overflows
        missed *= np.maximum(left - i, 0.0) / np.maximum(drawn - i, 1.0)
    return np.where(samples >= k, 1.0 - missed, np.nan)


@lru_cache(maxsize=2**16)
def majority_curve(right: int, wrong: tuple[int, ...], silent: int) -> np.ndarray:
    """maj@k of one question for every k = 1..n, n = right + sum(wrong) + silent. Shape (n,).

    The expected score of a vote among k of the answers: 1 if the right answer has most votes, 1/m if m answers share
    the first place and it is one of them. Answers without a value don't vote.

    With the right answer on t votes, every wrong one has i < t votes, in C(v, i) ways, or ties with it, in C(v, t);
    the ways are multiplied and counted by how many answers they take and how many tie.

    Args:
        right: answers that are right, which are one candidate.
        wrong: votes of every wrong answer.
        silent: answers without a value.

    Raises:
        ValueError: no answer, or more than `MOST`.
    """
    n = right + sum(wrong) + silent
    if not 0 < n <= MOST:
        raise ValueError(f"{n} answers: expected 1 to {MOST}")
    total = np.zeros(n + 1)
    for t in range(1, right + 1):
        rivals = [v for v in wrong if v >= t]
        free = n - right - sum(rivals)  # too few to matter: all their ways count
        ways = np.zeros((len(rivals) + 1, n + 1))  # (tied, answers taken)
        ways[0, : free + 1] = special.comb(free, np.arange(free + 1))
        for votes in rivals:
            more = np.zeros_like(ways)
            for i in range(t):
                more[:, i:] += special.comb(votes, i) * ways[:, : n + 1 - i]
            more[1:, t:] += special.comb(votes, t) * ways[:-1, : n + 1 - t]
            ways = more
        total[t:] += special.comb(right, t) * ((1 / np.arange(1, len(rivals) + 2)) @ ways)[: n + 1 - t]
    found = np.minimum(total[1:] / special.comb(n, np.arange(1, n + 1)), 1.0)
    found.setflags(write=False)
    return found


def pass_variance(samples: np.ndarray, correct: np.ndarray, k: int) -> np.ndarray:
    """Sampling variance of `pass_at` by the jackknife over answers; NaN where n = k, of which nothing can be left out.

    On average not below the true one (Efron and Stein 1981); for k = 1 it is p (1 - p) / (n - 1).
    """
    n, c = samples.astype(float), correct.astype(float)
    fewer = np.maximum(samples - 1, 0)
    without_right, without_wrong = pass_at(fewer, np.maximum(correct - 1, 0), k), pass_at(fewer, correct, k)
    return np.where(samples > k, _jackknife(n, (c, n - c), (without_right, without_wrong)), np.nan)


def majority_variance(votes: Votes, k: int) -> float:
    """The same of maj@k of one question."""
    right, wrong, silent = votes
    n = right + sum(wrong) + silent
    if n <= k:
        return float("nan")
    counts, values = [], []
    for count, left in (
        (right, (right - 1, wrong, silent)),
        (silent, (right, wrong, silent - 1)),
        *((v, (right, (*wrong[:i], v - 1, *wrong[i + 1 :]), silent)) for i, v in enumerate(wrong)),
    ):
        if count:
            counts.append(float(count))
            values.append(float(majority_curve(*left)[k - 1]))
    return float(_jackknife(float(n), tuple(counts), tuple(values)))


def _jackknife(n: np.ndarray | float, counts: tuple[np.ndarray | float, ...], values: tuple[np.ndarray | float, ...]):  # type: ignore[no-untyped-def]
    """(n - 1) / n times the squared deviations of the values without one answer, of which there are `counts` each."""
    known = [(c, np.where(np.asarray(c) > 0, v, 0.0)) for c, v in zip(counts, values, strict=True)]
    mean = sum(c * v for c, v in known) / np.maximum(n, 1)
    return (n - 1) / np.maximum(n, 1) * sum(c * (v - mean) ** 2 for c, v in known)
