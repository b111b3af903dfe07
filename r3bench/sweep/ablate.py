"""`ablate`: run a grid, or what is left of it."""

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import ExitStack
from pathlib import Path

from r3bench.sweep.cells import enumerate_cells
from r3bench.sweep.dispatcher import Dispatcher, Report, Runner
from r3bench.sweep.executors import make_executor
from r3bench.sweep.grid import Grid, load_grid
from r3bench.sweep.study import Study
from r3bench.sweep.worker import run_job


def open_study(grid: Grid | str, runs: Path, name: str | None = None) -> Study:
    """The study of a grid below `runs`; nothing is written."""
    if isinstance(grid, str):
        grid = load_grid(grid)
    cells, duplicates = enumerate_cells(grid)
    return Study(runs / (name or grid.name), grid, tuple(cells), tuple(duplicates))


def ablate(
    grid: Grid | str,
    runs: Path,
    *,
    study: str | None = None,
    storage: str | None = None,
    executor: Executor | None = None,
    slots: int = 1,
    run: Runner = run_job,
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
        say: takes a line for the user.

    Raises:
        ConfigError: the grid or one of its cells can't be used.
        Locked: another dispatcher is at work on this study.
        StateError: the folder belongs to another version of the grid, or can't be written.
    """
    opened = open_study(grid, runs, study)
    for duplicate in opened.duplicates:
        say(f"{duplicate.name} s{duplicate.seed}: not run, {duplicate.reason}; {duplicate.same_as} stands for it")
    from r3bench.sweep.index import Index

    def index(opened: Study) -> Index:
        return Index(opened, storage, say)

    with ExitStack() as stack:
        if executor is None:
            executor, slots = make_executor(opened.grid.executor)
            stack.enter_context(executor)
        return Dispatcher(opened, executor, slots=slots, run=run, index=index, say=say).dispatch()
