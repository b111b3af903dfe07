"""Two-way (run + question) clustered variance of linear contrasts, as pure functions on arrays.

A contrast is theta = sum_r w_r m_r, with m_r the mean accuracy of run r over a fixed set of questions. Two populations
can be meant, and both are answered:

on these questions      only training could have come out differently: variance of the runs
on questions like these the questions are a sample too: run variance + question variance - what both count

The subtraction is that of Cameron, Gelbach and Miller (2011) and of Owen and Eckles (2012): the run-by-question noise
sits in both one-way variances. The sum is floored at the larger of the two, so a noisy subtraction can't shrink it.
Runs have the variance of their own cell (`noise`), and the degrees of freedom follow from the parts (`freedom`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import special

from r3bench.analysis.statistics.distributions import t_quantile
from r3bench.analysis.statistics.freedom import INTERVAL, VERDICT, Rule, joint, of_cells
from r3bench.analysis.statistics.noise import ErrorModel, GroupVariances, block_variance, group_variances

ROUNDING = 1e-12  # accuracies are counts over at most some thousand answers: anything smaller is no difference
ENOUGH = 12  # questions with a difference, from which on their variance can be trusted
UNSEEN = 0.3  # how much of the way to the largest possible one that wasn't seen may differ beyond the largest seen
LEVEL = 0.975  # quantile at which an interval on questions like these is kept from being narrower than on these


@dataclass(frozen=True)
class TwoWay:
    """Variance parts of E contrasts; G groups of runs with a variance of their own, P other parts, B benchmarks."""

    estimate: np.ndarray  # (E,)
    cells: np.ndarray  # (E, G) variance over training runs, questions held fixed, by group; NaN without an error model
    shared: np.ndarray  # (E, P) the same of what isn't one group's: blocks, and sampling of the untrained model
    questions: np.ndarray  # (E, B) one-way variance over the questions of each benchmark; NaN for one question
    unseen: np.ndarray  # (E,) what questions that weren't drawn may add, where few of the drawn tell contrasts apart
    overlap: np.ndarray  # (E,) run-by-question noise, counted in both
    freedom_cells: np.ndarray  # (E, G) degrees of freedom
    freedom_shared: np.ndarray  # (E, P)
    freedom_questions: np.ndarray  # (B,)
    sizes: np.ndarray  # (E, G) sums of squared weights

    @property
    def run(self) -> np.ndarray:
        """(E,) variance over training runs."""
        return np.asarray(self.cells.sum(axis=1) + self.shared.sum(axis=1))

    @property
    def question(self) -> np.ndarray:
        """(E,) variance over questions."""
        return self.questions.sum(axis=1)

    @property
    def models(self) -> np.ndarray:
        """(E,) variance over questions of contrasts of exactly these models; 0 where nothing was seen to vary."""
        return np.where(self.question > 0, self.question + self.unseen, 0.0)

    @property
    def total(self) -> np.ndarray:
        """(E,) two-way variance: run + question - overlap, at least the larger of run and question."""
        return np.maximum(self.run + self.question - self.overlap, np.maximum(self.run, self.question))

    def _runs(self, rule: Rule) -> tuple[np.ndarray, np.ndarray]:
        """(E, 1 + P) variances over training runs, all groups in one, and their degrees of freedom."""
        own = of_cells(self.cells, self.freedom_cells, self.sizes, rule)
        return (
            np.hstack([self.cells.sum(axis=1, keepdims=True), self.shared]),
            np.hstack([own[:, None], self.freedom_shared]),
        )

    @cached_property
    def df_run(self) -> np.ndarray:
        """(E,) degrees of freedom of the run variance; 0 without an error model."""
        return joint(*self._runs(INTERVAL))

    @property
    def df_question(self) -> np.ndarray:
        """(E,) degrees of freedom of the question variance."""
        return joint(self.questions, np.broadcast_to(self.freedom_questions, self.questions.shape))

    @cached_property
    def df(self) -> np.ndarray:
        """(E,) degrees of freedom of the two-way variance, for intervals."""
        return self._df(INTERVAL)

    @cached_property
    def df_verdict(self) -> np.ndarray:
        """(E,) the same for verdicts, which look further out than an interval does."""
        return np.minimum(np.maximum(self._df(VERDICT), 1.0), self.df)

    def _df(self, rule: Rule) -> np.ndarray:
        """(E,) degrees of freedom of the two-way variance, of the parts that make it up.

        What the questions' variance already holds of the runs' is taken from the latter. An interval on questions like
        these is never narrower than the one on these questions: df is lowered until it isn't.
        """
        runs, own = self._runs(rule)
        df_run = joint(runs, own)
        with np.errstate(divide="ignore", invalid="ignore"):
            above = np.nan_to_num(np.maximum(self.total - self.question, 0.0) / self.run)[:, None]
        asked = np.broadcast_to(self.freedom_questions, self.questions.shape)
        both = joint(np.hstack([runs * above, self.questions]), np.hstack([own, asked]))
        with np.errstate(divide="ignore", invalid="ignore"):
            least = t_quantile(LEVEL, df_run) * np.sqrt(self.run / self.total)
            narrower = t_quantile(LEVEL, both) < least
            lowered = np.maximum(special.stdtridf(LEVEL, np.where(narrower, least, 2.0)), df_run)
        return np.where(np.isnan(self.run), 0.0, np.nan_to_num(np.where(narrower, lowered, both)))


def two_way(
    scores: Sequence[np.ndarray], weights: np.ndarray, error: ErrorModel, untrained: np.ndarray | None = None
) -> TwoWay:
    """Estimates and variance parts of contrasts over runs.

    Args:
        scores: one (R, Q_b) array of accuracies per benchmark, no NaN; several make an equal-weight macro average.
        weights: (E, R), one contrast per row.
        error: what counts as noise between runs; without its blocks if a contrast doesn't compare trained runs.
        untrained: (R,) sampling variance of the mean of rows that are no trained run (the base model), NaN for trained
            rows. All rows are trained if left out.

    Returns:
        `TwoWay` with E entries.
    """
    untrained = np.full(weights.shape[1], np.nan) if untrained is None else untrained
    trained = np.isnan(untrained)
    share = 1 / len(scores)
    means = share * sum(y.mean(axis=1) for y in scores)
    runs, overlap, freedom = _run_parts(scores, means, weights, error)
    if error.alone is not None:  # blocks don't cancel in what is no comparison of trained runs
        apart = np.abs(weights[:, trained].sum(axis=1)) > 1e-9
        for kept, other in zip((runs, overlap, freedom), _run_parts(scores, means, weights, error.alone), strict=True):
            kept[apart] = other[apart]
    known = (weights[:, ~trained] ** 2) @ untrained[~trained]
    asked = np.array([max(y.shape[1] - 1.0, 0.5) for y in scores])
    estimate = weights @ means
    return TwoWay(
        estimate=np.where(np.abs(estimate) < ROUNDING, 0.0, estimate),
        cells=runs[:, :-1],
        shared=np.column_stack([runs[:, -1], known]),
        questions=_unrounded(np.stack([share**2 * question_variance(y, weights) for y in scores], axis=1)),
        unseen=sum((share**2 * unseen_variance(y, weights) for y in scores), start=np.zeros(len(weights))),
        overlap=overlap + known,
        freedom_cells=freedom[:, :-1],
        freedom_shared=np.column_stack([freedom[:, -1], np.full(len(weights), asked.min())]),
        freedom_questions=asked,
        sizes=error.sizes(weights),
    )


def _run_parts(
    scores: Sequence[np.ndarray], means: np.ndarray, weights: np.ndarray, error: ErrorModel
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Run variance by group (the pooled one last but one) and of blocks (E, G + 2), overlap (E,), df (E, G + 2)."""
    size = error.sizes(weights)
    spread = run_variances(means, error)
    noise = sum(run_question_variances(y, error) / y.shape[1] for y in scores) / len(scores) ** 2
    block, block_df = block_variance(means, error, spread)
    runs = np.hstack([_times(size, spread.value), block * _shared(weights, error)[:, None]])
    df = np.maximum([*spread.df, block_df], 0.5)  # 0 only where there is no variance
    return _unrounded(runs), _unrounded(_times(size, noise).sum(axis=1)), np.tile(df, (len(weights), 1))


