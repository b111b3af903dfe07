"""Cells on held-out questions at equal cost: kept checkpoints, measured (`r3bench eval STUDY --checkpoints N`).

A run's accuracy on the same questions is known at the checkpoints that were measured, at its end and, where the
untrained model was measured, at its start. Between two of these it is taken to lie on a straight line. The budget is
what the cheapest run of the study spent in all. A run whose first point lies beyond it is left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from r3bench.analysis.reading.counts import count_answers
from r3bench.analysis.reading.study import run_folder
from r3bench.analysis.results import Results, Run
from r3bench.analysis.statistics.distributions import t_quantile
from r3bench.errors import StateError
from r3bench.measured import known_answers
from r3bench.records import RunPaths

Cost = Literal["tokens", "seconds"]


@dataclass(frozen=True)
class Measured:
    """One run's accuracy on the held-out questions along its training; P points, in the order of training."""

    run: str
    seed: int
    tokens: np.ndarray  # (P,) completion tokens generated so far
    seconds: np.ndarray  # (P,) device seconds so far
    accuracy: np.ndarray  # (P,) share of right answers

    def at(self, cost: Cost, budget: float) -> float | None:
        """Accuracy at the budget, on the line between the measured points around it; None before the first."""
        spent = getattr(self, cost)
        return None if budget < spent[0] else float(np.interp(budget, spent, self.accuracy))


@dataclass(frozen=True)
class HeldOut:
    """What was measured along training on one benchmark."""

    benchmark: str
    questions: int  # that all points of all runs have answers to
    cells: Mapping[str, Sequence[Measured]]  # label -> its runs
    left_out: tuple[str, ...]  # finished runs without a measured checkpoint
    damaged: tuple[str, ...] = ()  # what is wrong with measured checkpoints that were left out


@dataclass(frozen=True)
class AtBudget:
    """A cell at the budget."""

    label: str
    runs: int
    accuracy: float  # mean over runs
    low: float | None  # interval over seeds, on exactly these questions; None with one run
    high: float | None
    gain: float | None  # over the baseline; None for the baseline itself
    gain_low: float | None  # Welch's interval; None unless both have two runs
    gain_high: float | None


def held_out(folder: Path, results: Results, wanted: str | None = None) -> HeldOut | None:
    """The first benchmark with measured checkpoints; None without any.

    Args:
        folder: study folder.
        results: of it, loaded with training logs.
        wanted: this benchmark and no other.
    """
    for benchmark in (b for b in results.benchmarks if wanted in (None, b)):
        points = {}
        damaged: list[str] = []
        for run, counted in zip(results.runs, results.benchmarks[benchmark].measured, strict=True):
            if not counted:
                continue  # without answers, or with damaged ones: the tables' notes name it
            root = RunPaths(run_folder(folder, run.run))
            steps = {} if run.base or run.outcome != "finished" else _counts(root, benchmark, damaged)
            if steps:
                points[run.run] = {**steps, _end(run): count_answers(root.evaluation / benchmark)}
        if points:
            joined = _joined(folder, results, benchmark, points)
            return joined and replace(joined, damaged=tuple(damaged))
    return None


def _counts(root: RunPaths, benchmark: str, damaged: list[str]) -> dict[int, dict[str, Any]]:
    """Step -> counts by question of the checkpoints that were measured on a benchmark; the others go to `damaged`."""
    found = {}
    for path in sorted(root.checkpoint_evaluation.glob(f"*/{benchmark}")):
        if not (path.parent.name.isascii() and path.parent.name.isdecimal()):
            continue
        try:
            counts = count_answers(path, known_answers(path.parent, benchmark))
        except StateError as error:
            damaged.append(str(error))
            continue
        if counts["question"]:
            found[int(path.parent.name)] = counts
    return found


def _end(run: Run) -> int:
    return run.record.train.steps if run.record is not None else 0


