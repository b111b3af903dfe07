"""Results from any trainer: a long CSV or parquet table, checked row by row, then analysed like a study of our own."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from r3bench.analysis.cells import best_cells, cell_rows
from r3bench.analysis.declared import Declared
from r3bench.analysis.effects import effects
from r3bench.analysis.prepare import benchmark_sets
from r3bench.analysis.results import Results, Run, Scores, order_levels
from r3bench.analysis.tables import lost_notes
from r3bench.analysis.variance import variance_table
from r3bench.errors import DataError, nearest

REQUIRED = ("run", "seed", "benchmark", "question", "samples", "correct")
OPTIONAL = ("tokens", "truncated")


def analyze(path: str | Path, declared: Declared | None = None) -> dict[str, Any]:
    """Effects, cells and variances of a long table (see `load_table`) or of a study folder, as JSON-ready data.

    Returns:
        `effects`: one record per effect (`Effect.record`); `cells`: one per benchmark and cell (`CellRow.record`);
        `variance`: benchmark -> components (`variance_table`); `best`: the best cell against all off, allowing for its
        having been picked; `sensitivity`: main effects without the runs that diverged, where these are scored;
        `notes`: what a reader must know. Estimates are differences of accuracy (0-1), `se` the two-way one.

    Raises:
        DataError, StateError: naming the file and the row.
    """
    return analysis(load_any(Path(path), declared))


def load_any(path: Path, declared: Declared | None = None) -> Results:
    """A study folder or a long table."""
    if path.is_dir():
        from r3bench.analysis.study import load_study

        return load_study(path)
    return load_table(path, declared)


def analysis(results: Results) -> dict[str, Any]:
    """The content of `analyze` for results in memory."""
    found, notes = effects(results)
    dropped = []
    if results.diverged and results.declared.failed_score != "drop":
        dropped = [e.record() for e in effects(results, failed_score="drop")[0] if e.kind == "main"]
    return {
        "effects": [e.record() for e in found],
        "cells": [c.record() for c in cell_rows(results)],
        "variance": variance_table(results),
        "best": [asdict(b) for b in best_cells(results)],
        "sensitivity": dropped,
        "notes": list(dict.fromkeys([*notes, *lost_notes(results), *results.notes])),
    }


def load_table(path: Path, declared: Declared | None = None) -> Results:
    """Read and check a long table: one row per run, benchmark and question.

    Columns: run, seed, benchmark, question, samples (answers graded), correct (of them right), optionally tokens (mean
    response tokens per answer) and truncated (answers that hit the cap). Every other column is a factor; a factor
    `base` with level `model` marks the untrained model.

    Raises:
        DataError: naming the file and the row (1 is the first after the header), the column and what was expected.
    """
    import pandas as pd

    frame = _read(path)
    for column in REQUIRED:
        if column not in frame:
            raise DataError(
                f"{path}: no column '{column}'{nearest(column, frame.columns)}; needed: {', '.join(REQUIRED)}"
            )
    if frame.empty:
        raise DataError(f"{path}: no rows")
    for column in (*REQUIRED, *OPTIONAL):
        if column in frame:
            _complete(frame[column], path, column)
    numbers = {c: _counts(frame, path, c) for c in ("samples", "correct", "truncated") if c in frame}
    seeds = _counts(frame, path, "seed")
    _first(path, numbers["samples"] < 1, lambda i: f"samples: got {numbers['samples'][i]}, expected at least 1")
    for column in ("correct", "truncated"):
        if column in numbers:
            _first(
                path, numbers[column] > numbers["samples"],
                lambda i, c=column: f"{c}: got {numbers[c][i]} of {numbers['samples'][i]} samples",
            )  # fmt: skip
    tokens = None
    if "tokens" in frame:
        tokens = pd.to_numeric(frame["tokens"], errors="coerce").to_numpy(float)
        _first(
            path, ~(tokens >= 0), lambda i: f"tokens: got {frame['tokens'].iloc[i]!r}, expected a number, 0 or above"
        )
    keys = frame[["run", "benchmark", "question"]].astype(str)
    again = keys.duplicated().to_numpy()
    _first(
        path,
        again,
        lambda i: "run '{}', benchmark '{}', question '{}' occur in an earlier row too".format(*keys.iloc[i]),
    )
    factors = [c for c in frame.columns if c not in REQUIRED and c not in OPTIONAL]
    runs, levels = _runs(frame, keys["run"], seeds, factors, path)
    return Results(
        name=path.stem,
        factors=levels,
        runs=tuple(runs.values()),
        benchmarks=_benchmarks(keys, list(runs), numbers, tokens, path),
        declared=declared or Declared(failed_score="drop"),
    )


def _read(path: Path) -> Any:
    import pandas as pd

    if not path.is_file():
        raise DataError(f"{path}: no such file or study folder")
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        if path.suffix in (".csv", ".tsv", ".txt"):
            text = {"run": str, "benchmark": str, "question": str}
            return pd.read_csv(
                path, sep="\t" if path.suffix == ".tsv" else ",", dtype=text, keep_default_na=False, na_values=[""]
            )
    except (ValueError, OSError, pd.errors.ParserError) as error:
        raise DataError(f"{path}: can't be read: {str(error).splitlines()[0]}") from error
    raise DataError(f"{path}: expected a .csv, .tsv or .parquet file")


def _first(path: Path, wrong: np.ndarray, say: Any) -> None:
    """`DataError` for the first row that is wrong; row 1 is the first after the header."""
    where = np.flatnonzero(wrong)
    if where.size:
        more = f" ({where.size - 1} more like it)" if where.size > 1 else ""
        raise DataError(f"{path}: row {where[0] + 1}: {say(where[0])}{more}")


def _complete(column: Any, path: Path, name: str) -> None:
    _first(path, column.isna().to_numpy(), lambda i: f"{name}: empty, expected a value")


def _counts(frame: Any, path: Path, name: str) -> np.ndarray:
    """(N,) int64 of a column of whole numbers, 0 or above."""
    import pandas as pd

    column = frame[name]
    if column.dtype == bool:
        return column.to_numpy(np.int64)
    values = pd.to_numeric(column, errors="coerce").to_numpy(float)
    wrong = ~(np.isfinite(values) & (values >= 0) & (values == np.floor(values)))
    _first(path, wrong, lambda i: f"{name}: got {column.iloc[i]!r}, expected a whole number, 0 or above")
    return values.astype(np.int64)


def _runs(
    frame: Any, names: Any, seeds: np.ndarray, factors: Sequence[str], path: Path
) -> tuple[dict[str, Run], dict[str, tuple[str, ...]]]:
    """Runs in order of appearance; their seed and levels must not change between rows."""
    text = {f: np.array([_level(v) for v in frame[f]], object) for f in factors}
    base = text["base"] == "model" if "base" in text else np.zeros(len(frame), bool)
    used = [f for f in factors if f != "base"]
    for factor in used:
        _first(path, (text[factor] == "") & ~base, lambda i, f=factor: f"{f}: empty, expected a level")
    runs: dict[str, Run] = {}
    codes = names.to_numpy()
    first_row: dict[str, int] = {}
    for i in range(len(codes)):
        first_row.setdefault(codes[i], i)
    start = np.array([first_row[c] for c in codes])
    for label, values in (("seed", seeds), *((f, text[f]) for f in used)):
        _first(
            path, values != values[start],
            lambda i, a=label, v=values: f"{a}: got '{v[i]}' for run '{codes[i]}', which has '{v[start[i]]}' "
            f"in row {start[i] + 1}; every column that is not {', '.join(REQUIRED + OPTIONAL)} is a factor of the run",
        )  # fmt: skip
    for name, i in first_row.items():
        levels = {} if base[i] else {f: str(text[f][i]) for f in used}
        runs[name] = Run(name, int(seeds[i]), levels, base=bool(base[i]))
    ordered = {f: order_levels(sorted({r.levels[f] for r in runs.values() if not r.base})) for f in used}
    return runs, ordered


def _level(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "on" if value else "off"
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{value:g}"
    return "" if value is None else str(value).strip()


def _benchmarks(
    keys: Any, runs: Sequence[str], numbers: dict[str, np.ndarray], tokens: np.ndarray | None, path: Path
) -> dict[str, Scores]:
    """Count matrices per benchmark; a run that lacks a question others have is an error."""
    place = {name: i for i, name in enumerate(runs)}
    rows = keys["run"].map(place).to_numpy()
    found = {}
    for benchmark in sorted(set(keys["benchmark"])):
        here = np.flatnonzero((keys["benchmark"] == benchmark).to_numpy())
        names = sorted(set(keys["question"].iloc[here]))
        column = {q: i for i, q in enumerate(names)}
        at = (rows[here], keys["question"].iloc[here].map(column).to_numpy())
        shape = (len(runs), len(names))
        arrays: dict[str, np.ndarray] = {}
        for name in ("samples", "correct", "truncated"):
            if name in numbers:
                arrays[name] = np.zeros(shape, np.int64)
                arrays[name][at] = numbers[name][here]
        lacking = arrays["samples"] == 0
        for run in np.flatnonzero(lacking.any(axis=1)).tolist():
            if lacking[run].all():
                raise DataError(f"{path}: run '{runs[run]}': no row of benchmark '{benchmark}', which other runs have")
            question = names[int(np.flatnonzero(lacking[run])[0])]
            row = int(here[np.flatnonzero(rows[here] == run)[0]]) + 1
            raise DataError(
                f"{path}: run '{runs[run]}' (first in row {row}): no row for question '{question}' of benchmark "
                f"'{benchmark}', which other runs have"
            )
        mean = None
        if tokens is not None:
            mean = np.full(shape, np.nan)
            mean[at] = tokens[here]
        found[benchmark] = Scores(tuple(names), arrays["samples"], arrays["correct"], mean, arrays.get("truncated"))
    return found


__all__ = ["analysis", "analyze", "benchmark_sets", "load_any", "load_table"]
