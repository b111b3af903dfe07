"""Does a data set have the columns that a recipe names? Looks at one row and loads nothing."""

from typing import Any

from r3bench.config.load import GENERATOR
from r3bench.config.sections import DataSection
from r3bench.errors import DataError, nearest
from r3bench.training.questions.gym import ENTRY

OURS = ("problem", "answer", "solution")  # columns that every question has


def further_columns(section: DataSection) -> list[str]:
    """Columns that are kept besides problem, answer and solution; a generator's `entry` always is."""
    names = [*section.columns, *([ENTRY] if section.name.startswith(GENERATOR) else [])]
    return [name for name in dict.fromkeys(names) if name not in OURS]


def check_columns(where: str, row: dict[str, Any], section: DataSection) -> None:
    """Refuse a section that names columns which `row`, the first one, doesn't have.

    Raises:
        DataError: naming the key, the column and the nearest one.
    """
    needed = {"problem": section.problem, "answer": section.answer}
    if section.id is not None and section.id != DataSection().id:
        needed["id"] = section.id
    if section.solution is not None and section.solution != DataSection().solution:
        needed["solution"] = section.solution
    for key, column in needed.items():
        if column not in row:
            raise DataError(f"{where}: data.{key}: no column '{column}'{nearest(column, map(str, row))}")
    for column in further_columns(section):
        if column not in row:
            raise DataError(f"{where}: data.columns: no column '{column}'{nearest(column, map(str, row))}")
