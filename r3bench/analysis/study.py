"""Reads a study folder: `study.json`, and each finished run's `run.json` and `eval/<task>/*.parquet`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from r3bench.analysis.declared import declared_from
from r3bench.analysis.results import Results, Run, Scores, order_levels
from r3bench.errors import StateError
from r3bench.files import read_json, read_jsonl
from r3bench.records import RunPaths, RunRecord, read_record

BASE_MODEL = {"base": "model"}  # factors of the run that is the model before training
SETTINGS = b"r3bench"  # metadata key of a shard: what its answers were sampled under
COLUMNS = ["question", "repeat", "correct", "tokens", "truncated"]


def _overlap_notes(folder: Path) -> list[str]:
    """What `overlap.json` says of training questions that stand in the benchmarks; nothing where it was not counted."""
    path = folder / "overlap.json"
    counts = read_json(path) if path.exists() else {}
    return [
        f"training questions found in {task}: {found['exact']} word for word and {found['near']} nearly "
        f"(half of the 8-grams), of {found['questions']}"
        for task, found in sorted(counts.items())
    ]


def load_study(folder: Path, *, metrics: bool = False) -> Results:
    """Everything measured in a study folder; a single run's folder counts as a study of one cell.

    Args:
        folder: `runs/<study>`.
        metrics: read every run's training log as well.

    Raises:
        StateError: no such study, nothing finished in it, or a torn file.
        ConfigError: the grid's `analysis` section can't be used.
    """
    if not folder.is_dir():
        raise StateError(f"{folder}: no such study folder")
    spec = read_json(folder / "study.json") if (folder / "study.json").exists() else {}
    paths = [RunPaths(p) for p in sorted(folder.iterdir()) if p.is_dir() and (p / "run.json").exists()]
    if not paths and (folder / "run.json").exists():
        paths = [RunPaths(folder)]
    if not paths:
        raise StateError(f"{folder}: no finished run (no run.json); start them with r3bench ablate, see r3bench status")
    records = [read_record(p) for p in paths]
    planned = [c for c in spec.get("cells", ()) if c["factors"] != BASE_MODEL]
    lost, notes = _unfinished(folder, planned, {r.run_id for r in records})
    if spec.get("duplicates"):
        notes.append(f"{len(spec['duplicates'])} combinations are the same run as another one and were not repeated")
    notes += _overlap_notes(folder)
    grid = spec.get("grid", {})
    factors, found = _factors([r for r in records if r.factors != BASE_MODEL], lost, grid.get("factors") or {})
    notes += found
    runs = [_run(r, factors) for r in records] + [
        Run(c["run_id"], int(c["seed"]), {f: str(c["factors"][f]) for f in factors}, outcome="failed", reason=why)
        for c, why in lost
    ]
    benchmarks = {}
    for task in sorted({p.parent.name for run in paths for p in run.evaluation.glob("*/*.parquet")}):
        benchmarks[task], found = _scores(task, paths, runs)
        notes += found
    if not benchmarks:
        raise StateError(f"{folder}: no eval/<task>/*.parquet in any run; measure with r3bench eval")
    logs = {r.run_id: read_jsonl(p.metrics) for r, p in zip(records, paths, strict=True)} if metrics else {}
    return Results(
        name=str(grid.get("name") or folder.resolve().name),
        factors=factors,
        runs=tuple(runs),
        benchmarks=benchmarks,
        declared=declared_from(grid.get("analysis") or {}, f"{folder / 'study.json'}: analysis"),
        planned=len(planned) or None,
        notes=tuple(notes),
        metrics=logs,
    )


def run_folder(study: Path, run: str) -> Path:
    """A run's directory in a study's folder, which may be the run's own."""
    return study / run if (study / run).is_dir() else study


def _unfinished(
    folder: Path, planned: list[dict[str, Any]], known: set[str]
) -> tuple[list[tuple[dict[str, Any], str]], list[str]]:
    """Planned runs that were given up (with the reason), and a note on those that may still come."""
    lost, pending = [], []
    for cell in planned:
        if cell["run_id"] in known:
            continue
        events = read_jsonl(folder / cell["run_id"] / "attempts.jsonl")
        if events and events[-1].get("event") == "gave_up":
            failure: dict[str, Any] = next((e for e in reversed(events) if e.get("event") == "failure"), {})
            lost.append((cell, f"{failure.get('kind', 'failed')}: {failure.get('message', 'no message')}"))
        else:
            pending.append(cell["run_id"])
    if not pending:
        return lost, []
    shown = ", ".join(pending[:3]) + (", ..." if len(pending) > 3 else "")
    return lost, [f"{len(pending)} of {len(planned)} planned runs have not finished: {shown}"]


