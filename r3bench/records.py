"""The files of a run and the record written last. Only a run with `run.json` is finished.

runs/<run_id>/                      r3bench train
runs/<study>/study.json             r3bench ablate: the resolved grid
runs/<study>/<run_id>/              one cell with one seed
    config.json  environment.json  metrics.jsonl  checkpoints/checkpoint-N/  model/
    train.json                      training's part of the record
    eval/<task>/<shard>.parquet     one row per answer, see ANSWER_COLUMNS
    eval/environment.json           what the last measurement was made with
    checkpoint-eval/<step>/<task>/  the same of a kept checkpoint, where asked for (r3bench eval --checkpoints)
    run.json                        the whole record, written last
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from r3bench.errors import StateError
from r3bench.files import expect, read_json, write_json

SCHEMA = 1  # of run.json
STUDY_SCHEMA = 1  # of study.json
Outcome = Literal["finished", "diverged", "failed"]

ANSWER_COLUMNS = {  # eval/<task>/<shard>.parquet
    "question": "str, question id",
    "repeat": "int, 0..k-1",
    "seed": "int, seed of this draw",
    "response": "str, text without special tokens",
    "tokens": "int, response length",
    "gold": "str",
    "extracted": "str or null, the answer found in the response",
    "reason": "str, why the verdict",
    "correct": "bool",
    "truncated": "bool, hit the cap",
    "timed_out": "bool, grading hit its time-out and counts as wrong",
    "grader": "str, name and version",
}


@dataclass(frozen=True)
class RunPaths:
    """Where things are inside a run directory."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.json"

    @property
    def environment(self) -> Path:
        return self.root / "environment.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def train(self) -> Path:
        return self.root / "train.json"

    @property
    def evaluation(self) -> Path:
        return self.root / "eval"

    @property
    def checkpoint_evaluation(self) -> Path:
        return self.root / "checkpoint-eval"

    @property
    def eval_environment(self) -> Path:
        return self.evaluation / "environment.json"

    @property
    def record(self) -> Path:
        return self.root / "run.json"

    @property
    def lock(self) -> Path:
        return self.root / "run.lock"


@dataclass(frozen=True)
class TrainRecord:
    """What training did; `train.json`."""

    outcome: Outcome  # how it ended
    reason: str | None  # the non-finite quantity or error text of a run that did not finish
    steps: int  # optimiser steps done
    generated_tokens: int  # completion tokens sampled in training, extra groups included
    train_seconds: float  # wall-clock over all attempts
    device: str  # device name
    processes: int  # world size
    evidence: dict[str, float] = field(default_factory=dict)  # totals of the components' counters
    acted: dict[str, bool] = field(default_factory=dict)  # per component that was on: did it change anything
    halvings: int = 0  # times the micro-batch was halved after running out of memory; rows per update stay the same
    notes: list[str] = field(default_factory=list)  # mended on the way, such as a spoilt checkpoint


@dataclass(frozen=True)
class RunRecord:
    """The whole record; `run.json`."""

    run_id: str
    name: str  # the recipe's or cell's name
    config_hash: str
    seed: int
    factors: dict[str, str]  # factor -> level; empty outside a grid
    train: TrainRecord
    eval: dict[str, dict[str, Any]]  # task -> summary (questions, samples, avg@k, ..., settings it was measured under)
    commit: str | None  # git commit of the code, '+dirty' appended when changed
    started: str  # ISO 8601, UTC
    ended: str
    schema: int = SCHEMA


def write_record(record: RunRecord, paths: RunPaths) -> None:
    """Write `run.json`; after this the run is finished."""
    write_json(paths.record, asdict(record))


def read_record(paths: RunPaths) -> RunRecord:
    """The record of a finished run; `StateError` for a torn or foreign file."""
    values = read_json(paths.record)
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        found = values.get("schema") if isinstance(values, dict) else None
        raise StateError(
            f"{paths.record}: schema {found!r}, expected {SCHEMA}; edited, or of another version of r3bench"
        )
    expect(values, paths.record, run_id=str, name=str, seed=int, factors=dict, train=dict, eval=dict)
    for key in ("commit", "config_hash", "started", "ended"):
        if not isinstance(values.get(key), str | None):
            raise StateError(f"{paths.record}: {key}: got {values[key]!r}, expected a text; the file was edited")
    for task, summary in values["eval"].items():
        expect(summary, f"{paths.record}: eval.{task}")
    try:
        return RunRecord(**{**values, "train": _train_record(values["train"], f"{paths.record}: train")})
    except TypeError as error:
        raise StateError(f"{paths.record}: not a run record ({error})") from error


def read_train(paths: RunPaths) -> TrainRecord:
    """Training's part of the record; `StateError` for a torn or foreign file."""
    return _train_record(read_json(paths.train), str(paths.train))


def _train_record(values: Any, where: str) -> TrainRecord:
    expect(values, where, outcome=str, steps=int, generated_tokens=float, train_seconds=float)
    try:
        return TrainRecord(**values)
    except TypeError as error:
        raise StateError(f"{where}: not a training record ({error})") from error


def read_study(file: Path) -> dict[str, Any]:
    """The content of `study.json`; `StateError` for a torn or foreign file."""
    return check_study(read_json(file), file)


def check_study(spec: Any, file: Path) -> dict[str, Any]:
    """`spec`, if it has what readers of `study.json` rely on.

    Raises:
        StateError: it is not a study's; names the file and the key.
    """
    expect(spec, file, cells=list)
    if spec.get("schema", STUDY_SCHEMA) != STUDY_SCHEMA:
        raise StateError(
            f"{file}: schema {spec['schema']!r}, expected {STUDY_SCHEMA}; it is of another version of r3bench"
        )
    for number, cell in enumerate(spec["cells"]):
        expect(cell, f"{file}: cells[{number}]", run_id=str, name=str, seed=int, factors=dict)
    if "grid" in spec:
        grid = expect(spec["grid"], f"{file}: grid")
        if grid.get("factors") is not None:
            for factor, levels in expect(grid, f"{file}: grid", factors=dict)["factors"].items():
                if not isinstance(levels, list):
                    expect(levels, f"{file}: grid.factors.{factor}")
    if "duplicates" in spec:
        expect(spec, file, duplicates=list)
    if "factors" in spec:
        for number, factor in enumerate(expect(spec, file, factors=list)["factors"]):
            expect(factor, f"{file}: factors[{number}]", name=str, levels=list)
    return dict(spec)
