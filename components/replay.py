"""Cross-context replay (CCR) of R3: arXiv 2601.19620, section 3.2.1, Eq. 3 and Algorithm 1.

A group whose answers are all right or all wrong has no reward spread and so no gradient. It is mixed with stored
answers to the same question that have the opposite label, and its advantages are computed again over the mixed group.

| paper | here |
|---|---|
| G_C, the k historic samples | `rows`; `mode: append` (the union of Algorithm 1) or `replace` (fixed shape) |
| retrieval from S by question id | `pick`, `from_provenance`, `truncated_negatives`, `max_age` |
| opposite label in both directions | `labels` |
| alpha, "predefined factor" of Eq. 3 | `alpha`, `alpha_on` |
| lambda and std of Eq. 3 | `eps`, `deviation` |
| G_mix: mean and std over the union | `normalisation: mixed` |
| S, the buffer, by question | the history: `history.per_question`, `max_tokens`, `max_age` bound it |
| epoch > 1 | `warmup`, `warmup_unit` |
| beta, the KL term: inside the sum over G_mix | covers historic rows like fresh ones |
| pi_theta / pi_old of a historic sample | `weight`, `ratio_min`, `ratio_max` |

Left open by the paper: k, which samples are drawn and whether answers to a reflection prompt are among them, alpha,
lambda, the divisor of the standard deviation (here n - 1, as in TRL), the buffer's capacity and any age limit, and the
importance ratio of replayed samples. The text limits alpha to off-policy samples, but
Eq. 3 divides every advantage of the group by it; `alpha_on` offers both. Without a stored opposite answer the group
stays as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from r3bench.component import Component, Group, Mixture, Step, Weight
from r3bench.errors import ConfigError
from r3bench.training.toolkit.mixed_groups import (
    Pick,
    admissible,
    mixture,
    not_outranked,
    pick_rows,
    still_free,
)

Stored = Literal["fresh", "reflection", "continuation"]  # kinds of trajectories the history holds


@dataclass(frozen=True)
class ReplayConfig:
    """Settings of `replay`."""

    rows: int = 1  # k, historic rows per mixed group; fewer where fewer are stored
    mode: Literal["append", "replace"] = "append"  # the group grows by k (literal), or k of its rows give way
    pick: Pick = "random"  # which admissible rows are taken
    labels: Literal["both", "positives"] = "both"  # repair both kinds of groups, or only all-wrong ones
    truncated_negatives: bool = False  # wrong answers that hit the cap may be replayed (their reasoning may be sound)
    from_provenance: tuple[Stored, ...] = ("fresh",)  # stored rows that may be replayed, by how their prompt was made
    into_provenance: tuple[Stored, ...] = ("fresh",)  # groups that may be mixed
    max_age: int | None = None  # oldest row in optimiser steps; null: no limit
    alpha: float = 1.0  # Eq. 3
    alpha_on: Literal["group_std", "replayed_rows"] = "group_std"  # Eq. 3 as printed, or damping of historic rows only
    eps: float = 1e-4  # lambda of Eq. 3
    deviation: Literal["sample", "population"] = "sample"  # of the group: divisor n - 1, as TRL's, or n
    normalisation: Literal["mixed", "split", "fresh"] = "mixed"
    # rows behind mean and deviation; 'split' (each part's own) has no gradient unless rewards within a part differ
    warmup: float = 1.0  # nothing is mixed before this many epochs or steps; 0: as soon as a question has history
    warmup_unit: Literal["epochs", "steps"] = "epochs"  # unit of `warmup`
    weight: Weight = "decoupled"  # off-policy weight of the historic rows; 'none' is the paper's text
    ratio_min: float = 0.0  # lower bound of the current/behaviour ratio (decoupled)
    ratio_max: float = 2.0  # upper bound of the current/behaviour ratio (decoupled)

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"rows: got {self.rows}, expected at least 1")
        if self.alpha <= 0:
            raise ValueError(f"alpha: got {self.alpha}, expected a number above 0")
        if self.eps < 0:
            raise ValueError(f"eps: got {self.eps}, expected 0 or above")
        if self.warmup < 0:
            raise ValueError(f"warmup: got {self.warmup}, expected 0 or above")
        if self.max_age is not None and self.max_age < 1:
            raise ValueError(f"max_age: got {self.max_age}, expected at least 1 step or null")
        if not 0 <= self.ratio_min <= self.ratio_max:
            raise ValueError(f"ratio_min: got {self.ratio_min}, expected 0 <= ratio_min <= ratio_max={self.ratio_max}")
        for key in ("from_provenance", "into_provenance"):
            if not getattr(self, key):
                raise ValueError(f"{key}: got an empty list, expected at least one of fresh, reflection, continuation")
        if self.normalisation == "split" and self.rows < 2:
            raise ValueError(
                f"rows: got {self.rows} with normalisation 'split', expected at least 2: "
                "a single row normalised on its own has advantage 0"
            )


class Replay(Component):
    """Mixes groups without contrast with stored answers of the opposite label."""

    name = "replay"
    Config = ReplayConfig
    counters: ClassVar[Mapping[str, str]] = {
        "groups_all_right": "groups whose answers were all right",
        "groups_all_wrong": "groups whose answers were all wrong",
        "groups_waiting": "such groups before the end of the warm-up, left alone",
        "groups_no_history": "groups that wanted stored answers and found none",
        "groups_mixed": "groups that got stored answers",
        "rows": "stored answers mixed in",
        "rows_correct": "right ones among them",
        "groups_with_gradient": "mixed groups in which some advantage is not 0",
        "age_steps": "steps since the mixed-in answers were sampled, summed",
    }
    uses_history = True
    later = ("deviation",)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "literal": {"weight": "none"},  # the paper's text: no importance ratio
        "positives": {"labels": "positives"},  # control: does replaying failures add anything?
        "replace": {"mode": "replace"},  # fixed shapes
    }

    config: ReplayConfig

    @classmethod
    def most_appended(cls, config: ReplayConfig, groups: int, generations: int) -> int:
        return config.rows * groups if config.mode == "append" else 0

    @classmethod
    def check(cls, config: ReplayConfig, trainer: Mapping[str, Any], lowest_correct: float, where: str) -> None:
        group = int(trainer["num_generations"])
        if config.mode == "replace" and config.rows >= group:
            raise ConfigError(
                f"{where}.rows: got {config.rows}, expected below num_generations={group}: at least one row stays"
            )
        scale = {True: "group", False: "none"}.get(trainer["scale_rewards"], trainer["scale_rewards"])
        if config.deviation == "population" and scale != "group":
            raise ConfigError(
                f"{where}.deviation: got 'population' with trainer.scale_rewards='{scale}', which divides by no "
                "group's deviation; expected 'sample', or scale_rewards 'group'"
            )

    def mix(self, step: Step) -> list[Mixture]:
        now = step.epoch + 1e-6 if self.config.warmup_unit == "epochs" else step.step
        wanted = [g for g in step.groups if g.homogeneous and g.provenance in self.config.into_provenance]
        mixtures = []
        for group in still_free(self, step, wanted):
            right = group.all_right
            self.count("groups_all_right" if right else "groups_all_wrong")
            if now < self.config.warmup:
                self.count("groups_waiting")
            elif not (right and self.config.labels == "positives"):
                mixture = self._mixture(group, step)
                if mixture is not None:
                    mixtures.append(mixture)
        return mixtures

    def _mixture(self, group: Group, step: Step) -> Mixture | None:
        config = self.config
        rng = self.facts.rng(step.step, self.name, group.question)
        found = admissible(
            step.history.summaries(group.question),
            correct=group.all_wrong,
            step=step.step,
            from_provenance=config.from_provenance,
            truncated_negatives=config.truncated_negatives,
            max_age=config.max_age,
        )
        if not found:
            self.count("groups_no_history")
            return None
        judged = np.flatnonzero(group.judged).tolist()
        room = min(config.rows, len(judged) - 1) if config.mode == "replace" else config.rows  # at least one row stays
        historic = pick_rows(not_outranked(self, group, found), room, config.pick, rng)
        if not historic:
            return None
        mixed = mixture(
            self.facts,
            step,
            group,
            historic,
            replaced=sorted(rng.sample(judged, len(historic))) if config.mode == "replace" else (),
            weight=config.weight,
            clip=(config.ratio_min, config.ratio_max),
            eps=config.eps,
            alpha=config.alpha,
            alpha_on=config.alpha_on,
            normalisation=config.normalisation,
            population=config.deviation == "population",
        )
        self.count("groups_mixed")
        self.count("rows", len(historic))
        self.count("rows_correct", sum(row.correct for row in historic))
        self.count("groups_with_gradient", int(mixed.fresh_advantages.any() or mixed.historic_advantages.any()))
        self.count("age_steps", sum(step.step - row.step for row in historic))
        return mixed

    def acted(self, totals: Mapping[str, float]) -> bool:
        return totals.get("replay/groups_with_gradient", 0) > 0
