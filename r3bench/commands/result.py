"""`tables`, `report`, `trace`, `analyze`: what results show, and what they rest on."""

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from r3bench.commands import shell
from r3bench.commands.options import (
    RUNS,
    Boxed,
    Caption,
    Columns,
    Decimals,
    Factors,
    Filter,
    Fixed,
    FormatName,
    Ignore,
    IntervalForm,
    Json,
    Ks,
    Label,
    Layout,
    MarkForm,
    Metric,
    Missing,
    Only,
    PageWidth,
    Reference,
    Regrade,
    Rename,
    Right,
    Runs,
    Sd,
    Shown,
    Step,
    StudyName,
    choices_of,
    named_source,
    other_files,
    other_source,
    print_json,
    print_made,
    printable,
    study_folder,
    told,
)

if TYPE_CHECKING:
    from r3bench.analysis.declared import Declared
    from r3bench.analysis.output.choices import Choices
    from r3bench.analysis.reading.columns import Reading
    from r3bench.analysis.reading.outside import Outside
    from r3bench.analysis.results import Results

StudyOrFile = Annotated[
    str,
    typer.Argument(metavar="STUDY|FILE", help="A study, or a source as for `analyze`.", autocompletion=shell.studies),
]
Format = Annotated[str, typer.Option("--format", metavar="NAME", help="markdown, latex, html or csv: what is printed.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Where files go; default: STUDY/tables, or FILE-tables beside a file."),
]


def tables(
    study: StudyOrFile,
    format: Format = "markdown",
    layout: Layout = None,
    columns: Columns = None,
    only: Only = None,
    decimals: Decimals = None,
    caption: Caption = None,
    label: Label = None,
    sd: Sd = None,
    interval: IntervalForm = None,
    mark: MarkForm = None,
    k: Ks = None,
    width: PageWidth = None,
    out: Out = None,
    declared: Fixed = None,
    factors: Factors = None,
    ignore: Ignore = None,
    rename: Shown = None,
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
    from r3bench.analysis.output.external import load_any

    path = other_source(study, runs) or study_folder(study, runs)
    folder = out or (path / "tables" if (path / "study.json").exists() else beside(path, "-tables"))
    choices, renamed = choices_of(path, rename, columns, only, k, decimals=decimals, caption=caption, label=label,
                                  sd=sd, interval=interval, mark=mark, width=width)  # fmt: skip
    outside = other_files(files, metric, filter, right, missing, step, regrade, boxed)
    results = load_any(path, *told(declared, factors, ignore, renamed or None, reference), outside=outside)
    if as_json:
        from r3bench.analysis import write_tables
        from r3bench.analysis.output.external import analysis

        made = write_tables(results, folder, choices, layout)
        found = {**analysis(results), **_at_k(results, layout, choices)}
        print_json({**found, "made": [str(path) for path in made]}, "tables")
        return
    show_tables(results, folder, format, layout, choices)


def analyze(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            autocompletion=shell.studies,
            help="A table, a study (a folder, or a name below --runs), another tool's file or folder, a pattern such "
            "as 'out/{method}-s{seed}/**', or a map in YAML.",
        ),
    ],
    declared: Fixed = None,
    factors: Factors = None,
    ignore: Ignore = None,
    rename: Shown = None,
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
    layout: Layout = None,
    columns: Columns = None,
    only: Only = None,
    decimals: Decimals = None,
    caption: Caption = None,
    label: Label = None,
    sd: Sd = None,
    interval: IntervalForm = None,
    mark: MarkForm = None,
    k: Ks = None,
    width: PageWidth = None,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Effects with intervals from anyone's results: a table, or the files of lm-eval, verl, lighteval and others.

    A table has columns run, seed, benchmark, question, and samples and correct, or correct alone with a row per answer;
    all others are factors, or named as what they are with the options. See docs/other-tools.md.
    """
    from r3bench.analysis.output.external import analysis, load_any

    source = named_source(source, runs)
    choices, renamed = choices_of(source, None if as_json else rename, columns, only, k, decimals=decimals,
                                  caption=caption, label=label, sd=sd, interval=interval, mark=mark,
                                  width=width)  # fmt: skip
    if as_json:
        renamed = rename or []  # there are no headings to be called something else
        refuse_choices(choices, layout if layout not in ("pass@k", "maj@k") else None)
    outside = other_files(files, metric, filter, right, missing, step, regrade, boxed)
    results = load_any(source, *told(declared, factors, ignore, renamed or None, reference), outside=outside)
    if as_json:
        print_json({**analysis(results), **_at_k(results, layout, choices)}, "analyze")
        return
    from r3bench.analysis.output.tables import render_tables

    typer.echo(render_tables(results, format, layout, choices))


def _at_k(results: "Results", layout: str | None, choices: "Choices") -> dict[str, list[dict[str, object]]]:
    """pass@k or maj@k for JSON, where that layout is asked for."""
    from r3bench.analysis.output.at_k import at_k
    from r3bench.analysis.output.at_k_tables import LAYOUTS

    score = LAYOUTS.get(layout or "")
    return {} if score is None else {"at_k": [row.record() for row in at_k(results, score, choices.k)]}


def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="As for `analyze`.", autocompletion=shell.studies)],
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
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Write anyone's results as one long table, which `analyze`, `tables`, `report` and `compare` read."""
    from r3bench.analysis.output.external import load_any
    from r3bench.analysis.reading.longtable import save_long_table

    outside = other_files(files, metric, filter, right, missing, step, regrade, boxed)
    results = load_any(named_source(source, runs), *told(declared, factors, ignore, rename, reference), outside=outside)
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
    from r3bench.evaluation.look import problems

    place = out or (study if (study / "study.json").exists() or (study / "run.json").exists() else beside(study).parent)
    path: Path = write_report(study, place, figures=figures, declared=declared, reading=reading, outside=outside,
                              problems=problems)  # fmt: skip
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
    from r3bench.analysis.output import provenance

    folder = study_folder(study, runs)
    if as_json:
        print_json(provenance.trace(folder, cell), "trace")
    else:
        typer.echo(provenance.trace_text(folder, cell), nl=False)


def refuse_choices(choices: "Choices", layout: str | None) -> None:
    """Raise ConfigError for what was chosen of printed tables where none are printed."""
    from r3bench.analysis.output.choices import Choices
    from r3bench.errors import ConfigError

    given = [
        f"--{f.name}"
        for f in fields(Choices)
        if f.name != "k" and getattr(choices, f.name) != getattr(Choices(), f.name)
    ]
    given += ["--layout"] if layout is not None else []
    if given:
        raise ConfigError(f"--json: prints every number in full; {given[0]} is for tables that are printed")


def show_tables(
    study: "Path | Results",
    out: Path | None = None,
    format: str = "markdown",
    layout: str | None = None,
    choices: "Choices | None" = None,
) -> None:
    """Print the tables of a study's folder, or of results, and write them all to `out` (a folder's own `tables`)."""
    from r3bench.analysis import render_tables, write_tables

    if out is None:
        if not isinstance(study, Path):
            raise ValueError("results in memory have no folder of their own; expected `out`")
        out = study / "tables"
    typer.echo(render_tables(study, format, layout, choices))
    for path in write_tables(study, out, choices, layout):
        typer.echo(path, err=True)
