"""`r3bench verify`: everything that can be compared in a study, a run, an archive, or a folder of tables."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from r3bench.analysis.reading.finished import BASE_MODEL
from r3bench.errors import R3BenchError, StateError
from r3bench.exclusions import FILE, exclusions
from r3bench.records import STUDY_SCHEMA, RunPaths, enter_project, read_study
from r3bench.sweep.grid import parse_grid
from r3bench.sweep.opening import open_study
from r3bench.sweep.sharing.archive import manifest_faults, unpacked
from r3bench.verification.answers import Golds, Regrader, check_golds, check_scores, read_answers
from r3bench.verification.findings import Findings
from r3bench.verification.levels import check_levels
from r3bench.verification.records import (
    check_checkpoints,
    check_configuration,
    check_files,
    check_measured,
    check_record,
)
from r3bench.verification.tables import COUNTS, check_recorded, check_tables


def verify(
    path: Path, *, grade: int | None = None, tables: bool = True, say: Callable[[int], None] = lambda n: None
) -> Findings:
    """Compare whatever can be compared below `path`; nothing is written there.

    Args:
        path: a study's folder, a run's, an archive of `r3bench export`, or a folder with tables alone.
        grade: answers of each run and task that are graded anew; 0: none, None: all.
        tables: make a study's tables anew as well.
        say: takes the number of answers graded so far, as it grows.

    Raises:
        StateError: there is nothing at `path` that could be verified.
        DataError: the archive can't be unpacked.
    """
    found = Findings()
    if path.is_file():
        with tempfile.TemporaryDirectory(prefix="r3bench-verify-") as name, unpacked(path, Path(name)) as study:
            _check_archive(study, found)
            _check_study(study, found, grade, say, tables)
            _inside(found, study.parent)
    elif (path / "study.json").exists():
        _check_study(path, found, grade, say, tables)
    elif (path / "run.json").exists():
        with Regrader(grade, found, say) as regrader:
            _check_run(RunPaths(path), None, found, None if grade == 0 else regrader, {})
    elif (path / COUNTS).exists():
        check_recorded(path, found)
    else:
        raise StateError(
            f"{path}: nothing to verify: expected a study (study.json), a run (run.json), an archive, or a folder with "
            f"{COUNTS}"
        )
    return found


def verify_unpacked(study: Path) -> Findings:
    """What can be told of an unpacked archive without grading: its manifest, and records against answers."""
    found = Findings()
    _check_archive(study, found)
    _check_study(study, found, 0, lambda n: None, tables=False)
    _inside(found, study.parent)
    return found


def _inside(found: Findings, folder: Path) -> None:
    """Take the temporary folder that an archive was unpacked to out of what was found."""
    top = f"{folder}/"
    found.faults = [(check, where.replace(top, ""), wrong.replace(top, "")) for check, where, wrong in found.faults]
    found.notes = [note.replace(top, "") for note in found.notes]


def _check_archive(study: Path, found: Findings) -> None:
    count, faults = manifest_faults(study)
    if count is None:
        found.note("the archive has no manifest (it is of an older version): damage to its files can go unseen")
        return
    found.looked("archive", count)
    for name, wrong in faults.items():
        found.fault("archive", study / name, wrong)


def _check_study(study: Path, found: Findings, grade: int | None, say: Callable[[int], None], tables: bool) -> None:
    file = study / "study.json"
    found.looked("study")
    cells: dict[str, Mapping[str, Any]] = {}
    spec: dict[str, Any] = {}
    try:
        spec = read_study(file)
        cells = {cell["run_id"]: cell for cell in spec["cells"]}
    except StateError as error:
        found.fault("study", file, str(error).removeprefix(f"{file}: "))
    else:
        if spec.get("schema", 1) < STUDY_SCHEMA:
            found.note(f"{file}: of an older version, without a digest")
        _check_cells(study, spec, found)
    runs = {path.parent.name: RunPaths(path.parent) for path in sorted(study.glob("*/run.json"))}
    for name in cells.keys() - runs.keys():
        found.note(f"{name}: not finished (no run.json)")
    _check_exclusions(study, cells, found)
    golds: Golds = {}
    with Regrader(grade, found, say) as regrader:
        for name, paths in runs.items():
            if cells and name not in cells:
                found.note(f"{paths.root}: not a run of this study; its record alone was looked at")
            _check_run(paths, cells.get(name), found, None if grade == 0 else regrader, golds, spec)
    if grade == 0:
        found.note("verdicts were not given anew")
    if spec and tables:
        check_tables(study, found)


def _check_exclusions(study: Path, cells: Mapping[str, Mapping[str, Any]], found: Findings) -> None:
    """Runs that someone has left out of the tables are told; they are looked at like the others."""
    if not (study / FILE).exists():
        return
    try:
        left_out = exclusions(study)
    except StateError as error:
        found.fault("study", study / FILE, str(error).removeprefix(f"{study / FILE}: "))
        return
    for run, exclusion in left_out.items():
        found.looked("study")
        if cells and run not in cells:
            found.fault("study", study / FILE, f"excludes {run}, which is no run of this study")
        else:
            found.note(exclusion.note())


def _check_run(
    paths: RunPaths,
    cell: Mapping[str, Any] | None,
    found: Findings,
    regrader: Regrader | None,
    golds: Golds,
    spec: Mapping[str, Any] | None = None,
) -> None:
    record = check_record(paths, cell, found)
    if record is None:
        return
    recipe = check_configuration(paths, record, found)
    if recipe is not None and spec and record.factors != BASE_MODEL:
        check_levels(paths, record, recipe, spec, found)
    check_files(paths, record, found)
    check_checkpoints(paths, found)
    check_measured(paths, found)
    for task in sorted(record.eval):
        rows = read_answers(paths, record, task, found)
        if not rows:
            found.note(f"{paths.root}: no answers of {task} are kept here: its scores can't be compared")
            continue
        check_scores(paths, record, task, rows, found)
        check_golds(task, paths.root.name, rows, golds, found)
        if regrader is not None:
            regrader.check(rows)


def _check_cells(study: Path, spec: Mapping[str, Any], found: Findings) -> None:
    """The runs that `study.json` lists against those that its grid gives, where its recipe is at hand and unchanged."""
    file = study / "study.json"
    if "grid" not in spec or not spec["grid"].get("recipe"):
        return
    for environment in sorted(study.glob("*/environment.json"))[:1]:  # its components and data lie where its runs say
        enter_project(RunPaths(environment.parent))
    try:
        opened = open_study(parse_grid(spec["grid"], str(file)), study.absolute().parent, study.absolute().name)
    except R3BenchError as error:
        found.note(f"{file}: its grid can't be worked out here ({str(error).removeprefix(f'{file}: ')})")
        return
    made = {cell["run_id"]: cell for cell in opened.describe()["cells"]}
    listed = {cell["run_id"]: cell for cell in spec["cells"]}
    if not made.keys() & listed.keys():
        found.note(f"{file}: none of its run ids is what its grid gives here: its recipe is another one now")
        return
    for run, cell in listed.items():
        found.looked("study")
        if run not in made:
            found.fault("study", file, f"lists {run}, which its grid does not give")
            continue
        for key in ("name", "factors", "seed", "config_hash"):
            if key in cell and cell[key] != made[run][key]:
                found.fault("study", file, f"{run}: {key} is {cell[key]!r}, its grid gives {made[run][key]!r}")
    for run in made.keys() - listed.keys():
        found.fault("study", file, f"does not list {run}, which its grid gives")
