"""Experience replay by value of the experience (ExGRPO): arXiv 2510.02245.

Half of a batch's questions are drawn from those solved sometimes but not always; in each of their groups one row is a
stored right answer, the one the policy was surest of.

| paper | here |
|---|---|
| buckets by latest accuracy, p proportional to N(acc; 0.5, 1) | `centre`, `spread` |
| questions solved every time are retired | while their latest visit was all right; those never solved wait as well |
| rho = 50 % of the batch | `share` |
| lowest-entropy trajectory | mean token entropy |
| one replayed row and G - 1 fresh ones | one random place gives way |
| ratio to the past policy, shaped x / (x + 0.1), no clip | `weight: shaped`, by today's policy in every update |
| no KL on the replayed row | also with `trainer.beta` above 0 (ours: the published runs have none) |
| starts when the batch's success rate passes 0.35 | `start` |
| averages as Dr. GRPO: no division by deviation or length | `scale_rewards: none`, `loss_type: dr_grpo`: the recipe's |

Departures: entropies are those measured when a row was sampled, not under the current policy (that would cost a forward
over every candidate); all G rows of a group are sampled and one gives way, so a replayed group costs as much as any.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from r3bench.component import Component, Facts, Group, Mixture, PlannedGroup, Step, Weight
from r3bench.errors import ConfigError
from r3bench.training.toolkit.mixed_groups import mixture, not_outranked, pick_rows, still_free


def draw_questions(
    accuracy: Mapping[str, float], count: int, rng: random.Random, *, centre: float, spread: float
) -> list[str]:
    """At most `count` different questions: a bucket of equal accuracy by its normal weight, then one of it uniformly.

    Args:
        accuracy: question -> latest share of right answers; 0 and 1 are never drawn.
        count: how many.
        rng: source of the draw.
        centre, spread: mean and deviation of the normal weight.
    """
    buckets: dict[float, list[str]] = {}
    for question in sorted(accuracy):
        if 0 < accuracy[question] < 1:
            buckets.setdefault(accuracy[question], []).append(question)
    chosen: list[str] = []
    while buckets and len(chosen) < count:
        levels = sorted(buckets)
        weights = [math.exp(-0.5 * ((level - centre) / spread) ** 2) for level in levels]
        level = rng.choices(levels, weights)[0]
        chosen.append(buckets[level].pop(rng.randrange(len(buckets[level]))))
        if not buckets[level]:
            del buckets[level]
    return chosen


@dataclass(frozen=True)
class ExgrpoConfig:
    """Settings of `exgrpo`."""

    share: float = 0.5  # rho, share of prompt slots given to replayed questions, rounded down
    centre: float = 0.5  # accuracy with the largest weight
    spread: float = 1.0  # standard deviation of the weight, in accuracy
    start: float = 0.35  # replay begins once a batch's success rate has passed this
    weight: Weight = "shaped"  # off-policy weight of the replayed row
    ratio_max: float = 2.0  # upper bound of the current/behaviour ratio (decoupled)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share: got {self.share}, expected a number in (0, 1]")
        if self.spread <= 0:
            raise ValueError(f"spread: got {self.spread}, expected a number above 0")
        if not 0 <= self.start < 1:
            raise ValueError(f"start: got {self.start}, expected a number in [0, 1)")


class Exgrpo(Component):
    """Revisits half-solved questions with a stored right answer in the group."""

    name = "exgrpo"
    Config = ExgrpoConfig
    counters: ClassVar[Mapping[str, str]] = {
        "groups_planned": "groups given to a question from the experience pool",
        "groups_no_history": "such groups without a stored right answer",
        "rows": "stored right answers put in",
    }
    uses_history = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"at_once": {"start": 0.0}}

    config: ExgrpoConfig

    def __init__(self, config: ExgrpoConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        self.accuracy: dict[str, float] = {}  # question -> share of right answers at its last visit
        self._started = False
        self._planned: frozenset[str] = frozenset()

    @classmethod
    def check(cls, config: ExgrpoConfig, trainer: Mapping[str, Any], lowest_correct: float, where: str) -> None:
        groups = (trainer.get("generation_batch_size") or 0) // trainer["num_generations"]  # 0: not known yet
        if groups and int(config.share * groups + 1e-9) == 0:
            raise ConfigError(
                f"{where}.share: got {config.share} of {groups} groups a batch, but that is less than one group, so "
                f"nothing would ever be replayed; expected at least {math.ceil(1e4 / groups) / 1e4}"
            )

    def plan(self, step: Step) -> list[PlannedGroup]:
        self._planned = frozenset()
        if not self._started:
            return []
        rng = self.facts.rng(step.step, self.name, "plan")
        free = [g.index for g in step.groups if g.provenance == "fresh" and g.index not in step.taken]
        own = {group.question for group in step.groups}
        pool = {question: value for question, value in self.accuracy.items() if question not in own}
        count = min(int(self.config.share * len(step.groups) + 1e-9), len(free))
        chosen = draw_questions(pool, count, rng, centre=self.config.centre, spread=self.config.spread)
        self._planned = frozenset(chosen)
        slots = sorted(rng.sample(free, len(chosen)))
        self.count("groups_planned", len(chosen))
        return [PlannedGroup(question, "fresh", slot) for question, slot in zip(chosen, slots, strict=True)]

    def mix(self, step: Step) -> list[Mixture]:
        wanted = [g for g in step.groups if g.provenance == "fresh" and g.question in self._planned and g.judged.any()]
        free = still_free(self, step, wanted)
        return [mixture for group in free if (mixture := self._mixture(group, step)) is not None]

    def _mixture(self, group: Group, step: Step) -> Mixture | None:
        rng = self.facts.rng(step.step, self.name, group.question)
        solved = [row for row in step.history.summaries(group.question) if row.correct and row.provenance == "fresh"]
        if not solved:
            self.count("groups_no_history")
            return None
        historic = pick_rows(not_outranked(self, group, solved), 1, "lowest_entropy", rng)
        if not historic:
            return None
        place = rng.choice(np.flatnonzero(group.judged).tolist())
        self.count("rows")
        return mixture(
            self.facts,
            step,
            group,
            historic,
            replaced=[place],
            weight=self.config.weight,
            clip=(0.0, self.config.ratio_max),
            kl=False,
        )

    def observe(self, step: Step) -> None:
        fresh = [group for group in step.groups if group.provenance == "fresh" and group.judged.any()]
        for group in fresh:
            self.accuracy[group.question] = group.success
        if fresh and not self._started:
            self._started = _success(fresh) > self.config.start

    def acted(self, totals: Mapping[str, float]) -> bool:
        return totals.get("exgrpo/rows", 0) > 0

    def state_dict(self) -> dict[str, Any]:
        return {"accuracy": dict(sorted(self.accuracy.items())), "started": self._started}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.accuracy = {question: float(value) for question, value in state["accuracy"].items()}
        self._started = bool(state["started"])


def _success(groups: Sequence[Group]) -> float:
    """Share of right answers over the groups."""
    return float(np.mean([group.success for group in groups]))
