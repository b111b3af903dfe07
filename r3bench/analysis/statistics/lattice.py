"""Effects as contrasts over the cells of a factor lattice, as pure functions on level combinations.

Every effect is a weighted sum of cell means; all weights of one effect add up to zero. With x_F in {reference, level}:

main            mean over all other factors of (level - reference)
interaction     (11 - 10) - (01 - 00), averaged over the factors not named; a change of an effect, not half of it
shapley         average gain of adding the level over all orders in which factors can be added (Shapley 1953)
leave_one_out   all on, minus all on but this one: what it is worth given the others
add_one         only this one on, minus all off: what it is worth alone
additivity      several on, minus all off, minus what each of them adds alone (or the same from all on): where a design
                has the cells for it but not for single interactions, the test of what its main effects assume

Cells that were not run are filled in only by a model that the label names, and only where the design can tell the
effect from the others; otherwise the effect is left out and a note says so.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from r3bench.analysis.results import term_name
from r3bench.analysis.statistics.noise import ErrorModel, projector

Kind = Literal["main", "interaction", "shapley", "leave_one_out", "add_one", "additivity"]
Cell = tuple[str, ...]
Factors = Mapping[str, Sequence[str]]
_Wanted = tuple[Kind, tuple[str, ...], tuple[str, ...], dict[Cell, float]]  # kind, parts, factors, full weights
MODELS = {2: "no interaction of three or more factors", 1: "no interaction at all"}  # order -> what it assumes
MOST_CELLS = 4096  # a full lattice above this is not enumerated


@dataclass(frozen=True)
class Contrast:
    """One effect."""

    kind: Kind
    parts: tuple[str, ...]  # what it is about: 'replay', 'ranking=random'; two of them for an interaction
    factors: tuple[str, ...]  # the factors of the parts
    weights: np.ndarray  # (C,) over the observed cells
    assumes: str | None = None  # what had to be assumed because cells are missing; None: nothing

    @property
    def term(self) -> str:
        """The parts in one word: 'replay', 'replay=random' or 'replay:ranking'."""
        return ":".join(self.parts)


def contrasts(factors: Factors, cells: Sequence[Cell], runs: Sequence[int]) -> tuple[list[Contrast], list[str]]:
    """All effects that the observed cells allow.

    Args:
        factors: factor -> levels, reference first. Factors with one level are left out of the lattice.
        cells: C observed level combinations, in the order of `factors`.
        runs: (C,) runs per cell; a model that fills in cells weighs by them.

    Returns:
        The effects, and notes on what could not be estimated.
    """
    names = [f for f, levels in factors.items() if len(levels) > 1]
    full = math.prod(len(levels) for levels in factors.values())
    notes = []
    if len(cells) < full:
        notes.append(f"partial grid: {len(cells)} of {full} level combinations were run")
    found: list[Contrast] = []
    wanted: list[_Wanted] = [
        *_averages(factors, names),
        *_paths(factors, names),
    ]
    lost: dict[str, list[str]] = {}
    for kind, parts, about, weights in wanted:
        solved = _solve(weights, kind, factors=factors, cells=cells, runs=runs)
        if solved is None:
            lost.setdefault(kind, []).append(":".join(parts))
        else:
            found.append(Contrast(kind, parts, about, *solved))
    if any(c.kind == "main" and c.assumes == MODELS[1] for c in found):
        found += _departures(factors, names, cells)
    if len(set(runs)) > 1:
        notes.append(
            f"unbalanced grid: {min(runs)} to {max(runs)} runs per cell; every cell counts the same, whatever its runs"
            + (", but in effects marked *, whose model weighs by them" if any(c.assumes for c in found) else "")
        )
    for what, terms in lost.items():
        notes.append(f"not estimable from the cells that were run: {what.replace('_', ' ')} of {', '.join(terms)}")
    return found, notes


def _averages(factors: Factors, names: Sequence[str]) -> list[_Wanted]:
    """Main effects and two-way interactions as weights over the full lattice."""
    result: list[_Wanted] = []
    lattice = list(itertools.product(*factors.values())) if _size(factors) <= MOST_CELLS else []
    position = {f: i for i, f in enumerate(factors)}
    for order in (1, 2):
        for about in itertools.combinations(names, order):
            rest = math.prod(len(factors[f]) for f in factors if f not in about)
            for levels in itertools.product(*(factors[f][1:] for f in about)):
                weights: dict[Cell, float] = {}
                for cell in lattice:
                    sign = 1
                    for factor, level in zip(about, levels, strict=True):
                        value = cell[position[factor]]
                        sign *= 1 if value == level else -1 if value == factors[factor][0] else 0
                    if sign:
                        weights[cell] = sign / rest
                parts = tuple(term_name(f, v, factors[f]) for f, v in zip(about, levels, strict=True))
                result.append(("main" if order == 1 else "interaction", parts, about, weights))
    return result


def _paths(factors: Factors, names: Sequence[str]) -> list[_Wanted]:
    """Shapley, leave-one-out and add-one: every other factor is at its reference or its first other level."""
    result: list[_Wanted] = []
    for name in names:
        others = [f for f in names if f != name]
        for level in factors[name][1:]:
            on = {f: factors[f][1] for f in others} | {name: level}

            def cell(chosen: Sequence[str], on: Mapping[str, str] = on) -> Cell:
                return tuple(on[f] if f in chosen else factors[f][0] for f in factors)

            parts = (term_name(name, level, factors[name]),)
            shapley: dict[Cell, float] = {}
            for size in range(len(others) + 1):
                share = math.factorial(size) * math.factorial(len(others) - size) / math.factorial(len(names))
                for chosen in itertools.combinations(others, size):
                    shapley[cell((*chosen, name))] = share
                    shapley[cell(chosen)] = -share
            result.append(("shapley", parts, (name,), shapley))
            result.append(("leave_one_out", parts, (name,), {cell((*others, name)): 1.0, cell(others): -1.0}))
            result.append(("add_one", parts, (name,), {cell((name,)): 1.0, cell(()): -1.0}))
    kinds = ("shapley", "leave_one_out", "add_one")
    return sorted(result, key=lambda r: kinds.index(r[0]))


def _departures(factors: Factors, names: Sequence[str], cells: Sequence[Cell]) -> list[Contrast]:
    """Additivity of every observed cell that differs in several factors from a centre, all off or all on."""
    position, place = {f: i for i, f in enumerate(factors)}, {cell: i for i, cell in enumerate(cells)}
    off = tuple(levels[0] for levels in factors.values())
    on = tuple(levels[1] if len(levels) > 1 else levels[0] for levels in factors.values())
    found: list[Contrast] = []
    for centre in (off, on):
        for cell in cells:
            moved = [f for f in names if cell[position[f]] != centre[position[f]]]
            steps = [tuple(cell[i] if f == g else centre[i] for g, i in position.items()) for f in moved]
            if len(moved) < 2 or any(c not in place for c in (centre, *steps)):
                continue
            weights = np.zeros(len(cells))
            weights[place[cell]], weights[place[centre]] = 1.0, len(moved) - 1.0
            weights[[place[c] for c in steps]] = -1.0
            if any(np.allclose(np.abs(weights), np.abs(c.weights)) for c in found):
                continue
            away = [cell[position[f]] if cell[position[f]] != off[position[f]] else centre[position[f]] for f in moved]
            parts = tuple(term_name(f, level, factors[f]) for f, level in zip(moved, away, strict=True))
            found.append(Contrast("additivity", parts, tuple(moved), weights))
    return found


def _solve(
    wanted: Mapping[Cell, float], kind: Kind, *, factors: Factors, cells: Sequence[Cell], runs: Sequence[int]
) -> tuple[np.ndarray, str | None] | None:  # fmt: skip
    """Weights over observed cells: direct if all are there, else through the smallest model that can tell."""
    weights = np.zeros(len(cells))
    place = {cell: i for i, cell in enumerate(cells)}
    if wanted and all(cell in place for cell in wanted):
        for cell, weight in wanted.items():
            weights[place[cell]] = weight
        return weights, None
    if kind not in ("main", "interaction") or not wanted:
        return None
    for order in (2, 1) if kind == "main" else (2,):
        target = np.array(list(wanted.values())) @ model_matrix(factors, list(wanted), order)
        scale = np.sqrt(np.asarray(runs, float))
        observed = model_matrix(factors, cells, order)
        inverse = np.linalg.pinv(observed * scale[:, None])
        if np.allclose(target @ (inverse * scale) @ observed, target, atol=1e-9):
            return target @ inverse * scale, MODELS[order]
    return None


def model_matrix(factors: Factors, cells: Sequence[Cell], order: int) -> np.ndarray:
    """(C, P) indicator design: intercept, levels but the reference, and their products up to `order` factors."""
    position = {f: i for i, f in enumerate(factors)}
    columns = [np.ones(len(cells))]
    names = [f for f, levels in factors.items() if len(levels) > 1]
    for size in range(1, order + 1):
        for about in itertools.combinations(names, size):
            for levels in itertools.product(*(factors[f][1:] for f in about)):
                column = np.ones(len(cells))
                for factor, level in zip(about, levels, strict=True):
                    column *= [cell[position[factor]] == level for cell in cells]
                columns.append(column)
    return np.stack(columns, axis=1)


def error_model(
    factors: Factors, cells: Sequence[Cell], cell_of: np.ndarray, *, pooled: bool = False,
    seeds: Sequence[int] | None = None,
) -> ErrorModel:  # fmt: skip
    """Noise between runs: seeds within a cell or, with one seed per cell, pooled high-order interactions.

    Args:
        factors: factor -> levels.
        cells: C level combinations.
        cell_of: (R,) cell of each run; -1 for a row that is no trained run (it gets no residual).
        pooled: one variance for all cells, as declared; otherwise each cell of two or more runs has its own.
        seeds: (R,) seed of each run, if runs that share one are a block.

    Returns:
        Pure error where it has 5 or more degrees of freedom; otherwise whichever of pure error and the residual of the
        main-plus-two-way model has more (its variance is always pooled). Blocks are left out where they leave nothing.
    """
    count, trained = len(cell_of), cell_of >= 0
    outside = np.flatnonzero(~trained)
    fixed = np.zeros((count, len(outside)))
    fixed[outside, np.arange(len(outside))] = 1.0
    member = (cell_of[:, None] == np.arange(len(cells))).astype(float)
    design = np.hstack([member[:, member.any(axis=0)], fixed])
    residual, df = projector(design)
    group, groups = np.where(trained, 0, -1), 1
    if df < 5:
        model = member @ model_matrix(factors, cells, 2)
        high, more = projector(np.hstack([model, fixed]))
        if more > df:
            return ErrorModel(high, more, "interactions", group, groups)
    runs = member.sum(axis=0)
    if not pooled and df > 0:
        own = np.flatnonzero(runs > 1)
        groups = len(own)
        group = np.where(trained, groups, -1)
        for number, cell in enumerate(own):
            group[cell_of == cell] = number
    alone = ErrorModel(residual, df, "seeds" if df > 0 else "none", group, groups)
    if seeds is None or df <= 0:
        return alone
    names = sorted({seeds[i] for i in np.flatnonzero(trained).tolist()})
    block = np.array([names.index(seeds[i]) if trained[i] else -1 for i in range(count)])
    blocked, left = projector(np.hstack([design, (block[:, None] == np.arange(len(names))).astype(float)]))
    if left < 1 or left == df:
        return alone
    return ErrorModel(blocked, left, "seeds", group, groups, block, alone)


def _size(factors: Factors) -> int:
    return math.prod(len(levels) for levels in factors.values())
