"""Grading a file of responses from anywhere."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from r3bench.errors import ConfigError, DataError
from r3bench.grading.grader import Grader

BATCH = 256  # rows graded together


def grade_file(
    path: Path, *, require_boxed: bool = False, timeout: float = 5.0, workers: int = 2
) -> Iterator[dict[str, Any]]:
    """Verdicts for a JSONL file with `answer` (gold) and `response`, optionally `id` and `problem`, one object a line.

    Yields:
        `id` (the line number if the row has none), `correct`, `extracted`, `reason`, `timed_out`, in file order.

    Raises:
        ConfigError: the file can't be read.
        DataError: a line is not an object with texts `answer` and `response`; names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    rows = [_row(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    with Grader(timeout, workers, require_boxed) as grader:
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            verdicts = grader.grade([row["response"] for row in batch], [row["answer"] for row in batch])
            for row, verdict in zip(batch, verdicts, strict=True):
                yield {
                    "id": row["id"],
                    "correct": verdict.correct,
                    "extracted": verdict.extracted,
                    "reason": verdict.reason,
                    "timed_out": verdict.timed_out,
                }


def _row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: line {number}: not valid JSON ({error.msg})") from error
    except ValueError as error:  # a number with thousands of digits
        raise DataError(f"{path}: line {number}: not usable JSON ({str(error).partition(';')[0]})") from error
    except RecursionError as error:
        raise DataError(f"{path}: line {number}: not usable JSON (nested too deeply)") from error
    if not isinstance(row, dict):
        raise DataError(f"{path}: line {number}: got {type(row).__name__}, expected an object")
    for key in ("answer", "response"):
        value = row.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            row[key] = str(value)
        elif not isinstance(value, str):
            raise DataError(f"{path}: line {number}: {key}: got {value!r}, expected a text")
        if key == "answer" and not str(row[key]).strip():
            raise DataError(f"{path}: line {number}: answer: empty, expected the gold answer")
    return {"id": row.get("id", str(number)), "answer": row["answer"], "response": row["response"]}
