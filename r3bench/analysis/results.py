"""What every analysis starts from: runs with their factor levels, and per-question counts of each benchmark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from r3bench.analysis.declared import Declared
from r3bench.analysis.training_notes import still_notes
from r3bench.records import Outcome, RunRecord

OFF_LEVELS = ("off", "0", "0.0", "false", "no", "none", "null", "without")  # levels taken as a factor's reference
ALL_OFF = "all off"  # a cell with every factor at such a level


@dataclass(frozen=True)
class Run:
    """One trained (or untrained) model that was measured."""

    run: str  # run id
    seed: int  # training seed
    levels: Mapping[str, str]  # factor -> level; empty for the base model
    base: bool = False  # the untrained model
    outcome: Outcome = "finished"  # how training ended; 'failed' is no outcome of training but a run that is missing
    reason: str | None = None  # why it did not finish
    record: RunRecord | None = None  # run.json; None for a table from elsewhere


@dataclass(frozen=True)
class Scores:
    """Counts of one benchmark; R runs in the order of `Results.runs`, Q questions."""

    questions: tuple[str, ...]  # (Q,) question ids, sorted
    samples: np.ndarray  # (R, Q) int, answers graded; 0 where the run was not measured
    correct: np.ndarray  # (R, Q) int, answers judged right
    tokens: np.ndarray | None = None  # (R, Q) float, mean response tokens per answer; NaN where unknown
    truncated: np.ndarray | None = None  # (R, Q) int, answers that hit the cap

    @cached_property
    def measured(self) -> np.ndarray:
        """(R,) bool, runs with answers to every question."""
        return np.asarray((self.samples > 0).all(axis=1))

    @cached_property
    def accuracy(self) -> np.ndarray:
        """(R, Q) share of right answers, NaN where not measured."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.samples > 0, self.correct / self.samples, np.nan)

    def answer_variance(self, run: int) -> float:
        """Variance of a run's mean over exactly these questions where only its sampled answers could differ."""
        samples, p = self.samples[run], self.accuracy[run]
        # one answer says nothing about its own spread: bound it by that of the mean
        one = (samples < 2).any()
        within = p.mean() * (1 - p.mean()) if one else (p * (1 - p) / (samples - 1)).mean()
        return float(within / len(p))


@dataclass(frozen=True)
class Results:
    """A whole study in memory."""

    name: str
    factors: Mapping[str, tuple[str, ...]]  # factor -> levels, the reference level first
    runs: tuple[Run, ...]
    benchmarks: Mapping[str, Scores]
    declared: Declared = field(default_factory=Declared)
    planned: int | None = None  # runs the grid asks for, base model left out
    notes: tuple[str, ...] = ()  # what a reader must know about the input
    metrics: Mapping[str, Sequence[Mapping[str, float]]] = field(default_factory=dict)  # run id -> training log
    folder: Path | None = None  # of a study, where the answers behind the counts are
    excluded: tuple[Run, ...] = ()  # runs that someone has left out; no part of `runs`, their reason is that person's

    @cached_property
    def cells(self) -> tuple[tuple[str, ...], ...]:
        """Observed level combinations in lattice order (last factor fastest)."""
        order = {f: {level: i for i, level in enumerate(levels)} for f, levels in self.factors.items()}
        seen = {tuple(r.levels[f] for f in self.factors) for r in self.runs if not r.base}
        return tuple(sorted(seen, key=lambda c: [order[f][v] for f, v in zip(self.factors, c, strict=True)]))

    @cached_property
    def cell_of(self) -> np.ndarray:
        """(R,) index into `cells`; -1 for the base model."""
        index = {cell: i for i, cell in enumerate(self.cells)}
        return np.array([-1 if r.base else index[tuple(r.levels[f] for f in self.factors)] for r in self.runs], int)

    @property
    def diverged(self) -> list[Run]:
        """Trained runs that diverged: an outcome, scored as declared."""
        return [r for r in self.runs if r.outcome == "diverged" and not r.base]

    @property
    def missing(self) -> list[Run]:
        """Runs that were given up for a reason outside of training (a bug, a killed process, a full disk): no score."""
        return [r for r in self.runs if r.outcome == "failed"]

    @cached_property
    def still(self) -> list[str]:
        """A note on each run whose weights hardly moved."""
        return still_notes([r.record for r in self.runs if r.record is not None and not r.base])

    def label(self, cell: Sequence[str]) -> str:
        """A cell in words: what is not at its reference level, or 'all off'."""
        parts = []
        for (factor, levels), level in zip(self.factors.items(), cell, strict=True):
            if level != levels[0]:
                parts.append(term_name(factor, level, levels))
            elif levels[0].lower() not in OFF_LEVELS:
                parts.append(f"{factor}={level}")
        return " + ".join(parts) or (ALL_OFF if self.factors else "trained")

    @property
    def reference(self) -> str:
        """The cell that gains are against, in a word: every factor at its first level, which need not be off."""
        name = self.label([levels[0] for levels in self.factors.values()])
        return name if name in (ALL_OFF, "trained") else "reference"


def term_name(factor: str, level: str, levels: Sequence[str]) -> str:
    """`replay` for an on/off factor, `replay=random` for one with more levels or other names."""
    binary = len(levels) == 2 and levels[0].lower() in OFF_LEVELS and level.lower() in ("on", "1", "1.0", "true", "yes")
    return factor if binary else f"{factor}={level}"


def order_levels(seen: Sequence[str], declared: Sequence[str] = ()) -> tuple[str, ...]:
    """Levels with the reference first: in the declared order; without one an 'off' level if there is one, 'on', sorted.

    Seen levels that were not declared come last.
    """
    found = sorted(seen, key=lambda v: (v.lower() not in OFF_LEVELS, v.lower() != "on", _number(v), v))
    return tuple(dict.fromkeys([*declared, *found]))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.inf
