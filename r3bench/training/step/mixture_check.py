"""What every mixture must keep, whichever component made it: looked at before it reaches the batch."""

from collections.abc import Sequence
from typing import get_args

import numpy as np

from r3bench.component import Component, Group, Mixture, Weight
from r3bench.errors import ConfigError


def admitted(
    component: Component, mixtures: Sequence[Mixture], groups: Sequence[Group], taken: frozenset[int]
) -> list[Mixture]:
    """Those of a component's mixtures that go into the batch.

    Left out are groups in `taken`; those that would train a right answer below a wrong one (counted as
    `<component>/rows_outranked` and `groups_outranked`); and those that use rows nobody judged (`groups_unjudged`).

    Raises:
        ConfigError: a mixture that no batch can be made of.
    """
    kept: list[Mixture] = []
    for mixture in mixtures:
        _check(component.name, mixture, groups)
        if mixture.group in {earlier.group for earlier in kept}:
            raise ConfigError(f"component '{component.name}': mix() gave group {mixture.group} two mixtures")
        if mixture.group in taken:
            continue
        group = groups[mixture.group]
        bad = outranked(mixture, group)
        if not group.judged.any() or not group.judged[list(mixture.replaced)].all():
            component.count("groups_unjudged")
        elif bad:
            component.count("rows_outranked", bad)
            component.count("groups_outranked")
        else:
            kept.append(mixture)
    return kept


def outranked(mixture: Mixture, group: Group) -> int:
    """How many stored rows would stand on the wrong side of a fresh row that stays in the group.

    That is a right answer with a smaller total than a fresh wrong one, or a wrong one with a larger total than a fresh
    right one, whose advantage is on the wrong side as well: a component may have lifted or capped it.
    """
    stays = group.judged.copy()
    stays[list(mixture.replaced)] = False
    right, wrong = stays & group.correct, stays & group.wrong
    fresh, slack = mixture.fresh_advantages, 1e-6
    near = slack * (1 + np.abs(group.rewards[group.judged]).max(initial=0.0))  # float32 sums
    bad = 0
    for row, advantage in zip(mixture.historic, mixture.historic_advantages, strict=True):
        if row.correct:
            below = row.task_reward < group.rewards[wrong].max(initial=-np.inf) - near
            bad += bool(below and advantage < fresh[wrong].max(initial=-np.inf) - slack)
        else:
            above = row.task_reward > group.rewards[right].min(initial=np.inf) + near
            bad += bool(above and advantage > fresh[right].min(initial=np.inf) + slack)
    return bad


def _check(name: str, mixture: Mixture, groups: Sequence[Group]) -> None:
    """Raise `ConfigError` if a mixture fits no group of the batch."""
    where = f"component '{name}': mix() gave"
    if not 0 <= mixture.group < len(groups):
        raise ConfigError(f"{where} group {mixture.group}, there are groups 0 to {len(groups) - 1}")
    group, stored, places = groups[mixture.group], len(mixture.historic), list(mixture.replaced)
    if not stored:
        raise ConfigError(f"{where} group {mixture.group} no stored answers, expected at least one")
    for row in mixture.historic:
        if row.question != group.question:
            raise ConfigError(f"{where} group {mixture.group} an answer to another question, '{row.question}'")
    if places and (len(places) != stored or len({*places}) < stored or not {*places} <= {*range(len(group.rows))}):
        raise ConfigError(
            f"{where} places {places} for {stored} stored answers, expected as many different ones out of 0 to "
            f"{len(group.rows) - 1}, or none"
        )
    if mixture.weight not in get_args(Weight):
        raise ConfigError(f"{where} weight '{mixture.weight}', expected one of {', '.join(get_args(Weight))}")
    used = group.judged.copy()
    used[places] = False
    for key, values, size in (("fresh", mixture.fresh_advantages, len(group.rows)),
                              ("historic", mixture.historic_advantages, stored)):  # fmt: skip
        if np.shape(values) != (size,):
            raise ConfigError(f"{where} {key}_advantages of shape {np.shape(values)}, expected ({size},)")
        if not np.isfinite(values[used] if key == "fresh" else values).all():
            raise ConfigError(f"{where} group {mixture.group} {key}_advantages that are not finite")
