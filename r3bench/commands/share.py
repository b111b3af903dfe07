"""`export`, `import`, `merge`, `push`: a study as one file, adapters as a whole model, a model on the hub."""

from pathlib import Path
from typing import Annotated

import typer

from r3bench.commands.options import RUNS, RunName, Runs, StudyName, run_folder, study_folder


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


def merge(
    run: Annotated[str, typer.Argument(metavar="RUN|FOLDER", help="A run, or a folder with adapters alone.")],
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="Folder to make.")],
    runs: Runs = RUNS,
) -> None:
    """Merge low-rank adapters into the weights they were trained on, as an ordinary model folder."""
    from r3bench.files import read_json
    from r3bench.training.merge import merge as merge_adapters
    from r3bench.training.names import ADAPTER

    directory = run_folder(run, runs)
    if directory is None:
        merge_adapters(Path(run), dest)
    else:
        model = directory / "model"
        adapters = model if (model / ADAPTER).is_file() else model / "adapter"
        merge_adapters(adapters, dest, read_json(directory / "config.json")["model"]["dtype"])
    typer.echo(dest)


def push(
    run: RunName,
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository on the hub; made if it isn't there.")],
    public: Annotated[bool, typer.Option("--public", help="For everyone to see; otherwise it is private.")] = False,
    runs: Runs = RUNS,
) -> None:
    """Put a finished run's model on the Hugging Face hub, with a card: cell, seed, commit, scores.

    Needs a token that may write, from `hf auth login` or HF_TOKEN. No other command uploads a model.
    """
    from r3bench.errors import StateError
    from r3bench.records import RunPaths
    from r3bench.sweep.push import push_run

    directory = run_folder(run, runs)
    if directory is None:
        raise StateError(f"run '{run}': no such folder, nor below {runs}")
    typer.echo(push_run(RunPaths(directory), repo, public=public))
