"""A study's state for a terminal: fits any width, and tells every cell from every other one."""

import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

from r3bench.errors import StateError
from r3bench.sweep.status import DONE, CellStatus, StudyStatus, status

NARROWEST = 40  # columns
COLOURS = {"failed": "red", "diverged": "red", "torn": "red", "interrupted": "yellow", "finished": "green",
           "training": "cyan", "evaluating": "cyan", "starting": "cyan"}  # fmt: skip
FIRST = ("running", "failed", "torn", "interrupted", "diverged", "to do", "finished")  # where there is little room
HEADS = ("run", "seed", "state", "progress", "left", "score", "tok/s", "tokens", "where")
RIGHT = ("seed", "progress", "left", "tok/s", "tokens")
SPARED = ("tokens", "tok/s", "where", "score")  # columns that give way, in this order


def status_lines(
    found: StudyStatus, width: int = 80, *, errors: bool = False, height: int | None = None, colour: bool = False
) -> list[str]:
    """The lines of a study's state, none longer than `width`.

    Args:
        found: the state.
        width: columns of the terminal.
        errors: failures in full, over as many lines as they take.
        height: lines at most; what there is no room for is counted.
        colour: states in colour.
    """
    width = max(width, NARROWEST)
    head = _wrapped(_headline(found), width) + _wrapped(_dispatcher(found), width)
    head += [line for note in found.notes for line in _wrapped(f"note: {note}", width)]
    cells = found.cells
    if height is not None:
        cells = sorted(cells, key=lambda cell: FIRST.index(cell.state))
    blocks = _blocks(cells, width, errors, colour)
    lost = sum(cell.failure is not None for cell in cells)
    tail = (
        [] if errors or not lost else _wrapped(f"r3bench status {found.study} --errors shows failures in full", width)
    )
    if height is None:
        return [*head, *(line for block in blocks for line in block), *tail]
    room, shown = height - len(head) - len(tail) - 1, [*head, *blocks[0]]
    room -= len(blocks[0])
    for number, block in enumerate(blocks[1:]):
        if len(block) > room:
            rest: dict[str, int] = {}
            for cell in cells[number:]:
                rest[cell.state] = rest.get(cell.state, 0) + 1
            more = ", ".join(f"{count} {state}" for state, count in rest.items())
            shown.append(f"... and {more}"[:width])
            break
        shown += block
        room -= len(block)
    return [*shown, *tail]


def _headline(found: StudyStatus) -> str:
    counts = dict(found.counts)
    done = sum(counts.pop(state, 0) for state in DONE)
    others = [f"{counts[state]} {state}" for state in FIRST if counts.get(state)]
    excluded = sum(cell.excluded is not None for cell in found.cells)
    others += [f"{excluded} excluded from the analysis"] if excluded else []
    left = f"; about {duration(found.left)} left" if found.left else ""
    return f"{found.study}: {', '.join([f'{done} of {len(found.cells)} runs finished', *others])}{left}"


def _dispatcher(found: StudyStatus) -> str:
    return f"dispatcher: {found.dispatcher}" if found.dispatcher else "no dispatcher is running"


def _blocks(cells: Sequence[CellStatus], width: int, errors: bool, colour: bool) -> list[list[str]]:
    """The head of the table, then the lines of each run; in columns, or under a heading per cell where names are long.

    Names are never cut: two cells often differ in their last letters only.
    """
    rows = [_row(cell) for cell in cells]
    kept = [name for name in HEADS if name in ("run", "state") or any(row[name] for row in rows)]
    grouped = False
    widths: dict[str, int] = {}
    for spared in (None, *SPARED, "run"):
        if spared == "run":
            grouped = True
            kept = ["run", *(name for name in HEADS if name in ("seed", "state", "progress", "left", "score"))]
        elif spared in kept:
            kept.remove(spared)
        widths = {name: max(len(name), *(len(row[name]) for row in rows)) if rows else len(name) for name in kept}
        if grouped:
            widths["run"] = 1
        if sum(widths.values()) + 2 * (len(kept) - 1) <= width:
            break
    if grouped and "score" in kept and sum(widths.values()) + 2 * (len(kept) - 1) > width:
        kept.remove("score")
    head = {name: "" if grouped and name == "run" else name for name in HEADS}
    blocks = [[_line(head, kept, widths)]]
    before = None
    for cell, row in zip(cells, rows, strict=True):
        lines = []
        if grouped and cell.name != before:
            lines += _wrapped(row["run"], width, at="+")
            before = cell.name
        shown = {**row, "run": "" if grouped else row["run"]}
        lines.append(_line(shown, kept, widths, COLOURS.get(row["state"]) if colour else None))
        for text in _details(cell, row, kept):
            lines += _wrapped(text, width, "    ") if errors or text != _failure(cell) else [_cut(f"    {text}", width)]
        blocks.append(lines)
    return blocks


