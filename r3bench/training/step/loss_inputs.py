"""What the loss is handed once it knows today's log-probs: weights, old log-probs and KL of rows sampled elsewhere.

TRL computes the log-probs inside its loss and reads the rest of the batch after that. So what has to follow the policy
from update to update (a shaped weight, a ratio that is not to be clipped, a row without a KL term) is settled between
the two, on a copy of the batch's dictionary.
"""

from collections.abc import Mapping
from typing import Any

import torch

SHAPING = 0.1  # gamma of f(x) = x / (x + gamma), LUFFY and ExGRPO's value
SHAPED_KEY = "r3_shaped"  # (B, T) batch entry: advantage before the weight where a token is shaped, else NaN
BEHAVIOUR_KEY = "r3_behaviour"  # (B, T) log-probs of the policy that sampled a shaped row; 0 elsewhere
FREE_KEY = "r3_free"  # (B, T) 1 where a token has no ratio to the old policy, and so no clip
NO_KL_KEY = "r3_no_kl"  # (B,) 1 for rows that the KL term leaves out
OLD, SAMPLING, REFERENCE = "old_per_token_logps", "sampling_per_token_logps", "ref_per_token_logps"


def shaped_weight(ratio: torch.Tensor) -> torch.Tensor:
    """x f'(x) = gamma x / (x + gamma)^2, the weight of grad log pi in grad f(x); 1 where the ratio is unknown (NaN)."""
    weight = SHAPING / (ratio + 2 * SHAPING + SHAPING**2 / ratio)  # also right at 0 and at infinity
    return torch.where(torch.isnan(ratio), 1.0, weight)


def loss_mask(batch: Mapping[str, Any]) -> torch.Tensor:
    """(B, T), 1 at the tokens that TRL's loss is over."""
    mask: torch.Tensor = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def needs_settling(inputs: dict[str, Any]) -> bool:
    """Whether the batch has anything that depends on today's log-probs, or tokens the loss must not see."""
    return any(key in inputs for key in (SHAPED_KEY, FREE_KEY, NO_KL_KEY, "tool_mask"))


def settle(inputs: dict[str, Any], logps: torch.Tensor) -> torch.Tensor:
    """Put what follows from `logps` into `inputs`, in place.

    Args:
        inputs: a micro-batch, the caller's own copy of the dictionary; its tensors are not written to.
        logps: (B, T) log-probs of the policy of the day.

    Returns:
        (B, T) `logps`, 0 where a token is masked: given or padding tokens may be so improbable that the exponential
        of a difference is infinite, and infinity times a mask of 0 is no number.
    """
    today = logps.detach()
    if SHAPED_KEY in inputs:
        base = inputs[SHAPED_KEY]
        weight = shaped_weight(torch.exp(today - inputs[BEHAVIOUR_KEY]))
        inputs["advantages"] = torch.where(torch.isnan(base), inputs["advantages"], base * weight)
    if FREE_KEY in inputs and OLD in inputs:
        inputs[OLD] = torch.where(inputs[FREE_KEY] > 0, today, inputs[OLD])
    if NO_KL_KEY in inputs and REFERENCE in inputs:
        inputs[REFERENCE] = torch.where(inputs[NO_KL_KEY].unsqueeze(1) > 0, today, inputs[REFERENCE])
    mask = loss_mask(inputs)
    for key in (OLD, SAMPLING, REFERENCE):
        if key in inputs:
            inputs[key] = torch.where(mask > 0, inputs[key], torch.zeros_like(inputs[key]))
    return torch.where(mask > 0, logps, torch.zeros_like(logps))
