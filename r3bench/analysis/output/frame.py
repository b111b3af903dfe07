"""A table before it is rendered: columns, and rows whose cells hold the text to print and the value behind it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from r3bench.analysis.statistics.effects import Interval


@dataclass(frozen=True)
class Column:
    """One column."""

    name: str  # heading, and the name in CSV
    align: Literal["left", "right"] = "right"
    benchmark: bool = False  # of a benchmark's accuracy


Form = Literal["pm", "brackets", "subscript", "none"]


@dataclass(frozen=True)
class Spread:
    """What stands beside a number: its deviation over seeds, its interval, letters. Texts; '' is nothing."""

    sd: str = ""  # standard deviation over seeds
    low: str = ""  # limits of the interval
    high: str = ""
    half: str = ""  # the longer arm of the interval
    letters: str = ""  # groups of cells that are not shown to differ
    mark: str = ""  # of an interval that a note is about
    sd_form: Form = "pm"  # how the deviation is set
    interval_form: Form = "brackets"  # how the interval is set

    def parts(self) -> tuple[str, tuple[str, str], str]:
        """(on the line, (raised, lowered), in brackets) as plain text, letters left out."""
        line, raised, lowered, within = "", "", "", ""
        if self.sd and self.sd_form == "pm":
            line = f" ± {self.sd}"
        elif self.sd and self.sd_form == "brackets":
            line = f" [{self.sd}]"
        elif self.sd and self.sd_form == "subscript":
            lowered = self.sd
        if self.low and self.interval_form == "pm":
            line = f" ± {self.half}{line}"
        elif self.low and self.interval_form == "subscript":
            raised, lowered = self.high, self.low
        elif self.low and self.interval_form == "brackets":
            within = f"({self.low} to {self.high}){self.mark}"
        if self.low and self.interval_form in ("pm", "subscript"):
            line += self.mark
        return line, (raised, lowered), within


@dataclass(frozen=True)
class Entry:
    """One table cell."""

    text: str  # as printed
    value: float | int | str | None = None  # as written to CSV; the text if left out
    strong: bool = False  # best of its column, and shown to be
    spread: Spread | None = None  # of a number
    numbers: Mapping[str, float | None] | None = None  # behind the spread: 'sd', 'low', 'high'


@dataclass(frozen=True)
class Table:
    """One table in every rendering."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Entry]]
    notes: Sequence[str] = field(default_factory=tuple)  # what must be read with it
    key: str = "table"  # file and label name


def points(value: float | None, signed: bool = False, decimals: int = 1) -> str:
    """Accuracy (0-1) in points; '-' when unknown."""
    if value is None:
        return "-"
    text = f"{100 * value:+.{decimals}f}" if signed else f"{100 * value:.{decimals}f}"
    return text.lstrip("+-") if float(text) == 0 else text


def with_interval(value: float | None, found: Interval | None, signed: bool = False, decimals: int = 1) -> str:
    """`53.2 (50.1 to 56.3)` in points, without the brackets where there is no interval."""
    if value is None:
        return "-"
    if found is None or found.low is None or found.high is None:
        return points(value, signed, decimals)
    low, high = (found.low, found.high) if signed else (max(found.low, 0.0), min(found.high, 1.0))
    shown = [points(v, signed, decimals) for v in (value, low, high)]
    return f"{shown[0]} ({shown[1]} to {shown[2]})"


def many(count: int, what: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def count(value: float | None) -> str:
    """A count with thousands separated, or '-'."""
    return "-" if value is None else f"{value:,.0f}"


def decimal(value: float | None, digits: int = 1) -> str:
    """A number with fixed decimals, or '-'."""
    return "-" if value is None else f"{value:,.{digits}f}"
