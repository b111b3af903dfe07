"""Where a study stands, read from its run directories alone: works beside a dispatcher, and after it."""

import contextlib
import os
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from r3bench.errors import StateError
from r3bench.exclusions import exclusions
from r3bench.files import expect, read_json, read_line
from r3bench.lock import holder
from r3bench.records import ASKED, RunPaths, avg_at_k, read_study
from r3bench.seals import unsealed
from r3bench.sweep.attempts import attempts_file

Phase = Literal["starting", "training", "evaluating"]
CellState = Literal["finished", "diverged", "running", "interrupted", "failed", "to do", "torn"]
DONE = ("finished", "diverged")  # states of a run with a record
TAIL_BYTES = 65_536  # read from the end of a log to find its last lines
SHARD = re.compile(r"r(\d+)-(\d+)\.q(\d+)-(\d+)")  # a shard's name: repeats and questions in it


@dataclass(frozen=True)
class CellStatus:
    """One run of a study."""

    run_id: str
    name: str
    seed: int
    state: CellState
    step: int | None = None  # optimiser steps done
    steps: int | None = None  # of how many; None when the training length is given in epochs
    tokens: int | None = None  # completion tokens sampled
    seconds: float | None = None  # training time
    rate: float | None = None  # tokens per second
    left: float | None = None  # seconds of training left at the present pace
    accuracy: dict[str, float] | None = None  # task -> avg@k
    failure: str | None = None  # class and message of the last failure
    attempts: int = 0
    phase: Phase | None = None  # of a running one
    answers: int | None = None  # stored while evaluating, over all tasks
    asked: int | None = None  # of how many, over the tasks begun so far
    host: str | None = None  # where the last attempt ran
    process: int | None = None  # its process there
    devices: str | None = None  # the GPUs it was given
    excluded: str | None = None  # why someone left it out of the analysis


@dataclass(frozen=True)
class StudyStatus:
    """A study: its runs and its dispatcher."""

    study: str
    dispatcher: str | None  # who is running it
    cells: list[CellStatus]
    left: float | None = None  # seconds until all is done, from how long finished runs took; None: can't be told
    notes: tuple[str, ...] = ()  # what can't be read

    @property
    def counts(self) -> dict[str, int]:
        """State -> runs."""
        found: dict[str, int] = {}
        for cell in self.cells:
            found[cell.state] = found.get(cell.state, 0) + 1
        return found


def status(study: Path) -> StudyStatus:
    """Where a study stands.

    Args:
        study: `runs/<study>`.

    Raises:
        StateError: no study there, or its `study.json` is torn.
    """
    file = study / "study.json"
    if not file.exists():
        raise StateError(f"{study}: no study here (no study.json); start one with r3bench ablate")
    spec = read_study(file)
    held = holder(study / "study.lock")
    who = f"process {held['pid']} on {held['host']} since {held['since']}" if held else None
    notes: list[str] = []
    try:
        left_out = exclusions(study)
    except StateError as error:
        left_out = {}
        notes.append(str(error))
    found = [
        _cell(study, cell, left_out[cell["run_id"]].reason if cell["run_id"] in left_out else None)
        for cell in spec["cells"]
    ]
    return StudyStatus(study.name, who, found, _time_left(study, found) if who else None, tuple(notes))


def _time_left(study: Path, cells: list[CellStatus]) -> float | None:
    """Seconds until the last run is done: what is left at the mean length of finished runs, shared by those at work."""
    lengths = [seconds for cell in cells if cell.state == "finished" and (seconds := _length(study, cell))]
    running = [cell for cell in cells if cell.state == "running"]
    paces = [c.seconds / c.step * c.steps for c in running if c.seconds and c.step and c.steps]
    if not lengths and not paces:
        return None
    usual = sum(lengths) / len(lengths) if lengths else sum(paces) / len(paces)
    open_ = [max(c.left or 0.0, usual - _since_start(study, c)) for c in running]
    waiting = sum(c.state in ("to do", "interrupted", "torn") for c in cells)
    if not open_ and not waiting:
        return 0.0
    return max([(sum(open_) + waiting * usual) / max(1, len(open_)), *open_])


def _length(study: Path, cell: CellStatus) -> float | None:
    """Seconds that a finished run took, evaluation included, from the start of its last attempt; None: untrained."""
    if not cell.step:
        return None
    paths = RunPaths(study / cell.run_id)
    try:
        ended = datetime.fromisoformat(read_json(paths.record)["ended"])
    except (StateError, KeyError, TypeError, ValueError):
        return cell.seconds
    started = _started(paths)
    return max(cell.seconds or 0.0, (ended - started).total_seconds() if started else 0.0) or None


def _since_start(study: Path, cell: CellStatus) -> float:
    started = _started(RunPaths(study / cell.run_id))
    return max(0.0, (datetime.now(UTC) - started).total_seconds()) if started else 0.0


def _started(paths: RunPaths) -> datetime | None:
    starts = [event for event in _last_lines(attempts_file(paths.root)) if event.get("event") == "start"]
    try:
        return datetime.fromisoformat(starts[-1]["time"]) if starts else None
    except (KeyError, TypeError, ValueError):
        return None


def status_data(found: StudyStatus) -> dict[str, Any]:
    """JSON-ready."""
    return {**asdict(found), "counts": found.counts}


