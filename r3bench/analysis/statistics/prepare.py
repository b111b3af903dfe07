"""From counts to the arrays an analysis runs on: which runs take part, and how a run without a usable model scores."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from r3bench.analysis.results import Results, Scores
from r3bench.analysis.statistics.lattice import Cell, error_model
from r3bench.analysis.statistics.noise import ErrorModel
from r3bench.errors import ConfigError, nearest

MACRO = "macro"  # name of the macro average in tables and JSON


@dataclass(frozen=True)
class Prepared:
    """One benchmark (or a macro average of several) ready for contrasts; R runs take part."""

    benchmark: str  # its name, or MACRO
    scores: tuple[np.ndarray, ...]  # (R, Q_b) accuracies per benchmark, no NaN
    rows: np.ndarray  # (R,) index into `Results.runs`
    cells: tuple[Cell, ...]  # C observed level combinations
    cell_of: np.ndarray  # (R,) index into `cells`, -1 for the base model
    untrained: np.ndarray  # (R,) sampling variance of a base-model row's mean, NaN for trained rows
    error: ErrorModel  # noise between runs
    notes: tuple[str, ...]  # scored and left-out runs

    @property
    def runs_per_cell(self) -> np.ndarray:
        """(C,) runs in each cell."""
        return np.bincount(self.cell_of[self.cell_of >= 0], minlength=len(self.cells))

    def cell_weights(self) -> np.ndarray:
        """(C, R): row c averages the runs of cell c."""
        member = (self.cell_of == np.arange(len(self.cells))[:, None]).astype(float)
        return member / np.maximum(member.sum(axis=1, keepdims=True), 1)

    def base_weights(self) -> np.ndarray | None:
        """(R,) that averages the base model's rows; None without a base model."""
        base = (self.cell_of < 0).astype(float)
        return base / base.sum() if base.any() else None


def benchmark_sets(results: Results) -> dict[str, tuple[str, ...]]:
    """What is analysed: every benchmark, and the macro average if there are two or more; the headline first."""
    sets: dict[str, tuple[str, ...]] = {name: (name,) for name in results.benchmarks}
    macro = results.declared.macro or tuple(results.benchmarks)
    for name in macro:
        if name not in results.benchmarks:
            raise ConfigError(f"analysis.macro: no benchmark '{name}' was measured{nearest(name, results.benchmarks)}")
    return {MACRO: macro, **sets} if len(macro) > 1 else {macro[0]: macro, **sets}


def prepare(
    results: Results, name: str, members: Sequence[str], failed_score: str | None = None, *, base_alone: bool = False
) -> Prepared | None:
    """Arrays for one benchmark or macro average; None if no trained run has it (or, on request, no row at all).

    Args:
        results: the study.
        name: what to call it.
        members: benchmarks that are averaged with equal weight.
        failed_score: 'base', 'zero' or 'drop' for runs that diverged; the declared rule if left out. Runs that are
            missing for any other reason are never scored.
        base_alone: also if the untrained model is all there is.
    """
    rule = failed_score or results.declared.failed_score
    scores = [results.benchmarks[m] for m in members]
    complete = np.logical_and.reduce([s.measured for s in scores])
    base = np.array([r.base for r in results.runs])
    diverged = np.array([r.outcome == "diverged" for r in results.runs]) & ~base
    notes = []
    if rule == "base" and diverged.any() and not (base & complete).any():
        rule = "drop"
        notes.append(
            f"{name}: the untrained model was not measured, so the runs that diverged can't score as it does, as "
            "declared: they are left out, which flatters their cells; measure it"
        )
    keep = np.where(diverged, rule != "drop", complete)
    if diverged.any():
        said = {"base": "scored as the untrained model", "zero": "scored 0", "drop": "left out"}[rule]
        notes.append(f"{int(diverged.sum())} of {int((~base).sum())} runs diverged: {said}")
    rows = np.flatnonzero(keep)
    if not rows.size or (base[rows].all() and not base_alone):
        return None
    arrays = []
    for score in scores:
        y = score.accuracy[rows].copy()
        stand_in = score.accuracy[base & complete].mean(axis=0) if rule == "base" and diverged.any() else 0.0
        y[diverged[rows]] = stand_in
        arrays.append(y)
    cell_of = results.cell_of[rows]
    present = np.unique(cell_of[cell_of >= 0])
    cells = tuple(results.cells[i] for i in present)
    cell_of = np.where(cell_of >= 0, np.searchsorted(present, cell_of), -1)
    return Prepared(
        benchmark=name,
        scores=tuple(arrays),
        rows=rows,
        cells=cells,
        cell_of=cell_of,
        untrained=_sampling_variance(scores, rows, base),
        error=error_model(
            observed_factors(results, cells),
            cells,
            cell_of,
            pooled=results.declared.variance == "pooled",
            seeds=[results.runs[i].seed for i in rows] if results.declared.blocks else None,
        ),
        notes=tuple(notes),
    )


def observed_factors(results: Results, cells: Sequence[Cell]) -> dict[str, tuple[str, ...]]:
    """factor -> levels that occur in `cells`, reference first."""
    seen = [{cell[i] for cell in cells} for i in range(len(results.factors))]
    return {
        factor: tuple(v for v in levels if v in seen[i]) for i, (factor, levels) in enumerate(results.factors.items())
    }


def _sampling_variance(scores: Sequence[Scores], rows: np.ndarray, base: np.ndarray) -> np.ndarray:
    """(R,) variance of a base-model row's mean over fixed questions: only its sampled answers could differ."""
    result = np.full(len(rows), np.nan)
    for i, row in enumerate(rows):
        if base[row]:
            result[i] = sum(score.answer_variance(row) for score in scores) / len(scores) ** 2
    return result
