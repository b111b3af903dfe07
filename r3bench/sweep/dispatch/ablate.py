"""`ablate`: run a grid, or what is left of it."""

import contextlib
import dataclasses
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from r3bench.errors import Interrupted, StateError
from r3bench.lock import exclusive
from r3bench.sweep.attempts import classify
from r3bench.sweep.cell_run import run_job
from r3bench.sweep.cells import BASE_MODEL
from r3bench.sweep.dispatch.dispatcher import POLL, CancelledFailure, Dispatcher, Report, Runner
from r3bench.sweep.executors.choose import make_executor
from r3bench.sweep.executors.signals import DRAIN_GRACE, end, handling
from r3bench.sweep.grid import Grid, load_grid
from r3bench.sweep.hooks import Hooks, check_address
from r3bench.sweep.opening import cell_warnings, check_cells, check_to_do, open_study
from r3bench.sweep.overlap import note_overlap, overlap_file
from r3bench.sweep.study import Study
from r3bench.sweep.tuning import job as tuning_job
from r3bench.sweep.tuning import run_search, space_of, tuning_folder


def ablate(
    grid: Grid | str,
    runs: Path,
    *,
    study: str | None = None,
    storage: str | None = None,
    executor: Executor | None = None,
    slots: int = 1,
    run: Runner = run_job,
    search: Runner = run_search,
    overrides: Sequence[str] = (),
    hook: str | None = None,
    notify: str | None = None,
    say: Callable[[str], None] = print,
) -> Report:
    """Run every cell of a grid that isn't finished yet.

    Args:
        grid: a grid, its name or its path.
        runs: folder that holds the studies.
        study: the study's folder below `runs`; the grid's name by default.
        storage: Optuna RDB URL of the study's index; SQLite in its folder by default.
        executor: where cells run; the grid's `executor` section by default.
        slots: cells at a time, for a given executor.
        run: what a cell does, from and to JSON-ready data; training and evaluation by default.
        search: what a cell's tuning does, likewise.
        overrides: `key=value` changes to the recipe of a grid that is named.
        hook: command to run in place of the grid's `notify.command`.
        notify: address in place of the grid's `notify.url`.
        say: takes a line for the user.

    Raises:
        ConfigError: the grid or one of its cells can't be used.
        Locked: another dispatcher is at work on this study.
        StateError: the folder belongs to another version of the grid, or can't be written, or finished runs lack a
            measurement and their weights.
    """
    say = _steady(say)
    if isinstance(grid, str):
        grid = load_grid(grid, overrides)
    told = dataclasses.replace(grid.notify, command=hook or grid.notify.command, url=notify or grid.notify.url)
    grid = dataclasses.replace(grid, notify=told)
    check_address(told.url)
    opened = open_study(grid, runs, study)
    check_cells(opened)
    if run is run_job:
        check_to_do(opened)
    for line in cell_warnings(opened.cells):
        say(f"warning: {line}")
    opened.check_weights()
    for duplicate in opened.duplicates:
        say(f"{duplicate.name} s{duplicate.seed}: not run, {duplicate.reason}; {duplicate.same_as} stands for it")
    from r3bench.sweep.dispatch.index import Index

    def index(opened: Study) -> Index:
        return Index(opened, storage, say, lambda: dispatcher.signals)

    try:
        with ExitStack() as stack:
            if executor is None:
                executor, slots = make_executor(opened.grid.executor)
                stack.enter_context(executor)
            if opened.grid.tuning is not None:
                tune(opened, executor, slots, search, say)
                opened = open_study(opened.grid, runs, study)
            hooks = Hooks(opened, told, say, lambda: dispatcher.signals)
            stack.callback(hooks.close)
            dispatcher = Dispatcher(opened, executor, slots=slots, run=run, index=index, say=say, watchers=[hooks])
            report = dispatcher.dispatch()
            hooks.over(report)
        if report.complete and run is run_job and not overlap_file(opened.root).exists():
            note_overlap(opened)
        return report
    except OSError as error:  # a full or failing disk under the dispatcher's own files
        raise StateError(f"{error.filename or opened.root}: {error.strerror or error}") from error


def _steady(say: Callable[[str], None]) -> Callable[[str], None]:
    """`say`, whose reader may be gone: no line is worth a run."""

    def said(line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            say(line)

    return said


def _lost(error: BaseException) -> bool:
    return classify(error).kind in ("stopped", "preempted", "lost")


def tune(study: Study, executor: Executor, slots: int, search: Runner, say: Callable[[str], None]) -> None:
    """Run the searches of a study's cells that aren't finished, `slots` at a time.

    Raises:
        StateError: a search failed; the others are finished first, and the same command resumes from there.
        Interrupted: a signal asked to stop; the searches resume from their last finished trial.
    """
    seen = {cell.name: cell for cell in reversed(study.cells) if cell.factors != BASE_MODEL}
    assert study.grid.tuning is not None
    todo = [
        tuning_job(study.grid, cell.recipe, study.root)
        for name, cell in reversed(seen.items())
        if space_of(study.grid.tuning, cell.recipe) and not (tuning_folder(study.root, name) / "tuning.json").exists()
    ]
    failed: list[str] = []
    lost: Counter[str] = Counter()  # searches that were stopped or killed from outside, and go on
    waiting: dict[Future[Any], dict[str, Any]] = {}
    received: list[int] = []

    def on_signal(number: int, _frame: Any) -> None:
        received.append(number)
        for future in waiting:
            end(future, DRAIN_GRACE if len(received) == 1 else 0.0)

    with exclusive(study.lock), handling(on_signal):
        while waiting or (todo and not received):
            while todo and len(waiting) < slots and not received:
                work = todo.pop(0)
                waiting[executor.submit(search, work)] = work
            done, _ = wait(waiting, timeout=POLL, return_when=FIRST_COMPLETED)
            for future in done:
                work = waiting.pop(future)
                name = work["recipe"]["name"]
                error = CancelledFailure() if future.cancelled() else future.exception()
                if isinstance(error, Interrupted):  # raised in this process: the signal was for us
                    received.append(signal.SIGINT)
                elif error is not None and not received and _lost(error) and lost[name] < study.grid.retries.preempted:
                    lost[name] += 1
                    say(f"{name}: tuning was stopped or killed from outside and goes on")
                    todo.append(work)
                elif error is None:
                    found = future.result()
                    say(f"{name}: tuned in {len(found['trials'])} trials: {found['params']}")
                else:
                    failed.append(f"{name}: {classify(error).message}")
    if received:
        what = signal.Signals(received[0]).name
        raise Interrupted(f"{study.root}: {what} received during tuning; the same command resumes from there")
    if failed:
        raise StateError(f"tuning failed for {len(failed)} cells; {failed[0]}")
