"""`tables`, `report`, `trace`, `analyze`: what results show, and what they rest on."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from r3bench.commands.options import (
    RUNS,
    Boxed,
    Factors,
    Filter,
    Fixed,
    FormatName,
    Ignore,
    Json,
    Metric,
    Missing,
    Reference,
    Regrade,
    Rename,
    Right,
    Runs,
    Step,
    StudyName,
    other_files,
    other_source,
    print_json,
    print_made,
    printable,
    study_folder,
    told,
)

if TYPE_CHECKING:
    from r3bench.analysis.columns import Reading
    from r3bench.analysis.declared import Declared
    from r3bench.analysis.outside import Outside
    from r3bench.analysis.results import Results

StudyOrFile = Annotated[str, typer.Argument(metavar="STUDY|FILE", help="A study, or a source as for `analyze`.")]
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
    metric: Metric = None,
    filter: Filter = None,
    right: Right = None,
    missing: Missing = None,
    step: Step = None,
    regrade: Regrade = False,
    boxed: Boxed = True,
    files: FormatName = None,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Print the tables of a study or of anyone's results, and write them as Markdown, LaTeX, HTML and CSV files.

    Of results that are no study: the options of `analyze`.
    """
    from r3bench.analysis.external import load_any

    path = other_source(study, runs) or study_folder(study, runs)
    folder = out or (path / "tables" if (path / "study.json").exists() else beside(path, "-tables"))
    outside = other_files(files, metric, filter, right, missing, step, regrade, boxed)
    results = load_any(path, *told(declared, factors, ignore, rename, reference), outside=outside)
    if as_json:
        from r3bench.analysis import write_tables
        from r3bench.analysis.external import analysis

        print_json({**analysis(results), "made": [str(path) for path in write_tables(results, folder)]}, "tables")
        return
    show_tables(results, folder, format, layout)


def analyze(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A table, a study's folder, another tool's file or folder, a pattern such "
            "as 'out/{method}-s{seed}/**', or a map in YAML.",
        ),
    ],
    declared: Fixed = None,
    factors: Factors = None,
    ignore: Ignore = None,
    rename: Rename = None,
    reference: Reference = None,
    metric: Metric = None,
    filter: Filter = None,
    right: Right = None,
    missing: Missing = None,
    step: Step = None,
    regrade: Regrade = False,
    boxed: Boxed = True,
    files: FormatName = None,
    format: Format = "markdown",
    as_json: Json = False,
) -> None:
    """Effects with intervals from anyone's results: a table, or the files of lm-eval, verl, lighteval and others.

    A table has columns run, seed, benchmark, question, and samples and correct, or correct alone with a row per answer;
    all others are factors, or named as what they are with the options. See docs/other-tools.md.
    """
    from r3bench.analysis.external import analysis, load_any

    outside = other_files(files, metric, filter, right, missing, step, regrade, boxed)
    results = load_any(source, *told(declared, factors, ignore, rename, reference), outside=outside)
    if as_json:
        print_json(analysis(results), "analyze")
        return
    from r3bench.analysis.tables import render_tables

    typer.echo(render_tables(results, format))


def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="As for `analyze`.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="A .parquet or .csv file.")],
    declared: Fixed = None,
    factors: Factors = None,
    ignore: Ignore = None,
    rename: Rename = None,
    reference: Reference = None,
    metric: Metric = None,
    filter: Filter = None,
    right: Right = None,
    missing: Missing = None,
    step: Step = None,
    regrade: Regrade = False,
    boxed: Boxed = True,
    files: FormatName = None,
    as_json: Json = False,
) -> None:
    """Write anyone's results as one long table, which `analyze`, `tables`, `report` and `compare` read."""
    from r3bench.analysis.external import load_any
    from r3bench.analysis.longtable import save_long_table

    outside = other_files(files, metric, filter, right, missing, step, regrade, boxed)
    results = load_any(source, *told(declared, factors, ignore, rename, reference), outside=outside)
    save_long_table(results, out)
    for note in results.notes:
        typer.echo(f"note: {printable(note)}", err=True)
    print_made([out], "convert", as_json, notes=results.notes)


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
    metric: Metric = None,
    filter: Filter = None,
    right: Right = None,
    missing: Missing = None,
    step: Step = None,
    regrade: Regrade = False,
    boxed: Boxed = True,
    files: FormatName = None,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Write one self-contained HTML file: the question, the answer, effects, curves, evidence, failures, provenance."""
    fixed, reading = told(declared, factors, ignore, rename, reference)
    outside = other_files(files, metric, filter, right, missing, step, regrade, boxed)
    path = make_report(other_source(study, runs) or study_folder(study, runs), out, figures, fixed, reading, outside)
    print_made([path], "report", as_json)


def make_report(
    study: Path,
    out: Path | None = None,
    figures: bool = True,
    declared: "Declared | None" = None,
    reading: "Reading | None" = None,
    outside: "Outside | None" = None,
) -> Path:
    """Write the report of a study folder or anyone's results, by default into or beside it; returns its path."""
    from r3bench.analysis import write_report

    place = out or (study if (study / "study.json").exists() or (study / "run.json").exists() else beside(study).parent)
    path: Path = write_report(study, place, figures=figures, declared=declared, reading=reading, outside=outside)
    return path


def beside(source: Path, ending: str = "") -> Path:
    """Where what is made of results goes by default: beside their file, in the working directory for folders."""
    if source.is_file():
        return source.with_name(source.stem + ending)
    named = next((part for part in reversed(source.parts) if not set(part) & set("*{?/")), "results")
    return Path(named + ending)


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
