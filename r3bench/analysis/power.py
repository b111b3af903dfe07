"""What a design can see before it is run: the smallest effect it detects, from assumed variances.

All numbers are accuracies (0-1). The variance of one run's mean over Q questions with k answers each is

    run_sd^2 + run_question_sd^2 / Q + within_question / (Q k)

and of a contrast with cell weights w and s seeds per cell, that times sum(w^2) / s. "On questions like these" adds the
spread of the effect itself over questions, question_effect_sd^2 / Q, whatever the weights: a factor's effect is taken
to vary over questions by itself, so that leave-one-out, add-one and Shapley value spread as the main effect does, and
an interaction at most as much. Where factors also interact differently from question to question, leave-one-out and
add-one spread more than that, and their smallest detectable effect is a lower bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special

from r3bench.analysis.distributions import t_quantile
from r3bench.analysis.lattice import contrasts, error_model

Scope = Literal["these", "like_these"]


@dataclass(frozen=True)
class VarianceAssumptions:
    """What a study is assumed to vary by; the defaults are typical of 1.5B models on competition maths."""

    run_sd: float = 0.01  # SD over training seeds of a run's true accuracy
    run_question_sd: float = 0.08  # SD of one run's true accuracy on one question around run and question
    within_question: float = 0.10  # mean over questions of p(1-p): 0.10 AIME, 0.12 AMC23, 0.08 MATH-500
    question_effect_sd: float = 0.05  # SD over questions of any effect; matters on questions like these only

    def __post_init__(self) -> None:
        for name in ("run_sd", "run_question_sd", "question_effect_sd"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected 0 or above")
        if not 0 <= self.within_question <= 0.25:
            raise ValueError(f"within_question: got {self.within_question}, expected 0 to 0.25, the range of p(1-p)")

    def run_variance(self, questions: int, samples: int) -> float:
        """Variance of one run's mean over these questions."""
        per_question = self.run_question_sd**2 + self.within_question / samples
        return self.run_sd**2 + per_question / questions


def detectable_effect(
    assumptions: VarianceAssumptions, *, questions: int, samples: int, seeds: int, weight: float, df: float,
    power: float = 0.8, alpha: float = 0.05, scope: Scope = "these",
) -> float:  # fmt: skip
    """The true effect that a two-sided t test finds with probability `power`; infinite without degrees of freedom.

    Args:
        assumptions: variances of a run.
        questions, samples, seeds: Q, answers per question, runs per cell.
        weight: sum over cells of the squared contrast weights: 4 / cells for a main effect, 2 for a difference of two.
        df: degrees of freedom of the run variance: runs - cells, or the pooled interactions with one seed.
        power, alpha: as usual.
        scope: 'these' questions, or questions 'like_these'.
    """
    run = weight / seeds * assumptions.run_variance(questions, samples)
    if scope == "these":
        return _detectable(run, df, power, alpha)
    rest = assumptions.question_effect_sd**2 / questions
    return _detectable(run + rest, joint_df(run, df, rest, questions - 1), power, alpha)


def detectable_verdict(
    benchmarks: Sequence[tuple[VarianceAssumptions, int]], *, samples: int, seeds: int, weight: float, df: float,
    family: int, power: float = 0.8, alpha: float = 0.05,
) -> float:  # fmt: skip
    """The true effect that is called up or down with probability `power`: on questions like these, after Holm.

    Args:
        benchmarks: assumptions and number of questions of each; several make an equal-weight macro average, in which a
            run is taken to be better or worse on all of them alike.
        samples, seeds, weight, df: see `detectable_effect`.
        family: effects tested together. None of the others is taken to be found, so that this one has to get below
            alpha / family.
        power, alpha: as usual.
    """
    share = 1 / len(benchmarks)
    run_sd = share * sum(a.run_sd for a, _ in benchmarks)
    between = sum(share**2 * (a.run_variance(q, samples) - a.run_sd**2) for a, q in benchmarks)
    run = weight / seeds * (run_sd**2 + between)
    rest = sum(share**2 * a.question_effect_sd**2 / q for a, q in benchmarks)
    joined = joint_df(run, df, rest, min(q for _, q in benchmarks) - 1)
    return _detectable(run + rest, joined, power, alpha / family)


def joint_df(run: float, df_run: float, rest: float, df_rest: float) -> float:
    """Degrees of freedom of a variance of two parts (Satterthwaite), between those of the parts."""
    low, high = sorted((df_run, df_rest))
    if low < 1 or run + rest <= 0:
        return low
    return float(np.clip((run + rest) ** 2 / (run**2 / df_run + rest**2 / df_rest), low, high))


def _detectable(variance: float, df: float, power: float, alpha: float) -> float:
    if df < 1:
        return float("inf")
    critical = float(t_quantile(1 - alpha / 2, df))
    noncentrality = float(special.nctdtrinc(df, 1 - power, critical))  # P(T' < critical) = 1 - power
    return noncentrality * float(np.sqrt(variance))


def detectable_effects(
    factors: Mapping[str, Sequence[str]], cells: Sequence[Mapping[str, str]], *, questions: int, samples: int,
    seeds: int, assumptions: VarianceAssumptions | None = None, power: float = 0.8, alpha: float = 0.05,
    scope: Scope = "these",
) -> dict[str, float]:  # fmt: skip
    """Smallest detectable effect per kind of effect, for the cells of a design. A kind that it can't give is left out.

    Args:
        factors: factor -> levels, reference first.
        cells: one mapping factor -> level per cell.
        questions, samples, seeds, assumptions, power, alpha, scope: see `detectable_effect`.

    Returns:
        'main', 'interaction', 'shapley', 'leave_one_out', 'add_one' -> accuracy (0-1), the worst over the terms.
    """
    rows = [tuple(cell[f] for f in factors) for cell in cells]
    found, _ = contrasts(factors, rows, [seeds] * len(rows))
    df = error_model(factors, rows, np.repeat(np.arange(len(rows)), seeds)).df
    worst: dict[str, float] = {}
    for contrast in found:
        effect = detectable_effect(
            assumptions or VarianceAssumptions(), questions=questions, samples=samples, seeds=seeds,
            weight=float((contrast.weights**2).sum()), df=df, power=power, alpha=alpha, scope=scope,
        )  # fmt: skip
        worst[contrast.kind] = max(effect, worst.get(contrast.kind, 0.0))
    return worst
