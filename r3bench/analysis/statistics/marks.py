"""Which cells are not shown to differ from the best one, or from each other."""

import itertools
import string

import numpy as np

from r3bench.analysis.statistics.effects import interval, reach_of
from r3bench.analysis.statistics.prepare import Prepared
from r3bench.analysis.statistics.twoway import two_way


def _p_values(data: Prepared, weights: np.ndarray, confidence: float) -> np.ndarray:
    """(E,) two-way p of contrasts (E, R); 1 where there is no noise to hold them against."""
    parts = two_way(data.scores, weights, data.error, data.untrained)
    found = interval(parts.estimate, parts.total, parts.df, confidence, reach_of(weights))
    return np.array([1.0 if one.p is None else one.p for one in found])


def level_with_best(data: Prepared, confidence: float) -> np.ndarray:
    """(C,) bool: the highest mean, and every cell that is not shown to lie below it.

    Each p against the highest is multiplied by the number of other cells (Bonferroni). The highest is picked by the
    data: with this factor the cell that is truly best is marked at least as often as `confidence` says, whichever cell
    comes out highest (a subset that contains the best; Hsu 1996, section 4).
    """
    average = data.cell_weights()
    means = average @ (sum(y.mean(axis=1) for y in data.scores) / len(data.scores))
    top, kept = int(np.argmax(means)), np.ones(len(means), bool)
    others = [i for i in range(len(means)) if i != top]
    if others:
        p = _p_values(data, average[top] - average[others], confidence) * len(others)
        kept[others] = p >= 1 - confidence
    return kept


def letters(data: Prepared, confidence: float) -> list[str]:
    """Per cell the letters of the groups it is in: two cells share one unless they are shown to differ.

    All pairs are compared, each p multiplied by their number (Bonferroni). A group is a largest set of cells of which
    no two are shown to differ (Piepho 2004); 'a' holds the highest mean. More than 26 groups: no letters.
    """
    count = len(data.cells)
    average = data.cell_weights()
    means = average @ (sum(y.mean(axis=1) for y in data.scores) / len(data.scores))
    pairs = list(itertools.combinations(range(count), 2))
    alike = np.ones((count, count), bool)
    if pairs:
        weights = np.stack([average[i] - average[j] for i, j in pairs])
        for (i, j), p in zip(pairs, _p_values(data, weights, confidence) * len(pairs), strict=True):
            alike[i, j] = alike[j, i] = p >= 1 - confidence
    order = sorted(range(count), key=lambda i: -means[i])
    groups = sorted((sorted(order.index(i) for i in g) for g in _cliques(alike)), key=lambda g: g)
    if len(groups) > len(string.ascii_lowercase):
        return [""] * count
    return ["".join(string.ascii_lowercase[n] for n, g in enumerate(groups) if order.index(i) in g)
            for i in range(count)]  # fmt: skip


def _cliques(alike: np.ndarray) -> list[set[int]]:
    """The largest sets of which all pairs are alike (insert and absorb). alike: (C, C) symmetric."""
    sets: list[set[int]] = [set(range(len(alike)))]
    for i, j in zip(*np.where(~alike), strict=True):
        split: list[set[int]] = []
        for one in sets:
            split += [one - {i}, one - {j}] if {i, j} <= one else [one]
        sets = [s for n, s in enumerate(split) if not any(s < t or (s == t and n > m) for m, t in enumerate(split))]
    return sets
