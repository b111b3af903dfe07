"""The training questions of a recipe, checked row by row."""

import hashlib
import math
import re
import sys
from typing import Any

import pyarrow as pa
from datasets import Dataset

from r3bench.config.sections import DataSection
from r3bench.errors import DataError, first_line, nearest
from r3bench.grading.extract import last_boxed
from r3bench.prompts import prompt_of
from r3bench.training.questions.columns import check_columns, further_columns
from r3bench.training.questions.sources import rows

FINAL = re.compile(r"####\s*([^\n]+)")  # GSM8K's mark before the final answer
THOUSANDS = re.compile(r"[-$]*\d{1,3}(,\d{3})+(\.\d+)?")  # GSM8K writes 1,234


def load_questions(section: DataSection) -> Dataset:
    """The questions of `section` with columns question_id, prompt (chat messages), problem and answer (text).

    Solutions are reduced to their final answer: the text after GSM8K's `####`, or the last `\\boxed{}`. The order is
    the source's. `question_id` is the id column's value, or a hash of the problem where there is none. A column
    `solution` (text, None where a row has none) is there if any row has a worked solution: the solution column's text,
    else the answer's where that is more than the final answer.

    Raises:
        DataError: for a missing column, an empty or non-text problem or answer, or a question id given twice; names
            the file and row. The same problem under two ids is allowed.
    """
    prompt = prompt_of(section)
    source, section, known = rows(section)
    columns = further_columns(section)
    allowed = known.unanswered if known else 0
    questions: list[dict[str, Any]] = []
    seen: dict[str, str] = {}
    left_out = 0
    for where, row in source:
        if section.limit is not None and len(questions) == section.limit:
            break
        if not questions and not left_out:
            check_columns(where, row, section)
        problem = _text(where, row, section.problem, "problem")
        if left_out < allowed and _missing(row.get(section.answer)):
            left_out += 1
            continue
        written = _text(where, row, section.answer, "answer")
        answer = _final_answer(written)
        if not answer:
            raise DataError(f"{where}: column '{section.answer}': no final answer in it")
        question = _question_id(where, row, section, problem)
        if known and not _has_id(row, section):
            question = _unused(question, seen)
        if question in seen:
            raise DataError(_twice(where, question, seen[question], _has_id(row, section)))
        seen[question] = where
        further = {name: _cell(where, row, name) for name in columns}
        questions.append(
            {
                **further,
                "question_id": question,
                "prompt": prompt.messages(problem, further),
                "problem": problem,
                "answer": answer,
                "solution": _solution(where, row, section, written, answer),
            }
        )
    if not questions:
        raise DataError(f"data.name: '{section.name}' has no rows")
    if left_out:
        print(f"r3bench: {section.name}: left out {left_out} rows without an answer", file=sys.stderr, flush=True)
    try:
        found = Dataset.from_list(questions)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DataError(
            f"data.columns: {', '.join(columns)}: not of one type in all rows ({first_line(error)}); expected one, "
            "such as texts"
        ) from error
    return found if any(row["solution"] for row in questions) else found.remove_columns("solution")


def _cell(where: str, row: dict[str, Any], column: str) -> Any:
    if column not in row:
        raise DataError(f"{where}: no column '{column}' (data.columns){nearest(column, map(str, row))}")
    return row[column]


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _has_id(row: dict[str, Any], section: DataSection) -> bool:
    return section.id is not None and section.id in row


def _text(where: str, row: dict[str, Any], column: str, what: str) -> str:
    """A cell as text without surrounding space. Numbers are spelt plainly where an answer may be one."""
    if column not in row:
        raise DataError(f"{where}: no column '{column}' ({what}){nearest(column, map(str, row))}")
    value = row[column]
    if _missing(value):
        raise DataError(f"{where}: column '{column}': the {what} is empty")
    if what != "problem" and isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return str(int(value)) if value == int(value) else repr(value)
    if not isinstance(value, str):
        shown = repr(value) if isinstance(value, float) else type(value).__name__
        raise DataError(f"{where}: column '{column}': got {shown}, expected text for the {what}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: column '{column}': holds a lone surrogate, which is no valid text") from error
    return value.strip()


def _solution(where: str, row: dict[str, Any], section: DataSection, written: str, answer: str) -> str | None:
    """The worked solution of a row; only a column that the recipe names is an error when it does not hold text."""
    if section.solution is None:
        return None
    value = row.get(section.solution)
    named = section.solution != DataSection().solution
    if not _missing(value) and (named or isinstance(value, str)):
        text = _text(where, row, section.solution, "solution")
        return text if text != answer else None
    return written if written != answer else None


def _final_answer(text: str) -> str:
    """`text` itself, or what stands after the last `####`, or in the last `\\boxed{}`."""
    if marked := FINAL.findall(text):
        final = marked[-1].strip()
        return final.replace(",", "") if THOUSANDS.fullmatch(final) else final
    if "####" in text:
        return ""
    if "\\boxed" in text or "\\fbox" in text:
        return (last_boxed(text) or "").strip()
    return text


def _question_id(where: str, row: dict[str, Any], section: DataSection, problem: str) -> str:
    if not _has_id(row, section):
        return f"q-{hashlib.sha256(problem.encode()).hexdigest()[:16]}"
    assert section.id is not None
    return _text(where, row, section.id, "id")


def _unused(question: str, seen: dict[str, str]) -> str:
    """A known set without ids may repeat a problem: the second one gets '-2' and so on."""
    name, repeat = question, 1
    while name in seen:
        repeat += 1
        name = f"{question}-{repeat}"
    return name


def _twice(where: str, question: str, first: str, has_id: bool) -> str:
    if has_id:
        return f"{where}: id '{question}' is given twice, first at {first}; every row needs an id of its own"
    return (
        f"{where}: the same problem as at {first}; repeated problems need an id column (data.id) that tells them apart"
    )
