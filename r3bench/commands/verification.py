"""`verify`: does a study, a run or an archive say what its own files bear out?"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from r3bench.commands import shell
from r3bench.commands.options import RUNS, Json, Quiet, Runs, print_json, printable


def verify(
    target: Annotated[
        str,
        typer.Argument(
            metavar="STUDY|RUN|ARCHIVE|FOLDER",
            help="Also a folder of tables alone, as in results/.",
            autocompletion=shell.studies_and_runs,
        ),
    ],
    sample: Annotated[
        int | None,
        typer.Option(metavar="N", help="Grade N answers of each run and task anew; 0 for none. Default: all."),
    ] = None,
    runs: Runs = RUNS,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compare everything that can be compared, and change nothing; exit code 3 if something does not agree.

    Files with their digests, records with the configuration and with the answers, verdicts with the responses, tables
    with both.
    """
    from r3bench.errors import ConfigError
    from r3bench.verification.verify import verify as check

    if sample is not None and sample < 0:
        raise ConfigError(f"--sample: got {sample}, expected 0 or above")
    graded = 0

    def say(count: int) -> None:
        nonlocal graded
        graded += count
        if not quiet and not as_json and sys.stderr.isatty():
            typer.echo(f"\r{graded} answers graded anew", nl=False, err=True)

    found = check(_path(target, runs), grade=sample, say=say)
    if as_json:
        print_json(found.data(), "verify")
    else:
        for line in found.lines():
            typer.echo(printable(line))
        typer.echo("all that could be compared agrees" if found.ok else f"{len(found.faults)} things do not agree")
    if not found.ok:
        raise typer.Exit(3)


def _path(target: str, runs: Path) -> Path:
    """A study's or run's folder, by its path, its name below `runs` or a run's id; else the path itself."""
    from r3bench.commands.options import run_folder
    from r3bench.errors import StateError

    for path in (Path(target), runs / target):
        if path.is_file() or any((path / name).exists() for name in ("study.json", "run.json", "questions.parquet")):
            return path
    found = run_folder(target, runs)
    if found is None:
        raise StateError(f"'{target}': no study, run, archive or folder of tables, nor below {runs}")
    return found
