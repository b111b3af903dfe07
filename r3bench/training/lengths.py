"""Forwards over rows of very different length: in parts of like rows, each as wide as its own longest row.

A reflection prompt holds a whole answer. In one padded tensor it would stretch every other row of the batch to its own
width. The parts give the same log-probs up to rounding, and every rank makes equally many, as its collectives must.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch


def parts_of_like_rows(widths: Sequence[int], size: int | None = None) -> list[list[int]]:
    """Row numbers in parts of like width, narrow rows first. How many parts depends on the number of rows only.

    Args:
        widths: (N,) tokens of each row.
        size: most rows of a part; None: two parts, cut where least padding is left.
    """
    order = sorted(range(len(widths)), key=widths.__getitem__)
    if size is not None:
        return [order[start : start + size] for start in range(0, len(order), size)]
    if len(order) < 2:
        return [order]
    widest = widths[order[-1]]
    cut = min(range(1, len(order)), key=lambda n: n * widths[order[n - 1]] + (len(order) - n) * widest)
    return [order[:cut], order[cut:]]


def forward_by_length(
    forward: Callable[..., tuple[torch.Tensor, torch.Tensor | None, None]],
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    keep: int,
    size: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None, None]:
    """Log-probs and entropies of the last `keep` tokens, (B, keep) each; 0 where masked. Differentiable.

    Args:
        forward: takes `input_ids`, `attention_mask`, `logits_to_keep` and `kwargs`; TRL's scoring method.
        input_ids, attention_mask: (B, P + keep), prompts padded on the left, completions on the right.
        keep: width of the completions.
        size: see `parts_of_like_rows`.
    """
    prompts = attention_mask[:, :-keep].sum(dim=1).tolist()
    completions = attention_mask[:, -keep:].sum(dim=1).tolist()
    parts = parts_of_like_rows([sum(pair) for pair in zip(prompts, completions, strict=True)], size)
    logps: list[torch.Tensor] = []
    entropies: list[torch.Tensor] = []
    for rows in parts:
        first = input_ids.size(1) - keep - max(prompts[row] for row in rows)
        kept = max(1, *(completions[row] for row in rows))
        columns = slice(first, input_ids.size(1) - keep + kept)
        part_logps, part_entropies, _ = forward(
            input_ids[rows][:, columns], attention_mask[rows][:, columns], logits_to_keep=kept, **kwargs
        )
        logps.append(_widened(part_logps, keep))
        if part_entropies is not None:
            entropies.append(_widened(part_entropies, keep))
    back = torch.tensor([row for rows in parts for row in rows], device=input_ids.device).argsort()
    return torch.cat(logps)[back], torch.cat(entropies)[back] if entropies else None, None


def _widened(values: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.pad(values, (0, width - values.size(1)))
