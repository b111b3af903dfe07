"""`compare STUDY STUDY`: which arguments are whole studies or tables, and how the comparison is printed."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from r3bench.commands.options import (
    other_source,
    print_columns,
    print_json,
    printable,
    run_folder,
    study_folder,
    table_file,
)

if TYPE_CHECKING:
    from r3bench.analysis.comparing.between import Pair
    from r3bench.analysis.declared import Declared
    from r3bench.analysis.reading.columns import Reading


def two_wholes(a: str, b: str, runs: Path) -> tuple[Path, Path] | None:
    """Both as studies or sources of results; None for runs, and for a run in a table.

    Raises:
        ConfigError: a study and a run.
    """
    from r3bench.errors import ConfigError

    found = [_study_or_source(name, runs) for name in (a, b)]
    if found[0] is not None and found[1] is not None:
        return found[0], found[1]
    if table_file(a) is None and (found[0] is None) != (found[1] is None):
        study, rest = (a, b) if found[0] is not None else (b, a)
        if run_folder(rest, runs) is None and not Path(rest).exists():
            study_folder(rest, runs)  # says that there is none, and the nearest
        raise ConfigError(f"'{study}' is a study or table, and '{rest}' is a run: expected two of a kind")
    return None


def _study_or_source(name: str, runs: Path) -> Path | None:
    for folder in (Path(name), runs / name):
        if name and (folder / "study.json").is_file():
            return folder
    path = Path(name)
    if run_folder(name, runs) is not None:
        return None
    if any(path.glob("*/*.parquet")) or any(path.glob("eval/*/*.parquet")):  # a run's answers
        return None
    source = other_source(name, runs)
    return source if source is not None and (source.exists() or "*" in name or "{" in name) else None


def show_studies(
    sources: tuple[Path, Path],
    tasks: tuple[str, ...] | None,
    declared: "Declared | None",
    reading: "Reading",
    as_json: bool,
) -> None:
    """Print the cells that two studies have in common, and what is to be known of the comparison."""
    import dataclasses

    from r3bench.analysis.comparing.between import compare_studies
    from r3bench.analysis.output.external import load_any

    studies = [source for source in sources if (source / "study.json").is_file()]
    plain = reading if len(studies) == 2 else type(reading)(reference=reading.reference)  # the rest is the table's
    results = [
        load_any(source, None if source in studies else declared, plain if source in studies else reading)
        for source in sources
    ]
    if declared is not None:
        results[0] = dataclasses.replace(results[0], declared=declared)
    places = [source if source in studies else None for source in sources]
    found = compare_studies(results[0], results[1], tasks, (places[0], places[1]))
    if as_json:
        print_json({"a": str(sources[0]), "b": str(sources[1]), **found.record()}, "compare-studies")
        return
    for which, source, one in zip("ab", sources, results, strict=True):
        typer.echo(f"{which}: {printable(str(source))}, {len(one.cells)} cells, {len(one.runs)} runs")
    confidence = f"{100 * found.confidence:g} % interval"
    print_columns([
        ("benchmark", "cell", "questions", "runs", "a", "b", "a - b", confidence, "p", "p adjusted"),
        *((pair.benchmark, pair.cell, str(pair.questions), f"{pair.runs[0]}, {pair.runs[1]}", f"{pair.a:.3f}",
           f"{pair.b:.3f}", f"{pair.difference:+.3f}", *_uncertain(pair)) for pair in found.pairs),
    ])  # fmt: skip
    for which, cells in zip("ab", found.alone, strict=True):
        if cells:
            typer.echo(f"in {which} alone: {printable(', '.join(cells))}")
    for note in found.notes:
        typer.echo(f"note: {printable(note)}")


def _uncertain(pair: "Pair") -> tuple[str, str, str]:
    wide, mark = (pair.like_these, "") if pair.like_these.low is not None else (pair.models, "~ ")
    if wide.low is None or wide.high is None:
        return ("same runs" if pair.same_runs else "-"), "-", "-"
    p = "-" if wide.p is None else f"{wide.p:.3f}"
    return f"{mark}{wide.low:+.3f} to {wide.high:+.3f}", p, "-" if pair.p_adjusted is None else f"{pair.p_adjusted:.3f}"