def studies(runs: Path) -> list[str]:
    """Names of the studies below `runs`."""
    return sorted(path.parent.name for path in runs.glob("*/study.json"))


def _cell(study: Path, cell: dict[str, Any], excluded: str | None) -> CellStatus:
    paths = RunPaths(study / cell["run_id"])
    about = {"run_id": cell["run_id"], "name": cell["name"], "seed": cell["seed"], "excluded": excluded}
    if paths.record.exists():
        return _recorded(paths, about)
    events = _last_lines(attempts_file(paths.root))
    starts = [event for event in events if event.get("event") == "start"]
    failures = [event for event in events if event.get("event") == "failure"]
    failure = None
    if failures:
        last = expect(failures[-1], attempts_file(paths.root), kind=str, message=str)
        failure = f"{last['kind']}: {last['message']}"
    if not events:
        return CellStatus(**about, state="to do")
    state: CellState = "interrupted"
    if holder(paths.lock) is not None:
        state = "running"
    elif events[-1].get("event") == "gave_up":
        state = "failed"
    where = _where(starts[-1]) if starts else {}
    found = _progress(paths) | (_phase(paths, cell) if state == "running" else {})
    return CellStatus(**about, state=state, failure=failure, attempts=len(starts), **where, **found)


def _where(start: dict[str, Any]) -> dict[str, Any]:
    host, process, devices = (start.get(key) for key in ("host", "pid", "devices"))
    return {
        "host": host if isinstance(host, str) else None,
        "process": process if isinstance(process, int) else None,
        "devices": devices if isinstance(devices, str) else None,
    }


def _phase(paths: RunPaths, cell: dict[str, Any]) -> dict[str, Any]:
    """What a running run is at, and how far its evaluation is."""
    if not paths.train.exists() and cell["factors"] != {"base": "model"}:
        return {"phase": "training" if paths.metrics.exists() else "starting"}
    asked: dict[str, int] = {}
    with contextlib.suppress(StateError):
        told = read_json(paths.evaluation / ASKED)
        asked = {k: v for k, v in told.items() if isinstance(v, int)} if isinstance(told, dict) else {}
    if not asked:
        return {"phase": "evaluating" if paths.train.exists() else "starting", "left": None}
    stored = sum(min(_stored(paths.evaluation / task), count) for task, count in asked.items())
    return {"phase": "evaluating", "answers": stored, "asked": sum(asked.values()), "left": None}


def _stored(folder: Path) -> int:
    """Answers of a task that are safe: those of shards, by their names, and of the journals of shards under way."""
    count = 0
    for path in folder.glob("*.parquet"):
        named = SHARD.fullmatch(path.stem)
        if named:
            first, last, start, end = map(int, named.groups())
            count += (last - first + 1) * (end - start + 1)
    for path in folder.glob(".*.jsonl"):
        with contextlib.suppress(OSError):  # it goes when its shard is written
            count += max(0, path.read_bytes().count(b"\n") - 1)
    return count


def _recorded(paths: RunPaths, about: dict[str, Any]) -> CellStatus:
    try:
        record = expect(unsealed(read_json(paths.record), paths.record), paths.record, train=dict, eval=dict)
        train = expect(record["train"], paths.record, steps=int, generated_tokens=float, train_seconds=float)
        measured = {task: avg_at_k(expect(summary, paths.record)) for task, summary in record["eval"].items()}
        scores = {task: value for task, value in measured.items() if value is not None}
        if len(scores) < len(measured):
            raise ValueError(f"{paths.record}: a task without avg@k")
        seconds = train["train_seconds"]
        return CellStatus(
            **about,
            state="diverged" if train["outcome"] == "diverged" else "finished",
            step=train["steps"],
            steps=train["steps"],
            tokens=train["generated_tokens"],
            seconds=seconds,
            rate=train["generated_tokens"] / seconds if seconds else None,
            left=0.0,
            accuracy=scores,
            failure=train["reason"],
        )
    except (StateError, KeyError, TypeError, ValueError):
        return CellStatus(**about, state="torn", failure="run.json can't be read; r3bench ablate makes it again")


def _progress(paths: RunPaths) -> dict[str, Any]:
    lines = _last_lines(paths.metrics)
    if not lines:
        return {}
    last = lines[-1]
    for key in ("step", "elapsed", "generated_tokens"):
        if last.get(key) is not None:
            expect(last, paths.metrics, **{key: float})
    step, seconds, tokens = last.get("step"), last.get("elapsed"), last.get("generated_tokens")
    steps = _planned_steps(paths)
    left = None
    if steps and step and seconds:
        left = max(0.0, seconds / step * (steps - step))
    rate = tokens / seconds if tokens and seconds else None
    return {"step": step, "steps": steps, "tokens": tokens, "seconds": seconds, "rate": rate, "left": left}


def _planned_steps(paths: RunPaths) -> int | None:
    try:
        steps = expect(read_json(paths.config), paths.config, trainer=dict)["trainer"].get("max_steps")
    except StateError:
        return None
    return steps if isinstance(steps, int) and steps > 0 else None


def _last_lines(path: Path) -> list[dict[str, Any]]:
    """The whole JSON lines in the last part of a file."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            chunk = file.read()
    except FileNotFoundError:
        return []
    found = []
    for line in chunk.split(b"\n"):
        record = read_line(line)
        if record is not None:
            found.append(record)
    return found
