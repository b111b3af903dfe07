"""What a design can see before it is run: the smallest effect it detects, from assumed variances.

All numbers are accuracies (0-1). The variance of one run's mean over Q questions with k answers each is

    run_sd^2 + run_question_sd^2 / Q + within_question / (Q k)

and of a contrast with cell weights w and s seeds per cell, that times sum(w^2) / s. "On questions like these" adds the
spread of the effect itself over questions, question_effect_sd^2 / Q, whatever the weights: a factor's effect is taken
to vary over questions by itself, so that leave-one-out, add-one and Shapley value spread as the main effect does, and
an interaction at most as much. Where factors also interact differently from question to question, leave-one-out and
add-one spread more than that, and their smallest detectable effect is a lower bound.

The estimated variances of a study are drawn and go through the intervals and verdicts of the analysis (`TwoWay`), so
that an effect is planned by the rule that will judge it: noise of every cell apart, its few degrees of freedom, the
wider of two questions asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
from scipy import special

from r3bench.analysis.statistics.distributions import t_quantile
from r3bench.analysis.statistics.lattice import Contrast, contrasts, error_model
from r3bench.analysis.statistics.noise import ErrorModel
from r3bench.analysis.statistics.twoway import TwoWay

Scope = Literal["these", "like_these", "verdict"]
DRAWS = 1000  # studies drawn; the power at a planned effect is then known to about half a percent


@dataclass(frozen=True)
class VarianceAssumptions:
    """What a study is assumed to vary by; the defaults are typical of 1.5B models on competition maths."""

    run_sd: float = 0.01  # SD over training seeds of a run's true accuracy
    run_question_sd: float = 0.08  # SD of one run's true accuracy on one question around run and question
    within_question: float = 0.10  # mean over questions of p(1-p): 0.10 AIME, 0.12 AMC23, 0.08 MATH-500
    question_effect_sd: float = 0.05  # SD over questions of any effect; matters on questions like these only
    shared: float = 0.0  # share of run_sd^2 that runs of one seed have in common; declared blocks take it out

    def __post_init__(self) -> None:
        for name in ("run_sd", "run_question_sd", "question_effect_sd"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected 0 or above")
        if not 0 <= self.within_question <= 0.25:
            raise ValueError(f"within_question: got {self.within_question}, expected 0 to 0.25, the range of p(1-p)")
        if not 0 <= self.shared <= 1:
            raise ValueError(f"shared: got {self.shared}, expected a share of the variance between runs, 0 to 1")

    def question_noise(self, questions: int, samples: int) -> float:
        """Variance of one run's mean over these questions that comes from single questions."""
        return (self.run_question_sd**2 + self.within_question / samples) / questions

    def run_variance(self, questions: int, samples: int) -> float:
        """Variance of one run's mean over these questions."""
        return self.run_sd**2 + self.question_noise(questions, samples)


@dataclass(frozen=True)
class Design:
    """Which cells are run, how often, and how their noise will be estimated."""

    factors: Mapping[str, Sequence[str]]  # factor -> levels, reference first
    cells: Sequence[Mapping[str, str]]  # C of them, factor -> level
    seeds: int  # runs per cell
    variance: str = "per_cell"  # as declared
    blocks: str | None = None  # as declared

    @cached_property
    def rows(self) -> list[tuple[str, ...]]:
        """The cells' levels in the order of the factors."""
        return [tuple(cell[f] for f in self.factors) for cell in self.cells]

    @cached_property
    def contrasts(self) -> list[Contrast]:
        """Every effect that the cells can tell."""
        return contrasts(self.factors, self.rows, [self.seeds] * len(self.rows))[0]

    @cached_property
    def error(self) -> ErrorModel:
        """Noise between its runs, cell by cell and in each the seeds in order."""
        cell_of = np.repeat(np.arange(len(self.rows)), self.seeds)
        seeds = np.tile(np.arange(self.seeds), len(self.rows)).tolist() if self.blocks else None
        return error_model(self.factors, self.rows, cell_of, pooled=self.variance == "pooled", seeds=seeds)


def detectable_effect(
    benchmarks: Sequence[tuple[VarianceAssumptions, int]], design: Design, weights: np.ndarray, *, samples: int,
    power: float = 0.8, alpha: float = 0.05, scope: Scope = "these",
) -> float:  # fmt: skip
    """The true effect that is found with probability `power`; infinite where noise can't be estimated.

    Args:
        benchmarks: assumptions and number of questions of each; several make an equal-weight macro average, in which a
            run is taken to be better or worse on all of them alike.
        design: cells and seeds.
        weights: (C,) contrast over the cells.
        samples: answers per question.
        power: as usual.
        alpha: two-sided; for a verdict the level over the size of the family (none of the others is taken to be found).
        scope: an interval on 'these' questions or on questions 'like_these', or a 'verdict', which is on questions like
            these too.
    """
    size = design.error.sizes(np.repeat(np.asarray(weights) / design.seeds, design.seeds)[None])[0]
    used = size > 1e-15
    df = np.append(design.error.freedom, max(design.error.df, 0.5))
    if design.error.df < 1:
        return float("inf")
    blocked = design.error.blocks is not None
    share = 1 / len(benchmarks)
    run_sd = share * sum(a.run_sd * (1 - a.shared * blocked) ** 0.5 for a, _ in benchmarks)
    noise = [share**2 * a.question_noise(q, samples) for a, q in benchmarks]
    rest = [share**2 * a.question_effect_sd**2 / q for a, q in benchmarks]
    order = np.lexsort((df[used], size[used]))  # effects of one kind are then one look-up
    key = tuple(size[used][order].tolist()), tuple(df[used][order].tolist()), tuple(q for _, q in benchmarks)
    return _found_with(power, *key, run_sd**2, tuple(noise), tuple(rest), alpha, scope)


