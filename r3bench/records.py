"""The files of a run and the record written last. Only a run with `run.json` is finished.

runs/<run_id>/                      r3bench train
runs/<study>/study.json             r3bench ablate: the resolved grid
runs/<study>/<run_id>/              one cell with one seed
    config.json  environment.json  metrics.jsonl  checkpoints/checkpoint-N/  model/
    train.json                      training's part of the record
    eval/<task>/<shard>.parquet     one row per answer, see ANSWER_COLUMNS
    eval/environment.json           what the last measurement was made with
    checkpoint-eval/<step>/<task>/  the same of a kept checkpoint, where asked for (r3bench eval --checkpoints);
                                    its scores and digests: checkpoint-eval/<step>/measured.json
    run.json                        the whole record, written last

`study.json`, `train.json` and `run.json` carry a digest of themselves; `train.json` lists the digests of the training
log and the weights, `run.json` those of the answers and of what they were made with (`r3bench.seals`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from r3bench import project
from r3bench.errors import StateError
from r3bench.files import expect, read_json, write_json
from r3bench.record_types import check_cells, check_run, check_train
from r3bench.seals import SEAL, Files, digests, sealed, unsealed

SCHEMA = 2  # of run.json; 1 had no digests
STUDY_SCHEMA = 2  # of study.json; 1 had no digest
UNSEALED = 1  # the last schema without digests, which is still read: damage to such files goes unseen
ASKED = ".asked.json"  # in a folder of answers while it is written: task -> answers asked for; for `r3bench status`
CARD = "README.md"  # the one file of a model that is written anew after training
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

    def shards(self) -> list[Path]:
        """The files of answers, of all tasks."""
        return sorted(self.evaluation.glob("*/*.parquet"))

    def weights(self) -> Iterator[Path]:
        """The files of the trained model."""
        for path in sorted(self.model.rglob("*")):
            if path.is_file() and path != self.model / CARD and not path.name.startswith("."):
                yield path


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
    acted: dict[str, bool] = field(default_factory=dict)  # a component, or the loss's clip or cap: did it act
    halvings: int = 0  # times the micro-batch was halved after running out of memory; rows per update stay the same
    strategy: str | None = None  # how the model was spread: single (one process), ddp, fsdp2, zero2, ...
    weights_dtype: str | None = None  # of the weights that the optimiser changed
    compute_dtype: str | None = None  # of the matrix products in training
    engine: str | None = None  # what sampled the answers: transformers, vllm colocate, vllm server
    engine_dtype: str | None = None  # that it sampled in; None: a server of somebody else's
    weights_changed: float | None = None  # share of the trained weights that differ from the start
    weights_changed_sampled: float | None = None  # the same of the weights that sampling uses, in the engine's dtype
    correction: dict[str, Any] = field(default_factory=dict)  # what the sampler correction left of answers' weights
    notes: list[str] = field(default_factory=list)  # what happened on the way, such as a corrupt checkpoint
    files: Files = field(default_factory=dict)  # digests of the log and the weights, see `r3bench.seals`


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
    files: Files = field(default_factory=dict)  # digests of the answers, the configuration and the environments
    schema: int = SCHEMA


def write_record(record: RunRecord, paths: RunPaths) -> RunRecord:
    """Write `run.json` with the digests of the files it sums up; after this the run is finished. The whole record."""
    about = (paths.config, paths.environment, paths.eval_environment)
    record = replace(record, files=digests(paths.root, [*about, *paths.shards()]), schema=SCHEMA)
    write_json(paths.record, sealed(asdict(record)))
    rewritten_file(paths).unlink(missing_ok=True)
    return record


def rewritten_file(paths: RunPaths) -> Path:
    """Where shards are noted that have new verdicts which `run.json` doesn't know yet; see `evaluation.regrade`."""
    return paths.evaluation / ".rewritten.jsonl"


def read_record(paths: RunPaths) -> RunRecord:
    """The record of a finished run; `StateError` for a torn, damaged or foreign file."""
    where = str(paths.record)
    values = _document(paths.record, SCHEMA)
    check_run(values, where)
    try:
        return RunRecord(**{**values, "train": _train_record(values["train"], f"{where}: train")})
    except TypeError as error:
        raise StateError(f"{where}: not a run record ({error})") from error


def write_train(record: TrainRecord, paths: RunPaths) -> TrainRecord:
    """Write `train.json` with the digests of the log and the weights; the record with them."""
    record = replace(record, files=digests(paths.root, [paths.metrics, *paths.weights()]))
    write_json(paths.train, sealed(asdict(record)))
    return record


def read_train(paths: RunPaths) -> TrainRecord:
    """Training's part of the record; `StateError` for a torn, damaged or foreign file."""
    values = read_json(paths.train)
    if isinstance(values, dict) and "files" in values and SEAL not in values:
        raise StateError(f"{paths.train}: {SEAL}: missing; the file is damaged or was edited")
    return _train_record(unsealed(values, paths.train), str(paths.train))


def _train_record(values: Any, where: str) -> TrainRecord:
    check_train(values, where)
    try:
        return TrainRecord(**values)
    except TypeError as error:
        raise StateError(f"{where}: not a training record ({error})") from error


def _document(file: Path, schema: int) -> Any:
    """A JSON document of this schema or of the last one without digests; its own is checked and taken off."""
    values = read_json(file)
    if isinstance(values, dict):
        found = values.get("schema", UNSEALED)
        if isinstance(found, bool) or found not in (schema, UNSEALED):
            raise StateError(
                f"{file}: schema {found!r}, expected {schema}; edited, damaged, or of another version of r3bench"
            )
        if found == schema and SEAL not in values:
            raise StateError(f"{file}: {SEAL}: missing; the file is damaged or was edited")
    return unsealed(values, file)


def write_study(spec: dict[str, Any], file: Path) -> None:
    """Write `study.json`, its mappings in the order they are in, with its digest."""
    write_json(file, sealed(spec), sort_keys=False)


def read_study(file: Path) -> dict[str, Any]:
    """The content of `study.json`; `StateError` for a torn, damaged or foreign file."""
    return check_study(_document(file, STUDY_SCHEMA), file)


def check_study(spec: Any, file: Path) -> dict[str, Any]:
    """`spec`, if it has what readers of `study.json` rely on.

    Raises:
        StateError: it is not a study's; names the file and the key.
    """
    expect(spec, file, cells=list)
    check_cells(spec, str(file))
    return dict(spec)


def enter_project(paths: RunPaths) -> None:
    """Look for what a run's recipe names in its project, too, where that still lies as it did when it was trained."""
    folder = project.of_run(paths.root)
    if folder is not None:
        project.enter(folder)


def avg_at_k(summary: Mapping[str, Any]) -> float | None:
    """avg@k of a task's summary, 0 to 1; None where it has none."""
    return next((float(value) for key, value in summary.items() if key.startswith("avg@")), None)
