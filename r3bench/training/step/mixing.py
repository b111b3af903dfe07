"""Writes historic rows into the batch TRL hands to its loss: the only place that edits those tensors.

A row that gives way is overwritten; a group that grows gets rows at the end of its rank's batch. Off-policy weights are
folded into per-token advantages of shape (B, T), which TRL's loss accepts, so the loss itself stays TRL's.

On its way in, a rank's batch holds B rows, prompts padded on the left to P and completions on the right to T tokens:

    prompt_ids, prompt_mask            (B, P)
    completion_ids, completion_mask    (B, T)    mask: 1 up to the end of the answer
    tool_mask                          (B, T)    where there is one: 0 for a tool's tokens and for a given prefix
    advantages                         (B,)
    old, sampling, ref log-probs       (B, T)    where TRL needs them
    r3_row                             (B,)      local number of a sampled row

and on its way out B + k rows, T wide enough for the longest stored answer, and advantages (B + k, T).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from r3bench.component import Mixture, Trajectory
from r3bench.errors import ConfigError
from r3bench.training.step import trl_adapter
from r3bench.training.step.correction import RATIO, row_weights
from r3bench.training.step.host import Host
from r3bench.training.step.loss_inputs import (
    BEHAVIOUR_KEY,
    FREE_KEY,
    NO_KL_KEY,
    OLD,
    REFERENCE,
    SAMPLING,
    SHAPED_KEY,
    loss_mask,
    shaped_weight,
)
from r3bench.training.step.rollout import Rollout

SCALE_KEY = "r3_loss_scale"  # 0-d batch entry: factor on the loss
ROW_KEY = "r3_row"  # batch column: local row number of a fresh row, else one of the two below
HISTORIC_ROW, PADDING_ROW = -1, -2


@dataclass(frozen=True)
class HistoricRow:
    """One stored trajectory on its way into the batch."""

    trajectory: Trajectory
    advantage: float
    mixture: Mixture
    local: int | None  # local row that gives way; None: appended
    prompt_row: int  # local row whose prompt it is answered to


def policy_weight(ratio: np.ndarray, weight: str, clip: tuple[float, float]) -> np.ndarray:
    """Per-token factor on the advantage of an off-policy row.

    Args:
        ratio: (T,) current over behaviour probability of each token; NaN where the behaviour policy is unknown.
        weight: `decoupled` clips the ratio to `clip`; `shaped` is the gradient weight of f(x) = x / (x + 0.1), that is
            0.1 x / (x + 0.1)^2 (and follows the policy if the batch is used for several updates); `ppo` and `none`
            leave the advantage alone (`ppo` acts through the old log-probs).
        clip: lower and upper bound.

    Returns:
        (T,) factors; 1 where the ratio is unknown.
    """
    if weight == "decoupled":
        factors = np.clip(ratio, *clip)
    elif weight == "shaped":
        factors = shaped_weight(torch.from_numpy(ratio)).numpy()
    else:
        factors = np.ones_like(ratio)
    return np.where(np.isnan(ratio), 1.0, factors)


def mix_into(
    trainer: Host,
    batch: dict[str, Any],
    rollout: Rollout,
    mixtures: Sequence[Mixture],
    trajectories: Sequence[Sequence[Trajectory]],
) -> dict[str, Any]:
    """`batch` with the mixtures written in; `trajectories[i]` are those of `mixtures[i]`. Collective."""
    layout = rollout.layout
    rows = _historic_rows(rollout, mixtures, trajectories)
    counts = _rows_per_rank(rollout, mixtures)
    appended = [row for row in rows if row.local is None]
    parts = trainer.args.steps_per_generation
    growth = _padded(max(counts.appended), parts)
    _fresh_advantages(batch, rollout, mixtures)

    # Current log-probs of the historic rows; every rank scores equally many (spare ones repeat its first row).
    spare = max(counts.total) - len(rows)
    prompts = [rollout.prompt_ids[row.prompt_row] for row in rows] + [rollout.prompt_ids[0]] * spare
    answers = [row.trajectory.completion_ids.tolist() for row in rows] + [rollout.completion_ids[0]] * spare
    images = trl_adapter.images_of(batch, [row.prompt_row for row in rows] + [0] * spare)
    current: list[torch.Tensor] = []
    if any(m.weight != "none" for m in mixtures) or OLD in batch:
        current = trl_adapter.score_tokens(trainer, prompts, answers, images=images)[0]
    if any(m.weight == "ppo" for m in mixtures) and OLD not in batch:
        whole = trl_adapter.images_of(batch, range(layout.local_rows))
        fresh = trl_adapter.score_tokens(trainer, rollout.prompt_ids, rollout.completion_ids, images=whole)[0]
        old = trl_adapter.pad_right(fresh, 0).to(batch["completion_ids"].device)
        missing = batch["completion_ids"].size(1) - old.size(1)  # TRL may pad to a multiple
        batch[OLD] = torch.nn.functional.pad(old, (0, missing))

    if trainer.off_policy_mask_threshold is not None and SAMPLING not in batch:
        # TRL's off-policy mask reads these: the behaviour policy of the historic rows, the old one of the others.
        unknown = torch.full(batch["completion_ids"].shape, torch.nan, device=batch["completion_ids"].device)
        batch[SAMPLING] = batch[OLD].clone() if OLD in batch else unknown

    reference: list[torch.Tensor] = []
    if REFERENCE in batch:
        reference = trl_adapter.score_tokens(trainer, prompts, answers, reference=True, images=images)[0]

    correction = _group_weights(trainer, batch, rollout, mixtures)
    batch = _with_keys(batch, rows)
    batch = _widen(trainer, batch, rows, growth)
    for number, row in enumerate(rows):
        place = row.local if row.local is not None else layout.local_rows + appended.index(row)
        now = current[number] if current else None
        batch["completion_ids"][place] = trl_adapter.tokenizer(trainer).pad_token_id
        _write(batch, place, row, now, reference[number] if reference else None)
        if RATIO in batch:
            batch[RATIO][place] = correction[row.mixture.group]
    _make_up_for_padding(trainer, batch, rollout, counts, growth)
    batch["num_items_in_batch"] = trainer.accelerator.gather(loss_mask(batch).sum()).sum()
    return batch


@dataclass(frozen=True)
class _Counts:
    """Historic rows by rank, known to all ranks."""

    total: list[int]
    appended: list[int]


def _rows_per_rank(rollout: Rollout, mixtures: Sequence[Mixture]) -> _Counts:
    layout = rollout.layout
    total, appended = [0] * layout.ranks, [0] * layout.ranks
    for mixture in mixtures:
        first = rollout.groups[mixture.group].rows.start
        if not mixture.replaced:
            rank = first // layout.local_rows
            total[rank] += len(mixture.historic)
            appended[rank] += len(mixture.historic)
        for place in mixture.replaced:
            total[(first + place) // layout.local_rows] += 1
    return _Counts(total, appended)


def _historic_rows(
    rollout: Rollout, mixtures: Sequence[Mixture], trajectories: Sequence[Sequence[Trajectory]]
) -> list[HistoricRow]:
    layout = rollout.layout
    rows = []
    for mixture, found in zip(mixtures, trajectories, strict=True):
        first = rollout.groups[mixture.group].rows.start
        if not mixture.replaced and not layout.whole_groups:
            raise ConfigError(
                f"components: mode 'append' needs whole groups on each process: {layout.local_rows} rows per process "
                f"and num_generations={layout.group_rows}; use mode 'replace', or a multiple of that many rows"
            )
        for number, trajectory in enumerate(found):
            target = first + mixture.replaced[number] if mixture.replaced else first
            local = layout.local(target)
            if local is not None:
                advantage = float(mixture.historic_advantages[number])
                rows.append(HistoricRow(trajectory, advantage, mixture, local if mixture.replaced else None, local))
    return rows


def _group_weights(
    trainer: Host, batch: dict[str, Any], rollout: Rollout, mixtures: Sequence[Mixture]
) -> dict[int, float]:
    """Group -> mean weight that the sampler correction leaves its fresh rows, which its historic rows get as well.

    A stored row wasn't sampled by this engine now, so it has no ratio of its own. At 1 it would count for more than the
    fresh rows it is compared with. 1 where no fresh row is left. Collective.
    """
    if RATIO not in batch:
        return {}
    own = row_weights(batch[RATIO], loss_mask(batch))[: rollout.layout.local_rows]
    weights = trainer.accelerator.gather(own).double().cpu().numpy()
    found = {}
    for mixture in mixtures:
        group = rollout.groups[mixture.group].rows
        fresh = weights[[row for place, row in enumerate(group) if place not in mixture.replaced]]
        fresh = fresh[~np.isnan(fresh)]
        found[mixture.group] = float(fresh.mean()) if len(fresh) else 1.0
    return found


def _padded(rows: int, parts: int) -> int:
    return -(-rows // parts) * parts


def _fresh_advantages(batch: dict[str, Any], rollout: Rollout, mixtures: Sequence[Mixture]) -> None:
    advantages = batch["advantages"].clone()
    for mixture in mixtures:
        group = rollout.groups[mixture.group]
        for place, row in enumerate(group.rows):
            local = rollout.layout.local(row)
            if local is not None and group.judged[place]:
                advantages[local] = float(mixture.fresh_advantages[place])
    batch["advantages"] = advantages


def _with_keys(batch: dict[str, Any], rows: Sequence[HistoricRow]) -> dict[str, Any]:
    """The batch with entries for rows that are shaped in several updates, and for those without a KL term."""
    like = torch.zeros(batch["completion_ids"].shape, device=batch["completion_ids"].device)
    added: dict[str, Any] = {}
    if OLD in batch and any(row.mixture.weight == "shaped" for row in rows):
        added = {SHAPED_KEY: torch.full_like(like, torch.nan), BEHAVIOUR_KEY: like.clone()}
        added[FREE_KEY] = batch.get(FREE_KEY, like.clone())
    if REFERENCE in batch and not all(row.mixture.kl for row in rows):
        added[NO_KL_KEY] = like[:, 0].clone()
    return {**batch, **added}


def _widen(trainer: Host, batch: dict[str, Any], rows: Sequence[HistoricRow], growth: int) -> dict[str, Any]:
    """The batch with `growth` padding rows at its end, room for the longest historic row, and (B, T) advantages."""
    width = batch["completion_ids"].size(1)
    longer = max([width, *(len(row.trajectory.completion_ids) for row in rows)]) - width
    fill = {
        "completion_ids": trl_adapter.tokenizer(trainer).pad_token_id,
        "tool_mask": 1,
        RATIO: 1,
        SHAPED_KEY: torch.nan,
    }
    if "tool_mask" not in batch and any(t.prefix or t.mask is not None for t in (row.trajectory for row in rows)):
        batch["tool_mask"] = torch.ones_like(batch["completion_ids"])
    # A new row has the prompt and images of its group; a padding row is its rank's first row with every token masked:
    # no loss, no gradient.
    origins = [row.prompt_row for row in rows if row.local is None]
    origins += [0] * (growth - len(origins))
    result: dict[str, Any] = {}
    for key, value in trl_adapter.split_images(batch).items():
        if isinstance(value, list):  # images, and their numbers
            result[key] = [*value, *[value[origin] for origin in origins]]
            continue
        if not isinstance(value, torch.Tensor) or value.ndim == 0:
            result[key] = value
            continue
        if key == "advantages":
            value = value.unsqueeze(1).expand(-1, width + longer).clone()
        elif key in trl_adapter.TYPE_KEYS:
            value = torch.nn.functional.pad(value, (0, longer))
        elif key in trl_adapter.IMAGE_KEYS:
            pass
        elif value.ndim == 2 and value.size(1) == width and not key.startswith("prompt_"):
            value = torch.nn.functional.pad(value, (0, longer), value=fill.get(key, 0))
        if growth:
            # Its log-probs are 0 as those of any masked token: against the first row's, the ratio could be infinite,
            # and 0 x inf is NaN.
            value = torch.cat([value, value[origins]])
            if key in ("completion_mask", "advantages", OLD, SAMPLING, REFERENCE, BEHAVIOUR_KEY, FREE_KEY, NO_KL_KEY):
                value[-growth:] = 0
            elif key in fill and key != "completion_ids":
                value[-growth:] = fill[key]
            elif key == ROW_KEY:
                value[-growth:] = PADDING_ROW
        result[key] = value
    return trl_adapter.join_images(result)


def _write(
    batch: dict[str, Any], place: int, row: HistoricRow, current: torch.Tensor | None, reference: torch.Tensor | None
) -> None:
    ids = torch.from_numpy(row.trajectory.completion_ids.astype(np.int64))
    length = len(ids)
    behaviour = torch.from_numpy(row.trajectory.logprobs.astype(np.float32))
    factors = np.ones(length)
    if current is not None:
        ratio = torch.exp(current - behaviour).double().numpy()
        factors = policy_weight(ratio, row.mixture.weight, row.mixture.clip)
    batch["prompt_ids"][place] = batch["prompt_ids"][row.prompt_row]
    batch["prompt_mask"][place] = batch["prompt_mask"][row.prompt_row]
    batch["completion_mask"][place] = 0
    batch["advantages"][place] = 0
    batch["completion_ids"][place, :length] = ids.to(batch["completion_ids"].device)
    batch["completion_mask"][place, :length] = 1
    weights = torch.from_numpy(row.advantage * factors).to(batch["advantages"])
    batch["advantages"][place, :length] = weights
    if "tool_mask" in batch:
        batch["tool_mask"][place] = 1
        if row.trajectory.mask is not None:
            batch["tool_mask"][place, :length] = torch.from_numpy(row.trajectory.mask).to(batch["tool_mask"])
        batch["tool_mask"][place, : row.trajectory.prefix] = 0
    old = current
    if row.mixture.weight == "ppo" and current is not None:
        old = torch.where(torch.isnan(behaviour), current, behaviour)
    for key, values in ((OLD, old), (SAMPLING, behaviour), (REFERENCE, reference)):
        if key in batch and values is not None:
            batch[key][place] = 0
            batch[key][place, :length] = values.to(batch[key])
    shaped = row.mixture.weight == "shaped"
    for key, nothing, some in (
        (SHAPED_KEY, torch.nan, torch.full((length,), row.advantage)),
        (BEHAVIOUR_KEY, 0, behaviour),
        (FREE_KEY, 0, torch.ones(length)),
    ):
        if key in batch:
            batch[key][place] = nothing
            if shaped:
                batch[key][place, :length] = some.to(batch[key])
    if NO_KL_KEY in batch:
        batch[NO_KL_KEY][place] = 0 if row.mixture.kl else 1
    batch[ROW_KEY][place] = HISTORIC_ROW


def _make_up_for_padding(trainer: Host, batch: dict[str, Any], rollout: Rollout, counts: _Counts, growth: int) -> None:
    """Losses that average over rows count padding rows too: scale them so that the mean is over real rows."""
    if growth and trainer.loss_type in trl_adapter.ROW_MEAN_LOSSES:
        real = rollout.rows + sum(counts.appended)
        padded = rollout.rows + growth * rollout.layout.ranks
        batch[SCALE_KEY] = torch.tensor(padded / real, device=batch["advantages"].device)
