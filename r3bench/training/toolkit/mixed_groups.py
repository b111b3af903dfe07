"""What components that mix stored rows into a group share: advantages of the mixed group, and who may be drawn."""

import random
from collections.abc import Sequence
from typing import Literal

import numpy as np

from r3bench.component import Component, Facts, Group, Mixture, Provenance, Step, Summary, Weight

Normalisation = Literal["mixed", "split", "fresh"]
Pick = Literal["random", "recent", "shortest_correct", "lowest_entropy", "highest_entropy"]


def sample_std(values: np.ndarray) -> float:
    """Standard deviation with divisor n - 1, as TRL's; 0 for fewer than two values."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def mixed_advantages(
    fresh_rewards: Sequence[float] | np.ndarray,
    replayed_rewards: Sequence[float] | np.ndarray,
    *,
    alpha: float = 1.0,
    eps: float = 1e-4,
    normalisation: Normalisation = "mixed",
    alpha_on: Literal["group_std", "replayed_rows"] = "group_std",
    std: float | None = None,
    population: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages of a group mixed with historic rows (Eq. 3).

    Args:
        fresh_rewards: (G,) rewards of the rows sampled now.
        replayed_rewards: (k,) rewards of the historic rows.
        alpha: damping factor; 1 is no damping.
        eps: lambda of Eq. 3, added to the divisor.
        normalisation: mean and deviation of the `mixed` group (Eq. 3), of each part on its own (`split`, as RePO), or
            of the fresh rows for both (`fresh`, as LUFFY: a deviation of 0 counts as 1).
        alpha_on: `group_std` multiplies the deviation and so damps every row (Eq. 3 as printed); `replayed_rows`
            divides the historic rows' advantages only (the text).
        std: divisor to use instead of the group's (1 for a trainer that does not scale, else the batch's deviation).
        population: the group's deviation has divisor n instead of n - 1.

    Returns:
        (G,) and (k,) advantages.
    """
    fresh, replayed = np.asarray(fresh_rewards, float), np.asarray(replayed_rewards, float)
    both = np.concatenate([fresh, replayed])
    bases = {"mixed": (both, both), "split": (fresh, replayed), "fresh": (fresh, fresh)}[normalisation]
    parts = []
    for rewards, base in zip((fresh, replayed), bases, strict=True):
        if not len(rewards):
            parts.append(np.zeros(0))
            continue
        own = float(np.std(base)) if population else sample_std(base)
        deviation = own if std is None else std
        if normalisation == "fresh" and deviation == 0:
            deviation = 1.0
        centred = rewards - (base.mean() if len(base) else 0.0)
        parts.append(centred / ((alpha if alpha_on == "group_std" else 1.0) * deviation + eps))
    if alpha_on == "replayed_rows":
        parts[1] = parts[1] / alpha
    return parts[0], parts[1]


def admissible(
    stored: Sequence[Summary],
    *,
    correct: bool,
    step: int,
    from_provenance: Sequence[Provenance] = ("fresh",),
    truncated_negatives: bool = False,
    max_age: int | None = None,
) -> list[Summary]:
    """The stored trajectories that may be mixed in: right label, provenance and age; oldest first."""
    return [
        row
        for row in stored
        if row.correct == correct
        and row.provenance in from_provenance
        and (row.correct or truncated_negatives or not row.truncated)
        and (max_age is None or step - row.step <= max_age)
    ]


def pick_rows(rows: Sequence[Summary], k: int, pick: Pick, rng: random.Random) -> list[Summary]:
    """At most `k` of `rows`, without repeats; equal keys are ordered by the draw.

    `shortest_correct` draws wrong answers at random: a short failure is no better than a long one. Rows whose entropy
    was never measured come last under the two entropy rules.
    """
    drawn = sorted(rows, key=lambda row: row.serial)
    rng.shuffle(drawn)
    if pick == "recent":
        drawn.sort(key=lambda row: -row.serial)
    elif pick == "shortest_correct":
        drawn.sort(key=lambda row: row.length if row.correct else 0)
    elif pick in ("lowest_entropy", "highest_entropy"):
        sign = 1.0 if pick == "lowest_entropy" else -1.0
        drawn.sort(key=lambda row: np.inf if np.isnan(row.entropy_mean) else sign * row.entropy_mean)
    return drawn[:k]


