"""A small critic on the policy's hidden states, in NumPy: what RRL's actor-critic has and GRPO lacks."""

import math
from typing import Any

import numpy as np

ENOUGH_FOR_AUC = 8  # answers of the rarer outcome before a batch's AUC counts


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Probability that a right answer's state scores above a wrong one's, ties half; NaN with one outcome only."""
    right, wrong = scores[labels > 0.5], np.sort(scores[labels <= 0.5])
    if not len(right) or not len(wrong):
        return math.nan
    below, upto = np.searchsorted(wrong, right, "left"), np.searchsorted(wrong, right, "right")
    return float((below + upto).mean() / 2 / len(wrong))


def _clipped(values: np.ndarray, bound: float) -> np.ndarray:
    """`values` within +-bound; on the few numbers of a batch half the cost of `np.clip`."""
    return np.minimum(np.maximum(values, -bound), bound)


class ValueHead:
    """A linear critic with a sigmoid: V(s) = P(right | hidden state), trained on returns with Adam, in NumPy.

    With reward only at the end and no discount the return of every state of an answer is its correctness. Features are
    standardised by running moments. float64, fixed order: equal on every rank.
    """

    def __init__(self, learning_rate: float, size: int = 0) -> None:
        self.learning_rate = learning_rate
        self.updates = 0
        self.auc = 0.5  # running mean over batches, each scored before it is learnt
        self.arrays = {key: np.zeros(size) for key in ("weights", "first", "second", "mean")} | {
            "square": np.ones(size)
        }
        self.bias = np.zeros(3)  # bias and its two moments

    def _standardised(self, features: np.ndarray) -> np.ndarray:
        a = self.arrays
        root = math.sqrt(features.shape[1])
        scaled = features - a["mean"]
        scaled /= root * np.sqrt(np.maximum(a["square"] - a["mean"] ** 2, 1e-8))
        np.maximum(scaled, -10 / root, out=scaled)
        return np.minimum(scaled, 10 / root, out=scaled)

    def value(self, features: np.ndarray) -> np.ndarray:
        """(n, H) hidden states -> (n,) values in (0, 1)."""
        if not len(self.arrays["weights"]):
            return np.full(len(features), 0.5)
        return self._probability(self._standardised(features))

    def _probability(self, inputs: np.ndarray) -> np.ndarray:
        logits = inputs @ self.arrays["weights"] + self.bias[0]
        return np.asarray(1 / (1 + np.exp(-_clipped(logits, 30))))

    def learn(
        self, features: np.ndarray, returns: np.ndarray, values: np.ndarray | None = None, passes: int = 8
    ) -> None:
        """Fit hidden states to returns by a few full-batch steps on the cross-entropy.

        Args:
            features: (n, H) hidden states.
            returns: (n,) in [0, 1].
            values: (n,) what `value(features)` gives, where that is known already.
            passes: steps.
        """
        if not len(self.arrays["weights"]):
            self.__init__(self.learning_rate, features.shape[1])  # type: ignore[misc]
        labels = returns > 0.5
        if min(labels.sum(), (~labels).sum()) >= ENOUGH_FOR_AUC and self.updates:
            known = self.value(features) if values is None else values
            self.auc += 0.2 * (auc(known, returns) - self.auc)
        a = self.arrays
        keep = 0.0 if self.updates == 0 else 0.95
        a["mean"] = keep * a["mean"] + (1 - keep) * features.mean(0, dtype=float)
        a["square"] = keep * a["square"] + (1 - keep) * np.square(features, dtype=float).mean(0)
        inputs = self._standardised(features)
        for _ in range(passes):
            self.updates += 1
            error = self._probability(inputs) - returns
            self._adam(a, inputs.T @ error / len(returns) + 1e-4 * a["weights"])
            self.bias = self._adam_bias(error.mean())

    def _adam(self, a: dict[str, np.ndarray], gradient: np.ndarray) -> None:
        a["first"] = 0.9 * a["first"] + 0.1 * gradient
        a["second"] = 0.999 * a["second"] + 0.001 * gradient**2
        a["weights"] = a["weights"] - self._change(a["first"], a["second"])

    def _adam_bias(self, gradient: float) -> np.ndarray:
        first = 0.9 * self.bias[1] + 0.1 * gradient
        second = 0.999 * self.bias[2] + 0.001 * gradient**2
        return np.array([self.bias[0] - self._change(first, second), first, second])

    def _change(self, first: Any, second: Any) -> Any:
        corrected = first / (1 - 0.9**self.updates)
        return self.learning_rate * corrected / (np.sqrt(second / (1 - 0.999**self.updates)) + 1e-8)
