"""Compute-matched views: training accuracy against generated tokens and seconds, area under it, time to a level."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from r3bench.analysis.results import Results, Run
from r3bench.analysis.statistics.distributions import t_quantile

Axis = Literal["tokens", "seconds", "steps"]
FRESH = "fresh/correct"  # log key: accuracy over the groups sampled from the bare question by the policy alone
ACCURACY = (FRESH, "correct", "rewards/correctness/mean", "reward")  # log keys, the first that is there
SOLVED = "exploration/solved"  # log key: share of the training questions with a right answer so far
LENGTH = ("length", "completions/mean_length")
POINTS = 60  # of a curve on its common grid


@dataclass(frozen=True)
class RunCurve:
    """One run's training log as arrays of equal length N."""

    steps: np.ndarray
    tokens: np.ndarray  # completion tokens generated so far
    seconds: np.ndarray  # device seconds so far
    accuracy: np.ndarray  # of the training batch, smoothed; or what else `measure` names, `SOLVED` as it is
    length: np.ndarray  # mean response tokens, NaN if not logged
    measure: str  # log key behind `accuracy`


@dataclass(frozen=True)
class Band:
    """A cell's mean curve with a pointwise interval over its seeds."""

    label: str
    x: np.ndarray  # (P,) common grid
    mean: np.ndarray  # (P,)
    low: np.ndarray  # (P,) NaN with one run
    high: np.ndarray  # (P,)
    runs: int


@dataclass(frozen=True)
class Matched:
    """A cell at matched compute."""

    label: str
    area: float  # mean training accuracy up to the budget all runs reached
    area_low: float | None  # interval over seeds
    area_high: float | None
    reached: int  # runs that got to the baseline's peak
    runs: int
    to_peak: float | None  # mean over the runs that reached it
    to_peak_low: float | None  # interval over seeds; None unless every run reached it
    to_peak_high: float | None


def run_curve(
    log: Sequence[Mapping[str, Any]], generated: int, seconds: float, keys: Sequence[str] = ACCURACY
) -> RunCurve | None:
    """A training log as arrays; None if it has fewer than two lines with an accuracy.

    Args:
        log: lines of `metrics.jsonl`.
        generated: completion tokens of the whole run; scales TRL's count, which holds prompts as well.
        seconds: of the whole run, used where the log has no time.
        keys: log keys of an accuracy; the first that is there counts.
    """
    measure = next((k for k in keys if _logs(log, k)), None)
    if measure is None:
        return None
    lines = [line for line in log if line.get(measure) is not None]
    if len(lines) < 2:
        return None

    def column(*keys: str) -> np.ndarray:
        key = next((k for k in keys if all(line.get(k) is not None for line in lines)), None)
        return np.array([line[key] for line in lines], float) if key else np.full(len(lines), np.nan)

    steps = column("step")
    tokens, elapsed = column("generated_tokens"), column("elapsed", "seconds")
    if np.isnan(tokens).any():
        counted = column("num_tokens")
        share = counted / counted[-1] if not np.isnan(counted).any() and counted[-1] > 0 else steps / steps[-1]
        tokens = share * generated
    if np.isnan(elapsed).any():
        elapsed = steps / steps[-1] * seconds
    values = column(measure)
    return RunCurve(steps, tokens, elapsed, values if measure == SOLVED else smooth(values), column(*LENGTH), measure)


def smooth(values: np.ndarray, share: float = 0.1) -> np.ndarray:
    """Running mean over the last `share` of the curve, shorter at its start. values: (N,)."""
    width = max(1, round(share * len(values)))
    total = np.concatenate([[0.0], np.cumsum(values)])
    start = np.maximum(np.arange(1, len(values) + 1) - width, 0)
    return (total[1:] - total[start]) / (np.arange(1, len(values) + 1) - start)


def cell_curves(results: Results, wanted: Sequence[str] = ACCURACY) -> dict[str, list[RunCurve]]:
    """Cell label -> curves of its finished runs, all of one log key of `wanted` if there is one that all have.

    Needs results loaded with `metrics=True`. `curve_notes` says what is left out.
    """
    logs = [results.metrics[run.run] for run in results.runs if _plotted(run) and results.metrics.get(run.run)]
    keys = [key for key in wanted if all(_logs(log, key) for log in logs)] or wanted
    found: dict[str, list[RunCurve]] = {results.label(cell): [] for cell in results.cells}
    for run, index in zip(results.runs, results.cell_of, strict=True):
        if run.record is None or not _plotted(run):
            continue
        train = run.record.train
        curve = run_curve(results.metrics.get(run.run, ()), train.generated_tokens, train.train_seconds, keys)
        if curve is not None:
            found[results.label(results.cells[index])].append(curve)
    return {label: runs for label, runs in found.items() if runs}


