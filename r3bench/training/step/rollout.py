"""The bookkeeping of one generation batch: which global row is which question, and what is known of it so far.

Rank r holds global rows [r*B, (r+1)*B); a group is G consecutive global rows. Built anew for every batch and never kept
on the trainer beyond it, since an evaluation may run in between.
"""

import dataclasses
import enum
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from r3bench.component import Group, PlannedGroup
from r3bench.errors import ConfigError
from r3bench.training.questions.identity import question_id

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Layout:
    """Where rows are. Global rows of a rank are consecutive, so are those of a group."""

    rank: int  # this process
    ranks: int  # world size
    local_rows: int  # B, rows on each rank
    group_rows: int  # G, rows of a group

    @property
    def first(self) -> int:
        """Global number of this rank's first row."""
        return self.rank * self.local_rows

    @property
    def groups(self) -> int:
        return self.ranks * self.local_rows // self.group_rows

    @property
    def whole_groups(self) -> bool:
        """Whether no group is split over ranks."""
        return self.local_rows % self.group_rows == 0

    def local(self, row: int) -> int | None:
        """Local number of a global row, None when another rank holds it."""
        place = row - self.first
        return place if 0 <= place < self.local_rows else None

    def rows_on_fullest(self, rows: Sequence[int]) -> int:
        """The most of the global `rows` that any rank holds."""
        counts = [0] * self.ranks
        for row in rows:
            counts[row // self.local_rows] += 1
        return max(counts)

    def grown(self, groups_per_rank: int) -> "Layout":
        """The layout with that many groups more on each rank."""
        return dataclasses.replace(self, local_rows=self.local_rows + groups_per_rank * self.group_rows)


class Scoring(enum.Enum):
    """Which forward pass brings the log-probs and entropies of the sampled rows."""

    LOSS = "the loss forward: on-policy, TRL scores nothing before it"
    TO_COME = "TRL's scoring forward, which is still to come"
    DONE = "TRL's scoring forward, which has brought them for every row"


@dataclass
class Rollout:
    """One generation batch on this rank, and its groups on all ranks."""

    layout: Layout
    inputs: list[dict[str, Any]]  # B data set rows, as TRL gets them
    groups: list[Group]  # all groups of the batch, over all ranks
    prompts: dict[int, Any] = field(default_factory=dict)  # local row -> prompt the policy sees instead
    prefixes: dict[int, tuple[int, ...]] = field(default_factory=dict)  # local row -> given completion tokens
    trained_prefixes: set[int] = field(default_factory=set)  # local rows whose prefix is part of the loss
    prefix_lengths: list[int] = field(default_factory=list)  # given tokens of every row over all ranks that has some
    turn: int = 0  # of TRL's tool loop: prefixes are given in the first only
    masks: list[np.ndarray] = field(default_factory=list)  # B arrays (T,) bool: tokens the policy wrote, by TRL's own
    # mask (a tool's or environment's text is not; a given prefix is); empty: all were
    cut_tokens: int = 0  # tokens sampled on this rank beyond the cap and thrown away (after a given prefix)
    prompt_ids: list[list[int]] = field(default_factory=list)  # B lists of tokens, once sampled
    completion_ids: list[list[int]] = field(default_factory=list)  # B lists of tokens, once sampled
    logprobs: dict[int, np.ndarray] = field(default_factory=dict)  # local row -> (T,) behaviour log-probs
    entropies: dict[int, np.ndarray] = field(default_factory=dict)  # local row -> (T,)
    other_temperature: float | None = None  # of the entropies below; None: there are none
    other_entropies: dict[int, np.ndarray] = field(default_factory=dict)  # local row -> (T,), from the scoring forward
    scoring: Scoring = Scoring.LOSS  # which pass brings log-probs and entropies
    uneven: bool = False  # on some rank a rewritten prompt is far longer than the data set's
    resampled: bool = False  # further rounds were sampled, so TRL's logs no longer end with this batch
    shared: bool = False  # every rank's groups hold the tokens of all rows
    started: int = 0  # TRL's micro-step at which the batch was sampled

    @property
    def scored(self) -> bool:
        """Whether log-probs and entropies of every local row are there."""
        return self.scoring is Scoring.DONE

    @property
    def rows(self) -> int:
        """N, rows over all ranks."""
        return self.layout.ranks * self.layout.local_rows

    def keep(self, rows: Iterable[int], logprobs: "torch.Tensor", entropies: "torch.Tensor") -> None:
        """Take over what a forward pass found, (n, T) each, for the local `rows` that nothing is known of yet.

        Rows below 0 aren't the batch's own.
        """
        found = logprobs.detach().float().cpu().numpy(), entropies.detach().float().cpu().numpy()
        for place_, row in enumerate(rows):
            if row >= 0 and row not in self.logprobs:
                length = len(self.completion_ids[row])
                self.logprobs[row], self.entropies[row] = found[0][place_, :length], found[1][place_, :length]

    def seen_prompts(self, prompts: list[Any]) -> list[Any]:
        """`prompts` with the rewritten ones put in; the list TRL shows rewards and logs stays as it was."""
        return [self.prompts.get(row, prompt) for row, prompt in enumerate(prompts)]

    def loss_mask(self, masks: Any) -> Any:
        """TRL's own masks (None, or one per local row) with given tokens set to 0; unchanged when none were given."""
        if self.prefixes.keys() <= self.trained_prefixes:
            return masks
        found = []
        for row, ids in enumerate(self.completion_ids):
            given = 0 if row in self.trained_prefixes else min(len(self.prefixes.get(row, ())), len(ids))
            own = [1] * len(ids) if masks is None else [int(value) for value in masks[row]]
            found.append([0] * given + own[given:])
        return found

    def keep_masks(self, masks: Any) -> None:
        """Take over TRL's own masks, None or one per local row.

        Raises:
            ConfigError: one is not as long as its completion.
        """
        self.masks = [] if masks is None else [np.asarray(mask, bool) for mask in masks]
        for row, mask in enumerate(self.masks):
            if len(mask) != len(self.completion_ids[row]):
                raise ConfigError(
                    f"rollout_func: env_mask of row {row} has {len(mask)} entries for {len(self.completion_ids[row])} "
                    "completion tokens, expected one per token"
                )

    def written(self, row: int) -> int:
        """How many completion tokens of a local row are not a tool's or environment's."""
        return int(self.masks[row].sum()) if self.masks else len(self.completion_ids[row])

    def fill(
        self,
        correct: np.ndarray,
        judged: np.ndarray,
        truncated: np.ndarray,
        lengths: np.ndarray,
        task_rewards: np.ndarray,
    ) -> None:
        """Put what is known of all N rows, each of shape (N,), into the groups."""
        for group in self.groups:
            rows = slice(group.rows.start, group.rows.stop)
            group.correct, group.truncated = correct[rows].copy(), truncated[rows].copy()
            group.judged = judged[rows].copy()
            group.lengths, group.task_rewards = lengths[rows].copy(), task_rewards[rows].astype(float)
            group.rewards = group.task_rewards.copy()

    def add_rewards(self, totals: np.ndarray) -> None:
        """Set the groups' total rewards from those of all rows, shape (N,)."""
        for group in self.groups:
            group.rewards = totals[group.rows.start : group.rows.stop].astype(float)


def open_rollout(inputs: list[dict[str, Any]], layout: Layout, heads: Sequence[Mapping[str, Any]]) -> Rollout:
    """A rollout of the data set's own groups. `heads`: the data set row of every group of the batch."""
    groups = [
        Group(
            index=g, question=question_id(row), prompt=row.get("prompt"), provenance="fresh", columns=row,
            rows=range(g * layout.group_rows, (g + 1) * layout.group_rows),
        )
        for g, row in enumerate(heads)
    ]  # fmt: skip
    return Rollout(layout, list(inputs), groups)


def append_multiple(layout: Layout, parts: int) -> int:
    """Appended groups must be a multiple of this: equally many per rank, in rows that split into `parts`."""
    return layout.ranks * (parts // math.gcd(parts, layout.group_rows))


def place(
    rollout: Rollout, planned: Sequence[PlannedGroup], row_of: Callable[[str], Mapping[str, Any]], parts: int
) -> tuple[Rollout, int]:
    """The rollout with planned groups in their slots and after the slots.

    Args:
        rollout: as opened.
        planned: what the components asked for, in order of precedence; a slot taken twice keeps the first.
        row_of: question id -> data set row (a dict), the same on every rank.
        parts: S; appended rows per rank must divide by it, or TRL's split would drop some.

    Returns:
        The new rollout and how many planned groups found no place.

    Raises:
        ConfigError: appending while groups are split over ranks.
    """
    layout = rollout.layout
    slots: dict[int, PlannedGroup] = {}
    for plan in planned:
        if plan.slot is not None and 0 <= plan.slot < layout.groups:
            slots.setdefault(plan.slot, plan)
    appended = [plan for plan in planned if plan.slot is None]
    if appended and not layout.whole_groups:
        raise ConfigError(
            f"components: appending groups needs whole groups on each process: {layout.local_rows} rows per process "
            f"and num_generations={layout.group_rows}; use placement 'replace', or rows in a multiple of "
            f"{layout.group_rows}"
        )
    multiple = append_multiple(layout, parts)
    extra = len(appended) // multiple * multiple // layout.ranks
    grown = layout.grown(extra)
    dropped = len(planned) - len(slots) - extra * layout.ranks

    groups: list[Group] = []
    plans: dict[int, PlannedGroup] = {}
    planned_rows: dict[int, Mapping[str, Any]] = {}  # group index -> its data set row, read once
    if extra == 0:  # groups keep their numbers even when split over ranks
        order: list[tuple[Group | None, PlannedGroup | None]] = [(g, slots.get(g.index)) for g in rollout.groups]
    else:
        per_rank = layout.local_rows // layout.group_rows
        order = []
        for rank in range(layout.ranks):
            own = rollout.groups[rank * per_rank : (rank + 1) * per_rank]
            order += [(g, slots.get(g.index)) for g in own]
            order += [(None, plan) for plan in appended[rank * extra : (rank + 1) * extra]]
    for index, (group, wanted) in enumerate(order):
        rows = range(index * layout.group_rows, (index + 1) * layout.group_rows)
        if wanted is None:
            assert group is not None
            groups.append(dataclasses.replace(group, index=index, rows=rows))
        else:
            row = planned_rows[index] = row_of(wanted.question)
            groups.append(
                Group(
                    index, wanted.question, row.get("prompt"), wanted.provenance, rows,
                    prefix=len(wanted.prefix_ids), columns=row,
                )
            )  # fmt: skip
            plans[index] = wanted

    result = Rollout(grown, [], groups)
    old_rows = iter(rollout.inputs)
    for local in range(grown.local_rows):
        index = (grown.first + local) // layout.group_rows
        here = plans.get(index)
        if here is None or here.slot is not None:
            original = next(old_rows)
        if here is None:
            result.inputs.append(original)
            continue
        result.inputs.append(dict(planned_rows[index]))
        if here.prompt is not None:
            result.prompts[local] = here.prompt
        if here.prefix_ids:
            result.prefixes[local] = here.prefix_ids
            if here.prefix_in_loss:
                result.trained_prefixes.add(local)
    result.uneven = any(plan.prompt is not None for plan in plans.values())
    result.prefix_lengths = [len(plan.prefix_ids) for plan in plans.values() if plan.prefix_ids] * layout.group_rows
    return result, dropped
