"""A table before it is rendered: columns, and rows whose cells hold the text to print and the value behind it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from r3bench.analysis.effects import Interval


@dataclass(frozen=True)
class Column:
    """One column."""

    name: str  # heading, and the name in CSV
    align: Literal["left", "right"] = "right"


@dataclass(frozen=True)
class Entry:
    """One table cell."""

    text: str  # as printed
    value: float | int | str | None = None  # as written to CSV; the text if left out
    strong: bool = False  # best of its column, and shown to be


@dataclass(frozen=True)
class Table:
    """One table in every rendering."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Entry]]
    notes: Sequence[str] = field(default_factory=tuple)  # what must be read with it
    key: str = "table"  # file and label name


def points(value: float | None, signed: bool = False) -> str:
    """Accuracy (0-1) in points with one decimal; '-' when unknown."""
    if value is None:
        return "-"
    text = f"{100 * value:+.1f}" if signed else f"{100 * value:.1f}"
    return {"-0.0": "0.0", "+0.0": "0.0"}.get(text, text)


def with_interval(value: float | None, found: Interval | None, signed: bool = False) -> str:
    """`53.2 (50.1 to 56.3)` in points, without the brackets where there is no interval."""
    if value is None:
        return "-"
    if found is None or found.low is None or found.high is None:
        return points(value, signed)
    low, high = (found.low, found.high) if signed else (max(found.low, 0.0), min(found.high, 1.0))
    return f"{points(value, signed)} ({points(low, signed)} to {points(high, signed)})"


def many(count: int, what: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def count(value: float | None) -> str:
    """A count with thousands separated, or '-'."""
    return "-" if value is None else f"{value:,.0f}"


def decimal(value: float | None, digits: int = 1) -> str:
    """A number with fixed decimals, or '-'."""
    return "-" if value is None else f"{value:,.{digits}f}"
