"""Degrees of freedom of a sum of estimated variances, chosen by simulation where it has few of them.

Satterthwaite (1946) matches the first two moments: df = (sum v)^2 / sum(v^2 / df_i). With two to four seeds a cell it
errs in two ways, and each is met here.

- Equal spread: squares of estimates are too large, so that df comes out too small (8 cells of 2 seeds: 2.7 for 8, and
  intervals 29 % too long). Welch (1947) takes df = (sum v)^2 / sum(v^2 / (df_i + 2)) - 2, which is unbiased, but too
  short where one noisy cell carries the variance. `SHRINK` and `SHRINK_ONE` are the steps between 0 and 2 at which both
  hold.
- A noisy cell with few seeds among cells with many: by luck its variance comes out small, df then counts the many
  others, and the interval is short twice over (2 noisy seeds against 10: 88 %). So each v enters df, not the sum, at
  the upper limit that `LUCK` gives it.

The simulation is `tests/analysis/audit.py`; docs/statistics.md has its table.
"""

import numpy as np
from scipy import special

from r3bench.analysis.distributions import LARGEST_DF

LUCK = 0.15  # a variance is taken to be below its true value by more than this quantile of chi-squared leaves
SHRINK = 0.6  # 0: Satterthwaite, 2: Welch
SHRINK_ONE = (0.7, 1.6)  # the same for variances of one degree of freedom: up to 4 parts, and from 8 on


def satterthwaite(variance: np.ndarray, df: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """(E,) degrees of freedom of sums of P independent variances.

    Args:
        variance: (E, P) estimates; zeros don't count.
        df: (E, P) of each, above 0.
        parts: (E,) how many parts of about equal size the design has, whatever their estimates.
    """
    df = np.minimum(df, LARGEST_DF)
    if df.ndim == 2 and (df == df[:1]).all():
        df = df[:1]  # one row for all: chi-squared quantiles are slow
    one = np.interp(parts, (4, 8), SHRINK_ONE)[:, None]
    shrink = np.where(df < 1.5, one, SHRINK)
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(variance > 0, variance / variance.max(axis=1, keepdims=True) * upper(df), 0.0)
        square = part**2 / (df + shrink)
        found = part.sum(axis=1) ** 2 / square.sum(axis=1) - (square * shrink).sum(axis=1) / square.sum(axis=1)
    counted = np.where(variance > 0, df, np.nan)
    with np.errstate(invalid="ignore"):
        lowest = np.where(np.isnan(counted), np.inf, counted).min(axis=1)
        return np.clip(found, lowest, np.nansum(counted, axis=1))


def upper(df: np.ndarray) -> np.ndarray:
    """(P,) by how much a variance may be above its estimate: df / quantile of chi-squared."""
    return df / special.chdtri(df, 1 - LUCK)
