"""From the score of an answer, in whatever form a tool writes it, to right, wrong or no verdict."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from r3bench.errors import DataError
from r3bench.readers.file import short
from r3bench.readers.options import Options

RIGHT = ("true", "yes", "correct", "right", "t", "y", "c", "1", "1.0", "pass", "passed")
WRONG = ("false", "no", "incorrect", "wrong", "f", "n", "i", "0", "0.0", "-1", "-1.0", "fail", "failed")
NOTHING = ("", "nan", "none", "null")


def verdict(value: Any, right: float | None, where: str) -> bool | None:
    """Whether a score means right; None where there is none (null, NaN, empty).

    Args:
        value: a truth, a number or a word.
        right: numbers at or above this are right; None: 1 is right, 0 and -1 are wrong, others are refused.
        where: file and row, for the message.

    Raises:
        DataError: a score that is neither right nor wrong.
    """
    if value is None or isinstance(value, bool | np.bool_):
        return None if value is None else bool(value)
    if isinstance(value, str):
        word = value.strip().lower()
        if right is None and word in RIGHT + WRONG:
            return word in RIGHT
        if word in NOTHING:
            return None
        try:
            value = float(word)
        except ValueError:
            raise DataError(f"{where}: got {short(value)}, expected a verdict such as true, false, 1 or 0") from None
    if isinstance(value, int | float | np.number):
        number = float(value)
        if math.isnan(number):
            return None
        if right is not None:
            return number >= right
        if number in (0.0, 1.0, -1.0):
            return number == 1.0
        raise DataError(
            f"{where}: got {number:g}, which is neither right (1) nor wrong (0); say from which score on an answer is "
            "right (right: 1), or grade anew (--regrade)"
        )
    raise DataError(f"{where}: got {short(value)}, expected one verdict")


def judged(value: Any, options: Options, where: str) -> bool | None:
    """`verdict`; where answers are graded anew, a score that can't be read is none."""
    try:
        return verdict(value, options.right, where)
    except DataError:
        if options.verdicts:
            raise
        return None


def chosen(scores: Mapping[str, Any], metric: str | None, where: str) -> str:
    """The score that decides: the one that was named, or the only one.

    Raises:
        DataError: there are several and none was named, or the named one isn't there.
    """
    if metric is not None:
        if metric not in scores:
            from r3bench.errors import nearest

            raise DataError(f"{where}: no score '{metric}'{nearest(metric, scores)}")
        return metric
    if len(scores) != 1:
        names = ", ".join(sorted(scores))
        raise DataError(
            f"{where}: {'no score' if not scores else f'scores {names}: which one decides?'}"
            + (" (--metric NAME, or metric: in a map)" if scores else "; --regrade grades it anew")
        )
    return next(iter(scores))


def spread(means: Sequence[float | None], counts: Sequence[int], right: float | None, where: str) -> list[list[Any]]:
    """Verdicts of every answer, from one score per question over all of its answers.

    A score of several answers is their mean where some question's is neither 0 nor 1 and all are whole shares of the
    number of answers; otherwise it is a verdict on one answer, which is all that is then counted.

    Args:
        means: one per question.
        counts: answers to each.
        right: see `verdict`.
        where: the file.

    Raises:
        DataError: a score that is neither.
    """
    shares = [None if m is None or math.isnan(m) else m * n for m, n in zip(means, counts, strict=True)]
    whole = all(s is None or (abs(s - round(s)) < 1e-4 * max(1, s) and s >= 0) for s in shares)
    between = any(m is not None and 0 < m < 1 for m in means)
    if right is None and between and whole and max(counts, default=1) > 1:
        found: list[list[Any]] = []
        for share, count in zip(shares, counts, strict=True):
            good = 0 if share is None else round(share)
            found.append([None] * count if share is None else [True] * good + [False] * (count - good))
        return found
    return [[verdict(m, right, f"{where}: question {i + 1}")] for i, m in enumerate(means)]
