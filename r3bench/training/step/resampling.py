"""Further generation rounds for groups that a component does not want to train on (DAPO's dynamic sampling)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from r3bench.errors import ConfigError
from r3bench.training.step import trl_adapter
from r3bench.training.step.host import Host
from r3bench.training.step.loss_inputs import loss_mask
from r3bench.training.step.mixing import ROW_KEY
from r3bench.training.step.moments import Moments
from r3bench.training.step.rollout import Rollout

Sample = Callable[[list[dict[str, Any]]], tuple[Rollout, dict[str, Any]]]


def resample(
    trainer: Host, moments: Moments, rollout: Rollout, batch: dict[str, Any], sample: Sample
) -> tuple[Rollout, dict[str, Any]]:
    """Fill the slots of unwanted groups with groups of other questions, for as many rounds as the components allow.

    A round samples as many groups on each rank as the rank with most open slots needs. What is still unwanted after the
    last round stays. Collective.

    Raises:
        ConfigError: groups are split over ranks.
    """
    layout = rollout.layout
    if not layout.whole_groups:
        raise ConfigError(
            f"components: sampling again needs whole groups on each process: {layout.local_rows} rows per process "
            f"and num_generations={layout.group_rows}"
        )
    per_rank = layout.local_rows // layout.group_rows
    tried = {group.question for group in rollout.groups}
    kept = moments.kept(rollout)
    filled = 0
    for number in range(moments.max_rounds()):
        open_slots = [
            [r * per_rank + g for g in range(per_rank) if not kept[r * per_rank + g]] for r in range(layout.ranks)
        ]
        need = max(len(slots) for slots in open_slots)
        questions = [question for question in moments.row_index if question not in tried]
        if need == 0 or len(questions) < need * layout.ranks:
            break
        # Several batches may be sampled within one optimiser step; counted so that a resume draws the same.
        within = trl_adapter.micro_step(trainer) % trainer.args.gradient_accumulation_steps
        rng = moments.facts().rng(trainer.state.global_step, "resample", f"{number}-{within}")
        chosen = rng.sample(questions, need * layout.ranks)
        tried.update(chosen)
        mine = chosen[layout.rank * need : (layout.rank + 1) * need]
        rows = [dict(moments.row_of(question)) for question in mine for _ in range(layout.group_rows)]
        other, other_batch = sample(rows)
        wanted = [
            keep and bool(group.judged.any()) for keep, group in zip(moments.kept(other), other.groups, strict=True)
        ]
        pairs = []  # (slot in this batch, group of the other batch), global numbers
        for rank, slots in enumerate(open_slots):
            good = [rank * need + g for g in range(need) if wanted[rank * need + g]]
            pairs += list(zip(slots, good, strict=False))
        for slot, source in pairs:
            kept[slot] = True
            _take_group(rollout, slot, other, source)
        rows_taken = [row for slot, source in pairs for row in _local_rows(rollout, slot, other, source)]
        batch = _take_rows(batch, other_batch, rows_taken, trl_adapter.tokenizer(trainer).pad_token_id)
        filled += len(pairs)
    trl_adapter.log_metric(trainer, "groups/resampled", filled)
    rollout.resampled = True
    moments.look_up(rollout)
    batch["num_items_in_batch"] = trainer.accelerator.gather(loss_mask(batch).sum()).sum()
    return rollout, batch


def _take_group(rollout: Rollout, slot: int, other: Rollout, source: int) -> None:
    group, target = other.groups[source], rollout.groups[slot]
    for local_target, local_source in _local_rows(rollout, slot, other, source):
        rollout.inputs[local_target] = other.inputs[local_source]
        rollout.prompts.pop(local_target, None)
        rollout.prefixes.pop(local_target, None)
        rollout.prompt_ids[local_target] = other.prompt_ids[local_source]
        rollout.completion_ids[local_target] = other.completion_ids[local_source]
        if rollout.masks or other.masks:
            for either in (rollout, other):
                either.masks = either.masks or [np.ones(len(ids), bool) for ids in either.completion_ids]
            rollout.masks[local_target] = other.masks[local_source]
        for known, found in ((rollout.logprobs, other.logprobs), (rollout.entropies, other.entropies)):
            known.pop(local_target, None)
            if local_source in found:
                known[local_target] = found[local_source]
    group.index, group.rows = slot, target.rows
    rollout.groups[slot] = group


def _local_rows(rollout: Rollout, slot: int, other: Rollout, source: int) -> list[tuple[int, int]]:
    """(local row of the slot, local row of the source) on the rank that holds them, else none."""
    size = rollout.layout.group_rows
    target, origin = rollout.layout.local(slot * size), other.layout.local(source * size)
    return [] if target is None or origin is None else [(target + i, origin + i) for i in range(size)]


def _take_rows(batch: dict[str, Any], other: dict[str, Any], rows: list[tuple[int, int]], token: int) -> dict[str, Any]:
    """`batch` with its rows overwritten by rows of `other`: (target, origin) local row numbers."""
    if "tool_mask" in other and "tool_mask" not in batch:
        batch = {**batch, "tool_mask": torch.ones_like(batch["completion_ids"])}
    result = dict(batch)
    for key, value in result.items():
        if not isinstance(value, torch.Tensor) or value.ndim == 0 or key == ROW_KEY:
            continue
        fresh = other[key] if key in other else torch.ones_like(other["completion_ids"])  # tool_mask: all sampled
        if value.ndim == 2:
            width = max(value.size(1), fresh.size(1))
            fill = token if key in ("prompt_ids", "completion_ids") else 1 if key == "tool_mask" else 0
            left = key.startswith("prompt_")
            value, fresh = (_widen(tensor, width, fill, left) for tensor in (value, fresh))
        value = value.clone()
        for target, origin in rows:
            value[target] = fresh[origin]
        result[key] = value
    return result


def _widen(tensor: torch.Tensor, width: int, fill: float, left: bool) -> torch.Tensor:
    missing = width - tensor.size(1)
    return torch.nn.functional.pad(tensor, (missing, 0) if left else (0, missing), value=fill)
