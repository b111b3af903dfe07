"""Numbers quoted from papers, with source, harness and caveat.

They are printed beside measured rows, marked `reported`, and never enter a test, a difference or an interval: another
harness alone moves a score by as much as most gains.
"""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from r3bench.analysis.output.frame import Column, Entry, Table
from r3bench.errors import ConfigError, nearest

FOLDER = Path(__file__).with_name("reported")


@dataclass(frozen=True)
class Source:
    """Where numbers come from."""

    paper: str  # title and table
    url: str
    harness: str  # how they were measured, as far as it is known
    caveat: str  # what to keep in mind


@dataclass(frozen=True)
class Score:
    """One published number."""

    source: str  # key of its `Source`
    model: str
    benchmark: str  # 'aime24', ..., 'mean'
    metric: str  # 'avg@16', 'pass@16', 'pass@1' or 'tokens'
    value: float  # points (0-100), or tokens


@cache
def sources() -> dict[str, Source]:
    """All sources by key."""
    return {key: Source(**value) for key, value in json.loads((FOLDER / "sources.json").read_text("utf-8")).items()}


@cache
def scores() -> tuple[Score, ...]:
    """All published numbers."""
    with open(FOLDER / "scores.csv", encoding="utf-8", newline="") as file:
        return tuple(
            Score(r["source"], r["model"], r["benchmark"], r["metric"], float(r["value"])) for r in csv.DictReader(file)
        )


def reported(source: str) -> list[Score]:
    """The numbers of one source.

    Raises:
        ConfigError: unknown source.
    """
    if source not in sources():
        raise ConfigError(f"reported rows: got '{source}'{nearest(source, sources())}")
    return [s for s in scores() if s.source == source]


def reported_table(source: str) -> Table:
    """One source's numbers as a table of models by benchmarks."""
    found, about = reported(source), sources()[source]
    columns = list(dict.fromkeys((s.benchmark, s.metric) for s in found))
    several = len({metric for _, metric in columns}) > 1
    models = list(dict.fromkeys(s.model for s in found))
    values = {(s.model, s.benchmark, s.metric): s.value for s in found}
    body = [[Entry(model), Entry("reported"), *cells(model, columns, values)] for model in models]
    heads = [Column(f"{b} {m}" if several else b) for b, m in columns]
    return Table(
        title=f"Reported by {about.paper}",
        columns=[Column("model", "left"), Column("", "left"), *heads],
        rows=body,
        notes=source_notes([source]),
        key=f"reported-{source}",
    )


def cells(model: str, columns: Sequence[tuple[str, str]], values: dict[tuple[str, str, str], float]) -> list[Entry]:
    """One entry per (benchmark, metric); '-' where a paper is silent."""
    row = []
    for benchmark, metric in columns:
        value = values.get((model, benchmark, metric))
        row.append(
            Entry("-") if value is None else Entry(f"{value:,.1f}" if metric == "tokens" else f"{value:.2f}", value)
        )
    return row


def source_notes(keys: Sequence[str]) -> list[str]:
    """Source, harness and caveat, one line per source."""
    found = [sources()[key] for key in keys]
    return [f"reported: {s.paper}, {s.url}; harness: {s.harness}; caveat: {s.caveat}" for s in found]
