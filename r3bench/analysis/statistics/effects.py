"""Effect estimates of a study: estimate, both intervals, bootstrap, adjusted p values, equivalence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from r3bench.analysis.results import Results
from r3bench.analysis.statistics.bootstrap import two_way_bootstrap
from r3bench.analysis.statistics.distributions import LARGEST_DF, holm, t_quantile, t_two_sided, t_upper
from r3bench.analysis.statistics.families import RESTATES, behind_headline, families, first_alike
from r3bench.analysis.statistics.lattice import Contrast, contrasts
from r3bench.analysis.statistics.prepare import MACRO, Prepared, benchmark_sets, observed_factors, prepare
from r3bench.analysis.statistics.spread import spread_notes
from r3bench.analysis.statistics.twoway import TwoWay, two_way
from r3bench.errors import ConfigError, nearest


@dataclass(frozen=True)
class Interval:
    """An estimate with its uncertainty under one question asked; None where the design can't give it."""

    se: float | None
    df: float | None
    low: float | None
    high: float | None
    p: float | None  # two-sided, of no effect


@dataclass(frozen=True)
class Effect:
    """One effect on one benchmark, in accuracy (0-1)."""

    benchmark: str
    kind: str  # main, interaction, shapley, leave_one_out, add_one, additivity
    term: str  # 'replay', 'ranking=random', or 'replay:ranking' for an interaction
    parts: tuple[str, ...]  # of the term: one, or the two of an interaction
    factors: tuple[str, ...]  # of the parts
    estimate: float
    like_these: Interval  # questions are a sample too: two-way standard error; the headline
    these: Interval  # on exactly these questions: seeds are the only noise
    models: Interval  # on questions like these, of exactly these models: questions are the only noise; one seed a cell
    boot_low: float | None  # two-way bootstrap percentiles
    boot_high: float | None
    family: str  # tested together, by Holm (see `families`); a restatement of another effect is in none
    same_as: str | None  # kind of an effect with the very same contrast that stands before it
    df_verdict: float | None  # degrees of freedom of the p that is adjusted: with few seeds below those of `like_these`
    p_adjusted: float | None  # None in no family
    equivalence_p: float | None  # p of |effect| >= margin (two one-sided tests, the larger)
    assumes: str | None  # what stands in for cells that were not run

    def verdict(self, alpha: float = 0.05) -> str:
        """'up', 'down', 'negligible' (shown to be inside the margin) or 'unresolved'; '' for a restatement."""
        if self.family == RESTATES:
            return ""
        if self.p_adjusted is not None and self.p_adjusted < alpha:
            return "up" if self.estimate > 0 else "down"
        if self.equivalence_p is not None and self.equivalence_p < alpha:
            return "negligible"
        return "unresolved"

    def record(self) -> dict[str, Any]:
        """Flat JSON form."""
        return {
            "benchmark": self.benchmark, "term": self.term, "kind": self.kind, "estimate": self.estimate,
            "se": self.like_these.se, "df": self.like_these.df, "low": self.like_these.low,
            "high": self.like_these.high, "p": self.like_these.p, "df_verdict": self.df_verdict,
            "p_adjusted": self.p_adjusted, "family": self.family, "same_as": self.same_as,
            "low_these_models": self.models.low, "high_these_models": self.models.high, "p_these_models": self.models.p,
            "equivalence_p": self.equivalence_p,
            "se_these_questions": self.these.se, "df_these_questions": self.these.df,
            "low_these_questions": self.these.low, "high_these_questions": self.these.high,
            "p_these_questions": self.these.p, "bootstrap_low": self.boot_low, "bootstrap_high": self.boot_high,
            "assumes": self.assumes,
        }  # fmt: skip


def number(value: float) -> float | None:
    """A finite float, or None."""
    return float(value) if np.isfinite(value) else None