def _joined(
    folder: Path, results: Results, benchmark: str, points: Mapping[str, Mapping[int, dict[str, Any]]]
) -> HeldOut | None:
    measured = results.benchmarks[benchmark].measured
    base = next((r for r, counted in zip(results.runs, measured, strict=True) if r.base and counted), None)
    start = count_answers(run_folder(folder, base.run) / "eval" / benchmark) if base is not None else {"question": []}
    every = [set(c["question"]) for steps in points.values() for c in steps.values()]
    common = set.intersection(*every)
    if not common:
        return None
    start_known = common <= set(start["question"])
    cells: dict[str, list[Measured]] = {}
    left_out = []
    for run, index in zip(results.runs, results.cell_of, strict=True):
        if run.base or run.outcome != "finished" or run.record is None:
            continue
        if run.run not in points:
            left_out.append(run.run)
            continue
        steps = sorted(points[run.run])
        accuracy = [_share(points[run.run][s], common) for s in steps]
        spent = _spent(results.metrics.get(run.run, ()), run, steps)
        if start_known:
            accuracy = [_share(start, common), *accuracy]
            spent = {k: np.concatenate([[0.0], v]) for k, v in spent.items()}
        one = Measured(run.run, run.seed, spent["tokens"], spent["seconds"], np.array(accuracy))
        cells.setdefault(results.label(results.cells[index]), []).append(one)
    order = [label for c in results.cells if (label := results.label(c)) in cells]
    return HeldOut(benchmark, len(common), {label: cells[label] for label in order}, tuple(left_out))


def _share(counts: Mapping[str, Any], questions: set[str]) -> float:
    """Mean over the questions of the share of right answers."""
    kept = [i for i, q in enumerate(counts["question"]) if q in questions]
    return float((counts["correct"][kept] / counts["samples"][kept]).mean())


def _spent(log: Sequence[Mapping[str, Any]], run: Run, steps: Sequence[int]) -> dict[str, np.ndarray]:
    """Tokens and seconds spent up to each step, by the training log; shared out evenly where it has none."""
    assert run.record is not None
    train = run.record.train
    found = {}
    for name, key, total in (
        ("tokens", "generated_tokens", train.generated_tokens),
        ("seconds", "elapsed", train.train_seconds),
    ):
        known = [(line["step"], line[key]) for line in log if line.get(key) is not None and "step" in line]
        x, y = zip(*[(0, 0.0), *known, (max(train.steps, 1), float(total))], strict=True)
        found[name] = np.interp(steps, x, np.maximum.accumulate(np.array(y, float)))
    return found


def at_budget(found: HeldOut, cost: Cost, confidence: float = 0.95) -> tuple[list[AtBudget], float]:
    """Every cell at the same cost, and that cost: what the cheapest run spent in all.

    The first cell is the baseline. Intervals are over seeds, on exactly these questions.
    """
    budget = min(float(getattr(run, cost)[-1]) for runs in found.cells.values() for run in runs)
    known = {label: [v for run in runs if (v := run.at(cost, budget)) is not None]
             for label, runs in found.cells.items()}  # fmt: skip
    values = {label: np.array(v) for label, v in known.items() if v}
    baseline = next(iter(values.values()))
    rows = []
    for number, (label, own) in enumerate(values.items()):
        low, high = _welch(own, None, confidence)
        gain = None if number == 0 else float(own.mean() - baseline.mean())
        below, above = (None, None) if number == 0 else _welch(own, baseline, confidence)
        low, high = (None if v is None else float(np.clip(v, 0.0, 1.0)) for v in (low, high))
        rows.append(AtBudget(label, len(own), float(own.mean()), low, high, gain, below, above))
    return rows, budget


def _welch(a: np.ndarray, b: np.ndarray | None, confidence: float) -> tuple[float | None, float | None]:
    """Limits of a mean, or of the difference of two (Welch 1947); nothing unless each has two runs and some spread."""
    parts = [x for x in (a, b) if x is not None]
    if min(map(len, parts)) < 2:
        return None, None
    variances = np.array([x.var(ddof=1) / len(x) for x in parts])
    if variances.sum() < 1e-24:
        return None, None
    df = variances.sum() ** 2 / (variances**2 / [len(x) - 1 for x in parts]).sum()
    half = float(t_quantile(0.5 + confidence / 2, df)) * float(np.sqrt(variances.sum()))
    middle = float(a.mean() - (b.mean() if b is not None else 0.0))
    return middle - half, middle + half
