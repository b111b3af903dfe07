"""Forwards over rows of very different length: in parts of like rows, each as wide as its own longest row.

A reflection prompt holds a whole answer, and one answer cut off at the cap is many times as long as the others. In one
padded tensor such a row would stretch every other one to its own width. The parts give the same log-probs up to
rounding, and every rank makes equally many, as its collectives must.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from r3bench.training.step.host import Host


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


def parts_of_tokens(
    widths: Sequence[int], tokens: int, agree: Callable[[int], int] = lambda parts: parts
) -> list[list[int]]:
    """Row numbers in parts of like width, narrow rows first, none above `tokens` with its padding unless it is one row.

    Args:
        widths: (N,) tokens of each row.
        tokens: most tokens of a part, padding included.
        agree: parts this rank needs -> parts every rank makes; at least as many, at most N. Collective.
    """
    order = sorted(range(len(widths)), key=widths.__getitem__)
    parts: list[list[int]] = []
    for row in order:
        if parts and (len(parts[-1]) + 1) * widths[row] <= tokens:
            parts[-1].append(row)
        else:
            parts.append([row])
    wanted = agree(len(parts))
    while len(parts) < wanted:  # other ranks need more: cut where it leaves the least padding
        saved = [_best_cut([widths[row] for row in part]) for part in parts]
        place = max(range(len(parts)), key=lambda part: saved[part])
        cut = saved[place][1]
        parts[place : place + 1] = [parts[place][:cut], parts[place][cut:]]
    return parts


def _best_cut(widths: Sequence[int]) -> tuple[int, int]:
    """(padding saved, rows of the first part) where rows sorted by width are best cut in two; (-1, 0) for one row."""
    return max(((n * (widths[-1] - widths[n - 1]), n) for n in range(1, len(widths))), default=(-1, 0))


def splitter(trainer: Host, size: int | None) -> Callable[[Sequence[int]], list[list[int]]]:
    """How rows of a forward are split by their tokens: under `tokens_per_forward`, else into parts of `size` rows.

    What it returns is collective, and gives equally many parts on every rank for equally many rows.
    """
    tokens = tokens_per_forward(trainer)
    if tokens is None:
        return partial(parts_of_like_rows, size=size)

    def agree(parts: int) -> int:
        if trainer.accelerator.num_processes == 1:
            return parts
        return int(trainer.accelerator.gather(torch.tensor([parts], device=trainer.accelerator.device)).max())

    return partial(parts_of_tokens, tokens=tokens, agree=agree)


def tokens_per_forward(trainer: Host) -> int | None:
    """The setting of `R3Config`; None with a plain `GRPOConfig`."""
    tokens = getattr(trainer.args, "tokens_per_forward", None)
    return None if tokens is None else int(tokens)


def forward_by_length(
    forward: Callable[..., tuple[torch.Tensor, torch.Tensor | None, None]],
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    keep: int,
    split: Callable[[Sequence[int]], list[list[int]]] = parts_of_like_rows,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None, None]:
    """Log-probs and entropies of the last `keep` tokens, (B, keep) each; 0 where masked. Differentiable.

    Args:
        forward: takes `input_ids`, `attention_mask`, `logits_to_keep` and `kwargs`; TRL's scoring method.
        input_ids, attention_mask: (B, P + keep), prompts padded on the left, completions on the right.
        keep: width of the completions.
        split: tokens of each row (N,) -> row numbers in parts.
    """
    prompts = attention_mask[:, :-keep].sum(dim=1).tolist()
    completions = attention_mask[:, -keep:].sum(dim=1).tolist()
    parts = split([sum(pair) for pair in zip(prompts, completions, strict=True)])
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
    """`values` (B, t, ...) with zeros up to (B, width, ...)."""
    return torch.nn.functional.pad(values, (0, 0) * (values.ndim - 2) + (0, width - values.size(1)))
