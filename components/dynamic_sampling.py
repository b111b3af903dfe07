"""Dynamic sampling of DAPO: arXiv 2503.14476, section 3.2, Eq. 11. The rival that replay claims to replace.

Groups whose answers are all right or all wrong are dropped, and their slots are sampled again with other questions
until the batch is full of groups with contrast.

| paper | here |
|---|---|
| 0 < number of right answers < G | `keep` |
| sample until full | `max_rounds` more rounds; what is dead after the last one is dropped from the update |

A group that another component has mixed or given a reward of its own (`replay`, `ranking`) is sampled again like any
dead one, but not dropped at the end: that would undo the other.

Given by the paper: the criterion, on accuracy. Left open: a limit on the rounds. A dropped group has advantage 0; its
tokens still count in a token-level loss average, so the update is smaller than DAPO's where the rounds do not suffice.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from r3bench.component import Component, Facts, Step


@dataclass(frozen=True)
class DynamicSamplingConfig:
    """Settings of `dynamic_sampling`."""

    max_rounds: int = 4  # extra generation rounds per batch; 0 only drops

    def __post_init__(self) -> None:
        if self.max_rounds < 0:
            raise ValueError(f"max_rounds: got {self.max_rounds}, expected 0 or above")


class DynamicSampling(Component):
    """Samples groups without contrast again, with other questions."""

    name = "dynamic_sampling"
    Config = DynamicSamplingConfig
    counters: ClassVar[Mapping[str, str]] = {
        "rounds": "rounds of sampling, the first included",
        "groups_seen": "groups looked at over all rounds",
        "groups_dead": "groups without contrast found over all rounds",
        "groups_dropped": "groups left without contrast at the end, and without a gradient",
    }
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "filter": {"max_rounds": 0},  # control: dropping without sampling again
    }

    config: DynamicSamplingConfig

    def __init__(self, config: DynamicSamplingConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        self.resamples = config.max_rounds > 0

    def keep(self, step: Step) -> list[bool]:
        kept = [group.provenance != "fresh" or not group.homogeneous for group in step.groups]
        self.count("rounds")
        self.count("groups_seen", sum(bool(group.judged.any()) for group in step.groups))
        self.count("groups_dead", kept.count(False))
        return kept

    def rescale(self, step: Step, mixed: frozenset[int]) -> dict[int, float]:
        dead = [
            group.index
            for group in step.groups
            if group.provenance == "fresh" and group.homogeneous and group.index not in mixed and not group.shaped
        ]
        self.count("groups_dropped", len(dead))
        return dict.fromkeys(dead, 0.0)

    def acted(self, totals: Mapping[str, float]) -> bool:
        return totals.get("dynamic_sampling/groups_dead", 0) + totals.get("dynamic_sampling/groups_dropped", 0) > 0
