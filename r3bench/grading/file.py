"""Grading responses from anywhere: a file or a stream of JSON lines, in bounded memory."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from r3bench.errors import ConfigError, DataError, nearest
from r3bench.grading.extract import final_answer
from r3bench.grading.grader import Grader
from r3bench.grading.spelling.normalise import MAX_LENGTH, canonical

BATCH = 256  # rows graded together


def grade_file(
    path: Path, *, require_boxed: bool = True, timeout: float = 5.0, workers: int = 2
) -> Iterator[dict[str, Any]]:
    """`grade_lines` of a file. All its lines are looked at before the first is graded, so a bad one costs nothing.

    Raises:
        ConfigError: the file can't be read.
        DataError: see `grade_lines`.
    """
    try:
        for _ in _rows(_lines(path), str(path)):
            pass
        yield from grade_lines(_lines(path), str(path), require_boxed=require_boxed, timeout=timeout, workers=workers)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error


def grade_lines(
    lines: Iterable[bytes], where: str, *, require_boxed: bool = True, timeout: float = 5.0, workers: int = 2
) -> Iterator[dict[str, Any]]:
    """Verdicts for JSON lines with `answer` (gold) and `response`, optionally `id` and `problem`, one object a line.

    Args:
        lines: UTF-8; blank ones are skipped.
        where: what to call them in errors.
        require_boxed, timeout, workers: see `Grader`.

    Yields:
        `id` (the line number if the row has none), `correct`, `extracted`, `reason`, `timed_out`, in order; at most
        `BATCH` rows are held.

    Raises:
        DataError: a line is not an object with texts `answer` and `response`; names it, after the verdicts before it.
    """
    batch: list[dict[str, Any]] = []
    with Grader(timeout, workers, require_boxed) as grader:
        try:
            for row in _rows(lines, where):
                batch.append(row)
                if len(batch) == BATCH:
                    yield from _verdicts(grader, batch)
                    batch = []
        except DataError:
            yield from _verdicts(grader, batch)
            raise
        yield from _verdicts(grader, batch)


def _verdicts(grader: Grader, batch: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    verdicts = grader.grade([row["response"] for row in batch], [row["answer"] for row in batch])
    for row, verdict in zip(batch, verdicts, strict=True):
        yield {
            "id": row["id"],
            "correct": verdict.correct,
            "extracted": cut(verdict.extracted),
            "reason": verdict.reason,
            "timed_out": verdict.timed_out,
        }


def cut(text: str | None, most: int = MAX_LENGTH) -> str | None:
    """`text` as far as it is shown, with its length where that is not the whole."""
    if text is None or len(text) <= most:
        return text
    return f"{text[:most]}... ({len(text):,} characters)"


def explain_file(path: Path, name: str, *, require_boxed: bool = True) -> list[dict[str, Any]]:
    """Everything about the verdict on the rows of a file with the id `name`, one dict per row.

    Each has `id`, `correct`, `reason`, `rule` (the sentence of the rule that decided), `gold`, `extracted`, `form`
    (how the answer was marked), `canonical` and `canonical_gold` (the spellings compared first), `timed_out` and
    `response`.

    Raises:
        ConfigError: the file can't be read, or no row has that id.
        DataError: see `grade_lines`.
    """
    from r3bench.grading.document import rule_named

    try:
        rows = list(_rows(_lines(path), str(path)))
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    chosen = [row for row in rows if str(row["id"]) == name]
    if not chosen:
        raise ConfigError(f"{path}: no row with the id '{name}'{nearest(name, {str(row['id']) for row in rows})}")
    with Grader(workers=1, require_boxed=require_boxed) as grader:
        verdicts = grader.grade([row["response"] for row in chosen], [row["answer"] for row in chosen])
    found = []
    for row, verdict in zip(chosen, verdicts, strict=True):
        rule = rule_named(verdict.reason)
        found.append(
            {
                "id": row["id"],
                "correct": verdict.correct,
                "reason": verdict.reason,
                "rule": rule.says if rule else None,
                "gold": row["answer"],
                "extracted": cut(verdict.extracted),
                "form": final_answer(row["response"], require_boxed).form,
                "canonical": None if verdict.extracted is None else cut(canonical(verdict.extracted)),
                "canonical_gold": canonical(row["answer"]),
                "timed_out": verdict.timed_out,
                "response": row["response"],
            }
        )
    return found


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file


def _rows(lines: Iterable[bytes], where: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{where}: line {number}: not UTF-8 text ({error.reason} at byte {error.start})") from error
        if text.strip():
            yield _row(where, number, text)


def _row(where: str, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: line {number}: not valid JSON ({error.msg})") from error
    except ValueError as error:  # a number with thousands of digits
        raise DataError(f"{where}: line {number}: not usable JSON ({str(error).partition(';')[0]})") from error
    except RecursionError as error:
        raise DataError(f"{where}: line {number}: not usable JSON (nested too deeply)") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: line {number}: got {type(row).__name__}, expected an object")
    for key in ("answer", "response"):
        value = row.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            row[key] = str(value)
        elif not isinstance(value, str):
            raise DataError(f"{where}: line {number}: {key}: got {repr(value)[:80]}, expected a text")
        if key == "answer" and not str(row[key]).strip():
            raise DataError(f"{where}: line {number}: answer: empty, expected the gold answer")
    return {"id": row.get("id", str(number)), "answer": row["answer"], "response": row["response"]}
