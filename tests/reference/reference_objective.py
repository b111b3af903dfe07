"""The objectives of one update and their gradients, derived by hand from the papers' equations; float64, NumPy only.

A gradient is a number per trained token, d loss / d log pi(token). No automatic differentiation goes through a ratio, a
clip, a mean or a KL term here: it only carries these numbers from the log-probs to the weights.

r = pi / pi_old of a token, T the trained tokens of a row, s = exp(mean log r over them), A_t the token's advantage:

    clipped (DeepSeekMath Eq. 3, DAPO Eq. 8)    min(r A_t, clip(r) A_t)
    cispo   (MiniMax-M1 Eq. 4)                  sg[min(r, cap)] A_t log pi
    gspo    (GSPO Eq. 5)                        min(s A_t, clip(s) A_t)
    KL      (DeepSeekMath Eq. 4)                k = e^d - d - 1 with d = log pi_ref - log pi; times r (at sequence level
                                                s) where it is corrected for the sampling policy (DeepSeek-V3.2)
    shaped  (LUFFY Eq. 7)                       f(x) A, f(x) = x / (x + gamma), x = pi / pi_b: weight x f'(x), no clip
"""

from dataclasses import dataclass

import numpy as np
from reference_loss import GAMMA


@dataclass(frozen=True)
class Objective:
    """What is minimised."""

    loss_type: str = "dapo"
    sequence: bool = False  # ratio of a row instead of a token
    low: float = 0.2  # r is clipped to 1 - low ... 1 + high
    high: float = 0.2  # for `cispo` the cap itself
    beta: float = 0.0
    corrected: bool = True  # KL term times the ratio
    cap: int = 8  # `dr_grpo` divides by this many tokens


@dataclass(frozen=True)
class Terms:
    """Trained tokens of a row: everything (T,)."""

    loss: np.ndarray
    gradient: np.ndarray  # d (sum of `loss`) / d log pi
    clipped: np.ndarray  # the bound or cap was what counted


def terms(row, now, objective, at=None):
    """`Terms` of a `Row` whose completion has log-probs `now`; what is held constant is taken at log-probs `at`."""
    trained = np.array(row.mask, bool)
    at = now if at is None else at
    x, fixed = np.asarray(now, float)[trained], np.asarray(at, float)[trained]
    shaped = row.rule == "shaped"
    old = fixed if shaped else np.asarray(row.old(), float)[trained]
    if shaped:
        ratio_b = np.exp(fixed - np.asarray(row.behaviour, float)[trained])
        weights = ratio_b * GAMMA / (ratio_b + GAMMA) ** 2
    else:
        weights = np.asarray(row.weights(), float)[trained]
    advantage = row.advantage * weights
    n = max(1, len(x))
    ratio = np.full(len(x), np.exp((x - old).sum() / n)) if objective.sequence else np.exp(x - old)
    if objective.loss_type == "cispo":
        held = np.full(len(x), np.exp((fixed - old).sum() / n)) if objective.sequence else np.exp(fixed - old)
        clipped = held > objective.high
        factor = np.minimum(held, objective.high)
        value, own, shared = -factor * advantage * x, -factor * advantage, np.zeros(len(x))
    else:
        bounded = np.clip(ratio, 1 - objective.low, 1 + objective.high)
        clipped = bounded * advantage < ratio * advantage
        value = -np.where(clipped, bounded, ratio) * advantage
        slope = -np.where(clipped, 0.0, ratio * advantage)  # by log r
        own, shared = (np.zeros(len(x)), slope) if objective.sequence else (slope, np.zeros(len(x)))
    if objective.beta and row.kl:
        gap = np.asarray(row.reference, float)[trained] - x
        k = np.exp(gap) - gap - 1
        by_policy = 1 - np.exp(gap)
        if objective.corrected:
            value = value + objective.beta * ratio * k
            own = own + objective.beta * ratio * by_policy
            if objective.sequence:
                shared = shared + objective.beta * ratio * k
            else:
                own = own + objective.beta * ratio * k
        else:
            value, own = value + objective.beta * k, own + objective.beta * by_policy
    return Terms(value, own + shared.sum() / n, clipped)


@dataclass(frozen=True)
class Sizes:
    """What an average is taken over."""

    rows: float
    tokens: float


def divisors(parts, sizes, objective):
    """The number each row's summed loss is divided by, part by part.

    `grpo`: its tokens x rows; `dr_grpo`: the cap x rows; `dapo`, `cispo`: tokens; all three of `sizes`. `bnpo`: the
    tokens of its part x parts, as this average is defined over what is computed at once.
    """
    found = []
    for part in parts:
        tokens = [sum(row.mask) for row in part]
        if objective.loss_type == "grpo":
            found.append([max(1, n) * sizes.rows for n in tokens])
        elif objective.loss_type == "dr_grpo":
            found.append([objective.cap * sizes.rows] * len(part))
        elif objective.loss_type == "bnpo":
            found.append([max(1, sum(tokens)) * len(parts)] * len(part))
        else:
            found.append([sizes.tokens] * len(part))
    return found


def sizes_of(rows):
    return Sizes(len(rows), sum(sum(row.mask) for row in rows))
