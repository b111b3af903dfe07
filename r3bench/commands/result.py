"""`tables`: what a study shows."""

from pathlib import Path
from typing import Annotated

import typer

from r3bench.commands.options import RUNS, Runs, StudyName, study_folder

Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where files go; default: STUDY/tables.")]


def tables(
    study: StudyName,
    format: Annotated[str, typer.Option(help="markdown, latex, html or csv: what is printed.")] = "markdown",
    out: Out = None,
    runs: Runs = RUNS,
) -> None:
    """Print a study's tables, and write them as Markdown, LaTeX, HTML and CSV files."""
    show_tables(study_folder(study, runs), out, format)


def show_tables(study: Path, out: Path | None, format: str = "markdown") -> None:
    """Print the tables of the study in `study` and write them all to `out` (its `tables` folder by default)."""
    from r3bench.analysis import render_tables, write_tables

    typer.echo(render_tables(study, format))
    for path in write_tables(study, out or study / "tables"):
        typer.echo(path, err=True)
