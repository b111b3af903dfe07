"""Arguments and flags that several commands share, and the two ways of printing a result."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress; only the result and errors.")]
Runs = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Where runs and studies are kept.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings that replace the recipe's.")
]
RUNS = Path("runs")
KINDS = ("recipes", "grids", "components", "tasks")  # what can be named; catalog.KINDS has the folders


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(value, indent=2, sort_keys=True, allow_nan=False))


def print_columns(rows: Iterable[Sequence[str]]) -> None:
    """Left-aligned columns, two spaces apart; the last column is left ragged."""
    table = [list(row) for row in rows]
    if not table:
        return
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]) - 1)]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        typer.echo("  ".join([*cells, row[-1]]).rstrip())


def print_pairs(values: Mapping[str, Any]) -> None:
    """`key  value` lines."""
    print_columns([key, str(value)] for key, value in values.items())
