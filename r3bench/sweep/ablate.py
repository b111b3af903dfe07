"""`ablate`: run a grid, or what is left of it."""

import contextlib
import dataclasses
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from r3bench.config.advice import warnings_of
from r3bench.config.sections import Recipe
from r3bench.errors import Interrupted, StateError, Unreachable
from r3bench.lock import exclusive
from r3bench.serving.training import ranks
from r3bench.sweep.attempts import classify
from r3bench.sweep.cells import BASE_MODEL, Cell, enumerate_cells
from r3bench.sweep.dispatcher import POLL, CancelledFailure, Dispatcher, Report, Runner
from r3bench.sweep.executors import make_executor
from r3bench.sweep.grid import Grid, check_study_name, load_grid
from r3bench.sweep.hooks import Hooks, check_address
from r3bench.sweep.local import gpu_ids
from r3bench.sweep.overlap import note_overlap, overlap_file
from r3bench.sweep.preflight import look, tried_apart
from r3bench.sweep.signals import DRAIN_GRACE, end, handling
from r3bench.sweep.strategy import check_numbers
from r3bench.sweep.study import Study
from r3bench.sweep.tuning import check_tuning, run_search, space_of, tuning_folder, winners
from r3bench.sweep.tuning import job as tuning_job
from r3bench.sweep.worker import run_job
from r3bench.training.tracking import check_trackers


def open_study(grid: Grid | str, runs: Path, name: str | None = None) -> Study:
    """The study of a grid below `runs`; nothing is written.

    Raises:
        ConfigError: the grid, one of its cells or the study's name can't be used.
    """
    if isinstance(grid, str):
        grid = load_grid(grid)
    if name is None:
        check_study_name(grid.name, "grid: name")
    else:
        check_study_name(name, "--study")
    root = runs / (grid.name if name is None else name)
    cells, duplicates = enumerate_cells(grid, winners(root) if grid.tuning else None)
    check_tuning(grid, [cell.recipe for cell in cells if cell.factors != BASE_MODEL], grid.name)
    return Study(root, grid, tuple(cells), tuple(duplicates))


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
    from r3bench.sweep.index import Index

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


def check_cells(study: Study) -> None:
    """Refuse cells whose model or questions can't exist, or whose batches can't be split over their GPUs.

    Raises:
        ConfigError, DataError: naming the cell, before anything is started.
    """
    section = study.grid.executor
    look([*(cell.recipe for cell in study.cells), *tuned_on(study)])
    alone = section.kind in ("local", "inline") and not gpu_ids()
    for cell in study.cells:
        if cell.factors != BASE_MODEL:
            processes = 1 if alone else ranks(cell.recipe.trainer, section.gpus)
            strategy = section.strategy if processes > 1 else "ddp"
            check_numbers(cell.recipe, processes, 1, strategy, f"{study.grid.name}, cell {cell.name}: trainer")


def check_to_do(study: Study) -> None:
    """Try all that the runs which aren't finished need, before any is started (`r3bench.sweep.preflight`).

    Raises:
        ConfigError, DataError: a mistake that would only show after training.
    """
    left = [cell for cell in study.cells if not study.paths(cell).record.exists()]
    trained = [cell.recipe for cell in left if cell.factors != BASE_MODEL]
    untrained = [cell.recipe for cell in left if cell.factors == BASE_MODEL] + tuned_on(study)
    if study.grid.executor.kind in ("inline", "local"):  # here, and with these packages
        for recipe in trained:
            check_trackers(recipe.trainer)
    if left:
        unreachable = tried_apart(trained, measured_only=untrained)
        if unreachable:
            raise Unreachable(unreachable[0])


def tuned_on(study: Study) -> list[Recipe]:
    """A recipe that is measured on the task that the grid's tuning decides by; none without tuning."""
    tuning = study.grid.tuning
    if tuning is None:
        return []
    recipe = study.cells[-1].recipe
    return [replace(recipe, eval=replace(recipe.eval, tasks=(tuning.task,)))]


def cell_warnings(cells: Iterable[Cell], processes: int = 1) -> list[str]:
    """What is odd about a grid's cells (`warnings_of` each), said once with the first cell it is true of.

    `processes`: that train a cell together.
    """
    first: dict[str, str] = {}
    for cell in cells:
        if cell.factors != BASE_MODEL:
            for line in warnings_of(cell.recipe, processes):
                first.setdefault(line, cell.name)
    return [f"cell {name}: {line}" for line, name in first.items()]


def _lost(error: BaseException) -> bool:
    return classify(error).kind in ("stopped", "preempted", "lost")


def tune(study: Study, executor: Executor, slots: int, search: Runner, say: Callable[[str], None]) -> None:
    """Run the searches of a study's cells that aren't finished, `slots` at a time.

    Raises:
        StateError: a search failed; the others are finished first, and the same command goes on from there.
        Interrupted: a signal asked to stop; the searches go on from their last finished trial.
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
        raise Interrupted(f"{study.root}: {what} received during tuning; the same command goes on from there")
    if failed:
        raise StateError(f"tuning failed for {len(failed)} cells; {failed[0]}")
