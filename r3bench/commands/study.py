"""`quickstart`, `ablate`: run a grid."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from r3bench.commands.options import RUNS, Json, Quiet, Runs, print_json, progress

if TYPE_CHECKING:
    from r3bench.sweep.dispatcher import Report

GridName = Annotated[str, typer.Argument(metavar="GRID", help="A name in ./ablations or among the shipped, or a file.")]


def quickstart(runs: Runs = RUNS, quiet: Quiet = False) -> None:
    """Run the shipped `quickstart` grid on the embedded model (minutes on two CPU cores) and print its table."""
    from r3bench.commands.result import show_tables

    report = _ablate("quickstart", runs, None, quiet)
    show_tables(report.study, None)
    _end(report)


def ablate(
    grid: GridName,
    study: Annotated[
        str | None, typer.Option("--study", metavar="NAME", help="Folder's name; default: the grid's.")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="Optuna database of the study's index; default: SQLite in it.")
    ] = None,
    runs: Runs = RUNS,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run every cell of a grid that isn't finished yet; call it again after any interruption."""
    report = _ablate(grid, runs, study, quiet, storage)
    if as_json:
        print_json(
            {
                "study": str(report.study),
                "finished": {key: dataclasses.asdict(record) for key, record in report.finished.items()},
                "failed": {key: dataclasses.asdict(failure) for key, failure in report.failed.items()},
                "left": report.left,
                "reason": report.reason,
            }
        )
    else:
        typer.echo(report.study)
    _end(report)


def _ablate(grid: str, runs: Path, study: str | None, quiet: bool, storage: str | None = None) -> "Report":
    from r3bench.sweep.ablate import ablate as run_grid

    return run_grid(grid, runs, study=study, storage=storage, say=progress(quiet))


def _end(report: "Report") -> None:
    """Exit code 1, with one line, unless every cell has a record."""
    from r3bench.errors import R3BenchError

    if not report.complete:
        total = len(report.finished) + len(report.failed) + len(report.left)
        why = f" ({report.reason})" if report.reason else ""
        raise R3BenchError(
            f"{report.study}: {len(report.finished)} of {total} runs have a record, "
            f"{len(report.failed)} failed, {len(report.left)} not run{why}"
        )
