"""Tables made anew and compared with those in a folder; also where nothing but the tables was kept."""

import csv
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from r3bench.analysis.output.external import load_any
from r3bench.analysis.output.tables import write_tables
from r3bench.analysis.statistics.cells import cell_rows
from r3bench.analysis.statistics.effects import effects
from r3bench.errors import R3BenchError, first_line
from r3bench.verification.earlier import earlier_tables, is_earlier
from r3bench.verification.findings import Findings

COUNTS = "questions.parquet"  # right answers per run and question
BOOTSTRAP = "bootstrap_"  # columns that depend on random draws as well


def check_tables(study: Path, found: Findings) -> None:
    """Compare the files in `study/tables` with those that the answers give now."""
    folder = study / "tables"
    files = sorted(path for path in folder.glob("*") if path.is_file()) if folder.is_dir() else []
    for path in sorted(folder.glob("*")) if folder.is_dir() else [folder] if folder.exists() else []:
        if path not in files:
            found.fault("tables", path, "is not a file" if folder.is_dir() else "is not a folder")
    if not files:
        found.note(f"{folder}: no tables to compare (r3bench tables writes them)")
        return
    with tempfile.TemporaryDirectory() as name:
        try:
            made = {path.name: path for path in write_tables(study, Path(name))}
        except R3BenchError as error:
            found.fault("tables", folder, f"can't be made anew: {error}")
            return
        for path in files:
            if path.name not in made:
                found.note(f"{path}: not one of the tables that are made, so it was not compared")
                continue
            found.looked("tables")
            wrong = difference(path, made[path.name])
            if wrong is not None and _as_earlier(study, path):
                found.note(f"{path}: says what the answers give, in the form of an earlier version (r3bench tables)")
            elif wrong is not None:
                found.fault("tables", path, wrong)


def _as_earlier(study: Path, path: Path) -> bool:
    """Whether a file is what an earlier version made of the same answers."""
    text = path.read_bytes().decode("utf-8", "replace")
    return is_earlier(path, text) and text == earlier_tables(study)


def difference(path: Path, made: Path) -> str | None:
    """Where a file differs from the one made anew, None if it doesn't."""
    if path.read_bytes() == made.read_bytes():
        return None
    if path.suffix == ".parquet":
        try:
            stored, new = pq.read_table(path, page_checksum_verification=True), pq.read_table(made)
        except (pa.ArrowException, OSError, ValueError) as error:
            return f"can't be read ({first_line(error)})"
        same = stored.equals(new) and stored.schema.metadata == new.schema.metadata
        return None if same else "holds other counts than the answers give"
    try:
        old, new_lines = path.read_text(encoding="utf-8").splitlines(), made.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return "is not UTF-8 text"
    for number, (a, b) in enumerate(zip(old, new_lines, strict=False), 1):
        if a != b:
            return f"line {number} is {a.strip()[:160]!r}, the answers give {b.strip()[:160]!r}"
    return f"has {len(old)} lines, the answers give {len(new_lines)}"


def check_recorded(folder: Path, found: Findings) -> None:
    """A folder of tables whose runs were not kept: effects and cells made anew from the counts in it."""
    path = folder / COUNTS
    try:
        results = load_any(path)
        made, _ = effects(results, draws=0)
        rows = cell_rows(results)
    except R3BenchError as error:
        found.fault("tables", path, str(error).removeprefix(f"{path}: "))
        return
    names = (folder / "effects.csv", folder / "cells.csv")
    records: Sequence[tuple[Path, list[dict[str, Any]], tuple[str, ...]]] = (
        (names[0], [e.record() for e in made], ("benchmark", "term", "kind")),
        (names[1], [r.record() for r in rows], ("benchmark", "cell")),
    )
    for file, anew, keys in records:
        if file.is_file():
            _compare_csv(file, anew, keys, found)
    _compare_text(folder / "tables.md", rows, found)
    found.note(
        f"{folder}: its runs were not kept: that the counts are those of answers, and the answers those of a model, "
        "can't be checked here; what runs cost, what acted and scores beside accuracy are as they were recorded"
    )


def _compare_csv(file: Path, anew: list[dict[str, Any]], keys: tuple[str, ...], found: Findings) -> None:
    try:
        with open(file, newline="", encoding="utf-8") as content:
            stored = list(csv.DictReader(content))
    except (UnicodeDecodeError, csv.Error) as error:
        found.fault("tables", file, f"can't be read ({error})")
        return
    made = {tuple(_key(row[key]) for key in keys): row for row in anew}
    seen = set()
    for number, row in enumerate(stored, 2):
        name = tuple(_key(row.get(key) or "") for key in keys)
        seen.add(name)
        if name not in made:
            found.fault("tables", file, f"line {number}: {', '.join(name)} is not what the counts give a row for")
            continue
        for column, value in made[name].items():
            text = row.get(column)
            if text in (None, "") or not isinstance(value, float) or column.startswith(BOOTSTRAP) or column in COSTS:
                continue
            found.looked("tables")
            if not _equal(text, value):
                found.fault(
                    "tables", file, f"line {number}: {column} of {', '.join(name)} is {text}, the counts give {value!r}"
                )
    for name in made.keys() - seen:
        found.fault("tables", file, f"has no row for {', '.join(name)}")


COSTS = ("generated_tokens", "train_seconds")  # of a cell: not in the counts


def _key(value: Any) -> str:
    return ":".join(sorted(str(value).split(":")))


def _equal(text: str, value: float) -> bool:
    try:
        return math.isclose(float(text), value, rel_tol=1e-6, abs_tol=1e-9)
    except ValueError:
        return False


def _compare_text(file: Path, rows: Sequence[Any], found: Findings) -> None:
    """Every cell's accuracy, as it is printed, stands in the row of that cell."""
    if not file.is_file():
        return
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        found.fault("tables", file, "is not UTF-8 text")
        return
    body = [[part.strip().replace("\\", "").strip("*") for part in x.split("|")[1:-1]] for x in lines if x[:2] == "| "]
    for row in rows:
        if row.accuracy is None:
            continue
        found.looked("tables")
        wanted = f"{100 * row.accuracy.value:.1f}"
        shown = [parts for parts in body if parts and parts[0] == row.label]
        if not any(any(part.split(" (")[0] == wanted for part in parts[1:]) for parts in shown):
            found.fault("tables", file, f"no row shows {wanted} for {row.label} on {row.benchmark}")
