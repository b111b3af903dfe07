"""What the sampler correction leaves of answers' weights, by their length.

vLLM samples with slightly other probabilities than training computes. TRL's correction multiplies a token's loss by the
ratio of the two (`token_*`) or by the product of an answer's ratios (`sequence_*`), cut off above. An answer's weight
is the mean of that over its trained tokens: 1 leaves it alone, 0 takes its gradient away.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from r3bench.training.step import trl_adapter
from r3bench.training.step.host import Host
from r3bench.training.step.loss_inputs import loss_mask

EDGES = (512, 2048, 8192)  # tokens: the last of each bin of lengths but the longest
QUANTILES = {"q10": 0.1, "median": 0.5, "q90": 0.9}
RATIO = "importance_sampling_ratio"  # of TRL's batch


def row_weights(ratio: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean factor on the loss of each row's trained tokens, (B,); NaN for a row without any.

    Args:
        ratio: (B, T), or (B, 1) where a row has one factor.
        mask: (B, T), 1 at trained tokens.
    """
    mask = mask.to(torch.float32)
    return (ratio.float() * mask).sum(dim=1) / mask.sum(dim=1)


def length_bin(tokens: float) -> str:
    """The name of the bin that an answer of so many tokens is counted in, such as '513-2048'."""
    low = 1
    for edge in EDGES:
        if tokens <= edge:
            return f"{low}-{edge}"
        low = edge + 1
    return f"{low}-"


class Correction:
    """Logs quantiles of answers' weights and keeps totals of the run, both by length."""

    def __init__(self) -> None:
        self._totals: dict[str, list[float]] = {}  # bin -> rows, sum of weights, rows that lost more than half

    def observe(self, trainer: Host, batch: Mapping[str, Any], log: bool = True) -> None:
        """Note the sampled rows of a batch, before historic ones are mixed in. Collective; nothing without vLLM.

        Args:
            trainer: whose batch it is.
            batch: as TRL returns it.
            log: put the quantiles in TRL's log.
        """
        if RATIO not in batch:
            return
        weights = row_weights(batch[RATIO], loss_mask(batch))
        local = torch.stack([batch["completion_mask"].sum(dim=1).to(weights), weights], dim=1)
        rows = trainer.accelerator.gather(local).cpu().numpy()
        rows = rows[~np.isnan(rows[:, 1])]
        names = [length_bin(length) for length in rows[:, 0]]
        for name in sorted(set(names)):
            found = rows[[n == name for n in names], 1]
            total = self._totals.setdefault(name, [0, 0.0, 0])
            for place, value in enumerate((len(found), float(found.sum()), int((found < 0.5).sum()))):
                total[place] += value
            for label, share in QUANTILES.items() if log else ():
                value = float(np.quantile(found, share))
                trl_adapter.log_metric(trainer, f"correction/{name}_tokens/{label}", value)

    def record(self) -> dict[str, dict[str, float]]:
        """Per bin of lengths: `rows`, their mean `weight`, and the share `below_half` that lost more than half."""
        return {
            name: {"rows": int(rows), "weight": round(weight / rows, 6), "below_half": round(low / rows, 6)}
            for name, (rows, weight, low) in self._totals.items()
        }

    def state(self) -> dict[str, list[float]]:
        """JSON-ready."""
        return self._totals

    def load(self, state: Mapping[str, Sequence[float]]) -> None:
        """Go on from a checkpoint's `state`."""
        self._totals = {name: list(values) for name, values in state.items()}
