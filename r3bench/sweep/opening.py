"""A grid's study before anything is started: its cells, and what can be wrong with them."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from r3bench.config.advice import warnings_of
from r3bench.config.sections import Recipe
from r3bench.devices import gpu_ids
from r3bench.errors import Unreachable
from r3bench.serving.training import ranks
from r3bench.sweep.cells import BASE_MODEL, Cell, enumerate_cells
from r3bench.sweep.grid import Grid, check_study_name, load_grid
from r3bench.sweep.preflight.tried import look, tried_apart
from r3bench.sweep.strategy import check_numbers
from r3bench.sweep.study import Study
from r3bench.sweep.tuning import check_tuning, winners
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
    """Try all that the runs which aren't finished need, before any is started (`r3bench.sweep.preflight.tried`).

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
