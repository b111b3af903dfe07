"""Replay-enhanced policy optimisation (RePO): arXiv 2506.09340, https://github.com/SihengLi99/RePO.

Stored answers to the same question join its group at every visit, whatever the group's outcome.

| method | here |
|---|---|
| buffer of 16 answers per question, used once it is full | `window`, `min_stored` |
| 8 on-policy and 8 replayed rows | `rows`; the group grows |
| strategies all, random, recent, highest, max variance | `pick` |
| advantages of the two parts on their own (default) or together | `normalisation` |
| loss = on-policy + coefficient * off-policy | `coefficient`, on the replayed rows' advantages |
| PPO ratio against the stored log-probs | `weight: ppo` |
| KL term, if there is one | fresh rows only |

The original adds two separately averaged losses; here both parts share the trainer's average, so the coefficient is
exact only up to the ratio of their sizes.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from r3bench.component import Component, Group, Mixture, Step, Summary, Weight
from r3bench.errors import ConfigError
from r3bench.training.step.history import HistoryBounds
from r3bench.training.toolkit.mixed_groups import mixture, not_outranked, still_free

RepoPick = Literal["all", "random", "recent", "highest", "max_variance"]


def max_variance(rewards: Sequence[float], k: int) -> list[int]:
    """Indices of the k rewards with the largest variance: some of the lowest and the rest of the highest."""
    order = np.argsort(np.asarray(rewards, float), kind="stable")
    options = [np.concatenate([order[:low], order[len(order) - (k - low) :]]) for low in range(k + 1)]
    best = max(options, key=lambda chosen: float(np.var(np.asarray(rewards, float)[chosen])))
    return sorted(int(place) for place in best)


def choose(stored: Sequence[Summary], k: int, pick: RepoPick, rng: random.Random) -> list[Summary]:
    """At most `k` of the stored rows (all of them for `all`), by the strategies of RePO; ties in seeded order."""
    rows = list(stored)
    if pick == "all":
        return rows
    k = min(k, len(rows))
    if pick == "recent":
        return sorted(rows, key=lambda row: -row.serial)[:k]
    if pick == "max_variance":
        return [rows[place] for place in max_variance([row.task_reward for row in rows], k)]
    rng.shuffle(rows)
    return sorted(rows, key=lambda row: -row.task_reward)[:k] if pick == "highest" else rows[:k]


@dataclass(frozen=True)
class RepoConfig:
    """Settings of `repo`."""

    rows: int = 8  # replayed rows per group (pick 'all': the whole window)
    window: int = 16  # newest stored answers that may be drawn
    min_stored: int = 16  # nothing is replayed before this many are stored
    pick: RepoPick = "recent"  # which rows are taken
    normalisation: Literal["split", "mixed"] = "split"  # statistics of each part, or of the whole group
    coefficient: float = 1.0  # factor on the replayed rows' advantages
    weight: Weight = "ppo"  # off-policy weight of the replayed rows
    ratio_max: float = 2.0  # upper bound of the current/behaviour ratio (decoupled)

    def __post_init__(self) -> None:
        for key in ("rows", "window", "min_stored"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key}: got {getattr(self, key)}, expected at least 1")
        if self.min_stored > self.window:
            raise ValueError(f"min_stored: got {self.min_stored}, expected at most window={self.window}")
        if self.coefficient < 0:
            raise ValueError(f"coefficient: got {self.coefficient}, expected 0 or above")


class Repo(Component):
    """Adds stored answers to every group at every visit."""

    name = "repo"
    Config = RepoConfig
    counters: ClassVar[Mapping[str, str]] = {
        "groups_no_history": "groups with too few stored answers",
        "groups_mixed": "groups that got stored answers",
        "rows": "stored answers mixed in",
        "rows_with_gradient": "those of them whose advantage is not 0",
    }
    uses_history = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "mixed": {"normalisation": "mixed"},
        "max_variance": {"pick": "max_variance"},
    }

    config: RepoConfig

    @classmethod
    def check(cls, config: RepoConfig, trainer: Mapping[str, Any], lowest_correct: float, where: str) -> None:
        kept = (trainer.get("history") or {}).get("per_question", HistoryBounds.per_question)
        if kept < config.min_stored:
            raise ConfigError(
                f"{where}.min_stored: got {config.min_stored}, but the history keeps {kept} answers per question: "
                "nothing would ever be replayed"
            )

    @classmethod
    def appends(cls, config: RepoConfig) -> bool:
        return True

    @classmethod
    def most_appended(cls, config: RepoConfig, groups: int, generations: int) -> int:
        return config.rows * groups

    def mix(self, step: Step) -> list[Mixture]:
        free = still_free(self, step, [g for g in step.groups if g.provenance == "fresh" and g.judged.any()])
        return [mixture for group in free if (mixture := self._mixture(group, step)) is not None]

    def _mixture(self, group: Group, step: Step) -> Mixture | None:
        config = self.config
        stored = [row for row in step.history.summaries(group.question) if row.provenance == "fresh"][-config.window :]
        if len(stored) < config.min_stored:
            self.count("groups_no_history")
            return None
        rng = self.facts.rng(step.step, self.name, group.question)
        historic = choose(not_outranked(self, group, stored), config.rows, config.pick, rng)
        if not historic:
            return None
        mixed = mixture(
            self.facts,
            step,
            group,
            historic,
            weight=config.weight,
            clip=(0.0, config.ratio_max),
            kl=False,
            normalisation=config.normalisation,
            coefficient=config.coefficient,
        )
        self.count("groups_mixed")
        self.count("rows", len(historic))
        self.count("rows_with_gradient", int(np.count_nonzero(mixed.historic_advantages)))
        return mixed

    def acted(self, totals: Mapping[str, float]) -> bool:
        return totals.get("repo/rows_with_gradient", 0) > 0