def _times(size: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """(E, G) products; a group that a contrast doesn't use is 0, whether its variance is known or not."""
    return np.where(size < 1e-15, 0.0, size * variance)


def _shared(weights: np.ndarray, error: ErrorModel) -> np.ndarray:
    """(E,) sum over blocks of the squared weight of all runs in it."""
    if error.blocks is None:
        return np.zeros(len(weights))
    names = np.unique(error.blocks[error.blocks >= 0])
    return np.asarray(((weights @ (error.blocks == names[:, None]).T) ** 2).sum(axis=1))


def _unrounded(variance: np.ndarray) -> np.ndarray:
    """Variances of runs without any spread are 0, not the rest that rounding leaves of them."""
    return np.where(variance < ROUNDING**2, 0.0, variance)


def question_variance(y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(E,) variance over questions of contrasts (E, R) of the mean of y (R, Q); NaN for one question."""
    count = y.shape[1]
    return (weights @ y).var(axis=1, ddof=1) / count if count > 1 else np.full(len(weights), np.nan)


def unseen_variance(y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(E,) what to add to `question_variance` where few questions differ: their number varies more than they tell.

    One more difference is allowed for, a bit larger than the largest seen; it fades out towards `ENOUGH` of them. The
    paired interval of two runs (`r3bench.evaluation.compare`) has the same.
    """
    size = np.abs(weights @ y)
    moved, largest = (size > ROUNDING).sum(axis=1), size.max(axis=1)
    most = np.maximum(np.abs(weights).sum(axis=1) / 2, largest)
    return np.asarray(np.maximum(0.0, 1 - moved / ENOUGH) * ((largest + UNSEEN * (most - largest)) / y.shape[1]) ** 2)


def run_variances(means: np.ndarray, error: ErrorModel) -> GroupVariances:
    """Variances between runs of a run's mean (R,), group by group."""
    return group_variances((error.residual @ means) ** 2, error)


def run_question_variances(y: np.ndarray, error: ErrorModel) -> np.ndarray:
    """(G + 1,) variance of one run on one question around run and question (sampling noise included). y: (R, Q)."""
    if y.shape[1] < 2:
        return np.where(np.full(error.groups + 1, error.df) > 0, 0.0, np.nan)
    residual = error.residual @ y
    residual -= residual.mean(axis=1, keepdims=True)
    return group_variances((residual**2).sum(axis=1) / (y.shape[1] - 1), error).value


def run_variance(y: np.ndarray, error: ErrorModel) -> float:
    """Variance between runs of one cell of a run's mean, pooled over cells; NaN without an error model. y: (R, Q)."""
    return float(run_variances(y.mean(axis=1), error).value[-1])


def run_question_variance(y: np.ndarray, error: ErrorModel) -> float:
    """`run_question_variances`, pooled over cells."""
    return float(run_question_variances(y, error)[-1])
