"""Two-way (run + question) clustered variance of linear contrasts, as pure functions on arrays.

A contrast is theta = sum_r w_r m_r, with m_r the mean accuracy of run r over a fixed set of questions. Two populations
can be meant, and both are answered:

on these questions      only training could have come out differently: variance of the runs
on questions like these the questions are a sample too: run variance + question variance - what both count

The subtraction is that of Cameron, Gelbach and Miller (2011) and of Owen and Eckles (2012): the run-by-question noise
sits in both one-way variances. The sum is floored at the larger of the two, so a noisy subtraction can't shrink it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from r3bench.analysis.distributions import t_quantile

ROUNDING = 1e-12  # accuracies are counts over at most some thousand answers: anything smaller is no difference


@dataclass(frozen=True)
class ErrorModel:
    """What counts as noise between runs."""

    residual: np.ndarray  # (R, R) projector; residual @ y keeps only the noise part of run values y
    df: int  # its rank
    source: str  # 'seeds' | 'interactions' (three-way and above, pooled) | 'none'


@dataclass(frozen=True)
class TwoWay:
    """Variance parts of E contrasts."""

    estimate: np.ndarray  # (E,)
    run: np.ndarray  # (E,) variance over training runs, questions held fixed; NaN without an error model
    question: np.ndarray  # (E,) one-way variance over questions
    overlap: np.ndarray  # (E,) run-by-question noise, counted in both
    df_run: int
    df_question: int

    @property
    def total(self) -> np.ndarray:
        """(E,) two-way variance: run + question - overlap, at least the larger of run and question."""
        return np.maximum(self.run + self.question - self.overlap, np.maximum(self.run, self.question))

    @property
    def df(self) -> np.ndarray:
        """(E,) degrees of freedom of the two-way variance (Satterthwaite over the parts that make it up).

        Never below the smaller of the parts' nor above the larger. With one seed per cell the few degrees of freedom of
        the run part would otherwise widen an interval that is mostly about questions.
        """
        low, high = sorted((self.df_run, self.df_question))
        if low < 1:
            return np.full(len(self.estimate), float(low))
        rest = np.maximum(self.total - self.run, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            joint = self.total**2 / (self.run**2 / self.df_run + rest**2 / self.df_question)
        joint = np.clip(np.nan_to_num(joint, nan=low), low, high)
        # an interval on questions like these is never narrower than the one on these questions
        narrower = t_quantile(0.975, joint) ** 2 * self.total < t_quantile(0.975, self.df_run) ** 2 * self.run
        return np.where(narrower, self.df_run, joint)


def projector(design: np.ndarray) -> tuple[np.ndarray, int]:
    """(R, R) residual maker of a design matrix (R, P), and its residual degrees of freedom."""
    left, singular, _ = np.linalg.svd(design, full_matrices=False)
    rank = int((singular > singular.max(initial=0.0) * 1e-10).sum())
    basis = left[:, :rank]
    return np.eye(design.shape[0]) - basis @ basis.T, design.shape[0] - rank


def two_way(
    scores: Sequence[np.ndarray], weights: np.ndarray, error: ErrorModel, untrained: np.ndarray | None = None
) -> TwoWay:
    """Estimates and variance parts of contrasts over runs.

    Args:
        scores: one (R, Q_b) array of accuracies per benchmark, no NaN; several make an equal-weight macro average.
        weights: (E, R), one contrast per row.
        error: what counts as noise between runs.
        untrained: (R,) sampling variance of the mean of rows that are no trained run (the base model), NaN for trained
            rows. All rows are trained if left out.

    Returns:
        `TwoWay` with E entries.
    """
    runs = weights.shape[1]
    untrained = np.full(runs, np.nan) if untrained is None else untrained
    trained = np.isnan(untrained)
    size = (weights[:, trained] ** 2).sum(axis=1)
    known = (weights[:, ~trained] ** 2) @ untrained[~trained]
    share = 1 / len(scores)
    means = share * sum(y.mean(axis=1) for y in scores)
    question = np.zeros(len(weights))
    noise = 0.0
    for y in scores:
        count = y.shape[1]
        if count > 1:
            question += share**2 * (weights @ y).var(axis=1, ddof=1) / count
        noise += share**2 * run_question_variance(y, error) / count
    question, noise = _unrounded(question), float(_unrounded(np.array(noise)))
    spread = float(_unrounded(((error.residual @ means) ** 2).sum() / error.df)) if error.df > 0 else np.nan
    estimate = weights @ means
    alone = size < 1e-15  # contrasts of untrained rows only need no error model
    return TwoWay(
        estimate=np.where(np.abs(estimate) < ROUNDING, 0.0, estimate),
        run=np.where(alone, 0.0, size * spread) + known,
        question=question,
        overlap=np.where(alone, 0.0, size * noise) + known,
        df_run=error.df,
        df_question=min(y.shape[1] for y in scores) - 1,
    )


def _unrounded(variance: np.ndarray) -> np.ndarray:
    """Variances of runs without any spread are 0, not the rest that rounding leaves of them."""
    return np.where(variance < ROUNDING**2, 0.0, variance)


def run_variance(y: np.ndarray, error: ErrorModel) -> float:
    """Variance between runs of one cell of a run's mean; NaN without an error model. y: (R, Q)."""
    return float(((error.residual @ y.mean(axis=1)) ** 2).sum() / error.df) if error.df > 0 else np.nan


def run_question_variance(y: np.ndarray, error: ErrorModel) -> float:
    """Variance of one run on one question around run and question (sampling noise included). y: (R, Q)."""
    if error.df <= 0:
        return np.nan
    if y.shape[1] < 2:
        return 0.0
    residual = error.residual @ y
    residual -= residual.mean(axis=1, keepdims=True)
    return float((residual**2).sum() / (error.df * (y.shape[1] - 1)))
