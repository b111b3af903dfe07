"""A grid's cells: every combination with every seed as a checked recipe, duplicates removed with reasons."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from r3bench import catalog, project
from r3bench.analysis.declared import declared_from
from r3bench.config import dotted
from r3bench.config.load import apply_overrides, parse_recipe, read_yaml, run_id
from r3bench.config.paths import localised
from r3bench.config.sections import Recipe
from r3bench.config.trainer_fields import trainer_value
from r3bench.errors import ConfigError
from r3bench.sweep.design import combinations_of, size_of
from r3bench.sweep.grid import Factor, Grid, factors_of

BASE_MODEL = {"base": "model"}  # factors of the run that only evaluates the model as it is before training
MAX_RUNS = 100_000  # of a grid; each is a folder, and listing them all must stay quick


@dataclass(frozen=True)
class Cell:
    """One run of a grid: a combination of levels with a seed."""

    name: str  # readable, such as 'replay+ranking'
    factors: dict[str, str]  # factor -> level
    seed: int
    recipe: Recipe  # checked and complete
    run_id: str  # folder below the study


@dataclass(frozen=True)
class Duplicate:
    """A combination that isn't run because another one is the same run."""

    name: str
    factors: dict[str, str]
    seed: int
    same_as: str  # run id that stands for it
    reason: str


def cell_name(factors: Mapping[str, str], grid_factors: Sequence[Factor]) -> str:
    """The levels that differ from the base: `replay+ranking`, `replay.random`; `base` when none does.

    With a single factor that sets several keys (`method`), its level alone.
    """
    if len(grid_factors) == 1 and grid_factors[0].bundle:
        return factors[grid_factors[0].name]
    parts = []
    for factor in grid_factors:
        level = factors[factor.name]
        if level != next(iter(factor.levels)):
            short = factor.name.rpartition(".")[2]
            parts.append(short if level == "on" else f"{short}.{level}")
    return "+".join(parts) or "base"


def enumerate_cells(
    grid: Grid, tuned: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[list[Cell], list[Duplicate]]:
    """All runs of a grid in the order they are started (seeds outermost, so that early results cover every cell).

    Args:
        grid: the grid.
        tuned: cell name -> settings that its search found best.

    Raises:
        ConfigError: a combination that isn't a valid recipe, named, or a macro average over tasks of no cell.
    """
    if grid.home:
        project.enter(grid.home)
    path = catalog.recipe_path(grid.recipe)
    base = apply_overrides(localised("", read_yaml(path), path.parent), [])
    assign(base, grid.set)
    if grid.eval:
        base["eval"] = {**(base.get("eval") or {}), **grid.eval}
    if grid.budget is not None:
        assign(base, _budget_keys(grid, base))
    factors = factors_of(grid, grid.name)
    levels = {f.name: list(f.levels) for f in factors}
    runs = size_of(grid.design, levels, grid.cells) * len(grid.seeds)
    if runs > MAX_RUNS:
        raise ConfigError(
            f"{grid.name}: {runs} runs, expected at most {MAX_RUNS}; use fewer factors, or a design such as add_one"
        )
    combinations = combinations_of(grid.design, levels, grid.cells)

    cells: list[Cell] = []
    duplicates: list[Duplicate] = []
    if grid.base_model:
        recipe = _recipe({**base, "name": "base-model"}, {}, f"{grid.name}, base model")
        recipe = dataclasses.replace(recipe, seed=grid.seeds[0])
        cells.append(Cell("base-model", BASE_MODEL, recipe.seed, recipe, run_id(recipe)))
    taken: dict[str, Cell] = {}
    made = []
    for combination in combinations:
        name = cell_name(combination, factors)
        keys: dict[str, Any] = {}
        for factor in factors:
            keys |= factor.levels[combination[factor.name]]
        keys |= (tuned or {}).get(name, {})
        made.append((name, combination, *_cell_recipe({**base, "name": name}, keys, f"{grid.name}, cell {name}")))
    for seed in grid.seeds:
        for name, combination, unseeded, ignored in made:
            recipe = dataclasses.replace(unseeded, seed=seed)
            cell = Cell(name, combination, seed, recipe, run_id(recipe))
            identity = cell.run_id.rpartition("-")[2]
            if identity in taken:
                first = taken[identity]
                reason = "; ".join(ignored) or f"same configuration and seed as {first.name}"
                duplicates.append(Duplicate(name, combination, seed, first.run_id, reason))
            else:
                taken[identity] = cell
                cells.append(cell)
    tasks = dict.fromkeys(task for cell in cells for task in cell.recipe.eval.tasks)
    declared_from(grid.analysis, f"{grid.name}: analysis", benchmarks=tasks)
    return cells, duplicates


def _budget_keys(grid: Grid, base: Mapping[str, Any]) -> dict[str, Any]:
    """Config keys for the grid's budget. A token budget lifts the step limit to where it can't bind."""
    assert grid.budget is not None
    if grid.budget.steps is not None:
        return {"trainer.max_steps": grid.budget.steps}
    trainer = base.get("trainer") or {}
    schedule = trainer_value(trainer, "lr_scheduler_type")
    if schedule not in ("constant", "constant_with_warmup"):
        raise ConfigError(
            f"{grid.name}: budget.generated_tokens: needs a learning rate that doesn't depend on the number of steps; "
            f"trainer.lr_scheduler_type is '{schedule}', expected constant or constant_with_warmup"
        )
    tokens = int(grid.budget.generated_tokens or 0)
    rows = int(trainer_value(trainer, "per_device_train_batch_size"))
    return {"budget.generated_tokens": tokens, "trainer.max_steps": max(1, tokens // rows)}


def _cell_recipe(base: dict[str, Any], keys: Mapping[str, Any], where: str) -> tuple[Recipe, list[str]]:
    """The recipe with `keys` set. A setting of a component that is off has no effect and is left out, with a note."""
    ignored = []
    whole = {k: v for k, v in keys.items() if k.count(".") < 2 or not k.startswith("components.")}
    values = apply_overrides(base, [])
    assign(values, whole)
    components = values.get("components") or {}
    for key, value in keys.items():
        if key in whole:
            continue
        component = key.split(".")[1]
        if not components.get(component):
            ignored.append(f"{key} has no effect while {component} is off")
        else:
            if isinstance(components[component], str):
                components[component] = dict(catalog.component(component, where).presets[components[component]])
            assign(values, {key: value})
    return _recipe(values, {}, where), ignored


def _recipe(values: dict[str, Any], keys: Mapping[str, Any], where: str) -> Recipe:
    values = apply_overrides(values, [])
    assign(values, keys)
    return parse_recipe(values, where)


def assign(values: dict[str, Any], keys: Mapping[str, Any]) -> None:
    """Set dotted keys in place, see `dotted.assign`."""
    for key, value in keys.items():
        wrong = dotted.assign(values, key, value)
        if wrong:
            raise ConfigError(f"'{key}': {wrong}")
