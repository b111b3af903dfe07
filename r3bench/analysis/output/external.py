"""Results from any trainer: a long CSV or parquet table, checked row by row, then analysed like a study of our own."""

import dataclasses
from dataclasses import asdict
from pathlib import Path
from typing import Any

from r3bench.analysis.declared import Declared
from r3bench.analysis.output.tables import lost_notes
from r3bench.analysis.reading.columns import REQUIRED, Reading, candidates, renamed
from r3bench.analysis.reading.longtable import Stored, stored_with
from r3bench.analysis.reading.outside import Outside, Table, in_memory, is_study, read_outside
from r3bench.analysis.reading.table_file import checked_rows, complete, read_frame
from r3bench.analysis.reading.table_runs import benchmarks_of, copies, runs_of
from r3bench.analysis.results import OFF_LEVELS, Results
from r3bench.analysis.statistics.cells import best_cells, cell_rows
from r3bench.analysis.statistics.effects import effects
from r3bench.analysis.statistics.prepare import benchmark_sets
from r3bench.analysis.statistics.variance import variance_table
from r3bench.errors import ConfigError, DataError, nearest


def analyze(
    source: Any, declared: Declared | None = None, reading: Reading | None = None, outside: Outside | None = None
) -> dict[str, Any]:
    """Effects, cells and variances of anyone's results, as JSON-ready data.

    Args:
        source: a study's folder, a long table (see `load_table`), a file, folder or pattern of another tool's answers
            (docs/other-tools.md), a map of these, or a pandas DataFrame with a row per question or per answer.
        declared: what was fixed before the results were seen.
        reading: how the table's columns are to be read.
        outside: how another tool's files are to be read.

    Returns:
        `effects`: one record per effect (`Effect.record`); `cells`: one per benchmark and cell (`CellRow.record`);
        `variance`: benchmark -> components (`variance_table`); `best`: the best cell against all off, allowing for its
        having been picked; `sensitivity`: main effects without the runs that diverged, where these are scored;
        `notes`: what a reader must know. Estimates are differences of accuracy (0-1), `se` the two-way one.

    Raises:
        DataError, StateError: naming the file and the row.
    """
    return analysis(load_any(source, declared, reading, outside=outside))


def load_any(
    source: Any,
    declared: Declared | None = None,
    reading: Reading | None = None,
    *,
    metrics: bool = False,
    outside: Outside | None = None,
) -> Results:
    """A study folder, a long table, or answers as another tool wrote them; see `analyze`.

    Args:
        source: the folder, file, pattern, map or DataFrame.
        declared: of a table; a study's stands in its `study.json`.
        reading: how a table is to be read; of a study it may only choose other reference levels.
        metrics: read a study's training logs as well.
        outside: how another tool's files are to be read.

    Raises:
        ConfigError: something of a table was said about a study.
        DataError, StateError: naming the file, and the row where there is one.
    """
    if not isinstance(source, str | Path):
        table = in_memory(source, outside or Outside(), reading.rename if reading else None)
        return table_results(table, declared, reading)
    path = Path(source)
    if not (path.is_dir() and is_study(path)):
        found = read_outside(source, reading or Reading(), outside)
        return load_table(path, declared, reading) if found is None else table_results(found, declared, reading)
    if outside is not None:
        raise ConfigError(f"{path}: a study of ours; --from, --metric, --regrade and so on are for other tools' files")
    from r3bench.analysis.reading.study import load_study

    if declared is not None:
        raise ConfigError(f"{path}: --declared is for a table; a study's `analysis` section was fixed with its grid")
    if reading is not None and reading.of_columns:
        raise ConfigError(f"{path}: --factors, --ignore and --rename are for a table; a study's factors are its grid's")
    results = load_study(path, metrics=metrics)
    return referred(results, reading or Reading(), f"{path}", declared_there=True)


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


def load_table(path: Path, declared: Declared | None = None, reading: Reading | None = None) -> Results:
    """Read and check a long table: one row per run, benchmark and question.

    Columns: run, seed, benchmark, question, samples (answers graded), correct (of them right), optionally tokens (mean
    response tokens per answer), truncated (answers that hit the cap) and outcome (`diverged`, or `missing` for a run
    that something else ended: rows without answers). A column `base` marks the untrained model with `model`. Other
    columns are factors, unless they are the same in all runs or that is doubtful; see `Reading`.

    Raises:
        DataError: naming the file and the row (1 is the first after the header), the column and what was expected.
        ConfigError: a `reading` that doesn't fit the columns.
    """
    told = reading or Reading()
    stored = stored_with(path) if path.suffix == ".parquet" and path.is_file() else None
    return table_results(Table(read_frame(path, told.rename), str(path), path.stem, stored), declared, told)


