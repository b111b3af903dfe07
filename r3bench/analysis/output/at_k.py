"""pass@k and maj@k of every cell for any k up to the answers that were drawn, with the intervals of accuracy.

Per question and run they are numbers between 0 and 1 like the share of right answers, which they are for k = 1. So they
take its place in the analysis: two-way variance over runs and questions, the same intervals and degrees of freedom.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from r3bench.analysis.reading.votes import votes_of
from r3bench.analysis.results import Results, Scores
from r3bench.analysis.statistics.cells import BASE_LABEL, Estimate, estimates
from r3bench.analysis.statistics.draws import MOST, majority_curve, majority_variance, pass_at, pass_variance
from r3bench.analysis.statistics.prepare import benchmark_sets, prepare
from r3bench.errors import ConfigError, StateError

Score = Literal["pass", "maj"]
SCORES: tuple[Score, ...] = get_args(Score)


@dataclass(frozen=True)
class AtK:
    """A cell's pass@k or maj@k on one benchmark."""

    score: Score
    benchmark: str  # or the macro average
    label: str  # of the cell
    base: bool  # the untrained model
    k: int
    value: Estimate
    gain_off: Estimate | None  # over the cell with every factor at its reference
    runs: tuple[float, ...]  # of each of its runs

    def record(self) -> dict[str, Any]:
        """Flat JSON form; shares 0-1."""
        flat: dict[str, Any] = {
            "score": self.score, "benchmark": self.benchmark, "cell": self.label, "base_model": self.base, "k": self.k,
            "run_means": list(self.runs),
        }  # fmt: skip
        for key, estimate in (("value", self.value), ("gain_off", self.gain_off)):
            flat[key] = estimate.value if estimate else None
            for suffix, part in (("", "like_these"), ("_these_questions", "these"), ("_these_models", "models")):
                found = getattr(estimate, part) if estimate else None
                for name in ("se", "df", "low", "high"):
                    flat[f"{key}_{name}{suffix}"] = getattr(found, name) if found else None
        return flat


@dataclass(frozen=True, kw_only=True)
class Drawn(Scores):
    """Counts with another score than the share of right answers; `samples` are how often k fit into them."""

    values: np.ndarray  # (R, Q) pass@k or maj@k, NaN where not measured
    noise: np.ndarray  # (R, Q) their sampling variance, NaN where it can't be told; of untrained runs alone

    @cached_property
    def accuracy(self) -> np.ndarray:
        """(R, Q) the score."""
        return self.values

    def answer_variance(self, run: int) -> float:
        """See `Scores`; where one draw of k says nothing about its own spread, it is bounded by that of the mean."""
        noise, p = self.noise[run], self.values[run]
        within = p.mean() * (1 - p.mean()) if np.isnan(noise).any() else noise.mean()
        return float(within / len(p))


def most_answers(results: Results) -> dict[str, int]:
    """Benchmark -> the largest k: the fewest answers that any measured run has to any of its questions."""
    return {name: int(s.samples[s.measured].min()) for name, s in results.benchmarks.items() if s.measured.any()}


def usual_ks(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... and the largest."""
    return tuple(dict.fromkeys([*(2**i for i in range(most.bit_length())), most]))


def at_k(results: Results, score: Score, ks: Sequence[int] | None = None) -> list[AtK]:
    """Every cell on every benchmark and on the macro average, headline first; the untrained model first of the cells.

    Args:
        results: the study; maj@k needs one with its answers.
        score: 'pass' or 'maj'.
        ks: of each benchmark those that it has answers for; None: 1, 2, 4, ... up to all answers.

    Raises:
        ConfigError: a k that no benchmark has answers for.
        StateError: one answer to every question, or counts where answers are needed.
    """
    most = most_answers(results)
    largest = max(most.values(), default=0)
    if largest < 2:
        raise StateError(
            f"{results.name}: {score}@k needs several answers to a question, every run has one (eval.samples); with "
            "one it is the accuracy"
        )
    for k in ks or ():
        if not 1 <= k <= largest:
            name = max(most, key=lambda n: most[n])
            raise ConfigError(
                f"--k {k}: expected 1 to {largest}, the fewest answers that a run has to a question of {name}"
            )
    if score == "maj" and largest > MOST:
        raise StateError(f"{results.name}: maj@k is counted for up to {MOST:,} answers to a question, not {largest:,}")
    votes = votes_of(results) if score == "maj" else {}
    wanted = sorted({k for n in most.values() for k in (ks or usual_ks(n)) if k <= n})
    sets = benchmark_sets(results)
    found: dict[str, list[AtK]] = {name: [] for name in sets}
    for k in wanted:
        drawn = {n: _drawn(results, n, score, k, votes) if most.get(n, 0) >= k else s
                 for n, s in results.benchmarks.items()}  # fmt: skip
        these = dataclasses.replace(results, benchmarks=drawn)
        for name, members in sets.items():
            fewest = min(most.get(m, 0) for m in members)
            if k <= fewest and (ks is not None or k in usual_ks(fewest)):
                found[name] += _cells(these, name, members, score, k)
    return [row for rows in found.values() for row in sorted(rows, key=lambda r: (not r.base, _place(results, r), r.k))]


def _place(results: Results, row: AtK) -> int:
    return -1 if row.base else [results.label(c) for c in results.cells].index(row.label)


def _cells(results: Results, name: str, members: tuple[str, ...], score: Score, k: int) -> list[AtK]:
    data = prepare(results, name, members, base_alone=True)
    if data is None:
        return []
    means = sum(y.mean(axis=1) for y in data.scores) / len(data.scores)
    place = {results.cells.index(cell): i for i, cell in enumerate(data.cells)}
    rows = []
    for index, one in estimates(results, data).items():
        if one.accuracy is not None:
            label = BASE_LABEL if index < 0 else results.label(results.cells[index])
            own = means[data.cell_of == place.get(index, -1)]
            rows.append(AtK(score, name, label, index < 0, k, one.accuracy, one.gain_off, tuple(own.tolist())))
    return rows


def _drawn(results: Results, name: str, score: Score, k: int, votes: Mapping[str, np.ndarray]) -> Drawn:
    scores = results.benchmarks[name]
    values, noise = np.full(scores.samples.shape, np.nan), np.full(scores.samples.shape, np.nan)
    base = np.array([r.base for r in results.runs]) & scores.measured
    if score == "pass":
        values[scores.measured] = pass_at(scores.samples[scores.measured], scores.correct[scores.measured], k)
        noise[base] = pass_variance(scores.samples[base], scores.correct[base], k)
    else:
        for row in np.flatnonzero(scores.measured):
            values[row] = [majority_curve(*v)[k - 1] for v in votes[name][row]]
            if base[row]:
                noise[row] = [majority_variance(v, k) for v in votes[name][row]]
    samples = np.where(scores.samples > 0, np.maximum(scores.samples // k, 1), 0)
    return Drawn(scores.questions, samples, scores.correct, values=values, noise=noise)
