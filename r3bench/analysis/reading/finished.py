"""The finished runs of a study's folder: those whose record is whole and says what `study.json` says of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from r3bench.analysis.statistics.curves import ACCURACY, LENGTH, SOLVED
from r3bench.errors import StateError
from r3bench.files import read_jsonl
from r3bench.records import SCHEMA, RunPaths, RunRecord, read_record
from r3bench.seals import changed

BASE_MODEL = {"base": "model"}  # factors of the run that is the model before training

DRAWN = ("elapsed", "seconds", "generated_tokens", "num_tokens", *ACCURACY, SOLVED, *LENGTH)  # of a log, in curves


@dataclass
class Finished:
    """The runs that take part, and what to say about the others."""

    paths: list[RunPaths] = field(default_factory=list)
    records: list[RunRecord] = field(default_factory=list)  # one for each of `paths`
    notes: list[str] = field(default_factory=list)  # folders that are no run of the study, files of older versions
    refused: dict[str, str] = field(default_factory=dict)  # run id -> why its record is not believed


def finished_runs(folder: Path, cells: Mapping[str, Mapping[str, Any]]) -> Finished:
    """The finished runs of a folder, with a note on every other folder that holds a `run.json`.

    A copy of a run is not another replicate: a run's folder has its id as its name, and is one of `cells` (run id ->
    cell of `study.json`; empty: any) or the untrained model's. The folder of one run may have any name.

    Raises:
        StateError: the folder is that of one run, whose record can't be read.
    """
    found = [RunPaths(p) for p in sorted(folder.iterdir()) if p.is_dir() and (p / "run.json").exists()]
    if not found and (folder / "run.json").exists():
        record = read_record(RunPaths(folder))
        return Finished([RunPaths(folder)], [record], _file_notes([RunPaths(folder)], [record]))
    result = Finished()
    for paths in found:
        name = paths.root.name
        try:
            record = read_record(paths)
        except StateError as error:
            if not cells or name in cells:
                result.refused[name] = str(error)
            else:
                result.notes.append(f"{name}: left out, not a run of this study")
            continue
        if record.run_id != name:
            said = f"its run.json is of {record.run_id}; the folder is a copy or was renamed"
            if name in cells:
                result.refused[name] = said
            else:
                result.notes.append(f"{name}: left out, {said}")
        elif cells and name not in cells and record.factors != BASE_MODEL:
            result.notes.append(f"{name}: left out, not a run of this study")
        elif (wrong := disagreement(record, paths, cells.get(name))) is not None:
            result.refused[name] = wrong
        else:
            result.paths.append(paths)
            result.records.append(record)
    result.notes += [f"{run}: left out, {why}" for run, why in result.refused.items()]
    result.notes += _file_notes(result.paths, result.records)
    return result


def disagreement(record: RunRecord, paths: RunPaths, cell: Mapping[str, Any] | None) -> str | None:
    """What in a record contradicts its run id, its configuration or the study's list of cells; None if nothing does."""
    if record.config_hash and not record.run_id.endswith(f"-s{record.seed}-{record.config_hash}"):
        return (
            f"{paths.record}: seed {record.seed} and configuration {record.config_hash} are not those in the run id "
            f"{record.run_id}"
        )
    if cell is not None:
        theirs = {"factors": record.factors, "seed": record.seed, "config_hash": record.config_hash}
        for key, found in theirs.items():
            if key in cell and cell[key] != found:
                return f"{paths.record}: {key}: got {_shown(found)}, study.json has {_shown(cell[key])} for this run"
    wrong = changed(paths.root, {k: v for k, v in record.files.items() if k == paths.config.name})
    return f"{paths.config}: {wrong[paths.config.name]}" if wrong else None


def _shown(value: Any) -> str:
    return ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def _file_notes(paths: list[RunPaths], records: list[RunRecord]) -> list[str]:
    """Files beside the answers that changed, and records that can't tell."""
    notes = []
    for one, record in zip(paths, records, strict=True):
        beside = {k: v for k, v in record.files.items() if k.endswith("environment.json")}
        notes += [f"{one.root / name}: {wrong}" for name, wrong in changed(one.root, beside).items()]
    old = [record.run_id for record in records if record.schema < SCHEMA]
    if old:
        shown = ", ".join(old[:3]) + (", ..." if len(old) > 3 else "")
        notes.append(
            f"{len(old)} runs were recorded by an older version of r3bench, without checksums, so that damage to their "
            f"files can go unseen: {shown}"
        )
    return notes


def training_log(paths: RunPaths, record: RunRecord) -> tuple[list[dict[str, Any]], list[str]]:
    """A run's log, line by line, and a note if it is not what training left: then it has no lines."""
    name = paths.metrics.name
    wrong = changed(paths.root, {k: v for k, v in record.train.files.items() if k == name})
    if wrong:
        return [], [f"{paths.metrics}: {wrong[name]}; no curve is drawn of it"]
    torn: list[int] = []
    lines = read_jsonl(paths.metrics, torn)
    kept = [
        line
        for line in lines
        if line.get("step") is not None and all(_number(line.get(key)) for key in ("step", *DRAWN))
    ]
    lost = len(torn) + len(lines) - len(kept)
    return kept, [f"{paths.metrics}: {lost} lines left out, torn, damaged, or without a step"] if lost else []


def _number(value: Any) -> bool:
    return value is None or isinstance(value, int | float)
