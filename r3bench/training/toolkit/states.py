"""Stored states of answers, from which generation can start again, and two rules on them."""

from dataclasses import dataclass

import numpy as np


def promising(
    values: np.ndarray, base: np.ndarray, *, rule: str, quantile: float, threshold: float, rise: float
) -> np.ndarray:
    """Which of n states are promising, (n,) bool, from their values and the values V(s_0) of their questions."""
    if not len(values):
        return np.zeros(0, bool)
    if rule == "quantile":
        return np.asarray(values >= np.quantile(values, quantile))
    return np.asarray(values >= threshold if rule == "absolute" else values - base >= rise)


def next_share(share: float, success: float) -> float:
    """The share of the longest prefix to give next time, after answers of that success rate that resumed from `share`.

    All right: half as much; more than half right: three quarters; none right: half way back to the longest; else as
    much again. Contrast between the answers is what is trained on, and there is most of it at equal odds.
    """
    if success >= 1:
        return share / 2
    if success > 0.5:
        return 0.75 * share
    return (share + 1) / 2 if success == 0 else share


@dataclass(eq=False)
class State:
    """A stored state: the first tokens of an answer to a question. Compared by identity."""

    question: str  # question id
    prefix: np.ndarray  # (t,) int32
    step: int  # optimiser step at which it was seen
    value: float  # latest value; NaN while unknown
    uses: int = 0  # groups continued from it
    features: np.ndarray | None = None  # (H,) hidden state, for the critic
    lot: float = 0.0  # drawn when it was stored: decides between states of equal value, so that age doesn't
    canonical: bool = False  # the beginning of the data's solution