def table_results(table: Table, declared: Declared | None = None, reading: Reading | None = None) -> Results:
    """What `load_table` does, of a table in memory."""
    import pandas as pd

    told, frame, path, stored = reading or Reading(), table.frame, table.where, table.stored
    told, declared = table.completed(told, declared)
    names: dict[str, str] = {}  # column -> factor, where they differ
    if stored is not None:
        told, names = _as_stored(told, stored, list(frame.columns))
    frame.columns = pd.Index(renamed([str(c) for c in frame.columns], told.rename, path))
    for column in REQUIRED:
        if column not in frame:
            raise DataError(
                f"{path}: no column '{column}'{nearest(column, frame.columns)}; needed: {', '.join(REQUIRED)}"
                " (--rename OLD=NEW gives a column its name)"
            )
    factors = candidates(list(frame.columns), told, path)
    frame = frame.drop(columns=[c for c in told.ignore if c not in factors])
    if frame.empty:
        raise DataError(f"{path}: no rows")
    for column in (*REQUIRED, "truncated"):
        if column in frame and column not in factors:
            complete(frame[column], path, column)
    rows = checked_rows(frame, factors, path)
    runs, levels, notes = runs_of(frame, rows, factors, told, path)
    benchmarks, left_out = benchmarks_of(rows, runs)
    notes += left_out + copies(runs, benchmarks, path)
    given = stored.declared if stored is not None else Declared()
    if stored is not None and declared is not None and declared != given:
        notes.append("what is declared was given now, in place of what the study had declared before its runs")
    if stored is not None:
        runs = [
            dataclasses.replace(r, reason=stored.reasons.get(r.run)) if r.outcome != "finished" else r for r in runs
        ]
    if names:
        levels = {names.get(f, f): v for f, v in levels.items()}
        runs = [dataclasses.replace(r, levels={names.get(f, f): v for f, v in r.levels.items()}) for r in runs]
    results = Results(
        name=stored.name if stored is not None else table.name,
        factors=levels,
        runs=tuple(runs),
        benchmarks=benchmarks,
        declared=declared or given,
        planned=stored.planned if stored is not None else None,
        excluded=stored.excluded if stored is not None else (),
        notes=tuple(dict.fromkeys([*(stored.notes if stored is not None else ()), *table.notes, *notes])),
    )
    return referred(results, told, path, declared_there=stored is not None)


def _as_stored(told: Reading, stored: Stored, columns: list[str]) -> tuple[Reading, dict[str, str]]:
    """What was told about a file of ours, completed by what it says itself; and column -> factor, where they differ."""
    factors = {c: f for c, f in stored.factors.items() if c in columns and c not in told.rename}
    column = {f: c for c, f in factors.items()}
    named = None if told.factors is None else tuple(column.get(f, f) for f in told.factors)
    ignore = tuple(column.get(f, f) for f in told.ignore)
    levels = {**{c: v for c, v in stored.levels.items() if c in factors},
              **{column.get(f, f): v for f, v in told.levels.items()}}  # fmt: skip
    if named is None:
        more = tuple(told.rename[c] for c in stored.factors if c in told.rename)
        named = tuple(c for c in (*factors, *more) if c not in ignore)
    return (
        dataclasses.replace(told, factors=named, ignore=ignore, levels=levels),
        {c: f for c, f in factors.items() if c != f},
    )


def referred(results: Results, reading: Reading, where: str, *, declared_there: bool) -> Results:
    """`results` with the reference levels of `reading` first, and a note on every reference that was not declared.

    Args:
        results: with the levels of each factor in the order that is declared or, without one, usual.
        reading: `reference` and `levels` are used.
        where: what errors call it.
        declared_there: the order in `results` is a study's own.

    Raises:
        ConfigError: a factor or level that is not there.
    """
    factors, notes = dict(results.factors), []
    for factor, level in reading.reference.items():
        if factor not in factors:
            raise ConfigError(f"{where}: --reference {factor}={level}: no such factor{nearest(factor, factors)}")
        if level not in factors[factor]:
            raise ConfigError(f"{where}: --reference {factor}={level}: no such level{nearest(level, factors[factor])}")
        if declared_there and factors[factor][0] != level:
            notes.append(
                f"reference of {factor}: {level}, chosen now; the study had declared {factors[factor][0]} beforehand"
            )
        factors[factor] = (level, *(v for v in factors[factor] if v != level))
    if not declared_there:
        notes += [
            f"reference of {factor}: {levels[0]}, the first in order, since none was named (--reference {factor}=LEVEL)"
            for factor, levels in factors.items()
            if len(levels) > 1
            and levels[0].lower() not in OFF_LEVELS
            and factor not in reading.reference
            and factor not in reading.levels
        ]
    return dataclasses.replace(results, factors=factors, notes=(*results.notes, *notes))


__all__ = ["analysis", "analyze", "benchmark_sets", "load_any", "load_table", "referred", "table_results"]
