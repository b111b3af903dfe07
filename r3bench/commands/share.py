"""`export`, `import`: a study as one file."""

from pathlib import Path
from typing import Annotated

import typer

from r3bench.commands.options import RUNS, Runs, StudyName, study_folder


def export(
    study: StudyName,
    file: Annotated[Path, typer.Argument(metavar="FILE.tar.gz", help="The archive; replaced if it is there.")],
    models: Annotated[bool, typer.Option("--models", help="With the weights, which are most of a study.")] = False,
    runs: Runs = RUNS,
) -> None:
    """Write a study to one archive: all that its tables, report and trace rest on, without checkpoints and weights."""
    from r3bench.sweep.archive import export_study

    count = export_study(study_folder(study, runs), file, models=models)
    typer.echo(file)
    typer.echo(f"{count} files, {file.stat().st_size / 1e6:.1f} MB", err=True)


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An archive that `export` wrote.")],
    study: Annotated[
        str | None, typer.Option("--study", metavar="NAME", help="Its folder below --runs; default: as it was called.")
    ] = None,
    runs: Runs = RUNS,
) -> None:
    """Unpack a study below --runs; `tables`, `report`, `trace` and `plan --from` then read it like one made here."""
    from r3bench.errors import ConfigError
    from r3bench.sweep.archive import import_study

    if study is not None and (not study or Path(study).name != study or study.startswith(".")):
        raise ConfigError(f"--study: got '{study}', expected the name of a folder, without a path")
    typer.echo(import_study(file, runs, study))
