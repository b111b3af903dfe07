"""Files as other tools write them: compressed or not, with a byte-order mark, commas or semicolons, decimal commas."""

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from r3bench.errors import DataError, first_line


def _zstd(data: bytes) -> bytes:
    import pyarrow as pa

    try:
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            return bytes(stream.read())
    except pa.ArrowException as error:
        raise ValueError(first_line(error)) from error


OPENERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress, ".zst": _zstd,
}  # fmt: skip
TABLES = (".csv", ".tsv", ".txt", ".parquet", ".xlsx")
LINES = (".jsonl", ".ndjson")
READ = (*TABLES, *LINES, ".json")  # suffixes, with or without one of `OPENERS` behind it
NUMBERS = ("seed", "samples", "correct", "tokens", "truncated")  # columns of numbers; all others are text
OURS = (*NUMBERS, "run", "benchmark", "question", "sample", "response", "gold", "outcome", "base")
DELIMITERS = ",;\t|"
DECIMAL = re.compile(r"[-+]?\d+(,\d+)?([eE][-+]?\d+)?")
THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+")
MOST_SHOWN = 60  # characters of a value in a message


def suffix(path: Path) -> str:
    """`.csv` of `a.csv` and of `a.csv.gz`, in lower case."""
    name = path.name.lower()
    for packed in OPENERS:
        name = name.removesuffix(packed)
    return Path(name).suffix


def content(path: Path) -> bytes:
    """A file's bytes, unpacked.

    Raises:
        DataError: it isn't there, or torn.
    """
    try:
        data = path.read_bytes()
        unpack = OPENERS.get(path.suffix.lower())
        return data if unpack is None else unpack(data)
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except (OSError, EOFError, ValueError, lzma.LZMAError) as error:
        raise DataError(f"{path}: can't be unpacked: {first_line(error)}") from error


def text(path: Path) -> str:
    """A file's text: UTF-8 with or without a mark, or UTF-16 with one.

    Raises:
        DataError: it is in another encoding.
    """
    data = content(path)
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from error


def read_json(path: Path) -> Any:
    """The value in a JSON file."""
    return _parsed(text(path), str(path))


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every line that isn't blank.

    Raises:
        DataError: naming the line.
    """
    for number, line in enumerate(text(path).split("\n"), 1):
        if line.strip():
            value = _parsed(line, f"{path}: line {number}")
            if not isinstance(value, dict):
                raise DataError(f"{path}: line {number}: got {type(value).__name__}, expected an object")
            yield number, value


def _parsed(said: str, where: str) -> Any:
    try:
        return json.loads(said)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not valid JSON ({error.msg} at column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not usable JSON ({first_line(error)})") from error


def read_table(
    path: Path, rename: Mapping[str, str] | None = None, keep: Collection[str] | None = None, *, numbers: bool = True
) -> Any:
    """A table as a DataFrame: text stays text, so that a level keeps its spelling.

    Args:
        path: CSV, TSV, parquet, Excel, JSON lines, or JSON with a list of objects, or as pandas writes it.
        rename: column of the file -> what it will be called, for the columns that hold numbers.
        keep: columns that keep their names, besides those in `rename`; others that are spelled like one of ours but for
            case and space get ours. None: all keep them.
        numbers: whether these are checked, and made numbers.

    Raises:
        DataError: naming the file and what was expected.
    """
    import pandas as pd

    kind = suffix(path)
    if kind not in READ:
        raise DataError(f"{path}: expected a {', '.join(READ[:-1])} or {READ[-1]} file, or one packed as {_packed()}")
    names = (lambda frame: frame) if keep is None else lambda frame: called(frame, {*(rename or {}), *keep})
    try:
        if kind == ".parquet":
            frame = pd.read_parquet(io.BytesIO(content(path)))
            return names(frame.reset_index() if any(name is not None for name in frame.index.names) else frame)
        if kind == ".xlsx":
            frame = names(_sheet(path))
        elif kind in LINES or kind == ".json":
            return names(_objects(path, kind))
        else:
            frame = names(_delimited(path, kind))
    except (ValueError, OSError, KeyError, pd.errors.ParserError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: can't be read: {first_line(error)}") from error
    return _with_numbers(frame, dict(rename or {}), path) if numbers else frame


def called(frame: Any, keep: Collection[str]) -> Any:
    """The table with names of columns without space around them, and ours for those spelled like one but for case.

    Two columns that would come to one name, and those in `keep`, stay as they are.
    """
    columns = list(frame.columns)
    plainly = {column: str(column).strip() for column in columns}
    ours = {column: name.lower() if name.lower() in OURS else name for column, name in plainly.items()}
    taken = Counter(ours.values())
    found = {c: n for c, n in ours.items() if n != c and taken[n] == 1 and str(c) not in keep}
    return frame.rename(columns=found)


def _packed() -> str:
    return ", ".join(OPENERS)


def _sheet(path: Path) -> Any:
    """The one sheet of a workbook that holds something, as text and numbers."""
    import pandas as pd

    sheets = pd.read_excel(io.BytesIO(content(path)), sheet_name=None, dtype=object)
    filled = {name: frame for name, frame in sheets.items() if len(frame.columns)}
    if len(filled) != 1:
        names = ", ".join(map(str, filled)) or "none"
        raise DataError(f"{path}: expected one sheet with a table, found {names}; save the one that is meant by itself")
    (frame,) = filled.values()
    return frame.dropna(how="all").reset_index(drop=True)


def _objects(path: Path, kind: str) -> Any:
    import pandas as pd

    if kind == ".json":
        rows = _listed(read_json(path))
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DataError(f"{path}: expected a list of objects, one per row")
    else:
        rows = [row for _, row in json_lines(path)]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return pd.DataFrame({c: pd.Series([row.get(c) for row in rows], dtype=object) for c in columns})


def _listed(value: Any) -> Any:
    """The rows in a JSON value: a list, the one list in an object, or pandas' columns of rows or columns and data."""
    if not isinstance(value, dict) or not value:
        return value
    if {"columns", "data"} <= set(value) and isinstance(value["data"], list):
        return [dict(zip(value["columns"], row, strict=True)) for row in value["data"]]
    columns = list(value.values())
    if all(isinstance(c, dict) and list(c) == list(columns[0]) for c in columns):
        return [{name: column[row] for name, column in value.items()} for row in columns[0]]
    lists = [v for v in columns if isinstance(v, list) and v and isinstance(v[0], dict)]
    return lists[0] if len(lists) == 1 else value


