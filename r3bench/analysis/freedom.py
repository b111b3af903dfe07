"""Degrees of freedom of sums of estimated variances, chosen by simulation where each has few of them.

Satterthwaite (1946) matches two moments: df = (sum v)^2 / sum(v^2 / df_i). With two to four seeds a cell it errs twice:
under equal spread df comes out too small (8 cells of 2 seeds: 2.7 for 8, and intervals 29 % too long), and where one
noisy cell carries the variance and by luck comes out quiet, df counts the many others, so that the interval is short
twice over. No rule can avoid both with two seeds a cell: what is attainable is in docs/statistics.md.

`of_cells` starts from what df would be if all cells were equally noisy, a little less to allow for luck, and moves from
there by how unlike the estimates are:

    1 / df = 1 / (share * df_equal) + slope * (sum(p^2 / df_i) - its mean under equal noise)

with p the cells' shares of the variance. A cell with fewer seeds than others enters at an upper limit of its variance
(`LUCK`), since it is the one whose luck matters. `joint` puts variances of unlike kinds together: cells, questions,
blocks. The simulations are `tests/analysis/freedoms.py` and `tests/analysis/audit.py`.
"""

import numpy as np
from scipy import special

from r3bench.analysis.distributions import LARGEST_DF

LUCK = 0.12  # a variance is taken to be below its true value by more than this quantile of chi-squared leaves
SHARE = 0.75  # of the degrees of freedom under equal noise, from three seeds a cell on
SLOPE = 1.2
PARTS = (2, 3, 6, 8, 16)  # with two seeds a cell the share depends on the number of cells
SHARE_ONE = (0.8, 0.65, 0.65, 0.85, 0.7)  # at 8 as much as costs 5 % of the length under equal noise
SLOPE_ONE = 0.3
UNLIKE = (1.0, 2.0)  # slopes for two and for more seeds where numbers of seeds differ much; the share is 1 there
SHRINK = 0.6  # of `joint`: 0 is Satterthwaite, 2 Welch (1947)


def of_cells(variance: np.ndarray, df: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """(E,) degrees of freedom of a contrast's variance between runs, from those of its cells.

    Args:
        variance: (E, G) parts of the variance, one of each group of runs that shares a variance.
        df: (E, G) of each, above 0.
        sizes: (E, G) sums of squared weights; groups at 0 are not in the contrast.

    Returns:
        Between the smallest and the sum of the groups' own; 0 where nothing varies.
    """
    used = sizes > 1e-15
    df = np.where(used, np.clip(df, 0.5, LARGEST_DF), 1.0)
    above = upper(df)
    part, size = (np.where(used, np.nan_to_num(x) * above, 0.0) for x in (variance, sizes))
    with np.errstate(divide="ignore", invalid="ignore"):
        part, size = (x / x.sum(axis=1, keepdims=True) for x in (part, size))
        own = np.where(used, df, np.nan)
        least, most = np.nanmin(own, axis=1, initial=LARGEST_DF), np.nansum(own, axis=1)
        equal = np.nanmin(np.where(used, df / size, np.nan), axis=1, initial=LARGEST_DF)
        mean = (size**2 * (1 + 2 / df) / df).sum(axis=1) / (1 + 2 * (size**2 / df).sum(axis=1))
        share, slope = _how(df, used, size)
        found = 1 / (share * equal) + slope * ((part**2 / df).sum(axis=1) - mean)
        return np.nan_to_num(1 / np.clip(found, 1 / most, 1 / least))


def _how(df: np.ndarray, used: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(E,) share and slope, between those of two and of more seeds, and of like and unlike numbers of seeds."""
    one = np.where(df < 1.5, size, 0.0).sum(axis=1)
    own = np.where(used, df, 0.0)
    like = (used.sum(axis=1) ** 2 / np.where(used, 1 / df, 0.0).sum(axis=1) / own.sum(axis=1)) ** 4
    share = one * np.interp(1 / size.max(axis=1), PARTS, SHARE_ONE) + (1 - one) * SHARE
    slope = one * SLOPE_ONE + (1 - one) * SLOPE
    return like * share + 1 - like, like * slope + (1 - like) * (one * UNLIKE[0] + (1 - one) * UNLIKE[1])


def joint(variance: np.ndarray, df: np.ndarray) -> np.ndarray:
    """(E,) degrees of freedom of sums of P independent variances of unlike kinds.

    Args:
        variance: (E, P) estimates; zeros don't count.
        df: (E, P) of each, above 0 where the variance is.
    """
    df = np.clip(df, 0.5, LARGEST_DF)
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(variance > 0, variance / variance.max(axis=1, keepdims=True) * upper(df), 0.0)
        square = part**2 / (df + SHRINK)
        found = part.sum(axis=1) ** 2 / square.sum(axis=1) - SHRINK
        counted = np.where(variance > 0, df, np.nan)
        lowest = np.where(np.isnan(counted), np.inf, counted).min(axis=1)
        return np.nan_to_num(np.clip(found, lowest, np.nansum(counted, axis=1)))


def upper(df: np.ndarray) -> np.ndarray:
    """By how much variances may be above their estimates: df / quantile of chi-squared. Any shape."""
    values, place = np.unique(df, return_inverse=True)  # chi-squared quantiles are slow, and few of them differ
    return np.asarray((values / special.chdtri(values, 1 - LUCK))[place].reshape(np.shape(df)))
