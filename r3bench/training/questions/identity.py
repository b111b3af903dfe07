"""What a question is: everything of a data set row that reaches the model and the rewards.

The same text with another image, answer or environment is another question: an answer to the one is none to the other.
"""

import datetime
import decimal
import hashlib
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from r3bench.config.strict import show
from r3bench.errors import ConfigError

ID = "question_id"
PLAIN = (bool, int, float, str, bytes, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID)


class _Unnamed(TypeError):
    """A value that no digest can be made of."""


def question_id(row: Mapping[str, Any]) -> str:
    """The id of a data set row's question: its `question_id`, else a hash of all its columns.

    Raises:
        ConfigError: a column holds something of which no hash can be made.
    """
    if row.get(ID) is not None:
        return str(row[ID])
    found = hashlib.sha256()
    for column in sorted(row):
        if column != ID:
            try:
                _feed(found, {column: row[column]})
            except _Unnamed as error:
                raise ConfigError(
                    f"train_dataset: column '{column}' holds a {error}, by which no question can be told from another; "
                    f"give the data a column '{ID}'"
                ) from None
    return found.hexdigest()[:16]


def _feed(found: Any, value: Any) -> None:
    """Add a value to a hash, so that equal values and only those give equal hashes."""
    if value is None or isinstance(value, PLAIN):
        text = value if isinstance(value, bytes) else repr(value).encode("utf-8", "surrogatepass")
        found.update(f"{type(value).__name__} {len(text)} ".encode() + text)
    elif isinstance(value, Mapping):
        found.update(f"map {len(value)} ".encode())
        for key in sorted(value, key=str):
            _feed(found, str(key))
            _feed(found, value[key])
    elif isinstance(value, list | tuple):
        found.update(f"list {len(value)} ".encode())
        for item in value:
            _feed(found, item)
    elif hasattr(value, "tobytes") and hasattr(value, "mode"):  # a PIL image
        found.update(f"image {value.mode} {value.size} ".encode() + value.tobytes())
    elif hasattr(value, "__array__"):  # NumPy, torch
        array = np.asarray(value)
        if array.dtype == object:
            raise _Unnamed(type(value).__name__)
        found.update(f"array {array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
    else:
        raise _Unnamed(type(value).__name__)


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The first column in which two rows differ; None if in none. What can't be compared counts as equal."""
    for column in sorted({*one, *other}):
        digests = {_digest(row.get(column)) for row in (one, other)}
        if len(digests) == 2 and None not in digests:
            return column
    return None


def check_ids(data: Any, columns: Iterable[str] | None = None) -> None:
    """Refuse one `question_id` for rows that differ. Reads the id column, and of the others only rows that share one.

    Args:
        data: the training set, map-style.
        columns: those that reach the model and the rewards; None: all.

    Raises:
        ConfigError: naming both rows.
    """
    kept = set(data.column_names if columns is None else columns) & set(data.column_names)
    if ID not in kept:
        return
    first: dict[str, int] = {}
    for number, name in enumerate(data[ID]):
        earlier = first.setdefault(str(name), number) if name is not None else number
        if earlier != number:
            one, other = ({key: row[key] for key in kept} for row in (data[earlier], data[number]))
            check_same(str(name), one, other, f"rows {earlier} and {number}")


class SeenRows:
    """Rows of a stream by their `question_id`: its ids can only be checked as the rows come."""

    KEPT = 100_000  # ids; the oldest goes first

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, tuple[bytes | None, str]]] = {}

    def check(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Refuse an id that an earlier row had, if the two rows differ.

        Raises:
            ConfigError: naming both rows.
        """
        for row in rows:
            if row.get(ID) is None:
                continue
            name = str(row[ID])
            now = {column: (_digest(value), show(value)) for column, value in row.items()}
            earlier = self._rows.setdefault(name, now)
            missing = (_digest(None), show(None))
            for column in sorted({*earlier, *now}):
                (one, first), (other, second) = (known.get(column, missing) for known in (earlier, now))
                if one is not None and other is not None and one != other:
                    raise _one_id(name, column, first, second, "two rows of the stream")
            if len(self._rows) > self.KEPT:
                del self._rows[next(iter(self._rows))]


def _digest(value: Any) -> bytes | None:
    """A hash of a value; None where none can be made."""
    found = hashlib.sha256()
    try:
        _feed(found, value)
    except _Unnamed:
        return None
    return found.digest()[:16]


def _one_id(name: str, column: str, first: str, second: str, where: str) -> ConfigError:
    return ConfigError(
        f"train_dataset: {where} have one {ID}, {show(name)}, but differ in '{column}': {first} and {second}; one "
        "answer would be taken for the other: give each its own id, or none (then all columns make the question)"
    )


def check_same(name: str, one: Mapping[str, Any], other: Mapping[str, Any], where: str) -> None:
    """Raise `ConfigError` if two rows of one `question_id` differ."""
    column = difference(one, other)
    if column is not None:
        raise _one_id(name, column, show(one.get(column)), show(other.get(column)), where)
