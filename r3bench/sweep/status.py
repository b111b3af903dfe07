"""Where a study stands, read from its run directories alone: works beside a dispatcher, and after it."""

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from r3bench.errors import StateError
from r3bench.files import expect, read_json, read_line
from r3bench.lock import holder
from r3bench.records import RunPaths, read_study
from r3bench.seals import unsealed
from r3bench.sweep.attempts import attempts_file

CellState = Literal["finished", "diverged", "running", "interrupted", "failed", "to do", "torn"]
TAIL_BYTES = 65_536  # read from the end of a log to find its last lines


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


@dataclass(frozen=True)
class StudyStatus:
    """A study: its runs and its dispatcher."""

    study: str
    dispatcher: str | None  # who is running it
    cells: list[CellStatus]

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
    return StudyStatus(study.name, who if held else None, [_cell(study, cell) for cell in spec["cells"]])


def status_data(found: StudyStatus) -> dict[str, Any]:
    """JSON-ready."""
    return {**asdict(found), "counts": found.counts}


def studies(runs: Path) -> list[str]:
    """Names of the studies below `runs`."""
    return sorted(path.parent.name for path in runs.glob("*/study.json"))


def _cell(study: Path, cell: dict[str, Any]) -> CellStatus:
    paths = RunPaths(study / cell["run_id"])
    about = {"run_id": cell["run_id"], "name": cell["name"], "seed": cell["seed"]}
    if paths.record.exists():
        return _recorded(paths, about)
    events = _last_lines(attempts_file(paths.root))
    starts = sum(event.get("event") == "start" for event in events)
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
    return CellStatus(**about, state=state, failure=failure, attempts=starts, **_progress(paths))


def _recorded(paths: RunPaths, about: dict[str, Any]) -> CellStatus:
    try:
        record = expect(unsealed(read_json(paths.record), paths.record), paths.record, train=dict, eval=dict)
        train = expect(record["train"], paths.record, steps=int, generated_tokens=float, train_seconds=float)
        accuracy = {
            task: float(next(v for k, v in expect(summary, paths.record).items() if k.startswith("avg@")))
            for task, summary in record["eval"].items()
        }
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
            accuracy=accuracy,
            failure=train["reason"],
        )
    except (StateError, KeyError, TypeError, ValueError, StopIteration):
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


def status_table(found: StudyStatus) -> Any:
    """A rich table."""
    from rich.markup import escape
    from rich.table import Table

    total = len(found.cells)
    done = sum(found.counts.get(state, 0) for state in ("finished", "diverged"))
    who = f"dispatcher: {found.dispatcher}" if found.dispatcher else "no dispatcher is running"
    table = Table(title=f"{found.study}: {done} of {total} runs finished; {who}", title_justify="left")
    for name in ("run", "seed", "state", "step", "tokens", "tok/s", "time left", "accuracy", "last failure"):
        table.add_column(name, justify="right" if name in ("seed", "step", "tokens", "tok/s", "time left") else "left")
    for cell in found.cells:
        table.add_row(
            escape(cell.name),
            str(cell.seed),
            cell.state,
            "" if cell.step is None else f"{cell.step}/{cell.steps}" if cell.steps else str(cell.step),
            "" if cell.tokens is None else f"{cell.tokens:,.0f}",
            "" if cell.rate is None else f"{cell.rate:,.0f}",
            "" if cell.left is None or cell.state == "finished" else _duration(cell.left),
            ", ".join(f"{task} {100 * value:.1f}" for task, value in (cell.accuracy or {}).items()),
            escape((cell.failure or "")[:80]),
        )
    return table


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def watch(study: Path, every: float = 2.0) -> None:
    """A live table until every run is finished or the user interrupts."""
    from rich.live import Live

    with Live(status_table(status(study)), refresh_per_second=4) as live:
        while True:
            found = status(study)
            live.update(status_table(found))
            if all(cell.state in ("finished", "diverged", "failed") for cell in found.cells):
                return
            time.sleep(every)
