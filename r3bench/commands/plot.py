"""`plot`: a study's figures one by one, for a paper."""

import re
from pathlib import Path
from typing import Annotated

import typer

from r3bench.commands import shell
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
    ks_of,
    names_of,
    other_files,
    other_source,
    print_json,
    print_made,
    study_folder,
    told,
    warn,
)
from r3bench.commands.result import StudyOrFile, beside

PAGE = 9.0  # inches of a page's text


def plot(
    study: StudyOrFile,
    kinds: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KIND",
            help="effects (or forest), accuracy (or cells), interactions, pass-at-k, maj-at-k, heldout-tokens, "
            "heldout-seconds, curves-tokens, curves-seconds, solved-tokens, length, questions, half-normal.",
            autocompletion=shell.figures,
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Say which figures these results have, and draw none.")] = False,
    benchmark: Annotated[
        str | None,
        typer.Option("--benchmark", metavar="NAME", help="A benchmark, or macro; default: the headline's."),
    ] = None,
    width: Annotated[
        str, typer.Option("--width", metavar="WIDTH", help="column (3.25 in), page (5.5 in), or inches.")
    ] = "column",
    format: Annotated[
        str, typer.Option("--format", metavar="A,B", help="pdf, svg, png; fonts are inside the file.")
    ] = "pdf",
    k: Annotated[
        str | None,
        typer.Option("--k", metavar="1,8,...", help="The k of pass-at-k and maj-at-k; default: 1, 2, 4, ..."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where files go; default: STUDY/plots, or FILE-plots beside a file."),
    ] = None,
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
    """Draw figures one by one as PDF, SVG or PNG, as wide as a paper's column; without a KIND, say which there are.

    Of results that are no study: the options of `analyze`.
    """
    from r3bench.analysis.figures.files import formats_of, printed, save, width_of
    from r3bench.analysis.figures.kinds import KINDS, kind_of
    from r3bench.analysis.figures.of_study import available, picture
    from r3bench.analysis.letters import lacking, said
    from r3bench.analysis.output.external import load_any
    from r3bench.errors import ConfigError

    names = [kind_of(name) for name in dict.fromkeys(kinds or ())]
    inches, suffixes = width_of(width), formats_of(names_of("--format", format))
    ks = ks_of(k) if k is not None else None
    if ks is not None and not any(name.endswith("-at-k") for name in names):
        raise ConfigError("--k is about pass-at-k and maj-at-k")
    path = other_source(study, runs) or study_folder(study, runs)
    outside = other_files(files, metric, filter, right, missing, step, regrade, boxed)
    results = load_any(path, *told(declared, factors, ignore, rename, reference), metrics=True, outside=outside)
    if list_ or not names:
        have = available(results, benchmark)
        if as_json:
            print_json({"kinds": {name: name in have for name in KINDS}}, "plot-kinds")
            return
        for name, what in KINDS.items():
            typer.echo(f"{name:17}{what}{'' if name in have else ' (not in these results)'}")
        return
    folder = out or (path / "plots" if (path / "study.json").exists() else beside(path, "-plots"))
    made = []
    for drawn in [picture(results, name, benchmark, ks if name.endswith("-at-k") else None) for name in names]:
        named = drawn.name if benchmark is None else f"{drawn.name}-{re.sub(r'[^A-Za-z0-9._-]+', '-', benchmark)}"
        with lacking() as letters:
            figure = printed(drawn, inches)
            made += save(figure, folder / named, suffixes)
        if letters:
            warn([f"{named}: {said(letters)}"])
        if (height := figure.get_size_inches()[1]) > PAGE:
            warn([f"{named}: {height:.1f} in tall, more than a page has; a larger --width makes it less tall"])
    print_made(made, "plot", as_json)
