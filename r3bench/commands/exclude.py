"""`exclude`: leave a run out of a study's analysis, with a reason that every table prints."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from r3bench.commands import shell
from r3bench.commands.options import RUNS, Json, Runs, print_columns, print_json


def exclude(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|STUDY",
            help="A run of a study; a study alone lists what is excluded in it.",
            autocompletion=shell.studies_and_runs,
        ),
    ],
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why; tables, report and verify print it.")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take the exclusion back.")] = False,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Leave a run out of its study's analysis, with a reason that tables, report and verify print with its scores.

    Nothing is deleted: the run stays in the folder and in archives, and so does the history of exclusions.
    """
    from r3bench.errors import ConfigError
    from r3bench.exclusions import exclude as leave_out
    from r3bench.exclusions import exclusions, include

    study, name = _place(run, runs)
    if name is None:
        if undo or reason is not None:
            raise ConfigError(f"{run}: is a study; --reason and --undo are about one of its runs")
    elif undo:
        if reason is not None:
            raise ConfigError("--undo and --reason: expected one of them")
        include(study, name)
    elif reason is None:
        raise ConfigError(f"{name}: --reason: missing, expected why it is left out (or --undo)")
    else:
        leave_out(study, name, reason)
    found = exclusions(study)
    if as_json:
        excluded = [dataclasses.asdict(exclusion) for exclusion in found.values()]
        print_json({"study": str(study), "excluded": excluded}, "exclude")
        return
    print_columns((exclusion.run, exclusion.time, exclusion.reason) for exclusion in found.values())
    if not found:
        typer.echo(f"{study}: no run is excluded")


def _place(name: str, runs: Path) -> tuple[Path, str | None]:
    """The study's folder, and the run's id unless a study is named.

    Raises:
        StateError: neither a study nor a run of one.
    """
    from r3bench.errors import StateError, nearest
    from r3bench.records import read_study

    for folder in (Path(name), runs / name):
        if name and (folder / "study.json").is_file():
            return folder, None
    for path in (Path(name), runs / name):
        parent = path.resolve().parent
        if len(Path(name).parts) > 1 and (parent / "study.json").is_file():
            return path.parent, path.name
    known: dict[str, list[Path]] = {}
    for file in sorted(runs.glob("*/study.json")):
        for cell in read_study(file)["cells"]:
            known.setdefault(cell["run_id"], []).append(file.parent)
    found = known.get(name, [])
    if len(found) > 1:
        raise StateError(f"run '{name}': in {' and '.join(map(str, found))}; give its folder")
    if not found:
        raise StateError(f"'{name}': no study, nor a run of one below {runs}{nearest(name, known)}")
    return found[0], name