def _delimited(path: Path, kind: str) -> Any:
    import pandas as pd

    said = text(path)
    head = next((line for line in said.splitlines() if line.strip()), "")
    separator = "\t" if kind == ".tsv" else _separator(head)
    return pd.read_csv(io.StringIO(said), sep=separator, dtype=str, keep_default_na=False, na_values=[""])


def _separator(head: str) -> str:
    """What separates the columns: the character that splits the header line most often, outside quotes."""
    counts = {d: len(next(csv.reader([head], delimiter=d), [])) for d in DELIMITERS}
    return max(counts, key=lambda d: counts[d])


def _with_numbers(frame: Any, rename: dict[str, str], path: Path) -> Any:
    """Columns of numbers as numbers where all of their values are; decimal commas are read where nothing else fits.

    Raises:
        DataError: a value such as `1,000`, which may be a thousand or one.
    """
    import pandas as pd

    for column in frame.columns:
        values = frame[column]
        words = [v for v in values if isinstance(v, str)]
        commas = [v.strip() for v in words if "," in v]
        if commas and all(DECIMAL.fullmatch(w.strip()) for w in words):
            doubtful = [w for w in commas if THOUSANDS.fullmatch(w)]
            if doubtful and len(doubtful) == len(commas):
                row = next(i for i, v in enumerate(values) if isinstance(v, str) and v.strip() == doubtful[0])
                raise DataError(
                    f"{path}: row {row + 1}: {column}: got '{doubtful[0]}': a decimal comma, or thousands? "
                    "Write it without a comma"
                )
            frame[column] = values = values.map(lambda v: v.strip().replace(",", ".") if isinstance(v, str) else v)
        if rename.get(str(column), str(column)) in NUMBERS:
            numbers = pd.to_numeric(values, errors="coerce")
            if not (numbers.isna() & values.notna()).any():
                frame[column] = numbers
    return frame


def short(value: Any) -> str:
    """A value as it stands in a message."""
    said = repr(value.item() if isinstance(value, np.generic) else value)
    return said if len(said) <= MOST_SHOWN else f"{said[: MOST_SHOWN - 3]}..."


def plain(value: Any) -> Any:
    """Arrays as lists, at every depth, as parquet's nested columns come."""
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return value.item() if isinstance(value, np.generic) else value
