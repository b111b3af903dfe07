"""`tables`, `report`, `trace`, `analyze`: what results show, and what they rest on."""

from pathlib import Path
from typing import Annotated

import typer

from r3bench.commands.options import RUNS, Json, Runs, StudyName, print_json, study_folder

Format = Annotated[str, typer.Option("--format", help="markdown, latex, html or csv: what is printed.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where files go; default: STUDY/tables.")]


def tables(
    study: StudyName,
    format: Format = "markdown",
    layout: Annotated[
        str | None, typer.Option(metavar="NAME", help="A paper's own layout: r3-table1 or r3-table3.")
    ] = None,
    out: Out = None,
    runs: Runs = RUNS,
) -> None:
    """Print a study's tables, and write them as Markdown, LaTeX, HTML and CSV files."""
    show_tables(study_folder(study, runs), out, format, layout)


def analyze(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A long table (CSV or parquet), or a study's folder.")],
    declared: Annotated[
        Path | None,
        typer.Option("--declared", metavar="YAML", help="What was fixed beforehand: primary, macro, margin, ..."),
    ] = None,
    format: Format = "markdown",
    as_json: Json = False,
) -> None:
    """Effects with intervals from anyone's results: a table with one row per run, benchmark and question.

    Columns: run, seed, benchmark, question, samples, correct, optionally tokens and truncated; all others are factors.
    """
    from r3bench.analysis.declared import declared_from
    from r3bench.analysis.external import analysis, load_any
    from r3bench.config.yaml_file import read_yaml

    fixed = declared_from(read_yaml(declared), str(declared)) if declared else None
    results = load_any(file, fixed)
    if as_json:
        print_json(analysis(results))
        return
    from r3bench.analysis.render import render
    from r3bench.analysis.tables import study_tables

    typer.echo(render(study_tables(results), format))


def report(
    study: Annotated[str, typer.Argument(metavar="STUDY|FILE", help="A study, or a long table as for `analyze`.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="An .html file or a folder; default: STUDY/report.html."),
    ] = None,
    figures: Annotated[bool, typer.Option(help="Also save every figure as PDF and PNG beside it.")] = True,
    runs: Runs = RUNS,
) -> None:
    """Write one self-contained HTML file: the question, the answer, effects, curves, evidence, failures, provenance."""
    typer.echo(make_report(Path(study) if Path(study).is_file() else study_folder(study, runs), out, figures))


def make_report(study: Path, out: Path | None = None, figures: bool = True) -> Path:
    """Write the report of a study folder or a long table, by default into or beside it; returns its path."""
    from r3bench.analysis import write_report

    path: Path = write_report(study, out or (study if study.is_dir() else study.parent), figures=figures)
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
        print_json(provenance.trace(folder, cell))
    else:
        typer.echo(provenance.trace_text(folder, cell), nl=False)


def show_tables(study: Path, out: Path | None, format: str = "markdown", layout: str | None = None) -> None:
    """Print the tables of the study in `study` and write them all to `out` (its `tables` folder by default)."""
    from r3bench.analysis import render_tables, write_tables

    typer.echo(render_tables(study, format, layout))
    for path in write_tables(study, out or study / "tables"):
        typer.echo(path, err=True)
