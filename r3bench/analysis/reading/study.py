"""Reads a study folder: `study.json`, and each finished run's `run.json` and `eval/<task>/*.parquet`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from r3bench.analysis.declared import declared_from
from r3bench.analysis.reading.counts import task_scores
from r3bench.analysis.reading.finished import BASE_MODEL, Finished, finished_runs, training_log
from r3bench.analysis.results import Results, Run, order_levels
from r3bench.analysis.training_notes import correction_notes, pooled_notes
from r3bench.errors import StateError
from r3bench.exclusions import Exclusion, exclusions
from r3bench.files import expect, read_json, read_jsonl
from r3bench.records import STUDY_SCHEMA, RunRecord, avg_at_k, read_study
from r3bench.seals import unsealed


def _overlap_notes(folder: Path) -> list[str]:
    """What `overlap.json` says of training questions that stand in the benchmarks; nothing where it was not counted."""
    path = folder / "overlap.json"
    counts = expect(unsealed(read_json(path), path), path) if path.exists() else {}
    for task, found in counts.items():
        expect(found, f"{path}: {task}", exact=int, near=int, questions=int)
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
    spec = read_study(folder / "study.json") if (folder / "study.json").exists() else {}
    finished = finished_runs(folder, {c["run_id"]: c for c in spec.get("cells", ())})
    left_out = exclusions(folder) if spec else {}
    excluded = _excluded(spec, finished, left_out)
    paths = [p for p, r in zip(finished.paths, finished.records, strict=True) if r.run_id not in left_out]
    records = [record for record in finished.records if record.run_id not in left_out]
    if finished.paths and not paths:
        raise StateError(f"{folder}: every finished run is excluded (r3bench exclude {folder} lists them)")
    if not paths:
        raise StateError(
            f"{folder}: no finished run (no run.json); start them with r3bench ablate, see r3bench status"
            + "".join(f"; {note}" for note in finished.notes)
        )
    planned = [c for c in spec.get("cells", ()) if c["factors"] != BASE_MODEL]
    lost, notes = _unfinished(folder, planned, {r.run_id for r in records} | finished.refused.keys() | left_out.keys())
    notes += [*finished.notes, *(_excluded_note(run, exclusion) for run, exclusion in excluded)]
    if spec.get("schema", STUDY_SCHEMA) < STUDY_SCHEMA:
        notes.append(f"{folder / 'study.json'}: written by an older version of r3bench, without a checksum")
    if spec.get("duplicates"):
        notes.append(f"{len(spec['duplicates'])} combinations are the same run as another one and were not repeated")
    notes += _overlap_notes(folder)
    notes += [f"{record.run_id}: {note}" for record in records for note in record.train.notes]
    trained = [record for record in records if record.factors != BASE_MODEL]
    notes += [*pooled_notes(trained), *correction_notes(trained)]
    grid = spec.get("grid", {})
    factors, found = _factors([r for r in records if r.factors != BASE_MODEL], lost, _listed(spec))
    notes += found
    runs = [_run(r, factors) for r in records] + [
        Run(
            c["run_id"],
            int(c["seed"]),
            {f: str(c["factors"][f]) for f in factors},
            outcome="diverged" if why.startswith("diverged: ") else "failed",
            reason=why,
        )
        for c, why in lost
    ]
    benchmarks = {}
    tasks = {p.parent.name for run in paths for p in run.shards()}
    troubles = []
    for task in sorted(tasks.union(*(r.eval for r in records))):
        scores, found = task_scores(task, paths, runs)
        troubles += found
        if scores is not None:
            benchmarks[task] = scores
    if not benchmarks:
        raise StateError("; ".join([f"{folder}: no run has answers; measure with r3bench eval", *troubles]))
    notes += troubles
    logs = {}
    for record, path in zip(records, paths, strict=True) if metrics else ():
        logs[record.run_id], found = training_log(path, record)
        notes += found
    return Results(
        name=str(grid.get("name") or folder.resolve().name),
        factors=factors,
        runs=tuple(runs),
        benchmarks=benchmarks,
        declared=declared_from(grid.get("analysis") or {}, f"{folder / 'study.json'}: analysis"),
        planned=len(planned) or None,
        notes=tuple(note.replace(f"{folder}/", "") for note in notes),  # the same wherever the study is
        metrics=logs,
        folder=folder,
        excluded=tuple(run for run, _ in excluded),
    )


def _excluded(
    spec: Mapping[str, Any], finished: Finished, left_out: Mapping[str, Exclusion]
) -> list[tuple[Run, Exclusion]]:
    """The runs of the study that someone has left out, with what is known of them."""
    records = {record.run_id: record for record in finished.records}
    cells = {c["run_id"]: c for c in spec.get("cells", ())}
    found = []
    for name in left_out.keys() & cells.keys():
        cell, record = cells[name], records.get(name)
        base = cell["factors"] == BASE_MODEL
        levels = {} if base else {f: str(v) for f, v in cell["factors"].items()}
        outcome = record.train.outcome if record is not None else "failed"
        run = Run(name, int(cell["seed"]), levels, base, outcome, left_out[name].reason, record)
        found.append((run, left_out[name]))
    return sorted(found, key=lambda pair: pair[0].run)


def _excluded_note(run: Run, exclusion: Exclusion) -> str:
    """With the scores that were recorded for it: who leaves out a run that lost is to be seen doing so."""
    note = exclusion.note()
    if run.record is None:
        return f"{note} (it has no record)"
    scores = [f"{task} {100 * v:.1f}" for task, s in run.record.eval.items() if (v := avg_at_k(s)) is not None]
    return f"{note} ({'; '.join([run.outcome, *scores])})"


def run_folder(study: Path, run: str) -> Path:
    """A run's directory in a study's folder, which may be the run's own."""
    return study / run if (study / run).is_dir() else study


