"""Tail areas, quantiles and multiplicity adjustments. `scipy.special` only: `scipy.stats` is slow to import."""

import numpy as np
from scipy import special

LARGEST_DF = 1e9  # scipy's stdtr has no entry for infinity


def t_quantile(probability: float, df: np.ndarray | float) -> np.ndarray:
    """Student quantile; NaN where df < 1."""
    df = np.asarray(df, float)
    value = special.stdtrit(np.clip(df, 1, LARGEST_DF), probability)
    return np.where(df >= 1, value, np.nan)


def t_two_sided(statistic: np.ndarray, df: np.ndarray | float) -> np.ndarray:
    """Two-sided p of a t statistic; NaN where df < 1."""
    df = np.asarray(df, float)
    value = 2 * special.stdtr(np.clip(df, 1, LARGEST_DF), -np.abs(statistic))
    return np.where(df >= 1, value, np.nan)


def t_upper(statistic: np.ndarray, df: np.ndarray | float) -> np.ndarray:
    """P(T > statistic); NaN where df < 1."""
    df = np.asarray(df, float)
    value = special.stdtr(np.clip(df, 1, LARGEST_DF), -np.asarray(statistic, float))
    return np.where(df >= 1, value, np.nan)


def holm(p: np.ndarray) -> np.ndarray:
    """Step-down adjusted p values (Holm 1979), family-wise error. p: (M,); NaN stays NaN and is not counted."""
    p = np.asarray(p, float)
    result, order = _ranked(p)
    result[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(order.size, 0, -1)), 1.0)
    return result


def _ranked(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    known = np.flatnonzero(~np.isnan(p))
    return np.full(p.shape, np.nan), known[np.argsort(p[known], kind="stable")]
