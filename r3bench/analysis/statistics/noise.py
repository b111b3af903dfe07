"""Noise between training runs: which runs share a variance, and its estimate in each group.

Every cell has a variance of its own, since a cell whose seeds scatter more than the others' is common and a pooled
variance then gives it an interval that is too short. A cell with one seed borrows the pooled variance.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ErrorModel:
    """What counts as noise between R runs."""

    residual: np.ndarray  # (R, R) projector; residual @ y keeps only the noise part of run values y
    df: int  # its rank
    source: str  # 'seeds' | 'interactions' (three-way and above, pooled) | 'none'
    group: np.ndarray  # (R,) runs with one number share a variance; -1: an untrained row
    groups: int  # G, numbers below it have a variance of their own; G itself, if it occurs, borrows the pooled one
    blocks: np.ndarray | None = None  # (R,) block of each run, -1 for an untrained row; None: no blocks
    alone: "ErrorModel | None" = None  # with blocks: the model without them, for what doesn't compare cells

    @property
    def borrowed(self) -> np.ndarray:
        """(R,) bool, runs whose variance is the pooled one because their cell has no second run."""
        return self.group == self.groups

    @property
    def freedom(self) -> np.ndarray:
        """(G,) degrees of freedom of each group's variance."""
        own = np.diag(self.residual)
        return np.array([own[self.group == g].sum() for g in range(self.groups)]).round(9)

    def sizes(self, weights: np.ndarray) -> np.ndarray:
        """(E, G + 1) sums of squared weights (E, R) in each group, those that borrow last."""
        return np.stack([(weights[:, self.group == g] ** 2).sum(axis=1) for g in range(self.groups + 1)], axis=1)


@dataclass(frozen=True)
class GroupVariances:
    """Variances of one run in each group of an `ErrorModel`."""

    value: np.ndarray  # (G + 1,) those of the groups and, last, the pooled one; NaN without an error model
    df: np.ndarray  # (G + 1,) their degrees of freedom


def projector(design: np.ndarray) -> tuple[np.ndarray, int]:
    """(R, R) residual maker of a design matrix (R, P), and its residual degrees of freedom."""
    left, singular, _ = np.linalg.svd(design, full_matrices=False)
    rank = int((singular > singular.max(initial=0.0) * 1e-10).sum())
    basis = left[:, :rank]
    return np.eye(design.shape[0]) - basis @ basis.T, design.shape[0] - rank


def group_variances(squares: np.ndarray, error: ErrorModel) -> GroupVariances:
    """Unbiased variances of groups from squared residuals (R,), which may be sums over questions.

    The expected sum of squares of a group is linear in all groups' variances. Without blocks it depends on its own
    alone, and this is the sample variance; with blocks it is Grubbs' (1948) estimator. It can be negative, and is then
    set to zero, so that the sum over cells errs to the safe side.
    """
    if error.df <= 0:
        return GroupVariances(np.full(error.groups + 1, np.nan), np.zeros(error.groups + 1))
    member = (error.group == np.arange(error.groups)[:, None]).astype(float)
    own = np.linalg.pinv(member @ error.residual**2 @ member.T) @ (member @ squares)
    pooled = squares.sum() / error.df
    part, df = member @ squares, error.freedom
    some = float(
        np.clip(part.sum() ** 2 / max((part**2 / (df + 2)).sum(), 1e-300) - 2, df.min(initial=error.df), error.df)
    )
    return GroupVariances(np.append(np.maximum(own, 0.0), pooled), np.append(df, some))


def block_variance(means: np.ndarray, error: ErrorModel, own: GroupVariances) -> tuple[float, float]:
    """Variance of what the runs of one block share, by moments and at least 0, and its degrees of freedom."""
    if error.blocks is None or error.alone is None:
        return 0.0, 1.0
    between = error.alone.residual - error.residual
    names = np.unique(error.blocks[error.blocks >= 0])
    member = (error.blocks == names[:, None]).astype(float)
    squares = float(means @ between @ means)
    noise = float(np.diag(between) @ np.where(error.group >= 0, own.value[error.group], 0.0))
    scale = float(np.trace(member @ error.alone.residual @ member.T))
    return max(0.0, (squares - noise) / scale) if scale > 1e-12 else 0.0, max(1.0, len(names) - 1.0)
