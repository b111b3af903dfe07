"""`tables`, `report`, `trace`, `analyze`: what results show, and what they rest on."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from r3bench.commands.options import (
    RUNS,
    Factors,
    Fixed,
    Ignore,
    Json,
    Reference,
    Rename,
    Runs,
    StudyName,
    print_json,
    study_folder,
    table_file,
    told,
)

if TYPE_CHECKING:
    from r3bench.analysis.columns import Reading
    from r3bench.analysis.declared import Declared
    from r3bench.analysis.results import Results

StudyOrFile = Annotated[str, typer.Argument(metavar="STUDY|FILE", help="A study, or a long table as for `analyze`.")]
Format = Annotated[str, typer.Option("--format", help="markdown, latex, html or csv: what is printed.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Where files go; default: STUDY/tables, or FILE-tables beside a file."),
]


def tables(
    study: StudyOrFile,
    format: Format = "markdown",
    layout: Annotated[
        str | None, typer.Option(metavar="NAME", help="A paper's own layout: r3-table1 or r3-table3.")
    ] = None,
    out: Out = None,
    declared: Fixed = None,
    factors: Factors = None,
    ignore: Ignore = None,
    rename: Rename = None,
    reference: Reference = None,
    runs: Runs = RUNS,
) -> None:
    """Print the tables of a study or of a long table, and write them as Markdown, LaTeX, HTML and CSV files."""
    from r3bench.analysis.external import load_any

    path = table_file(study) or study_folder(study, runs)
    folder = out or (path / "tables" if path.is_dir() else path.with_name(f"{path.stem}-tables"))
    show_tables(load_any(path, *told(declared, factors, ignore, rename, reference)), folder, format, layout)


def analyze(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A long table (CSV or parquet), or a study's folder.")],
    declared: Fixed = None,
    factors: Factors = None,
    ignore: Ignore = None,
    rename: Rename = None,
    reference: Reference = None,
    format: Format = "markdown",
    as_json: Json = False,
) -> None:
    """Effects with intervals from anyone's results: a table with one row per run, benchmark and question.

    Columns: run, seed, benchmark, question, samples, correct, optionally tokens, truncated and outcome; all others are
    factors, or named as what they are with the options.
    """
    from r3bench.analysis.external import analysis, load_any

    results = load_any(file, *told(declared, factors, ignore, rename, reference))
    if as_json:
        print_json(analysis(results), "analyze")
        return
    from r3bench.analysis.tables import render_tables

    typer.echo(render_tables(results, format))


def report(
    study: StudyOrFile,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="An .html file or a folder; default: STUDY/report.html."),
    ] = None,
    figures: Annotated[bool, typer.Option(help="Also save every figure as PDF and PNG beside it.")] = True,
    declared: Fixed = None,
    factors: Factors = None,
    ignore: Ignore = None,
    rename: Rename = None,
    reference: Reference = None,
    runs: Runs = RUNS,
) -> None:
    """Write one self-contained HTML file: the question, the answer, effects, curves, evidence, failures, provenance."""
    fixed, reading = told(declared, factors, ignore, rename, reference)
    typer.echo(make_report(table_file(study) or study_folder(study, runs), out, figures, fixed, reading))


def make_report(
    study: Path,
    out: Path | None = None,
    figures: bool = True,
    declared: "Declared | None" = None,
    reading: "Reading | None" = None,
) -> Path:
    """Write the report of a study folder or a long table, by default into or beside it; returns its path."""
    from r3bench.analysis import write_report

    place = out or (study if study.is_dir() else study.parent)
    path: Path = write_report(study, place, figures=figures, declared=declared, reading=reading)
    return path


def trace(
    study: StudyName,
    cell: Annotated[
        str, typer.Argument(metavar="CELL", help="As printed in a table, factor=level,..., or a run's id.")
    ],
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Show what a cell's numbers rest on: run ids, commit, configuration, environment, files."""
    from r3bench.analysis import provenance

    folder = study_folder(study, runs)
    if as_json:
        print_json(provenance.trace(folder, cell), "trace")
    else:
        typer.echo(provenance.trace_text(folder, cell), nl=False)


def show_tables(
    study: "Path | Results", out: Path | None = None, format: str = "markdown", layout: str | None = None
) -> None:
    """Print the tables of a study's folder, or of results, and write them all to `out` (a folder's own `tables`)."""
    from r3bench.analysis import render_tables, write_tables

    if out is None:
        if not isinstance(study, Path):
            raise ValueError("results in memory have no folder of their own; expected `out`")
        out = study / "tables"
    typer.echo(render_tables(study, format, layout))
    for path in write_tables(study, out):
        typer.echo(path, err=True)
