"""Which columns of a table from elsewhere are factors: as told, or all that can be nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from r3bench.errors import ConfigError, DataError, nearest

REQUIRED = ("run", "seed", "benchmark", "question", "samples", "correct")
OPTIONAL = ("tokens", "truncated", "outcome")
BASE = "base"  # column that marks the untrained model, where it holds `MODEL` and nothing else
MODEL = "model"
FLAGS = ("yes", "no", "true", "false", "on", "off", "0", "1", "y", "n", "t", "f", "x")  # of a marker, not of a factor


@dataclass(frozen=True)
class Reading:
    """How a table is to be read; what is left out is guessed where only one guess is possible."""

    factors: tuple[str, ...] | None = None  # columns that are; None: every other one, unless that is doubtful
    ignore: tuple[str, ...] = ()  # columns that are not read
    rename: Mapping[str, str] = field(default_factory=dict)  # column of the file -> what it is called from here on
    reference: Mapping[str, str] = field(default_factory=dict)  # factor -> the level that the others are held against
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # factor -> its levels, reference first

    @property
    def of_columns(self) -> bool:
        """Whether it says anything that only a table has."""
        return self.factors is not None or bool(self.ignore or self.rename or self.levels)


def reading_from(values: Mapping[str, Any], where: str) -> tuple[Reading, dict[str, Any]]:
    """A `Reading` from the keys of a mapping that are its own, and the other keys.

    Raises:
        ConfigError: naming `where`, the key and what was expected.
    """
    found: dict[str, Any] = {}
    rest = {}
    for key, value in values.items():
        if key in ("factors", "ignore"):
            if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
                raise ConfigError(f"{where}.{key}: got {value!r}, expected a list of columns")
            found[key] = tuple(value)
        elif key in ("rename", "reference"):
            if not isinstance(value, dict) or not all(isinstance(v, str | bool | int | float) for v in value.values()):
                raise ConfigError(f"{where}.{key}: got {value!r}, expected a mapping, one name or level for each")
            found[key] = {str(k): level_text(v) for k, v in value.items()}
        elif key == "levels":
            if not isinstance(value, dict) or not all(isinstance(v, list) for v in value.values()):
                raise ConfigError(f"{where}.{key}: got {value!r}, expected factor: [reference, other levels, ...]")
            found[key] = {str(k): tuple(level_text(v) for v in listed) for k, listed in value.items()}
        else:
            rest[key] = value
    return Reading(**found), rest


def joined(first: Reading, second: Reading) -> Reading:
    """`first`, with what it does not say taken from `second`."""
    return replace(
        first,
        factors=first.factors if first.factors is not None else second.factors,
        ignore=first.ignore or second.ignore,
        rename=first.rename or second.rename,
        reference={**second.reference, **first.reference},
        levels={**second.levels, **first.levels},
    )


def level_text(value: Any) -> str:
    """A level as text: `on` and `off` for booleans, a whole number without a fraction, nothing for a missing value."""
    if isinstance(value, bool | np.bool_):
        return "on" if value else "off"
    if isinstance(value, float | np.floating):
        if np.isnan(value):
            return ""
        whole = bool(np.isfinite(value)) and float(value).is_integer() and abs(float(value)) < 1e15
        return str(int(value)) if whole else str(value)
    return "" if value is None else str(value).strip()


def renamed(columns: Sequence[str], rename: Mapping[str, str], where: str) -> list[str]:
    """The columns' names after renaming, all at once, so that two may change places.

    Raises:
        ConfigError: a column that is not there, or two columns that would have one name.
    """
    for old in rename:
        if old not in columns:
            raise ConfigError(f"{where}: --rename {old}={rename[old]}: no such column{nearest(old, columns)}")
    names = [rename.get(c, c) for c in columns]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"{where}: --rename: two columns would be called '{name}'; rename or ignore the other one"
            )
    return names


def candidates(columns: Sequence[str], reading: Reading, where: str) -> list[str]:
    """The columns that may be factors: those that were named, or all that have no other use.

    Raises:
        ConfigError: a column that is not there, or one that has another use.
    """
    for option, names in (("--factors", reading.factors or ()), ("--ignore", reading.ignore)):
        for name in names:
            if name not in columns:
                raise ConfigError(f"{where}: {option} {name}: no such column{nearest(name, columns)}")
            if name in REQUIRED:
                raise ConfigError(f"{where}: {option} {name}: the column is needed as what it is; see --rename")
    for name in reading.factors or ():
        if name in reading.ignore:
            raise ConfigError(f"{where}: column '{name}' stands in --factors and in --ignore")
    if reading.factors is not None:
        return list(dict.fromkeys(reading.factors))
    used = (*REQUIRED, *OPTIONAL, BASE, *reading.ignore)
    return [c for c in columns if c not in used]


def untrained_rows(values: np.ndarray, where: str) -> np.ndarray | None:
    """(N,) bool, rows that the column `base` marks as the untrained model's; None if it is a factor like others.

    Args:
        values: (N,) the column as text.
        where: the file.

    Raises:
        DataError: the column says `model` in some rows and something else in others, or holds a flag.
    """
    marks = np.array([v.lower() == MODEL for v in values], bool)
    others = np.array([v != "" for v in values], bool) & ~marks
    if not others.any():
        return marks
    at = int(np.flatnonzero(others)[0])
    cure = "; if it is a factor, call it something else (--rename base=NAME)"
    if marks.any():
        raise DataError(
            f"{where}: row {at + 1}: base: got '{values[at]}', but row {int(np.flatnonzero(marks)[0]) + 1} has "
            f"'{MODEL}': the column marks the untrained model with '{MODEL}' and leaves other rows empty{cure}"
        )
    if all(v == "" or v.lower() in FLAGS for v in values):
        raise DataError(
            f"{where}: row {at + 1}: base: got '{values[at]}', expected '{MODEL}' for the untrained model and nothing "
            f"for trained ones{cure}"
        )
    return None


def doubtful(levels: Mapping[str, np.ndarray], seeds: np.ndarray) -> tuple[str, ...] | None:
    """Why the columns can't all be taken for factors: a text, and the columns that it is about; None if they can.

    A factor was varied on purpose: it is not told by another column, and the seeds of a cell don't differ in it.

    Args:
        levels: column -> (R,) level of each trained run; each has two levels or more.
        seeds: (R,).
    """
    names = list(levels)
    if len(names) < 2:
        return None
    for name in names:
        for other in names:
            if other != name and (pair := _told(levels[name], levels[other])):
                both = _told(levels[other], levels[name])
                text = (
                    f"columns '{name}' and '{other}' can't be told apart: all runs with {name}={pair[0]} have "
                    f"{other}={pair[1]}, and so on" + ("" if both else f" (each {name} has one {other})")
                )
                return text, name, other
    repeated = len(set(seeds.tolist())) < len(seeds)
    found = []
    for name in names:
        rest = [tuple(levels[n][i] for n in names if n != name) for i in range(len(seeds))]
        if _differs_by_seed(levels[name], rest, seeds) if repeated else _breaks_cells(levels[name], rest):
            found.append(name)
    if not found:
        return None
    text = "; ".join(
        f"column '{n}' differs between runs of what is one cell otherwise, and no seed was run at two of its levels"
        for n in found
    )
    return text, *found


def _told(a: np.ndarray, b: np.ndarray) -> tuple[str, str] | None:
    """The first (level of a, level of b) if every level of a goes with one level of b."""
    pairs = dict.fromkeys(zip(a.tolist(), b.tolist(), strict=True))
    return next(iter(pairs)) if len(pairs) == len(set(a.tolist())) else None


def _differs_by_seed(levels: np.ndarray, rest: Sequence[tuple[str, ...]], seeds: np.ndarray) -> bool:
    """Whether runs alike in all else differ here, but never two of one seed."""
    varies = False
    by_seed: dict[tuple[tuple[str, ...], int], str] = {}
    first: dict[tuple[str, ...], str] = {}
    for level, cell, seed in zip(levels.tolist(), rest, seeds.tolist(), strict=True):
        varies |= first.setdefault(cell, level) != level
        if by_seed.setdefault((cell, seed), level) != level:
            return False
    return varies


def _breaks_cells(levels: np.ndarray, rest: Sequence[tuple[str, ...]]) -> bool:
    """Whether the column leaves cells with a single run beside larger ones where without it there are none.

    For tables in which every run has a seed of its own, so that seeds say nothing of the design.
    """
    alone: dict[tuple[str, ...], int] = {}
    split: dict[tuple[str, ...], int] = {}
    for level, cell in zip(levels.tolist(), rest, strict=True):
        alone[cell] = alone.get(cell, 0) + 1
        split[(*cell, level)] = split.get((*cell, level), 0) + 1
    uneven = min(split.values()) == 1 < max(split.values())
    return uneven and min(alone.values()) > 1
