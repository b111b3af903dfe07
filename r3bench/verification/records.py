"""A run's record against its own digest, its configuration, its files and the study's list of runs."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from r3bench.analysis.reading.finished import BASE_MODEL, disagreement
from r3bench.config.load import config_hash, parse_recipe
from r3bench.config.sections import Recipe
from r3bench.errors import ConfigError, StateError
from r3bench.evaluation import shards
from r3bench.evaluation.summary import summarise
from r3bench.evaluation.tied import weight_faults
from r3bench.files import read_json, read_jsonl
from r3bench.measured import NAME as MEASURED
from r3bench.measured import read_measured
from r3bench.record_types import check_summary
from r3bench.records import SCHEMA, RunPaths, RunRecord, TrainRecord, enter_project, read_record, read_train
from r3bench.seals import changed
from r3bench.verification.figures import close, short
from r3bench.verification.findings import Findings


def check_record(paths: RunPaths, cell: Mapping[str, Any] | None, found: Findings) -> RunRecord | None:
    """The record, once it is read; None where it can't be.

    Args:
        paths: the run.
        cell: of `study.json`; None for a run on its own.
        found: takes what is found.
    """
    found.looked("records")
    try:
        record = read_record(paths)
    except StateError as error:
        found.fault("records", paths.record, _without(str(error), paths.record))
        return None
    if cell is not None and record.run_id != paths.root.name:
        found.fault("records", paths.record, f"is the record of {record.run_id}, in the folder of {paths.root.name}")
    wrong = disagreement(record, paths, cell)
    if wrong is not None and not wrong.startswith(str(paths.config)):  # that one is among the files
        found.fault("records", paths.record, _without(wrong, paths.record))
    if record.schema < SCHEMA:
        found.note(f"{paths.record}: of an older version, without digests; damage to its files can go unseen")
    if paths.train.exists():
        _check_train(paths, record, found)
    elif record.schema >= SCHEMA and record.train.files:
        found.fault("records", paths.train, "is missing")
    return record


def _without(text: str, path: object) -> str:
    return text.removeprefix(f"{path}: ")


def _check_train(paths: RunPaths, record: RunRecord, found: Findings) -> None:
    found.looked("records")
    try:
        train = read_train(paths)
    except StateError as error:
        found.fault("records", paths.train, _without(str(error), paths.train))
        return
    if not _same(train, record.train):
        theirs, ours = dataclasses.asdict(train), dataclasses.asdict(record.train)
        keys = ", ".join(key for key in ours if ours[key] != theirs[key])
        found.fault("records", paths.train, f"says something else about training than run.json ({keys})")


def _same(train: TrainRecord, recorded: TrainRecord) -> bool:
    if recorded.outcome == "diverged" and (recorded.reason or "").startswith("in evaluation: "):
        train = dataclasses.replace(train, outcome="diverged", reason=recorded.reason)
    return train == recorded


def check_configuration(paths: RunPaths, record: RunRecord, found: Findings) -> Recipe | None:
    """The run's recipe, once its hash and seed are found to be those of the record."""
    found.looked("configurations")
    try:
        values = read_json(paths.config)
    except StateError as error:
        found.fault("configurations", paths.config, _without(str(error), paths.config))
        return None
    enter_project(paths)
    try:
        recipe = parse_recipe(values, str(paths.config))
        digest = config_hash(recipe)
    except ConfigError as error:
        found.note(f"{paths.config}: its hash can't be made here ({_without(str(error), paths.config)})")
        return None
    if digest != record.config_hash or recipe.seed != record.seed:
        found.fault(
            "configurations",
            paths.config,
            f"is seed {recipe.seed} and hash {digest}; run.json says seed {record.seed} and hash {record.config_hash}",
        )
    return recipe


