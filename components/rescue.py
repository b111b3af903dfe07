"""Rollout rescue of Polaris, as described in RLEP (arXiv 2507.07451, section 2): the simplest baseline for replay.

When every answer of a group is wrong, one of them is swapped for a stored right answer from an earlier epoch.

| method | here |
|---|---|
| buffer of right answers from earlier epochs | the history; rows of the current epoch are left out |
| one wrong rollout is swapped | one random place of the group |

Known to us: the swap and its trigger. Not known: which stored answer is taken (here a random one) and any importance
weight (here none; `weight` offers the others).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from r3bench.component import Component, Group, Mixture, Step, Weight
from r3bench.training.toolkit.mixed_groups import mixture, not_outranked, still_free


@dataclass(frozen=True)
class RescueConfig:
    """Settings of `rescue`."""

    weight: Weight = "none"  # off-policy weight of the swapped row
    ratio_max: float = 2.0  # upper bound of the current/behaviour ratio (decoupled)

    def __post_init__(self) -> None:
        if self.ratio_max <= 0:
            raise ValueError(f"ratio_max: got {self.ratio_max}, expected a number above 0")


class Rescue(Component):
    """Swaps one wrong answer of an all-wrong group for a stored right one."""

    name = "rescue"
    Config = RescueConfig
    counters: ClassVar[Mapping[str, str]] = {
        "groups_all_wrong": "groups whose answers were all wrong",
        "groups_no_history": "groups that wanted a stored right answer and found none",
        "rows": "stored right answers put in",
    }
    uses_history = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"decoupled": {"weight": "decoupled"}}

    config: RescueConfig

    def mix(self, step: Step) -> list[Mixture]:
        wanted = [group for group in step.groups if group.provenance == "fresh" and group.all_wrong]
        free = still_free(self, step, wanted)
        return [mixture for group in free if (mixture := self._rescued(group, step)) is not None]

    def _rescued(self, group: Group, step: Step) -> Mixture | None:
        self.count("groups_all_wrong")
        rng = self.facts.rng(step.step, self.name, group.question)
        stored = [
            row
            for row in step.history.summaries(group.question)
            if row.correct and row.provenance == "fresh" and row.epoch < int(step.epoch + 1e-6)
        ]
        if not stored:
            self.count("groups_no_history")
            return None
        stored = not_outranked(self, group, stored)
        if not stored:
            return None
        chosen, place = rng.choice(stored), rng.choice(np.flatnonzero(group.judged).tolist())
        self.count("rows")
        clip = (0.0, self.config.ratio_max)
        return mixture(self.facts, step, group, [chosen], replaced=[place], weight=self.config.weight, clip=clip)

    def acted(self, totals: Mapping[str, float]) -> bool:
        return totals.get("rescue/rows", 0) > 0
