"""Which combinations of levels a design runs, as pure functions on level lists.

A factor's first level is its base (usually `off`), its last one its full level (usually `on`).
"""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Literal

from r3bench.errors import ConfigError

Design = Literal["full", "half", "leave_one_out", "add_one", "list"]
Levels = Mapping[str, Sequence[str]]  # factor -> level names, base first
Combination = dict[str, str]  # factor -> level


def full(levels: Levels) -> list[Combination]:
    """Every combination; the last factor varies fastest."""
    return [dict(zip(levels, values, strict=True)) for values in product(*levels.values())]


def half(levels: Levels) -> list[Combination]:
    """The half of a two-level factorial that holds the all-base cell: an even number of factors at their full level.

    Defining relation: the product of all factors (Box, Hunter & Hunter 1978), see `aliases`.
    """
    for factor, names in levels.items():
        if len(names) != 2:
            raise ConfigError(f"design half: factor '{factor}' has {len(names)} levels, expected exactly 2")
    if len(levels) < 3:
        raise ConfigError(f"design half: {len(levels)} factors, expected at least 3 (main effects would be aliased)")
    return [c for c in full(levels) if sum(c[f] == names[1] for f, names in levels.items()) % 2 == 0]


def aliases(factors: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of effects a half fraction can't tell apart: an effect and the interaction of all other factors.

    Only effects up to two-way are listed, the simpler one first.
    """
    pairs = []
    for size in (1, 2):
        for effect in combinations(factors, size):
            other = tuple(f for f in factors if f not in effect)
            if len(other) > size or (len(other) == size and factors.index(effect[0]) < factors.index(other[0])):
                pairs.append((":".join(effect), ":".join(other)))
    return pairs


def leave_one_out(levels: Levels) -> list[Combination]:
    """The all-full cell, then each factor put back to each of its other levels in turn."""
    top = {factor: names[-1] for factor, names in levels.items()}
    return [top] + [top | {factor: name} for factor, names in levels.items() for name in names[:-1]]


def add_one(levels: Levels) -> list[Combination]:
    """The all-base cell, then each factor moved to each of its other levels in turn."""
    base = {factor: names[0] for factor, names in levels.items()}
    return [base] + [base | {factor: name} for factor, names in levels.items() for name in names[1:]]


def size_of(design: Design, levels: Levels, listed: Sequence[Mapping[str, str]] = ()) -> int:
    """How many combinations `design` has, without making them."""
    if design == "list":
        return len(listed)
    if design in ("full", "half"):
        whole = math.prod(len(names) for names in levels.values())
        return whole if design == "full" else whole // 2
    return 1 + sum(len(names) - 1 for names in levels.values())


def combinations_of(design: Design, levels: Levels, listed: Sequence[Mapping[str, str]] = ()) -> list[Combination]:
    """The combinations of `design`; `listed` is used by `list` only, and what it leaves out is at its base level."""
    if design == "list":
        base = {factor: names[0] for factor, names in levels.items()}
        return [base | dict(entry) for entry in listed]
    return {"full": full, "half": half, "leave_one_out": leave_one_out, "add_one": add_one}[design](levels)