def check_files(paths: RunPaths, record: RunRecord, found: Findings) -> None:
    """Every file that a record has a digest of, and files that it knows nothing of."""
    for name, wrong in changed(paths.root, record.files).items():
        found.fault("files", paths.root / name, wrong)
    found.looked("files", len(record.files))
    logs = {name: digest for name, digest in record.train.files.items() if name == paths.metrics.name}
    for name, wrong in changed(paths.root, logs).items():
        found.fault("files", paths.root / name, wrong)
    found.looked("files", len(logs))
    if any(paths.weights()):
        try:
            for name, wrong in weight_faults(paths).items():
                found.fault("files", paths.root / name, wrong)
            found.looked("files", sum(name.startswith("model/") for name in record.train.files))
        except StateError:
            pass  # train.json, said already
    elif record.factors != BASE_MODEL and record.train.outcome == "finished":
        found.note("weights that are not kept here can't be compared")
    if record.schema >= SCHEMA:
        for path in paths.shards():
            if path.relative_to(paths.root).as_posix() not in record.files:
                found.note(f"{path}: run.json doesn't know it; it is not counted (a measurement that isn't finished?)")
    for path in (paths.root / "attempts.jsonl", paths.root / "notes.jsonl"):
        torn: list[int] = []
        found.looked("files", path.exists())
        try:
            read_jsonl(path, torn)
        except StateError as error:
            found.fault("files", path, _without(str(error), path))
        if torn:
            found.fault("files", path, f"line {torn[0]} is torn or damaged")


def check_checkpoints(paths: RunPaths, found: Findings) -> None:
    """Whole checkpoints against the checksums they were saved with."""
    folders = sorted(paths.checkpoints.glob("checkpoint-*/complete.json"))
    if not folders:
        return
    from r3bench.training.checkpoint import fault

    for manifest in folders:
        found.looked("checkpoints")
        wrong = fault(manifest.parent)
        if wrong is not None:
            found.fault("checkpoints", manifest.parent, wrong)


def check_measured(paths: RunPaths, found: Findings) -> None:
    """Answers of kept checkpoints against what was noted when they were measured, and their scores made anew."""
    for folder in sorted(path for path in paths.checkpoint_evaluation.glob("*") if path.is_dir()):
        try:
            told = read_measured(folder)
        except StateError as error:
            found.fault("checkpoints", folder / MEASURED, _without(str(error), folder / MEASURED))
            continue
        if told is None:
            found.note(f"{folder}: measured without a record (an older version, or not finished): damage can go unseen")
            continue
        found.looked("checkpoints", len(told["files"]))
        wrong = changed(folder, told["files"])
        for name, why in wrong.items():
            found.fault("checkpoints", folder / name, why)
        for path in sorted(folder.glob("*/*.parquet")):
            if path.relative_to(folder).as_posix() not in told["files"]:
                found.fault("checkpoints", path, f"{MEASURED} doesn't know it")
        if not wrong:
            _check_points(folder, told["eval"], found)


def _check_points(folder: Path, summaries: Mapping[str, Any], found: Findings) -> None:
    """Every figure of a checkpoint's scores against the same figure made anew from its answers."""
    file = folder / MEASURED
    for task, summary in summaries.items():
        found.looked("checkpoints")
        try:
            check_summary(task, summary, str(file))
            if not {"questions", "samples"} <= summary.keys():
                raise StateError(f"eval.{task}: questions or samples: missing; the file was edited")
            rows = shards.read(folder / task)
            wanted = set(list(dict.fromkeys(row["question"] for row in rows))[: summary["questions"]])
            if len(wanted) < summary["questions"]:
                raise StateError(
                    f"eval.{task}: answers to {len(wanted)} of {summary['questions']} questions are stored"
                )
            anew = summarise([row for row in rows if row["question"] in wanted], summary["samples"])
        except StateError as error:
            found.fault("checkpoints", file, _without(str(error), file))
            continue
        for key, value in anew.items():
            if key in summary and not close(summary[key], value):
                found.fault(
                    "checkpoints", file, f"eval.{task}: {key} is {short(summary[key])}, the answers give {short(value)}"
                )