def not_outranked(component: Component, group: Group, stored: Sequence[Summary]) -> list[Summary]:
    """Those of the `stored` rows that keep their order in `group`.

    That is, no right answer below a fresh wrong one, and no wrong answer above a fresh right one.

    A penalty in a stored total, or a component's reward for a fresh wrong answer, can turn that order round; mixed in,
    the right answer would be trained away. The rows left out are counted as `rows_outranked`, and a group that none is
    left for as `groups_outranked`.
    """
    slack = 1e-6 * (1 + np.abs(group.rewards[group.judged]).max(initial=0.0))  # float32 sums
    ceiling = group.rewards[group.correct].min(initial=np.inf) + slack
    floor = group.rewards[group.wrong].max(initial=-np.inf) - slack
    kept = [row for row in stored if (row.task_reward >= floor if row.correct else row.task_reward <= ceiling)]
    if len(kept) < len(stored):
        component.count("rows_outranked", len(stored) - len(kept))
        component.count("groups_outranked", int(not kept))
    return kept


def uneven(group: Group) -> bool:
    """Whether rewards in the group differ, so that it has a gradient of its own."""
    rewards = group.rewards[group.judged]
    return bool(len(rewards) and np.ptp(rewards) > 0)


def still_free(component: Component, step: Step, wanted: Sequence[Group]) -> list[Group]:
    """Those of the groups `component` would mix that no earlier component has mixed; the others are counted."""
    free = [group for group in wanted if group.index not in step.taken]
    if len(free) < len(wanted):
        component.count("groups_taken", len(wanted) - len(free))
    return free


def trainer_scale(
    facts: Facts, groups: Sequence[Group], historic: Sequence[Summary], eps: float = 1e-4
) -> tuple[float | None, float]:
    """`std` and `eps` for `mixed_advantages` that follow the trainer's `scale_rewards`: group, batch or none.

    The batch's deviation is taken with the `historic` rows of the mixed group in it: alone, a batch without any right
    answer would have none, and the mixed group would be divided by `eps`.
    """
    if facts.scale_rewards == "none":
        return 1.0, 0.0
    if facts.scale_rewards == "batch":
        rewards = np.concatenate([*[group.rewards for group in groups], [row.task_reward for row in historic]])
        return sample_std(rewards[~np.isnan(rewards)]), eps
    return None, eps


def mixture(
    facts: Facts,
    step: Step,
    group: Group,
    historic: Sequence[Summary],
    *,
    replaced: Sequence[int] = (),
    weight: Weight = "decoupled",
    clip: tuple[float, float] = (0.0, 2.0),
    kl: bool = True,
    eps: float = 1e-4,
    alpha: float = 1.0,
    alpha_on: Literal["group_std", "replayed_rows"] = "group_std",
    normalisation: Normalisation = "mixed",
    population: bool = False,
    coefficient: float = 1.0,
) -> Mixture:
    """`group` mixed with `historic` rows: advantages over both, scaled as the trainer's `scale_rewards` says.

    Args:
        facts: the component's.
        step: the batch at hand.
        group: of the batch.
        historic: k stored rows, at least one.
        replaced: places 0..G-1 of the group that give way to them, k of them; empty: the group grows.
        weight: off-policy weight of the historic rows.
        clip: bounds of the current/behaviour ratio in `decoupled`.
        kl: whether the KL term covers the historic rows.
        eps: see `mixed_advantages`, as `alpha`, `alpha_on`, `normalisation` and `population`.
        coefficient: factor on the historic rows' advantages.
    """
    kept = group.judged.copy()
    kept[list(replaced)] = False
    std, eps = trainer_scale(facts, step.groups, historic, eps)
    own, other = mixed_advantages(
        group.rewards[kept],
        [row.task_reward for row in historic],
        alpha=alpha,
        eps=eps,
        normalisation=normalisation,
        alpha_on=alpha_on,
        std=std,
        population=population,
    )
    fresh = np.zeros(len(kept))
    fresh[kept] = own
    return Mixture(
        group=group.index,
        historic=tuple(historic),
        replaced=tuple(replaced),
        fresh_advantages=fresh,
        historic_advantages=coefficient * other,
        weight=weight,
        clip=clip,
        kl=kl,
    )
