"""Simulated ablation grids on a logit scale, with the true effects known, and the recipes that fail on them."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

FACTORS = dict.fromkeys("abcd", ("off", "on"))
CELLS = tuple(product(*FACTORS.values()))
CODES = np.array([[0.5 if level == "on" else -0.5 for level in cell] for cell in CELLS])  # (16, 4)
NODES, MASSES = np.polynomial.hermite_e.hermegauss(9)


@dataclass(frozen=True)
class Setting:
    """One benchmark and budget. All SDs in logits."""

    questions: int
    samples: int
    seeds: int
    run_sd: float = 0.12  # training run
    run_question_sd: float = 0.35  # one run on one question
    factor_question_sd: float = 0.3  # a factor's effect over questions
    difficulty_sd: float = 2.0  # question
    gains: tuple[float, float, float, float] = (0.0, 0.2, 0.0, 0.4)  # average effect of each factor


@dataclass(frozen=True)
class SimulatedGrid:
    """One grid; R = 16 x seeds runs."""

    correct: np.ndarray  # (R, Q) right answers of `samples`
    cell_of: np.ndarray  # (R,)
    truth_these: np.ndarray  # (16,) expected accuracy of each cell on exactly these questions


def grids(setting: Setting, count: int, seed: int) -> Iterator[SimulatedGrid]:
    """`count` independent grids, each with its own questions, effects per question, runs and answers."""
    rng = np.random.default_rng(seed)
    cell_of = np.repeat(np.arange(16), setting.seeds)
    for _ in range(count):
        logits = _cell_logits(setting, setting.questions, rng)
        noise = rng.normal(0, setting.run_sd, (len(cell_of), 1))
        noise = noise + rng.normal(0, setting.run_question_sd, (len(cell_of), setting.questions))
        p = 1 / (1 + np.exp(-(logits[cell_of] + noise)))
        yield SimulatedGrid(rng.binomial(setting.samples, p), cell_of, _expected(setting, logits))


def population_truth(setting: Setting, seed: int = 1) -> np.ndarray:
    """(16,) expected accuracy of each cell over the population of questions."""
    rng = np.random.default_rng(seed)
    return np.mean([_expected(setting, _cell_logits(setting, 4000, rng)) for _ in range(50)], axis=0)


def _cell_logits(setting: Setting, questions: int, rng: np.random.Generator) -> np.ndarray:
    """(16, Q) logits before run noise. Effects are symmetric around their mean, so a zero mean is a true null."""
    difficulty = rng.normal(0, setting.difficulty_sd, questions)
    varying = rng.normal(0, setting.factor_question_sd, (4, questions)) + np.array(setting.gains)[:, None]
    return CODES @ varying - difficulty


def _expected(setting: Setting, logits: np.ndarray) -> np.ndarray:
    """(16,) mean over questions of E[sigmoid(logit + noise)], by Gauss-Hermite quadrature."""
    spread = np.hypot(setting.run_sd, setting.run_question_sd)
    total = sum(mass / (1 + np.exp(-(logits + node * spread))) for node, mass in zip(NODES, MASSES, strict=True))
    return (total / MASSES.sum()).mean(axis=1)


def pooled_binomial_p(correct: np.ndarray, samples: int, weights: np.ndarray) -> float:
    """Two-proportion z test on pooled answers: what ignoring runs and questions gives. weights: (R,) signs matter."""
    on, off = weights > 0, weights < 0
    n_on, n_off = on.sum() * correct.shape[1] * samples, off.sum() * correct.shape[1] * samples
    a, b = correct[on].sum() / n_on, correct[off].sum() / n_off
    pooled = (correct[on].sum() + correct[off].sum()) / (n_on + n_off)
    return _two_sided((a - b) / np.sqrt(pooled * (1 - pooled) * (1 / n_on + 1 / n_off)))


def question_bootstrap_rejects(y: np.ndarray, weights: np.ndarray, rng: np.random.Generator, draws: int = 400) -> bool:
    """Percentile bootstrap over questions only: whether zero is outside the 95 % interval."""
    contrast = weights @ y
    counts = rng.multinomial(len(contrast), np.full(len(contrast), 1 / len(contrast)), size=draws)
    low, high = np.quantile(counts @ contrast / len(contrast), [0.025, 0.975])
    return bool(low > 0 or high < 0)


def seed_t_p(y: np.ndarray, weights: np.ndarray, cell_of: np.ndarray) -> float:
    """t test over seeds only, cell means with pooled error."""
    from scipy import stats

    means = y.mean(axis=1)
    within = sum(((means[cell_of == c] - means[cell_of == c].mean()) ** 2).sum() for c in set(cell_of.tolist()))
    df = len(means) - len(set(cell_of.tolist()))
    se = np.sqrt(within / df * (weights**2).sum())
    return float(2 * stats.t.sf(abs(weights @ means) / se, df))


def _two_sided(z: float) -> float:
    from scipy import stats

    return float(2 * stats.norm.sf(abs(z)))
