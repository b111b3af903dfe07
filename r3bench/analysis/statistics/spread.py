"""How much the seeds of each cell scatter, and whether more in some cells than in others."""

import numpy as np
from scipy import special

from r3bench.analysis.results import Results
from r3bench.analysis.statistics.prepare import Prepared

SUSPICIOUS = 0.05  # p below which unequal spread is noted
MANY = 4  # cells from which on two seeds in each can't tell a noisy one from bad luck


def seed_sds(data: Prepared) -> np.ndarray:
    """(C,) standard deviation over a cell's runs of their mean accuracy; NaN for one run."""
    means = sum(y.mean(axis=1) for y in data.scores) / len(data.scores)
    cells = [means[data.cell_of == c] for c in range(len(data.cells))]
    return np.array([float(m.std(ddof=1)) if len(m) > 1 else np.nan for m in cells])


def equal_spread_p(data: Prepared) -> float | None:
    """p of equal variances over seeds in all cells with two or more runs (Bartlett 1937); None for fewer than two.

    Cells without any scatter are left out: Bartlett's statistic is infinite there.
    """
    variance, df = seed_sds(data) ** 2, data.runs_per_cell - 1.0
    kept = (df > 0) & (np.nan_to_num(variance) > 1e-24)
    variance, df = variance[kept], df[kept]
    if len(df) < 2:
        return None
    total = df.sum()
    statistic = total * np.log((df * variance).sum() / total) - (df * np.log(variance)).sum()
    scale = 1 + ((1 / df).sum() - 1 / total) / (3 * (len(df) - 1))
    return float(special.chdtrc(len(df) - 1, max(statistic, 0.0) / scale))


def spread_notes(data: Prepared, results: Results) -> list[str]:
    """What must be said of the variance between seeds: unequal, borrowed, pooled, blocks."""
    notes = []
    p, sds = equal_spread_p(data), seed_sds(data)
    pooled = results.declared.variance == "pooled"
    known = np.flatnonzero(~np.isnan(sds))
    if p is not None and p < SUSPICIOUS:
        low, high = known[np.argmin(sds[known])], known[np.argmax(sds[known])]
        notes.append(
            f"{data.benchmark}: seeds scatter more in some cells than in others (Bartlett's test of equal spread: p "
            f"{'< 0.001' if p < 0.001 else f'= {p:.3f}'}), from {100 * sds[low]:.1f} points in "
            f"{results.label(data.cells[low])} to {100 * sds[high]:.1f} in {results.label(data.cells[high])}; "
            + ("one variance for all was declared, so intervals of the noisy cells are too short" if pooled else
               "every cell has its own variance; one whose few seeds look alike by luck has too short an interval")
        )  # fmt: skip
    two = int((data.runs_per_cell == 2).sum())
    if two >= MANY and 2 * two >= len(data.cells) and not pooled and data.error.source == "seeds":
        notes.append(
            f"two runs in {two} of {len(data.cells)} cells: if one cell is much noisier than the others, intervals of "
            f"effects over several cells hold less often than {100 * results.declared.confidence:g} %; take three seeds"
        )
    alone = [results.label(data.cells[c]) for c in sorted({*data.cell_of[data.error.borrowed].tolist()})]
    if alone and not pooled:
        notes.append(
            f"{data.benchmark}: one run only, so the noise between runs is taken from the other cells: "
            f"{', '.join(alone)}"
        )
    if results.declared.blocks:
        notes.append(
            f"{data.benchmark}: runs that share a seed are compared with each other (declared blocks)"
            if data.error.blocks is not None
            else f"{data.benchmark}: blocks were declared, but too few cells share a seed: they are left out"
        )
    return notes
