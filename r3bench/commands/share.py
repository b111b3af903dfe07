"""`export`, `import`, `merge`, `push`: a study as one file, adapters as a whole model, a model on the hub."""

from pathlib import Path
from typing import Annotated

import typer

from r3bench.commands.options import RUNS, Json, RunName, Runs, StudyName, print_made, run_folder, study_folder


def export(
    study: StudyName,
    file: Annotated[Path, typer.Argument(metavar="FILE.tar.gz", help="The archive; replaced if it is there.")],
    models: Annotated[bool, typer.Option("--models", help="With the weights, which are most of a study.")] = False,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Write a study to one archive: all that its tables, report and trace rest on, and the tables; no checkpoints.

    It has a manifest with the digest of every file. What isn't finished, or doesn't agree with its record, is said.
    """
    from r3bench.sweep.sharing.archive import export_study, links
    from r3bench.verification.verify import verify

    folder = study_folder(study, runs)
    about = export_study(folder, file, models=models)
    left = [str(path) for path in links(folder)]
    found = verify(folder, grade=0, tables=False)
    wrongs = [{"file": where, "reason": wrong} for _, where, wrong in found.faults]
    print_made(
        [file], "export", as_json,
        files=len(about["files"]), unfinished=about["unfinished"], left_out=left, faults=wrongs,
    )  # fmt: skip
    typer.echo(f"{len(about['files'])} files, {file.stat().st_size / 1e6:.1f} MB", err=True)
    if about["unfinished"]:
        shown = ", ".join(about["unfinished"][:3]) + (", ..." if len(about["unfinished"]) > 3 else "")
        typer.echo(f"not finished: {len(about['unfinished'])} runs ({shown})", err=True)
    for path in left:
        typer.echo(f"left out: {path}: is a link; put what it leads to in its place", err=True)
    for fault in wrongs:
        typer.echo(f"does not agree: {fault['file']}: {fault['reason']}", err=True)


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An archive that `export` wrote.")],
    study: Annotated[
        str | None, typer.Option("--study", metavar="NAME", help="Its folder below --runs; default: as it was called.")
    ] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Although files don't agree with their digests.")] = False,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Unpack a study below --runs; `tables`, `report`, `trace` and `plan --from` then read it like one made here.

    Its files are compared with its manifest and its records with its answers first; `verify` also grades anew.
    """
    from r3bench.errors import ConfigError, DataError
    from r3bench.sweep.sharing.archive import import_study
    from r3bench.verification.verify import verify_unpacked

    if study is not None and (not study or Path(study).name != study or study.startswith(".")):
        raise ConfigError(f"--study: got '{study}', expected the name of a folder, without a path")
    notes: list[str] = []
    wrongs: list[dict[str, str]] = []

    def check(folder: Path) -> None:
        found = verify_unpacked(folder)
        notes.extend(found.notes)
        # what another version of r3bench may see otherwise (hashes of settings, say) is told, and no reason to refuse
        grave = [fault for fault in found.faults if fault[0] in ("archive", "records", "files", "answers")]
        if grave and not anyway:
            _, where, wrong = grave[0]
            more = f", and {len(grave) - 1} more" if len(grave) > 1 else ""
            raise DataError(
                f"{file}: {where}: {wrong}{more}; nothing was imported (r3bench verify shows all; --anyway imports it, "
                "and tables leave such runs out)"
            )
        for _, where, wrong in found.faults:
            wrongs.append({"file": where, "reason": wrong})
            typer.echo(f"does not agree: {where}: {wrong}", err=True)

    print_made([import_study(file, runs, study, check)], "import", as_json, faults=wrongs, notes=notes)
    for note in notes:
        typer.echo(f"note: {note}", err=True)


def merge(
    run: Annotated[str, typer.Argument(metavar="RUN|FOLDER", help="A run, or a folder with adapters alone.")],
    dest: Annotated[Path, typer.Argument(metavar="DEST", help="Folder to make.")],
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Merge low-rank adapters into the weights they were trained on, as an ordinary model folder."""
    from r3bench.files import expect, read_json
    from r3bench.sweep.sharing.merge import merge as merge_adapters
    from r3bench.training.models.names import ADAPTER

    directory = run_folder(run, runs)
    if directory is None:
        merge_adapters(Path(run), dest)
    else:
        model = directory / "model"
        adapters = model if (model / ADAPTER).is_file() else model / "adapter"
        config = directory / "config.json"
        section = expect(read_json(config), config, model=dict)["model"]
        merge_adapters(adapters, dest, expect(section, f"{config}: model", dtype=str)["dtype"])
    print_made([dest], "merge", as_json)


def push(
    run: RunName,
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository on the hub; made if it isn't there.")],
    public: Annotated[bool, typer.Option("--public", help="For everyone to see; otherwise it is private.")] = False,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Put a finished run's model on the Hugging Face hub, with a card: cell, seed, commit, scores.

    Needs a token that may write, from `hf auth login` or HF_TOKEN. No other command uploads a model.
    """
    from r3bench.errors import StateError
    from r3bench.records import RunPaths
    from r3bench.sweep.sharing.push import push_run

    directory = run_folder(run, runs)
    if directory is None:
        raise StateError(f"run '{run}': no such folder, nor below {runs}")
    print_made([push_run(RunPaths(directory), repo, public=public)], "push", as_json)
