"""A two-way bootstrap (runs and questions resampled independently) whose variance is that of the two-way estimate.

Plain resampling of both ways counts the run-by-question noise three times and shrinks the spread of n runs per cell by
(n - 1) / n, a third at three seeds. So residuals are resampled, not rows: run residuals within their cell and
scaled to its variance, question residuals are those of the contrast itself, and the noise both contain is
taken from the larger part only once.
"""

from collections.abc import Sequence

import numpy as np

from r3bench.analysis.statistics.noise import ErrorModel, block_variance
from r3bench.analysis.statistics.twoway import TwoWay, run_variances

CHUNK = 250  # draws at a time; bounds the memory of the (draws, Q) counts


def two_way_bootstrap(
    scores: Sequence[np.ndarray], weights: np.ndarray, error: ErrorModel, parts: TwoWay, *, draws: int, seed: int
) -> np.ndarray:
    """(draws, E) bootstrap values of E contrasts.

    Args:
        scores: (R, Q_b) accuracies per benchmark.
        weights: (E, R) contrasts; one resampling serves all of them.
        error: noise between runs, df >= 1.
        parts: `two_way` of the same arguments.
        draws: how many.
        seed: of the generator.
    """
    rng = np.random.default_rng(seed)
    share = 1 / len(scores)
    means = share * sum(y.mean(axis=1) for y in scores)
    pools = _pools(means, error)
    run_part, question_part = _scales(parts)
    block = np.sqrt(block_variance(means, error, run_variances(means, error))[0])
    result = np.empty((draws, len(weights)))
    for start in range(0, draws, CHUNK):
        count = min(CHUNK, draws - start)
        drawn_runs = np.zeros((count, weights.shape[1]))
        for pool, where in pools:
            drawn_runs[:, where] = rng.choice(pool, (count, len(where)))
        if error.blocks is not None and block > 0:
            shared = rng.normal(0, block, (count, error.blocks.max() + 1))
            drawn_runs += np.where(error.blocks >= 0, shared[:, error.blocks], 0.0)
        moved = drawn_runs @ weights.T
        asked = np.zeros((count, len(weights)))
        for y in scores:
            contrast = weights @ y
            contrast -= contrast.mean(axis=1, keepdims=True)
            number = y.shape[1]
            drawn = rng.multinomial(number, np.full(number, 1 / number), size=count) / number
            asked += share * np.sqrt(number / max(number - 1, 1)) * (drawn @ contrast.T)
        result[start : start + count] = parts.estimate + moved * run_part + asked * question_part
    return result


def _pools(means: np.ndarray, error: ErrorModel) -> list[tuple[np.ndarray, np.ndarray]]:
    """Per group what its runs are drawn from, residuals scaled to their variance, and the places of its runs."""
    residual, spread = error.residual @ means, run_variances(means, error).value
    pools = []
    for group in range(error.groups + 1):
        where = np.flatnonzero(error.group == group)
        pool = residual[where] if group < error.groups else residual[np.abs(np.diag(error.residual)) > 1e-12]
        pool = pool - pool.mean() if len(pool) else pool
        size = float((pool**2).mean()) if len(pool) else 0.0
        if len(where):
            pools.append((pool * np.sqrt(spread[group] / size) if size > 0 else np.zeros(1), where))
    return pools


def _scales(parts: TwoWay) -> tuple[np.ndarray, np.ndarray]:
    """(E,) factors on the run and question parts so that their variances add up to `parts.total`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        run_rest = np.sqrt(np.clip(1 - parts.overlap / parts.run, 0, 1))
        question_rest = np.sqrt(np.clip(1 - parts.overlap / parts.question, 0, 1))
    larger = parts.question >= parts.run
    return np.nan_to_num(np.where(larger, run_rest, 1.0)), np.nan_to_num(np.where(larger, 1.0, question_rest))