def _factors(
    trained: list[RunRecord], lost: list[tuple[dict[str, Any], str]], declared: Mapping[str, Any]
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """factor -> levels that occur, reference first, and notes on levels that don't occur yet."""
    seen: dict[str, list[str]] = {}
    every = [*(r.factors for r in trained), *(c["factors"] for c, _ in lost)]
    for levels in every:
        for factor, level in levels.items():
            seen.setdefault(factor, []).append(str(level))
    factors, notes = {}, []
    for factor in [f for f in declared if f in seen] + sorted(f for f in seen if f not in declared):
        if len(seen[factor]) < len(every):
            raise StateError(f"factor '{factor}': given by some runs of the study and missing in others")
        listed = [_level(v) for v in declared.get(factor, ())]
        factors[factor] = order_levels(sorted(set(seen[factor])), [v for v in listed if v in seen[factor]])
        missing = [v for v in listed if v not in seen[factor]]
        if missing:
            notes.append(f"no run has finished with {factor} = {', '.join(missing)} yet")
    return factors, notes


def _run(record: RunRecord, factors: Mapping[str, Any]) -> Run:
    base = record.factors == BASE_MODEL
    levels = {} if base else {f: str(record.factors[f]) for f in factors}
    return Run(record.run_id, record.seed, levels, base, record.train.outcome, record.train.reason, record)


def _level(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _scores(task: str, paths: list[RunPaths], runs: list[Run]) -> tuple[Scores, list[str]]:
    """Counts per run and question of one task, and notes on runs that answered only a part of it."""
    counts = [_count(p.evaluation / task) for p in paths]  # runs that were given up come after these, with no answers
    questions = sorted(set().union(*(c["question"] for c in counts)))
    place = {q: i for i, q in enumerate(questions)}
    shape = (len(runs), len(questions))
    samples, correct, truncated = (np.zeros(shape, np.int64) for _ in range(3))
    tokens = np.full(shape, np.nan)
    notes = []
    for row, count in enumerate(counts):
        if not count["question"]:
            continue
        columns = [place[q] for q in count["question"]]
        samples[row, columns] = count["samples"]
        correct[row, columns] = count["correct"]
        truncated[row, columns] = count["truncated"]
        tokens[row, columns] = count["tokens"]
        if len(columns) < len(questions):
            notes.append(
                f"{runs[row].run}: answers to {len(columns)} of {len(questions)} questions of {task}; "
                "left out of this benchmark until they are complete (r3bench eval)"
            )
    return Scores(tuple(questions), samples, correct, tokens, truncated), notes + _differences(task, counts)


def _differences(task: str, counts: list[dict[str, Any]]) -> list[str]:
    """A warning for every setting of the evaluation that is not the same in all runs."""
    known = [c["settings"] for c in counts if c.get("settings")]
    notes = []
    for key in sorted(set().union(*known)) if known else ():
        values = {json.dumps(s.get(key)) for s in known}
        if len(values) > 1:
            notes.append(
                f"{task}: runs were measured with different {key} ({', '.join(sorted(values))}); "
                "their difference is not training's alone"
            )
    return notes


def _count(folder: Path) -> dict[str, Any]:
    """Sums per question over a task's shards: question, samples, correct, truncated (counts) and tokens (mean).

    An answer (question, repeat) that is in two shards counts once: the one in the first shard.
    """
    tables = []
    for path in sorted(folder.glob("*.parquet")) if folder.is_dir() else ():
        try:
            file = pq.ParquetFile(path)
            tables.append(file.read(columns=COLUMNS))
        except (pa.ArrowInvalid, OSError) as error:
            raise StateError(
                f"{path}: not readable as parquet ({error}); remove it and run r3bench eval again"
            ) from error
        missing = set(COLUMNS) - set(tables[-1].column_names)
        if missing:
            raise StateError(f"{path}: no column '{sorted(missing)[0]}'; found {', '.join(tables[-1].column_names)}")
        for column in COLUMNS:
            if tables[-1][column].null_count:
                raise StateError(f"{path}: {column}: empty in {tables[-1][column].null_count} rows; evaluate again")
    if not tables:
        return {"question": []}
    settings = json.loads((file.schema_arrow.metadata or {}).get(SETTINGS, b"{}"))
    table = pa.concat_tables(tables)
    # dlpack, because pyarrow's to_numpy and fill_null import pandas, which takes as long as everything else here
    codes = table["question"].combine_chunks().dictionary_encode()
    size, index = len(codes.dictionary), np.from_dlpack(codes.indices).astype(np.int64)
    repeat = np.from_dlpack(pc.cast(table["repeat"], pa.int64()).combine_chunks())
    kept = np.unique(index * (repeat.max() + 1) + repeat, return_index=True)[1]
    samples = np.bincount(index[kept], minlength=size)

    def total(column: str) -> np.ndarray:
        values = pc.cast(table[column], pa.float64()).combine_chunks()
        return np.bincount(index[kept], weights=np.from_dlpack(values)[kept], minlength=size)

    return {
        "settings": {k: v for k, v in settings.items() if k != "model"},
        "question": codes.dictionary.to_pylist(),
        "samples": samples,
        "correct": total("correct"),
        "truncated": total("truncated"),
        "tokens": total("tokens") / samples,
    }