def curve_notes(results: Results, curves: Mapping[str, Sequence[RunCurve]]) -> list[str]:
    """What a reader of `cell_curves` must know: what the accuracy is of, and how many runs are not in it."""
    keys = sorted({curve.measure for runs in curves.values() for curve in runs})
    if keys == [FRESH]:
        notes = [
            "training accuracy over fresh groups only: questions asked as they are and answered by the policy alone"
        ]
    else:
        notes = [
            f"training accuracy over the whole batch ({', '.join(keys)}), which components change by construction "
            "(reflection prompts, given prefixes, discarded rounds): a difference between cells is not all learning"
        ]
    for outcome, what in (
        ("diverged", "that diverged ({where}): their cells look better here"),
        ("failed", "that are missing ({where})"),
    ):
        lost: dict[str, int] = {}
        for run, index in zip(results.runs, results.cell_of, strict=True):
            if not run.base and run.outcome == outcome:
                label = results.label(results.cells[index])
                lost[label] = lost.get(label, 0) + 1
        if lost:
            where = ", ".join(f"{count} of {label}" for label, count in lost.items())
            notes.append(f"left out: {sum(lost.values())} of the runs {what.format(where=where)}")
    silent = sum(_plotted(run) for run in results.runs) - sum(map(len, curves.values()))
    if silent:
        notes.append(f"left out: {silent} finished runs without a training log")
    return notes


def comparable(results: Results, curves: Mapping[str, Sequence[RunCurve]]) -> bool:
    """Whether the curves of all cells are of the same thing: of fresh groups, or of runs that no component was on in.

    A component that changes the batch (prompts with a failed answer, given prefixes) changes the accuracy over all of
    it, whatever the model has learnt.
    """
    if not curves:
        return False
    measures = {curve.measure for runs in curves.values() for curve in runs}
    acted = any(run.record.train.acted for run in results.runs if run.record is not None and _plotted(run))
    return measures == {FRESH} or (len(measures) == 1 and not acted)


def _plotted(run: Run) -> bool:
    return not run.base and run.record is not None and run.outcome == "finished"


def _logs(log: Sequence[Mapping[str, Any]], key: str) -> bool:
    return any(line.get(key) is not None for line in log)


def band(label: str, curves: Sequence[RunCurve], axis: Axis, confidence: float = 0.95) -> Band:
    """Mean of a cell's curves on the range all of them cover."""
    xs = [getattr(c, axis) for c in curves]
    grid = np.linspace(max(x[0] for x in xs), min(x[-1] for x in xs), POINTS)
    values = np.stack([np.interp(grid, x, c.accuracy) for x, c in zip(xs, curves, strict=True)])
    mean, half = _mean_and_half(values, confidence)
    lowest, highest = (-np.inf, np.inf) if curves[0].measure == "reward" else (0.0, 1.0)
    return Band(label, grid, mean, np.maximum(mean - half, lowest), np.minimum(mean + half, highest), len(curves))


def matched(
    curves: Mapping[str, Sequence[RunCurve]], axis: Axis, baseline: str | None, confidence: float = 0.95
) -> tuple[list[Matched], float]:
    """Every cell up to the same budget: area under its curve, and where it reaches the baseline's peak.

    Args:
        curves: cell label -> runs.
        axis: what is matched.
        baseline: label of the cell whose mean curve's peak is the level to reach; None: no level.
        confidence: of the intervals over seeds.

    Returns:
        One entry per cell, and the matched budget.
    """
    every = [c for runs in curves.values() for c in runs]
    budget = min(float(getattr(c, axis)[-1]) for c in every)
    level = (
        float(band("", curves[baseline], axis).mean.max()) if baseline is not None and baseline in curves else np.nan
    )
    found = []
    for label, runs in curves.items():
        grid = np.linspace(0, budget, POINTS)
        areas = np.array([np.interp(grid, getattr(c, axis), c.accuracy).mean() for c in runs])
        times = np.array([_first(getattr(c, axis), c.accuracy, level) for c in runs])
        times = times[np.isfinite(times)]
        area, area_half = _mean_and_half(areas[:, None], confidence)
        mean, half = _mean_and_half(times[:, None], confidence) if len(times) else (np.full(1, np.nan),) * 2
        found.append(
            Matched(
                label=label,
                area=float(area[0]),
                area_low=_known(area[0] - area_half[0]),
                area_high=_known(area[0] + area_half[0]),
                reached=len(times),
                runs=len(runs),
                to_peak=_known(mean[0]),
                # the others would have come later, nobody knows when: an interval of these alone is of the quick ones
                to_peak_low=_known(np.maximum(mean[0] - half[0], 0.0)) if len(times) == len(runs) else None,
                to_peak_high=_known(mean[0] + half[0]) if len(times) == len(runs) else None,
            )
        )
    return found, budget


def _first(x: np.ndarray, y: np.ndarray, level: float) -> float:
    """x at which y first reaches `level` (linear between points); infinite if it never does."""
    above = np.flatnonzero(y >= level)
    if not above.size:
        return float("inf")
    i = int(above[0])
    if i == 0:
        return float(x[0])
    return float(np.interp(level, [y[i - 1], y[i]], [x[i - 1], x[i]]))


def _mean_and_half(values: np.ndarray, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean over runs and half width of its t interval; values (N, P). NaN width with one run."""
    count = len(values)
    if count < 2:
        return values.mean(axis=0), np.full(values.shape[1], np.nan)
    se = values.std(axis=0, ddof=1) / np.sqrt(count)
    return values.mean(axis=0), float(t_quantile(0.5 + confidence / 2, count - 1)) * se


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