def interval(
    estimate: np.ndarray, variance: np.ndarray, df: np.ndarray | float, confidence: float,
    reach: np.ndarray | float = np.inf,
) -> list[Interval]:  # fmt: skip
    """Student intervals of (E,) estimates with (E,) variances and (E,) or one number of degrees of freedom.

    A variance of zero, where all answers are alike, is none that could be estimated: it gives no interval. Limits end
    at +-`reach`, (E,) or one number: the largest value that a contrast of accuracies can have (`reach_of`).
    """
    se = np.sqrt(variance)
    df = np.broadcast_to(np.asarray(df, float), se.shape)
    half = t_quantile(0.5 + confidence / 2, df) * se
    low, high = np.maximum(estimate - half, -np.asarray(reach)), np.minimum(estimate + half, reach)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = t_two_sided(estimate / se, df)
    nothing = Interval(None, None, None, None, None)
    return [
        Interval(float(se[i]), float(df[i]), float(low[i]), float(high[i]), number(p[i]))
        if df[i] >= 1 and np.isfinite(se[i]) and se[i] > 1e-12
        else nothing
        for i in range(len(estimate))
    ]


def reach_of(weights: np.ndarray) -> np.ndarray:
    """(E,) largest value of contrasts (E, R) of accuracies: 1 for a difference of two means, 2 for an interaction."""
    return np.asarray(np.abs(weights).sum(axis=1) / 2)


