"""Stored answers: one parquet file per block of questions and repeats, complete or absent.

A shard is written once all its answers are graded, under a temporary name, then renamed. What is missing is worked out
from the rows that are there, never from file names, so extending k or the number of questions adds files and touches
none. The settings that the answers depend on are in every file; answers sampled otherwise are refused, not mixed in.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from r3bench.errors import StateError, first_line
from r3bench.files import expect, replacing
from r3bench.records import ANSWER_COLUMNS

QUESTIONS = 64  # questions in a shard, aligned to the task's order
REPEATS = 8  # repeats in a shard, aligned, so that k = 64 makes the batches that k = 32 made
KEY = b"r3bench"  # of the settings in a file's metadata
WEIGHTS = "weights"  # of a shard's settings: the digest of the trained weights; shards of older versions have none
UNTOLD = {"dtype": "float32"}  # what a file doesn't say that was written before it was noted

SCHEMA = pa.schema(
    [
        pa.field(name, {"int": pa.int64(), "bool": pa.bool_()}.get(kind.split(",")[0], pa.string()))
        for name, kind in ANSWER_COLUMNS.items()
    ]
)
DAMAGED = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError)  # what reading a damaged shard ends in
REQUIRED = ("question", "repeat", "response", "tokens", "gold", "correct", "truncated", "grader")  # never empty


@dataclass(frozen=True)
class Block:
    """The answers of one shard."""

    name: str  # file stem
    questions: tuple[str, ...]  # question ids
    repeats: range


def blocks(questions: Sequence[str], samples: int, have: set[tuple[str, int]]) -> list[Block]:
    """What is missing of `samples` answers to each of `questions`, as shards.

    Args:
        questions: all question ids of the task that are asked for, in the task's order.
        samples: k.
        have: the (question, repeat) pairs that are stored.
    """
    found = []
    for first in range(0, samples, REPEATS):
        for start in range(0, len(questions), QUESTIONS):
            rows: dict[tuple[int, ...], list[int]] = {}  # missing repeats -> questions
            for index in range(start, min(start + QUESTIONS, len(questions))):
                repeats = range(first, min(first + REPEATS, samples))
                missing = tuple(r for r in repeats if (questions[index], r) not in have)
                if missing:
                    rows.setdefault(missing, []).append(index)
            for missing, indices in rows.items():
                for run in _runs(missing):
                    for stretch in _runs(indices):
                        name = f"r{run[0]:04d}-{run[-1]:04d}.q{stretch[0]:05d}-{stretch[-1]:05d}"
                        found.append(Block(name, tuple(questions[i] for i in stretch), run))
    return found


def _runs(numbers: Sequence[int]) -> list[range]:
    """Rising numbers as stretches without gaps."""
    runs: list[range] = []
    for number in numbers:
        if runs and number == runs[-1].stop:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return runs


def write(
    folder: Path,
    name: str,
    rows: Sequence[dict[str, Any]],
    settings: dict[str, Any],
    before: Callable[[Path, Path], None] | None = None,
) -> None:
    """Write shard `name` with `rows` (all of `records.ANSWER_COLUMNS`) and the settings they were sampled under.

    `before` is called with the shard and the finished file that is about to become it.
    """
    path = folder / f"{name}.parquet"
    table = pa.Table.from_pylist(list(rows), schema=SCHEMA)
    table = table.replace_schema_metadata({KEY: json.dumps(settings, sort_keys=True).encode()})
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
        if before is not None:
            before(path, temporary)


def files(folder: Path) -> list[Path]:
    """The shards of a task folder, by name."""
    return sorted(folder.glob("*.parquet"))


def stored_settings(path: Path) -> dict[str, Any]:
    """The settings a shard's answers were sampled under, without reading the answers.

    Raises:
        StateError: it is not a readable parquet file.
    """
    try:
        schema = pq.read_schema(path)
    except DAMAGED as error:
        raise StateError(f"{path}: not readable as parquet ({first_line(error)})") from error
    return _settings(schema, path)


def read_shard(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows and settings of one shard.

    Raises:
        StateError: it is not a readable parquet file, or lacks a column.
    """
    try:
        table = pq.read_table(path, page_checksum_verification=True)
    except DAMAGED as error:
        raise StateError(f"{path}: not readable as parquet ({first_line(error)})") from error
    missing = set(ANSWER_COLUMNS) - set(table.column_names)
    if missing:
        raise StateError(f"{path}: no column {', '.join(sorted(missing))}")
    if not table.schema.equals(SCHEMA, check_metadata=False):
        table = _as_ours(table, path)
    for name in REQUIRED:
        if table[name].null_count:
            raise StateError(f"{path}: {name}: empty in {table[name].null_count} rows; evaluate again")
    try:
        return table.to_pylist(), _settings(table.schema, path)
    except UnicodeDecodeError as error:
        raise StateError(f"{path}: holds text that is not UTF-8; the file is damaged") from error


def _as_ours(table: pa.Table, path: Path) -> pa.Table:
    """A table with our columns among others, as an editor of parquet files might leave it."""
    try:
        return table.select(SCHEMA.names).cast(SCHEMA.with_metadata(table.schema.metadata))
    except (pa.ArrowException, ValueError) as error:
        raise StateError(f"{path}: columns are not ours ({first_line(error)})") from error


def _settings(schema: pa.Schema, path: Path) -> dict[str, Any]:
    try:
        found = json.loads((schema.metadata or {}).get(KEY, b"{}"))
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path}: its settings are not readable as JSON; the file was edited") from error
    return expect(found, path)


def read(folder: Path, settings: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """All stored answers of a task, each (question, repeat) once, sorted by repeat and then by file order.

    Args:
        folder: `eval/<task>` of a run.
        settings: what the answers must have been sampled under; None: anything.

    Raises:
        StateError: a shard can't be read, was sampled under other settings, or two differ about an answer.
    """
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for path in files(folder):
        shard, theirs = read_shard(path)
        if settings is not None:
            theirs = UNTOLD | theirs
            different = [
                key for key in settings if theirs.get(key) != settings[key] and (key != WEIGHTS or key in theirs)
            ]
            if different:
                told = ", ".join(f"{key} {theirs.get(key)!r} (now {settings[key]!r})" for key in different)
                raise StateError(
                    f"{path}: its answers were sampled with {told}; delete {folder} or choose another folder"
                )
        for row in shard:
            key = (row["question"], row["repeat"])
            if key in rows and rows[key]["response"] != row["response"]:
                raise StateError(f"{path}: question {key[0]}, repeat {key[1]} has another response in another shard")
            rows.setdefault(key, row)
    return sorted(rows.values(), key=lambda row: row["repeat"])
