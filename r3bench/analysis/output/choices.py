"""What a user may choose of a printed table: columns, names, decimals, caption, label, which tables, how it is set."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from r3bench.analysis.output.frame import Entry, Form, Table
from r3bench.errors import ConfigError, nearest

Mark = Literal["bold", "letters", "none"]
WIDTHS = ("page", "column")
MOST_DECIMALS = 6


@dataclass(frozen=True)
class Choices:
    """How tables are shown; nothing here changes a number."""

    columns: tuple[str, ...] | None = None  # columns by their names, in this order; None: all
    only: tuple[str, ...] | None = None  # tables by their names; None: all
    rename: Mapping[str, str] = field(default_factory=dict)  # text of a heading, cell or factor -> what is printed
    decimals: int = 1  # of points
    caption: str | None = None  # of the first table
    label: str | None = None  # of it, in LaTeX
    sd: Form = "pm"  # how the deviation over seeds is set
    interval: Form = "brackets"  # how intervals are set
    mark: Mark = "bold"  # how cells that are not shown to differ from the best are marked
    k: tuple[int, ...] | None = None  # of pass@k and maj@k; None: 1, 2, 4, ... and all answers
    width: str = "page"  # of LaTeX: 'page' (5.5 in, or both columns) or 'column' (3.25 in)

    def __post_init__(self) -> None:
        for name, known in (("sd", Form), ("interval", Form), ("mark", Mark)):
            value = getattr(self, name)
            if value not in get_args(known):
                raise ConfigError(f"--{name}: got '{value}'{nearest(value, get_args(known))}")
        if self.width not in WIDTHS:
            raise ConfigError(f"--width: got '{self.width}'{nearest(self.width, WIDTHS)}")
        if not 0 <= self.decimals <= MOST_DECIMALS:
            raise ConfigError(f"--decimals: got {self.decimals}, expected 0 to {MOST_DECIMALS}")
        if self.k is not None and not all(isinstance(k, int) and k >= 1 for k in self.k or ("",)):
            raise ConfigError(f"--k: got {', '.join(map(str, self.k)) or 'nothing'}, expected numbers from 1 on")
        if self.sd == self.interval and self.sd in ("pm", "subscript"):
            raise ConfigError(f"--sd and --interval: both are '{self.sd}', so that nobody could tell which is which")
        if self.label is not None and not re.fullmatch(r"[A-Za-z0-9:._-]+", self.label):
            raise ConfigError(f"--label: got '{self.label}', expected letters, digits and any of :._-")

    @property
    def of_one(self) -> bool:
        """Whether they are about one table, the main one unless another is named."""
        return any(v is not None for v in (self.columns, self.caption, self.label))


def chosen(tables: Sequence[Table], choices: Choices) -> list[Table]:
    """The tables as chosen.

    Raises:
        ConfigError: a table, column or text that is not there; names the nearest.
    """
    kept = list(tables)
    if choices.only is not None:
        names = [t.key for t in tables]
        groups = {"cells": [n for n in names if n.startswith("cells-")],
                  "answers": [n for n in names if n.startswith("answers-")]}  # fmt: skip
        wanted = []
        for name in choices.only:
            if name not in names and not groups.get(name):
                shown = [*names, *(g for g, members in groups.items() if members)]
                raise ConfigError(f"--only {name}: no such table{nearest(name, shown)}")
            wanted += groups.get(name) or [name]
        kept = [t for name in dict.fromkeys(wanted) for t in tables if t.key == name]
    if choices.columns is not None:
        if len(kept) != 1:
            raise ConfigError(f"--columns is about one table, these are {len(kept)}; name it with --only")
        kept = [_with_columns(kept[0], choices.columns)]
    kept = _renamed(kept, choices.rename)
    if choices.caption is not None:
        kept[0] = dataclasses.replace(kept[0], title=choices.caption)
    return kept


def _with_columns(table: Table, names: Sequence[str]) -> Table:
    known = [c.name for c in table.columns]
    places: list[int] = []
    for name in names:
        found = [i for i, c in enumerate(known) if c == name]
        if name == "benchmarks":
            found = [i for i, c in enumerate(table.columns) if c.benchmark]
        if not found:
            raise ConfigError(f"--columns: no column '{name}'{nearest(name, known)}")
        places += found
    if 0 not in places:
        places.insert(0, 0)  # rows without their names say nothing
    places = list(dict.fromkeys(places))
    return dataclasses.replace(
        table, columns=[table.columns[i] for i in places], rows=[[row[i] for i in places] for row in table.rows]
    )


SEPARATORS = re.compile(r"( \+ |=|:)")


def _renamed(tables: Sequence[Table], names: Mapping[str, str]) -> list[Table]:
    """Headings, titles, first cells and notes with other names; whole texts, or the factors and levels in a cell's."""
    if not names:
        return list(tables)
    met: set[str] = set()
    known: set[str] = set()

    def new(text: str) -> str:
        parts = SEPARATORS.split(text)
        known.update([text, *parts[::2]])
        if text in names:
            met.add(text)
            return names[text]
        met.update(p for p in parts[::2] if p in names)
        return "".join(names.get(p, p) for p in parts)

    def heading(text: str) -> str:
        over, found = "gain over ", text
        if text not in names and text.startswith(over):
            return over + new(text.removeprefix(over))
        return new(found)

    def row(entries: Sequence[Entry]) -> list[Entry]:
        return [dataclasses.replace(entries[0], text=new(entries[0].text)), *entries[1:]]

    found = [
        dataclasses.replace(
            t, columns=[dataclasses.replace(c, name=heading(c.name)) for c in t.columns], rows=[row(r) for r in t.rows]
        )
        for t in tables
    ]  # fmt: skip
    for old, value in names.items():
        if old not in met:
            raise ConfigError(f"--rename {old}={value}: no such heading, cell or factor{nearest(old, known)}")
    return found


def choices_from(values: Mapping[str, Any]) -> Choices:
    """`Choices` of the options that were given; None is the default.

    Raises:
        ConfigError: an option that there isn't, or a value that it can't have.
    """
    known = [f.name for f in dataclasses.fields(Choices)]
    for name in values:
        if name not in known:
            raise ConfigError(f"{name}: no such choice{nearest(name, known)}")
    told: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if v is not None}
    for name in ("columns", "only"):
        if isinstance(told.get(name), str):
            raise ConfigError(f"{name}: got '{told[name]}', expected a list of names")
    return Choices(**told)