def equivalence(estimate: np.ndarray, variance: np.ndarray, df: np.ndarray | float, margin: float) -> np.ndarray:
    """(E,) p of the two one-sided tests that an effect lies inside +-margin (Schuirmann 1987); NaN without noise."""
    se = np.where(variance > 1e-24, np.sqrt(variance), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.maximum(t_upper((estimate + margin) / se, df), t_upper((margin - estimate) / se, df))


def effects(
    results: Results, failed_score: str | None = None, draws: int = 2000, seed: int = 0
) -> tuple[list[Effect], list[str]]:
    """Every estimable effect on every benchmark and on the macro average.

    Args:
        results: the study.
        failed_score: overrides the declared rule for diverged and failed runs ('drop' is the sensitivity analysis).
        draws: bootstrap draws; 0 leaves the bootstrap out.
        seed: of the bootstrap.

    Returns:
        The effects, macro average first, and notes on what the design could not give.
    """
    if not results.factors:
        return [], ["no factor: a study of one cell has no effects"]
    check_primary(results)
    rows: list[tuple[Prepared, Contrast, dict[str, Any]]] = []
    notes: list[str] = []
    for name, members in benchmark_sets(results).items():
        data = prepare(results, name, members, failed_score)
        if data is None:
            continue
        wanted, found = contrasts(observed_factors(results, data.cells), data.cells, data.runs_per_cell.tolist())
        notes += [*data.notes, *found, *_design_notes(data, results)]
        if wanted:
            values = _estimates(data, wanted, results, draws, seed)
            rows += [(data, c, v) for c, v in zip(wanted, values, strict=True)]
            notes += _bare_notes(data, values)
    headline = next(iter(benchmark_sets(results)))
    declared = results.declared.primary or tuple(results.factors)
    shown = [(data.benchmark, contrast) for data, contrast, _ in rows]
    family = families(shown, headline, declared)
    alike = first_alike(shown, family)
    p = np.array([v.pop("p_verdict") for *_, v in rows], float)
    adjusted = np.full(len(rows), np.nan)
    for name in dict.fromkeys(family):
        if name != RESTATES:
            member = np.array([f == name for f in family])
            adjusted[member] = holm(p[member])
    adjusted = behind_headline(shown, family, headline, adjusted)
    return [
        Effect(
            benchmark=data.benchmark, kind=contrast.kind, term=contrast.term, parts=contrast.parts,
            factors=contrast.factors, assumes=contrast.assumes, family=name, same_as=same, p_adjusted=number(q),
            **values,
        )
        for (data, contrast, values), name, same, q in zip(rows, family, alike, adjusted, strict=True)
    ], list(dict.fromkeys(notes))  # fmt: skip


def _estimates(
    data: Prepared, wanted: Sequence[Contrast], results: Results, draws: int, seed: int
) -> list[dict[str, Any]]:
    weights = np.stack([c.weights for c in wanted]) @ data.cell_weights()
    parts = two_way(data.scores, weights, data.error, data.untrained)
    confidence, margin, reach = results.declared.confidence, results.declared.margin, reach_of(weights)
    like_these = interval(parts.estimate, parts.total, parts.df, confidence, reach)
    these = interval(parts.estimate, parts.run, parts.df_run, confidence, reach)
    models = interval(parts.estimate, parts.models, parts.df_question, confidence, reach)
    verdicts = interval(parts.estimate, parts.total, parts.df_verdict, confidence)
    nothing = Interval(None, None, None, None, None)
    inside = equivalence(parts.estimate, parts.total, parts.df, margin)
    low, high = boot_interval(data, weights, parts, confidence=confidence, draws=draws, seed=seed)
    return [
        {
            "estimate": float(parts.estimate[i]), "like_these": like_these[i], "these": these[i],
            "df_verdict": verdicts[i].df,
            "p_verdict": np.nan if verdicts[i].p is None else verdicts[i].p,
            "models": models[i] if data.error.source == "none" else nothing,
            "boot_low": number(low[i]), "boot_high": number(high[i]), "equivalence_p": number(inside[i]),
        }
        for i in range(len(wanted))
    ]  # fmt: skip


def boot_interval(
    data: Prepared, weights: np.ndarray, parts: TwoWay, *, confidence: float, draws: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """(E,) limits of the two-way bootstrap; NaN without an error model or with draws = 0.

    Its percentiles are those of a distribution whose spread is taken for known: over few degrees of freedom they cover
    too rarely (88 % of the time instead of 95 % at 4). So their distances from the estimate are stretched as Student's
    quantile is longer than the normal one.
    """
    if draws == 0 or data.error.df < 1:
        return np.full(len(weights), np.nan), np.full(len(weights), np.nan)
    sample = two_way_bootstrap(data.scores, weights, data.error, parts, draws=draws, seed=seed)
    tail = (1 - confidence) / 2
    limits = np.quantile(sample, [tail, 1 - tail], axis=0) - parts.estimate
    low, high = parts.estimate + limits * t_quantile(1 - tail, parts.df) / t_quantile(1 - tail, LARGEST_DF)
    reach = reach_of(weights)
    return np.maximum(low, -reach), np.minimum(high, reach)


def check_primary(results: Results) -> None:
    """`ConfigError` for a primary factor that the study does not have."""
    for factor in results.declared.primary or ():
        if factor not in results.factors:
            raise ConfigError(f"analysis.primary: no factor '{factor}' in this study{nearest(factor, results.factors)}")


def _all_alike(data: Prepared) -> bool:
    trained = np.isnan(data.untrained)
    return bool(trained.sum() > 1 and all(np.ptp(scores[trained], axis=0).max() == 0 for scores in data.scores))


def _bare_notes(data: Prepared, values: Sequence[dict[str, Any]]) -> list[str]:
    """Why an effect has no interval on questions like these, where it isn't for want of seeds."""
    if any(y.shape[1] < 2 for y in data.scores):
        return [f"{data.benchmark}: a benchmark of one question tells nothing about questions like it: intervals are "
                "on exactly this one, and there is no p"]  # fmt: skip
    if not _all_alike(data) and any(v["like_these"].low is None and v["models"].low is None for v in values):
        return [f"{data.benchmark}: effects in which nothing was seen to vary, between seeds or between questions, "
                "have no interval and no p: there is no noise to hold them against"]  # fmt: skip
    return []


def _design_notes(data: Prepared, results: Results) -> list[str]:
    trained = np.isnan(data.untrained)
    if _all_alike(data):
        seeds = ", seeds included," if len({results.runs[i].seed for i in data.rows[trained]}) > 1 else ""
        return [f"{data.benchmark}: every trained run has the same number of right answers to every question: what was "
                f"varied{seeds} changed nothing here, so there is no noise to hold effects against; were the updates "
                "too small or too few?"]  # fmt: skip
    if data.error.source == "none":
        return ["one run per cell and no interaction of three or more factors to pool: noise between runs can't be "
                "estimated; intervals are about these models, not about their recipes: with other seeds the models "
                "would be others; add seeds"]  # fmt: skip
    if data.error.source == "interactions":
        return [f"noise between runs is taken from pooled interactions of three or more factors ({data.error.df} df), "
                "which counts any true one as noise"]  # fmt: skip
    return spread_notes(data, results)


__all__ = ["MACRO", "Effect", "Interval", "boot_interval", "effects", "equivalence", "interval", "number", "reach_of"]