def _unfinished(
    folder: Path, planned: list[dict[str, Any]], known: set[str]
) -> tuple[list[tuple[dict[str, Any], str]], list[str]]:
    """Planned runs that were given up (with the reason), and a note on those that may still come.

    Whatever ended such a run (a bug, a killed process, a limit of time or memory, a full disk), nothing was measured.
    """
    lost, pending = [], []
    damaged: list[str] = []
    for cell in planned:
        if cell["run_id"] in known:
            continue
        file = folder / cell["run_id"] / "attempts.jsonl"
        torn: list[int] = []
        events = read_jsonl(file, torn)
        if torn:
            damaged.append(f"{file}: {len(torn)} lines left out, torn or damaged (line {torn[0]})")
        if events and events[-1].get("event") == "gave_up":
            failure: dict[str, Any] = next((e for e in reversed(events) if e.get("event") == "failure"), {})
            lost.append((cell, f"{failure.get('kind', 'unknown')}: {failure.get('message', 'no message')}"))
        else:
            pending.append(cell["run_id"])
    if not pending:
        return lost, damaged
    shown = ", ".join(pending[:3]) + (", ..." if len(pending) > 3 else "")
    return lost, [f"{len(pending)} of {len(planned)} planned runs have not finished: {shown}", *damaged]


def _listed(spec: Mapping[str, Any]) -> dict[str, list[str]]:
    """factor -> levels of the grid, reference first, in the grid's order."""
    if "factors" in spec:
        return {f["name"]: [str(level) for level in f["levels"]] for f in spec["factors"]}
    grid = spec.get("grid", {})  # study.json before it had `factors`: its mappings were sorted by name
    cells = [c["factors"] for c in spec.get("cells", ()) if c["factors"] != BASE_MODEL]
    first = cells[0] if cells and grid.get("design") in ("full", "half", "add_one") else {}
    found = {}
    for factor, levels in (grid.get("factors") or {}).items():
        listed = [_level(v) for v in levels]
        if isinstance(levels, Mapping):
            listed = sorted(order_levels(listed), key=lambda v: v != first.get(factor, v))
        found[factor] = listed
    return found


def _factors(
    trained: list[RunRecord], lost: list[tuple[dict[str, Any], str]], declared: Mapping[str, list[str]]
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
        listed = declared.get(factor, [])
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
