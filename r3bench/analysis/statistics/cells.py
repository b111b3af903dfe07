"""Per cell: accuracy with its interval, gains over the untrained model and over all off, cost, and whether it acted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from r3bench.analysis.results import Results
from r3bench.analysis.statistics.distributions import LARGEST_DF, holm, t_two_sided
from r3bench.analysis.statistics.effects import Interval, interval, number, reach_of
from r3bench.analysis.statistics.prepare import Prepared, benchmark_sets, prepare
from r3bench.analysis.statistics.shares import share_interval
from r3bench.analysis.statistics.spread import seed_sds
from r3bench.analysis.statistics.twoway import two_way

BASE_LABEL = "untrained model"


@dataclass(frozen=True)
class Estimate:
    """A number with both intervals."""

    value: float
    like_these: Interval  # two-way: seeds and questions
    these: Interval  # on exactly these questions: seeds only
    models: Interval  # on questions like these, of exactly these models: questions only; where seeds can't be judged


@dataclass(frozen=True)
class CellRow:
    """One cell (or the untrained model) on one benchmark."""

    benchmark: str
    label: str  # 'replay + ranking', 'all off', 'untrained model'
    levels: Mapping[str, str]  # factor -> level; empty for the untrained model
    base: bool
    runs: tuple[str, ...]  # ids of its runs with answers here, and of those that diverged
    seeds: tuple[int, ...]  # of these
    diverged: int
    missing: tuple[str, ...]  # ids of runs without a score here: given up, or without answers
    excluded: tuple[str, ...]  # ids of runs that someone has left out
    accuracy: Estimate | None  # None where no run was measured
    seed_sd: float | None  # standard deviation over the runs of their mean accuracy; None for fewer than two
    run_means: tuple[float, ...]  # mean accuracy of each analysed run
    gain_base: Estimate | None  # over the untrained model
    gain_off: Estimate | None  # over the cell with every factor at its reference
    best: bool  # better than every other cell, Holm-adjusted two-way p below 1 - confidence
    tokens: float | None  # response tokens per answer
    truncated: float | None  # share of answers that hit the cap
    generated_tokens: float | None  # completion tokens sampled in training, mean over runs
    train_seconds: float | None  # mean over runs
    weights_changed: float | None  # share of trained weights that differ from the start, mean over the runs that say so
    acted: Mapping[str, tuple[int, int]]  # component -> (runs in which it acted, runs in which it was on)
    summary: Mapping[str, float]  # the evaluation's own figures, mean over runs: 'pass@k', 'maj@k', 'no_answer', ...

    def record(self) -> dict[str, Any]:
        """Flat JSON form; accuracies 0-1."""
        flat: dict[str, Any] = {
            "benchmark": self.benchmark, "cell": self.label, "levels": dict(self.levels), "base_model": self.base,
            "runs": list(self.runs), "seeds": list(self.seeds), "diverged": self.diverged,
            "missing": list(self.missing), "excluded": list(self.excluded),
            "seed_sd": self.seed_sd, "run_means": list(self.run_means), "best": self.best,
            "tokens": self.tokens, "truncated": self.truncated,
            "generated_tokens": self.generated_tokens, "train_seconds": self.train_seconds,
            "weights_changed": self.weights_changed,
            "acted": {k: list(v) for k, v in self.acted.items()}, "summary": dict(self.summary),
        }  # fmt: skip
        for key, estimate in (("accuracy", self.accuracy), ("gain_base", self.gain_base), ("gain_off", self.gain_off)):
            flat[key] = estimate.value if estimate else None
            for suffix, part in (("", "like_these"), ("_these_questions", "these"), ("_these_models", "models")):
                found = getattr(estimate, part) if estimate else None
                for name in ("se", "df", "low", "high"):
                    flat[f"{key}_{name}{suffix}"] = getattr(found, name) if found else None
        return flat


@dataclass(frozen=True)
class BestCell:
    """The cell with the highest mean against all off, allowing for its having been picked."""

    benchmark: str
    label: str
    gain: float
    low: float | None  # interval at the level of all comparisons together (Bonferroni), on questions like these
    high: float | None
    p_adjusted: float | None  # two-sided, times the number of cells it was picked from
    candidates: int  # cells compared with all off
    few_seeds: bool  # some comparison has fewer than 3 degrees of freedom between seeds: its interval is very long


@dataclass
class Found:
    """What `estimates` finds of a cell; see `CellRow`."""

    accuracy: Estimate | None = None
    gain_base: Estimate | None = None
    gain_off: Estimate | None = None
    best: bool = False
    seed_sd: float | None = None
    run_means: tuple[float, ...] = ()


def cell_rows(results: Results, failed_score: str | None = None) -> list[CellRow]:
    """All cells on all benchmarks and on the macro average: benchmark by benchmark, the untrained model first."""
    rows: list[CellRow] = []
    for name, members in benchmark_sets(results).items():
        data = prepare(results, name, members, failed_score, base_alone=True)
        found = estimates(results, data) if data else {}
        order = [-1] if any(r.base for r in results.runs) else []
        for index in [*order, *range(len(results.cells))]:
            rows.append(_row(results, name, members, index, found.get(index, Found())))
    return rows


def _row(results: Results, name: str, members: tuple[str, ...], index: int, found: Found) -> CellRow:
    scored = np.array([r.outcome == "diverged" and not r.base for r in results.runs])
    scored |= np.logical_and.reduce([results.benchmarks[m].measured for m in members])
    where = np.flatnonzero((results.cell_of == index) & scored)
    runs = [results.runs[i] for i in where]
    missing = [results.runs[i].run for i in np.flatnonzero((results.cell_of == index) & ~scored)]
    cell = results.cells[index] if index >= 0 else ()
    levels = dict(zip(results.factors, cell, strict=True)) if index >= 0 else {}
    trained = [r.record.train for r in runs if r.record is not None] if index >= 0 else []
    tokens, truncated = _lengths(results, members, where)
    moved = [t.weights_changed for t in trained if t.weights_changed is not None]
    acted: dict[str, tuple[int, int]] = {}
    for record in trained:
        for component, did in record.acted.items():
            before = acted.get(component, (0, 0))
            acted[component] = (before[0] + bool(did), before[1] + 1)
    return CellRow(
        benchmark=name,
        label=results.label(cell) if index >= 0 else BASE_LABEL,
        levels=levels,
        base=index < 0,
        runs=tuple(r.run for r in runs),
        seeds=tuple(sorted(r.seed for r in runs)),
        diverged=sum(r.outcome == "diverged" for r in runs),
        missing=tuple(missing),
        excluded=tuple(r.run for r in results.excluded if r.base == (index < 0) and r.levels == levels),
        accuracy=found.accuracy,
        seed_sd=found.seed_sd,
        run_means=found.run_means,
        gain_base=found.gain_base,
        gain_off=found.gain_off,
        best=found.best,
        tokens=tokens,
        truncated=truncated,
        generated_tokens=float(np.mean([t.generated_tokens for t in trained])) if trained else None,
        train_seconds=float(np.mean([t.train_seconds for t in trained])) if trained else None,
        weights_changed=float(np.mean(moved)) if moved else None,
        acted=acted,
        summary=_summary(results, [r.record.eval for r in runs if r.record is not None], members),
    )


OTHER = ("no_answer", "timeouts", "agreement")  # rates of an evaluation that are shown besides pass@k and maj@k


def _summary(
    results: Results, records: Sequence[Mapping[str, Mapping[str, Any]]], members: tuple[str, ...]
) -> dict[str, float]:
    """Figures of the evaluation that every run has, averaged over runs; empty for a macro average.

    They can't be had for a part of a run's questions: a run measured on more than are analysed doesn't enter.
    """
    if len(members) > 1:
        return {}
    count = len(results.benchmarks[members[0]].questions)
    found = [r[members[0]] for r in records if members[0] in r]
    found = [f for f in found if f.get("questions", count) == count]
    wanted = [k for k in (found[0] if found else ()) if k.startswith(("pass@", "maj@")) or k in OTHER]
    return {k: float(np.mean([f[k] for f in found])) for k in wanted if all(k in f for f in found)}


def _lengths(results: Results, members: tuple[str, ...], where: np.ndarray) -> tuple[float | None, float | None]:
    """Mean tokens per answer and truncated share over the measured runs, benchmarks weighing the same."""
    lengths, cut = [], []
    for member in members:
        score = results.benchmarks[member]
        measured = where[score.measured[where]]
        if len(measured) and score.tokens is not None and not np.isnan(score.tokens[measured]).any():
            lengths.append(float(np.average(score.tokens[measured], weights=score.samples[measured])))
        if len(measured) and score.truncated is not None:
            cut.append(float(score.truncated[measured].sum() / score.samples[measured].sum()))
    full = len(members)
    return (
        float(np.mean(lengths)) if len(lengths) == full else None,
        float(np.mean(cut)) if len(cut) == full else None,
    )


def estimates(results: Results, data: Prepared) -> dict[int, Found]:
    """cell index (-1: untrained model) -> accuracy, gains and scatter."""
    confidence = results.declared.confidence
    average = data.cell_weights()
    base = data.base_weights()
    place = {results.cells.index(cell): i for i, cell in enumerate(data.cells)}
    off = next((i for i, c in enumerate(data.cells) if all(
        level == levels[0] for level, levels in zip(c, results.factors.values(), strict=True))), None)  # fmt: skip
    weights, slots = [], []
    for index, i in place.items():
        weights.append(average[i])
        slots.append((index, "accuracy"))
        if base is not None:
            weights.append(average[i] - base)
            slots.append((index, "gain_base"))
        if off is not None and i != off:
            weights.append(average[i] - average[off])
            slots.append((index, "gain_off"))
    if base is not None:
        weights.append(base)
        slots.append((-1, "accuracy"))
    members = benchmark_sets(results)[data.benchmark]
    shares = np.array([slot == "accuracy" for _, slot in slots])
    values = _with_intervals(data, np.stack(weights), confidence, shares, _answers(results, data, members))
    found = {index: Found() for index, _ in slots}
    for (index, slot), estimate in zip(slots, values, strict=True):
        setattr(found[index], slot, estimate)
    winner = _resolved_best(data, average, 1 - confidence)
    means, sds = sum(y.mean(axis=1) for y in data.scores) / len(data.scores), seed_sds(data)
    for index, i in place.items():
        found[index].best = i == winner
        found[index].seed_sd = number(sds[i])
        found[index].run_means = tuple(means[data.cell_of == i].tolist())
    return found


def best_cells(results: Results, failed_score: str | None = None) -> list[BestCell]:
    """Per benchmark (macro average first) the best cell by its mean, against all off; none where all off was not run.

    The highest of several noisy means is too high: interval and p are those of `candidates` comparisons at once.
    """
    found = []
    for name, members in benchmark_sets(results).items():
        data = prepare(results, name, members, failed_score)
        reference = tuple(levels[0] for levels in results.factors.values())
        if data is None or reference not in data.cells or len(data.cells) < 2:
            continue
        average, off = data.cell_weights(), data.cells.index(reference)
        others = [i for i in range(len(data.cells)) if i != off]
        weights = average[others] - average[off]
        parts = two_way(data.scores, weights, data.error, data.untrained)
        i = int(np.argmax(parts.estimate))
        one, count = slice(i, i + 1), len(others)
        level = 1 - (1 - results.declared.confidence) / count
        wide = interval(parts.estimate[one], parts.total[one], parts.df[one], level, reach_of(weights[one]))[0]
        p = None if wide.p is None else min(1.0, wide.p * count)
        label = results.label(data.cells[others[i]])
        few = bool((np.where(parts.sizes > 1e-15, parts.freedom_cells, 0.0).sum(axis=1) < 3).any())
        found.append(BestCell(name, label, float(parts.estimate[i]), wide.low, wide.high, p, count, few))
    return found


def _answers(results: Results, data: Prepared, members: tuple[str, ...]) -> np.ndarray:
    """(R,) graded answers of each run; over several benchmarks what an average of their shares is worth."""
    parts = [1 / np.maximum(results.benchmarks[m].samples[data.rows].sum(axis=1), 1) for m in members]
    return np.asarray(len(members) ** 2 / np.sum(parts, axis=0))


def _with_intervals(
    data: Prepared, weights: np.ndarray, confidence: float, shares: np.ndarray, answers: np.ndarray
) -> list[Estimate]:
    """Estimates of contrasts (E, R); those in `shares` (E,) are accuracies, the others differences. `answers`: (R,)."""
    parts = two_way(data.scores, weights, data.error, data.untrained)
    nothing, reach = Interval(None, None, None, None, None), reach_of(weights)
    like_these = interval(parts.estimate, parts.total, parts.df, confidence, reach)
    these = interval(parts.estimate, parts.run, parts.df_run, confidence, reach)
    models = [nothing] * len(weights)
    if data.error.source == "none":
        models = interval(parts.estimate, parts.models, parts.df_question, confidence, reach)
    questions = len(data.scores) ** 2 / sum(1 / y.shape[1] for y in data.scores)
    for i in np.flatnonzero(shares):
        value, count = float(parts.estimate[i]), float(answers[np.abs(weights[i]) > 1e-15].sum())
        asked = (confidence, questions, questions, _ever(data, np.abs(weights[i]) > 1e-15, value))
        known = LARGEST_DF if value in (0.0, 1.0) else 0.0  # of none or all right: no variance that has to be known
        df, df_run, df_question = (max(known, float(f[i])) for f in (parts.df, parts.df_run, parts.df_question))
        like_these[i] = share_interval(value, float(parts.total[i]), df, *asked)
        these[i] = share_interval(value, float(parts.run[i]), df_run, confidence, count)
        if data.error.source == "none" and like_these[i].se is None:
            models[i] = share_interval(value, float(parts.question[i]), df_question, *asked)
    return [Estimate(float(v), *three) for v, *three in zip(parts.estimate, like_these, these, models, strict=True)]


def _ever(data: Prepared, used: np.ndarray, value: float) -> int:
    """How many questions any of the `used` runs (R,) has right; wrong, if their mean `value` is above a half."""
    counted = [y[used].max(axis=0) > 0 if value < 0.5 else y[used].min(axis=0) < 1 for y in data.scores]
    return sum(int(c.sum()) for c in counted)


def _resolved_best(data: Prepared, average: np.ndarray, alpha: float) -> int | None:
    """The cell that beats every other one (Holm over the comparisons), or None."""
    if len(average) < 2:
        return None
    means = sum(y.mean(axis=1) for y in data.scores)
    top = int(np.argmax(average @ means))
    others = [i for i in range(len(average)) if i != top]
    parts = two_way(data.scores, average[top] - average[others], data.error, data.untrained)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = t_two_sided(parts.estimate / np.sqrt(parts.total), parts.df)
    adjusted = holm(p)
    return top if not np.isnan(adjusted).any() and (adjusted < alpha).all() else None