def _row(cell: CellStatus) -> dict[str, str]:
    state = cell.phase or cell.state
    steps = "" if cell.step is None else f"{cell.step}/{cell.steps}" if cell.steps else str(cell.step)
    done = f"{cell.answers}/{cell.asked}" if cell.answers is not None else steps
    ended = cell.state in DONE
    return {
        "run": _plain(cell.name),
        "seed": str(cell.seed),
        "state": state,
        "progress": done,
        "left": "" if cell.left is None or ended else duration(cell.left),
        "score": ", ".join(f"{_plain(task)} {100 * value:.1f}" for task, value in (cell.accuracy or {}).items()),
        "tok/s": "" if cell.rate is None else f"{cell.rate:,.0f}",
        "tokens": "" if cell.tokens is None else f"{cell.tokens:,.0f}",
        "where": "" if cell.host is None or ended else _place(cell),
    }


def _place(cell: CellStatus) -> str:
    gpus = f" GPU {cell.devices}" if cell.devices else ""
    return _plain(f"{cell.host}{gpus}" + (f" process {cell.process}" if cell.process is not None else ""))


def _details(cell: CellStatus, row: dict[str, str], kept: Sequence[str]) -> list[str]:
    """What stands below a run's line: what its columns had no room for, why it failed, why it is left out."""
    found = [row["score"]] if row["score"] and "score" not in kept else []
    if row["where"] and "where" not in kept and cell.state == "running":
        found.append(f"on {row['where']}")
    if cell.failure is not None:
        found.append(_failure(cell))
    if cell.excluded is not None:
        found.append(f"excluded from the analysis: {_plain(cell.excluded)}")
    return found


def _failure(cell: CellStatus) -> str:
    tries = f" ({cell.attempts} attempts)" if cell.attempts > 1 else ""
    return f"{_plain(cell.failure or '')}{tries}"


def _line(row: dict[str, str], kept: Sequence[str], widths: dict[str, int], colour: str | None = None) -> str:
    parts = []
    for name in kept:
        text = row[name].rjust(widths[name]) if name in RIGHT else row[name].ljust(widths[name])
        if colour is not None and name == "state":
            import typer

            text = typer.style(text, fg=colour)
        parts.append(text)
    return "  ".join(parts).rstrip()


def _wrapped(text: str, width: int, indent: str = "", at: str | None = None) -> list[str]:
    """`text` over as many lines as it takes, broken at `at` or else at spaces, and inside a word that is too long."""
    if at is not None and len(text) > width:
        lines, line = [], ""
        for number, part in enumerate(text.split(at)):
            piece = part if number == 0 else at + part
            if line and len(line) + len(piece) > width:
                lines.append(line)
                line = "  "
            line += piece
        return [
            piece for line in [*lines, line] for piece in textwrap.wrap(line, width, subsequent_indent="  ") or [""]
        ]
    wrapped = textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    return wrapped or [""]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _plain(text: str) -> str:
    """Control characters and direction marks spelled out: names and messages may come from anywhere."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def duration(seconds: float) -> str:
    """`1:02:03`, `2:03`; from a day on `1 d 2 h`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def watch(study: Path, every: float = 2.0, *, errors: bool = False) -> None:
    """A live view until the study is over or the user interrupts.

    It waits for a study that isn't there yet and for a dispatcher that hasn't taken the lock; it ends when every run
    has a record, or when a dispatcher that was seen has gone.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    seen = False
    with Live(console=console, refresh_per_second=4) as live:
        while True:
            try:
                found = status(study)
            except StateError:
                if (study / "study.json").exists():
                    raise
                live.update(Text(f"{study}: not there yet; waiting for r3bench ablate (Ctrl-C ends)"))
                time.sleep(every)
                continue
            over = all(cell.state in DONE for cell in found.cells) or (seen and found.dispatcher is None)
            seen |= found.dispatcher is not None
            height = None if over or not console.is_terminal else console.height - 1
            lines = status_lines(found, console.width, errors=errors, height=height, colour=console.is_terminal)
            waits = [] if over or seen else ["waiting for r3bench ablate (Ctrl-C ends)"]
            live.update(Text.from_ansi("\n".join([*lines, *waits])))
            if over:
                return
            time.sleep(every)