@lru_cache(maxsize=512)
def _found_with(power: float, *assumed: Any) -> float:
    """The effect that is found with probability `power`; `assumed` are the arguments of `_half_widths`.

    Newton's method between bounds; `scipy.optimize` would take longer to import than the plan to make.
    """
    half, sd = _half_widths(*assumed)
    if not np.isfinite(half).all() or sd <= 0:
        return float("inf")
    low, high = 0.0, float(half.max()) + 8 * sd
    effect = float(np.median(half)) + float(special.ndtri(power)) * sd
    for _ in range(100):
        above, below = (effect - half) / sd, (-effect - half) / sd
        missing = power - float((special.ndtr(above) + special.ndtr(below)).mean())
        low, high = (effect, high) if missing > 0 else (low, effect)
        slope = float((np.exp(-(above**2) / 2) - np.exp(-(below**2) / 2)).mean()) / (sd * np.sqrt(2 * np.pi))
        step = effect + missing / slope if slope > 0 else np.inf
        last, effect = effect, step if low < step < high else (low + high) / 2
        if abs(effect - last) <= 1e-12 * high:
            break
    return effect if high > 1e-9 * sd else 0.0


def _half_widths(
    size: tuple[float, ...], df: tuple[float, ...], questions: tuple[int, ...], run: float, noise: tuple[float, ...],
    rest: tuple[float, ...], alpha: float, scope: Scope,
) -> tuple[np.ndarray, float]:  # fmt: skip
    """(DRAWS,) half widths of the interval of a contrast, and the true SD of its estimate.

    Args:
        size, df: sum of squared weights of each group of runs, and the degrees of freedom of its variance.
        questions, noise, rest: of each benchmark its size, the variance of a run's mean that comes from single
            questions, and that of the effect over questions.
        run: variance between runs beside it.
        alpha, scope: see `detectable_effect`.
    """
    rng = np.random.default_rng(0)
    sizes, freedom, asked = np.array(size), np.array(df), np.array(questions) - 1.0
    if (asked < 1).any() and scope != "these":
        return np.full(1, np.inf), 0.0
    both = sizes.sum() * np.array(noise)
    true = sizes * (run + sum(noise))
    parts = TwoWay(
        estimate=np.zeros(DRAWS),
        cells=true * rng.chisquare(freedom, (DRAWS, len(freedom))) / freedom,
        shared=np.zeros((DRAWS, 0)),
        questions=(both + np.array(rest)) * rng.chisquare(np.maximum(asked, 1), (DRAWS, len(asked))) / asked.clip(1),
        unseen=np.zeros(DRAWS),
        overlap=np.full(DRAWS, both.sum()),
        freedom_cells=np.broadcast_to(freedom, (DRAWS, len(freedom))),
        freedom_shared=np.zeros((DRAWS, 0)),
        freedom_questions=asked.clip(0.5),
        sizes=np.broadcast_to(sizes, (DRAWS, len(sizes))),
    )
    if scope == "these":
        return t_quantile(1 - alpha / 2, parts.df_run) * np.sqrt(parts.run), float(np.sqrt(true.sum()))
    found = parts.df_verdict if scope == "verdict" else parts.df
    return t_quantile(1 - alpha / 2, found) * np.sqrt(parts.total), float(np.sqrt(true.sum() + sum(rest)))


def detectable_limit(
    benchmarks: Sequence[tuple[VarianceAssumptions, int]], *, power: float = 0.8, alpha: float = 0.05
) -> float:
    """What any number of seeds and answers comes down to on questions like these: the questions are what is left."""
    share = 1 / len(benchmarks)
    parts = np.array([share**2 * a.question_effect_sd**2 / q for a, q in benchmarks])
    asked = np.array([q - 1.0 for _, q in benchmarks])
    if parts.sum() <= 0:
        return 0.0
    if (asked < 1).any():
        return float("inf")
    df = float(parts.sum() ** 2 / (parts**2 / asked).sum())
    critical = float(t_quantile(1 - alpha / 2, df))
    return float(special.nctdtrinc(df, 1 - power, critical)) * float(np.sqrt(parts.sum()))  # P(T' < critical) = 1-power


def detectable_effects(
    benchmarks: Sequence[tuple[VarianceAssumptions, int]], design: Design, *, samples: int, power: float = 0.8,
    alpha: float = 0.05, scope: Scope = "these",
) -> dict[str, float]:  # fmt: skip
    """Smallest detectable effect per kind of effect. A kind that the design can't give is left out.

    Args:
        benchmarks, design, samples, power, alpha, scope: see `detectable_effect`.

    Returns:
        'main', 'interaction', 'shapley', 'leave_one_out', 'add_one' -> accuracy (0-1), the worst over the terms.
    """
    worst: dict[str, float] = {}
    for contrast in design.contrasts:
        effect = detectable_effect(
            benchmarks, design, contrast.weights, samples=samples, power=power, alpha=alpha, scope=scope
        )
        worst[contrast.kind] = max(effect, worst.get(contrast.kind, 0.0))
    return worst
