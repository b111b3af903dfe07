"""Degrees of freedom of sums of estimated variances, chosen by simulation where each has few of them.

Satterthwaite (1946) matches two moments: df = (sum v)^2 / sum(v^2 / df_i). With two to four seeds a cell it errs twice:
under equal spread df comes out too small (8 cells of 2 seeds: 2.7 for 8, and intervals 29 % too long), and where one
noisy cell carries the variance and by luck comes out quiet, df counts the many others, so that the interval is short
twice over. No rule can avoid both with two seeds a cell: what is attainable is in docs/statistics.md.

`of_cells` starts from what df would be if all cells were equally noisy, a little less to allow for luck, and moves from
there by how unlike the estimates are:

    1 / df = 1 / (share * df_equal) + slope * (sum(p^2 / df_i) - its mean under equal noise)

with p the cells' shares of the variance. A cell with fewer seeds than others enters at an upper limit of its variance
(`LUCK`), since it is the one whose luck matters. Share and slope are a `Rule`. An interval that holds at 95 % errs more
often than it says further out, where Holm looks, and with two seeds a cell no affordable length holds: so verdicts have
a stricter rule than intervals there, the same from three seeds a cell on.

`joint` puts variances of unlike kinds together: cells, questions, blocks. The simulations are
`tests/analysis/freedoms.py` and `tests/analysis/audit.py`.
"""

from dataclasses import dataclass

import numpy as np
from scipy import special

from r3bench.analysis.statistics.distributions import LARGEST_DF

LUCK = 0.12  # a variance is taken to be below its true value by more than this quantile of chi-squared leaves
PARTS = (2, 3, 6, 8, 16)  # cells, between which the constants of two seeds a cell are interpolated


@dataclass(frozen=True)
class Rule:
    """Constants of `of_cells`."""

    share: float  # of the degrees of freedom under equal noise, from three seeds a cell on
    slope: float
    two_share: tuple[float, ...]  # the same with two seeds a cell, at `PARTS` cells
    two_slope: tuple[float, ...]
    unlike_share: tuple[float, float]  # where numbers of seeds differ much, if the fewest are two, or more
    unlike_slope: tuple[float, float]
    unlike: float  # how soon that is
    wary: bool  # whether the few are taken to be noisy in telling so: then one cell of many seeds makes no difference

    def constants(self, df: np.ndarray, size: np.ndarray, plain: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(E,) share and slope, between those of two and of more seeds, and of like and unlike numbers of seeds.

        Args:
            df: (E, G) of the groups; any where they are not in the contrast.
            size: (E, G) parts of the variance under equal noise at the groups' upper limits; they add up to 1.
            plain: (E, G) the same without limits.
        """
        two = np.where(df < 1.5, size, 0.0).sum(axis=1)
        seen = size if self.wary else plain
        like = ((seen * df).sum(axis=1) * (seen / df).sum(axis=1)) ** -self.unlike  # 1 where all have the same df
        cells = 1 / size.max(axis=1)
        found = []
        for few, more, unlike in (
            (self.two_share, self.share, self.unlike_share),
            (self.two_slope, self.slope, self.unlike_slope),
        ):
            alike = two * np.interp(cells, PARTS, few) + (1 - two) * more
            found.append(like * alike + (1 - like) * (two * unlike[0] + (1 - two) * unlike[1]))
        return found[0], found[1]


INTERVAL = Rule(
    share=0.8, slope=2.4, two_share=(0.8, 0.65, 0.65, 0.85, 0.75), two_slope=(0.3, 0.3, 0.3, 0.5, 1.2),
    unlike_share=(1.0, 1.0), unlike_slope=(1.0, 1.5), unlike=4.0, wary=False,
)  # fmt: skip
VERDICT = Rule(
    share=0.75, slope=3.0, two_share=(0.8, 0.6, 0.5, 0.53, 0.5), two_slope=(0.3, 0.3, 0.3, 0.4, 0.8),
    unlike_share=(1.0, 0.7), unlike_slope=(0.6, 0.4), unlike=8.0, wary=True,
)  # fmt: skip
SHRINK = 0.6  # of `joint`: 0 is Satterthwaite, 2 Welch (1947)


def of_cells(variance: np.ndarray, df: np.ndarray, sizes: np.ndarray, rule: Rule = INTERVAL) -> np.ndarray:
    """(E,) degrees of freedom of a contrast's variance between runs, from those of its cells.

    Args:
        variance: (E, G) parts of the variance, one of each group of runs that shares a variance.
        df: (E, G) of each, above 0.
        sizes: (E, G) sums of squared weights; groups at 0 are not in the contrast.
        rule: for the interval of one effect, or for verdicts.

    Returns:
        Between the smallest and the sum of the groups' own; 0 where nothing varies.
    """
    used = sizes > 1e-15
    df = np.where(used, np.clip(df, 0.5, LARGEST_DF), 1.0)
    above = upper(df)
    plain, part, size = (
        np.where(used, np.nan_to_num(x) * up, 0.0) for x, up in ((sizes, 1.0), (variance, above), (sizes, above))
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        plain, part, size = (x / x.sum(axis=1, keepdims=True) for x in (plain, part, size))
        own = np.where(used, df, np.nan)
        least, most = np.nanmin(own, axis=1, initial=LARGEST_DF), np.nansum(own, axis=1)
        equal = np.nanmin(np.where(used, df / size, np.nan), axis=1, initial=LARGEST_DF)
        mean = (size**2 * (1 + 2 / df) / df).sum(axis=1) / (1 + 2 * (size**2 / df).sum(axis=1))
        share, slope = rule.constants(df, size, plain)
        found = 1 / (share * equal) + slope * ((part**2 / df).sum(axis=1) - mean)
        return np.nan_to_num(1 / np.clip(found, 1 / most, 1 / least))


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
