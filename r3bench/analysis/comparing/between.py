"""Two studies held against each other, cell by cell.

Cells are paired by their levels, and their questions by id: what two studies have not in common is named and left out.
Runs are not paired. One seed gives the same order of data in both, but other code, machine or numbers soon make other
models of it; so the runs of a cell are taken as independent between the studies, each with the variance of its own
cell. Intervals are those of the tables (`twoway`): on questions like these, seeds and questions vary.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from r3bench.analysis.comparing.in_common import cell_key, run_notes, same_runs, shared_macro, shared_questions
from r3bench.analysis.comparing.related import related_notes
from r3bench.analysis.results import Results, Run
from r3bench.analysis.statistics.cells import BASE_LABEL
from r3bench.analysis.statistics.distributions import holm, t_two_sided
from r3bench.analysis.statistics.effects import Interval, interval, number, reach_of
from r3bench.analysis.statistics.lattice import error_model
from r3bench.analysis.statistics.noise import ErrorModel
from r3bench.analysis.statistics.prepare import MACRO, Prepared, prepare
from r3bench.analysis.statistics.twoway import two_way
from r3bench.errors import StateError

EVERY = "all paired cells"  # the row of their mean
NOTHING = Interval(None, None, None, None, None)


@dataclass(frozen=True)
class Pair:
    """One cell of both studies on one benchmark, or the mean of all of them."""

    benchmark: str
    cell: str  # as a's tables call it
    kind: str  # 'cell', 'mean' (of the cells), or 'untrained'
    runs: tuple[int, int]  # in a and in b
    seeds: tuple[tuple[int, ...], tuple[int, ...]]
    questions: int  # in both studies
    a: float  # mean accuracy (0-1)
    b: float
    difference: float  # a - b
    like_these: Interval  # seeds and questions vary; empty where noise between runs can't be estimated
    models: Interval  # of exactly these models, questions vary; only where the other can't be given
    p_adjusted: float | None  # by Holm over the cells of this benchmark; None of a mean or of the untrained model
    same_runs: int  # runs of b that are runs of a: such a pair has no interval

    def record(self) -> dict[str, Any]:
        """Flat JSON form."""
        return {
            "benchmark": self.benchmark, "cell": self.cell, "kind": self.kind, "questions": self.questions,
            "runs_a": self.runs[0], "runs_b": self.runs[1],
            "seeds_a": list(self.seeds[0]), "seeds_b": list(self.seeds[1]), "same_runs": self.same_runs,
            "a": self.a, "b": self.b, "difference": self.difference,
            "se": self.like_these.se, "df": self.like_these.df, "low": self.like_these.low,
            "high": self.like_these.high, "p": self.like_these.p, "p_adjusted": self.p_adjusted,
            "low_these_models": self.models.low, "high_these_models": self.models.high, "p_these_models": self.models.p,
        }  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """What two studies say of the cells that both have."""

    pairs: tuple[Pair, ...]
    alone: tuple[tuple[str, ...], tuple[str, ...]]  # cells that only a, or only b, has
    confidence: float
    notes: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "cells": [pair.record() for pair in self.pairs], "only_a": list(self.alone[0]),
            "only_b": list(self.alone[1]), "confidence": self.confidence, "notes": list(self.notes),
        }  # fmt: skip


def compare_studies(
    a: Results,
    b: Results,
    tasks: Sequence[str] | None = None,
    folders: tuple[Path | None, Path | None] = (None, None),
) -> Comparison:
    """The cells of `a` minus the same cells of `b`, on the questions that both have answered.

    Args:
        a, b: the studies; what `a` declared (confidence, failed score, macro average) holds for both.
        tasks: benchmarks to compare; None: all that both have, and their macro average.
        folders: where studies of ours are: then their recipes and gold answers are compared as well.

    Raises:
        ConfigError: a task that one of them lacks.
        StateError: no benchmark, no question or no cell in common.
    """
    b = dataclasses.replace(b, declared=a.declared)
    a, b, notes = shared_questions(a, b, tasks)
    cells = {cell_key(a, cell): cell for cell in a.cells}
    others = {cell_key(b, cell): cell for cell in b.cells}
    alone = (
        tuple(a.label(cell) for key, cell in cells.items() if key not in others),
        tuple(b.label(cell) for key, cell in others.items() if key not in cells),
    )
    both = [(cell, others[key]) for key, cell in cells.items() if key in others]
    untrained = all(any(run.base for run in results.runs) for results in (a, b))
    if not both and not untrained:
        raise StateError(
            f"{a.name} and {b.name}: no cell in common; there are {', '.join(alone[0])}, and {', '.join(alone[1])}"
        )
    same = same_runs(a, b)
    names = tuple(a.benchmarks)
    macro = {MACRO: shared_macro(a)} if len(names) > 1 else {}
    pairs: list[Pair] = []
    for name, members in {**macro, **{name: (name,) for name in names}}.items():
        data = [prepare(results, name, members, base_alone=True) for results in (a, b)]
        if data[0] is None or data[1] is None:
            notes.append(f"{name}: no run of {'a' if data[0] is None else 'b'} has answers to all of it")
            continue
        found, said = _pairs((a, b), (data[0], data[1]), both, same)
        pairs += found
        notes += said
    if not pairs:
        raise StateError(f"{a.name} and {b.name}: no cell was measured in both on the same benchmark")
    notes += run_notes(a, b, same)
    if folders[0] is not None and folders[1] is not None:
        notes += related_notes((a, b), (folders[0], folders[1]), both)
    for which, results in (("a", a), ("b", b)):
        notes += [f"{which}: {note}" for note in results.notes]
    return Comparison(tuple(pairs), alone, a.declared.confidence, tuple(dict.fromkeys(notes)))


# ------------------------------------------------------------------------------------------------ the differences


@dataclass(frozen=True)
class _Side:
    """What is compared: weights (R,) over the runs of both studies that average those of a, and those of b."""

    cell: str
    kind: str
    a: np.ndarray
    b: np.ndarray


def _sides(
    a: Results, data: tuple[Prepared, Prepared], both: Sequence[tuple[tuple[str, ...], tuple[str, ...]]]
) -> list[_Side]:
    """The untrained model, the cells that were measured in both, and their mean; R runs, those of a first."""
    split, count = len(data[0].rows), len(data[0].rows) + len(data[1].rows)

    def side(label: str, kind: str, rows: Sequence[np.ndarray]) -> _Side:
        weights = np.zeros((2, count))
        weights[0, rows[0]] = 1 / len(rows[0])
        weights[1, rows[1] + split] = 1 / len(rows[1])
        return _Side(label, kind, weights[0], weights[1])

    bases = [np.flatnonzero(d.cell_of < 0) for d in data]
    untrained = [side(BASE_LABEL, "untrained", bases)] if all(rows.size for rows in bases) else []
    cells = [
        side(a.label(pair[0]), "cell", [
            np.flatnonzero(d.cell_of == d.cells.index(cell)) for d, cell in zip(data, pair, strict=True)
        ])
        for pair in both
        if all(cell in d.cells for d, cell in zip(data, pair, strict=True))
    ]  # fmt: skip
    if len(cells) < 2:
        return [*untrained, *cells]
    mean = [np.asarray(np.mean(part, axis=0)) for part in ([s.a for s in cells], [s.b for s in cells])]
    return [*untrained, *cells, _Side(EVERY, "mean", *mean)]


def _pairs(
    studies: tuple[Results, Results],
    data: tuple[Prepared, Prepared],
    both: Sequence[tuple[tuple[str, ...], tuple[str, ...]]],
    same: set[str],
) -> tuple[list[Pair], list[str]]:
    """The pairs of one benchmark, and what must be said of them."""
    first, second = data
    notes = [f"{which}: {note}" for which, d in zip("ab", data, strict=True) for note in d.notes]
    sides = _sides(studies[0], data, both)
    if not sides:
        return [], notes
    scores = [np.vstack(part) for part in zip(first.scores, second.scores, strict=True)]
    error = _error(data, pooled=studies[0].declared.variance == "pooled")
    weights = np.stack([side.a - side.b for side in sides])
    parts = two_way(scores, weights, error, np.concatenate([first.untrained, second.untrained]))
    confidence, reach = studies[0].declared.confidence, reach_of(weights)
    wide = interval(parts.estimate, parts.total, parts.df, confidence, reach)
    models = interval(parts.estimate, parts.models, parts.df_question, confidence, reach)
    runs = [results.runs[row] for results, d in zip(studies, data, strict=True) for row in d.rows]
    shared = [sum(runs[i].run in same for i in np.flatnonzero(side.b)) for side in sides]
    wide = [NOTHING if n else found for n, found in zip(shared, wide, strict=True)]
    means = sum(y.mean(axis=1) for y in scores) / len(scores)
    p = t_two_sided(parts.estimate / np.sqrt(np.where(parts.total > 0, parts.total, np.nan)), parts.df_verdict)
    adjusted = _adjusted(sides, wide, p)
    found = []
    for i, side in enumerate(sides):
        taken = [[runs[row] for row in np.flatnonzero(part)] for part in (side.a, side.b)]
        found.append(
            Pair(
                benchmark=first.benchmark, cell=side.cell, kind=side.kind, runs=(len(taken[0]), len(taken[1])),
                seeds=(_seeds(taken[0]), _seeds(taken[1])), questions=sum(y.shape[1] for y in scores),
                a=float(side.a @ means), b=float(side.b @ means), difference=float(parts.estimate[i]),
                like_these=wide[i], models=models[i] if wide[i].low is None and not shared[i] else NOTHING,
                p_adjusted=adjusted[i], same_runs=shared[i],
            )
        )  # fmt: skip
    if any(pair.models.low is not None for pair in found):
        notes.append(
            f"{first.benchmark}: ~ noise between runs can't be estimated, so the interval is over questions, of "
            "exactly these models; it says nothing about other seeds of the same recipes"
        )
    borrowed = [s.cell for s in sides if s.kind == "cell" and (error.borrowed & (s.a + s.b != 0)).any()]
    if borrowed and error.source == "seeds" and studies[0].declared.variance != "pooled":
        notes.append(
            f"{first.benchmark}: one run only in a or b, so its noise is taken from the other cells: "
            f"{', '.join(borrowed)}"
        )
    return found, notes


def _error(data: tuple[Prepared, Prepared], *, pooled: bool) -> ErrorModel:
    """Noise between the runs of both: every cell of every study has its own, so only seeds can tell it."""
    first, second = data
    cells = [(which, str(i)) for which, d in zip("ab", data, strict=True) for i in range(len(d.cells))]
    factors = {"study": ("a", "b"), "cell": tuple(dict.fromkeys(cell for _, cell in cells))}
    moved = np.where(second.cell_of < 0, -1, second.cell_of + len(first.cells))
    return error_model(factors, cells, np.concatenate([first.cell_of, moved]), pooled=pooled)


def _adjusted(sides: Sequence[_Side], found: Sequence[Interval], p: np.ndarray) -> list[float | None]:
    """(E,) p by Holm over the cells; their mean and the untrained model are no more tests of the same."""
    tested = [side.kind == "cell" and one.p is not None for side, one in zip(sides, found, strict=True)]
    return [number(value) for value in holm(np.where(tested, p, np.nan))]


def _seeds(runs: Sequence[Run]) -> tuple[int, ...]:
    return tuple(sorted({run.seed for run in runs}))
