"""What an analysis rests on as one file: a row per run, benchmark and question, as `r3bench analyze` reads it."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from r3bench.analysis.declared import Declared, declared_from
from r3bench.analysis.reading.columns import BASE, MODEL, OPTIONAL, REQUIRED
from r3bench.analysis.results import Results, Run
from r3bench.errors import ConfigError, DataError, first_line
from r3bench.files import expect, replacing, write_text

METADATA = b"r3bench.analysis"  # key of the schema's metadata: what rows can't hold
TAKEN = (*REQUIRED, *OPTIONAL, BASE)  # columns that a factor of the same name gives way to


@dataclass(frozen=True)
class Stored:
    """What a file of ours says besides its rows."""

    name: str  # of the study
    factors: dict[str, str]  # column -> the factor that it holds
    levels: dict[str, tuple[str, ...]]  # column -> levels in order, reference first
    declared: Declared
    planned: int | None
    reasons: dict[str, str]  # run that diverged or is missing -> why
    notes: tuple[str, ...]
    excluded: tuple[Run, ...] = ()  # runs that someone had left out; none of the rows is theirs


def long_table(results: Results) -> pa.Table:
    """The counts of every run; see `r3bench.analysis.output.external.load_table` for the columns.

    A run that diverged or is missing has rows without answers, marked in the column `outcome`. A column `base` marks
    the untrained model. The order of levels, what was declared and the notes are in the file's metadata.
    """
    tokens = all(s.tokens is not None and np.isfinite(s.tokens[s.measured]).all() for s in results.benchmarks.values())
    truncated = all(s.truncated is not None for s in results.benchmarks.values())
    columns = {f: f"factor.{f}" if f in TAKEN else f for f in results.factors}
    rows: dict[str, list[Any]] = {name: [] for name in ("run", "seed", *columns.values())}
    if any(run.base for run in results.runs):
        rows[BASE] = []
    lost = {r.run: "missing" if r.outcome == "failed" else "diverged" for r in (*results.diverged, *results.missing)}
    if lost:
        rows["outcome"] = []
    rows |= {name: [] for name in ("benchmark", "question", "samples", "correct")}
    rows |= {name: [] for name, known in (("tokens", tokens), ("truncated", truncated)) if known}
    for benchmark, scores in results.benchmarks.items():
        for place, run in enumerate(results.runs):
            if run.run not in lost and not scores.measured[place]:
                continue
            count = len(scores.questions)
            constant = {"run": run.run, "seed": run.seed, BASE: MODEL if run.base else "", "benchmark": benchmark,
                        "outcome": lost.get(run.run, "finished")}  # fmt: skip
            constant |= {column: run.levels.get(f, "") for f, column in columns.items()}
            for name in rows.keys() & constant.keys():
                rows[name] += [constant[name]] * count
            rows["question"] += scores.questions
            for name in rows.keys() & {"samples", "correct", "tokens", "truncated"}:
                values = getattr(scores, name)[place]
                rows[name] += (np.zeros_like(values) if run.run in lost else values).tolist()
    about = {
        "name": results.name,
        "factors": {columns[f]: f for f in results.factors},
        "levels": {f: list(levels) for f, levels in results.factors.items()},
        "declared": {k: v for k, v in dataclasses.asdict(results.declared).items() if v is not None},
        "planned": results.planned,
        "reasons": {r.run: r.reason for r in results.runs if r.run in lost and r.reason},
        "notes": list(results.notes),
        "excluded": [
            {"run": r.run, "seed": r.seed, "levels": dict(r.levels), "base": r.base, "reason": r.reason}
            for r in results.excluded
        ],
    }
    return pa.table(rows).replace_schema_metadata({METADATA: json.dumps(about)})


def write_long_table(results: Results, path: Path) -> None:
    """Write `long_table` as parquet."""
    with replacing(path) as temporary:
        pq.write_table(long_table(results), temporary, compression="zstd")


def save_long_table(results: Results, path: Path) -> None:
    """Write `long_table` as what the name says.

    Raises:
        ConfigError: it is neither .parquet nor .csv.
    """
    if path.suffix == ".parquet":
        write_long_table(results, path)
    elif path.suffix == ".csv":
        write_text(path, long_table(results).to_pandas().to_csv(index=False))
    else:
        raise ConfigError(f"{path}: expected a .parquet or .csv file")


def stored_with(path: Path) -> Stored | None:
    """What a parquet file of ours says besides its rows; None for any other file.

    Raises:
        DataError: the metadata was edited.
    """
    try:
        text = (pq.read_schema(path).metadata or {}).get(METADATA)
        about = None if text is None else expect(json.loads(text), path)
    except (pa.ArrowException, OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path}: can't be read: {first_line(error)}") from error
    if about is None:
        return None
    where = f"{path}: metadata"
    expect(about, where, name=str, factors=dict, levels=dict, declared=dict, reasons=dict, notes=list)
    for factor, levels in about["levels"].items():
        if not isinstance(levels, list) or not all(isinstance(v, str) for v in levels):
            raise DataError(f"{where}: levels.{factor}: got {levels!r}, expected a list of texts; the file was edited")
    return Stored(
        name=about["name"],
        factors={str(column): str(factor) for column, factor in about["factors"].items()},
        levels={column: tuple(about["levels"].get(factor, ())) for column, factor in about["factors"].items()},
        declared=declared_from(about["declared"], where),
        planned=about.get("planned"),
        reasons={str(run): str(why) for run, why in about["reasons"].items()},
        notes=tuple(str(n) for n in about["notes"]),
        excluded=tuple(_excluded(run, where) for run in about.get("excluded", ())),
    )


def _excluded(run: Any, where: str) -> Run:
    expect(run, f"{where}: excluded", run=str, seed=int, levels=dict)
    levels = {str(factor): str(level) for factor, level in run["levels"].items()}
    return Run(run["run"], run["seed"], levels, bool(run.get("base")), "failed", str(run.get("reason") or ""))
