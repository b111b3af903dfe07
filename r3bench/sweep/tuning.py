"""Search for hyper-parameters inside a cell: the same number of trials for every cell, on validation questions only.

A trial is a run of its own in `tuning/<cell>/trial-<n>/`, with the tuning seed; the cell's runs then use fresh seeds
with the winner, so that the search's luck isn't part of the result. `tuning.json`, written last, is the whole search.
"""

import dataclasses
import hashlib
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from r3bench import project
from r3bench.config.load import parse_recipe, resolved
from r3bench.config.sections import Recipe
from r3bench.config.strict import build, plain, spelled_number
from r3bench.config.trainer_fields import trainer_value
from r3bench.errors import ConfigError
from r3bench.files import expect, read_json, write_json
from r3bench.records import avg_at_k
from r3bench.seals import sealed, unsealed
from r3bench.sweep.cell_run import Steps, run_cell
from r3bench.sweep.cells import assign
from r3bench.sweep.grid import Grid, TuningSection, factors_of
from r3bench.sweep.task_values import is_validation

if TYPE_CHECKING:
    import optuna

SHORT = 0.25  # share of the steps after which a trial can be pruned
STARTUP = 3  # trials that are never pruned


def check_tuning(grid: Grid, recipes: Sequence[Recipe], where: str) -> None:
    """`ConfigError` for a space with bad entries, or a search on anything but a validation split.

    Args:
        grid: the grid.
        recipes: of its cells; every one has the same eval section.
        where: what to call the grid.
    """
    if grid.tuning is None:
        return
    recipe = recipes[-1]
    varied = {key: f.name for f in factors_of(grid, where) for level in f.levels.values() for key in level}
    if grid.tuning.task in recipe.eval.tasks or not is_validation(grid.tuning.task):
        raise ConfigError(
            f"{where}: tuning.task: got '{grid.tuning.task}', expected a task that reads a validation split and isn't "
            "one of the grid's benchmarks: choosing by test questions would count luck as skill"
        )
    for key, spec in grid.tuning.space.items():
        if key.split(".")[0] in ("eval", "seed", "name", "data"):
            raise ConfigError(
                f"{where}: tuning.space.{key}: can't be tuned; expected a trainer, reward or component key"
            )
        spot = f"{where}: tuning.space.{key}"
        if key in varied:
            raise ConfigError(f"{spot}: factor '{varied[key]}' sets it as well; expected one that no factor sets")
        values = _extremes(spec, spot)
        having = next((r for r in recipes if key in space_of(grid.tuning, r)), None)
        if having is None:
            raise ConfigError(f"{spot}: no cell has this component on")
        for value in values:
            settings = resolved(having)
            assign(settings, {key: value})
            parse_recipe(settings, f"{where}, tuning.space with {key} = {value!r}")


def spelled(spec: Any) -> Any:
    """An entry of the space with the numbers that YAML reads as text (`1e-6`) as numbers."""

    def number(value: Any) -> Any:
        found = spelled_number(value) if isinstance(value, str) else None
        return value if found is None else found

    if isinstance(spec, list):
        return [number(choice) for choice in spec]
    if isinstance(spec, Mapping):
        return {key: number(value) for key, value in spec.items()}
    return spec


def _extremes(spec: Any, spot: str) -> list[Any]:
    """The choices of an entry of the space, or the lowest and highest value of its range."""
    spec = spelled(spec)
    if isinstance(spec, list) and len(spec) >= 2:
        for choice in spec:
            if not isinstance(choice, str | int | float | bool | None):
                raise ConfigError(f"{spot}: got {choice!r}, expected texts, numbers, true, false or null as choices")
        return spec
    if not isinstance(spec, Mapping):
        raise ConfigError(f"{spot}: got {spec!r}, expected low and high, or a list of choices")
    low, high, step, log = spec.get("low"), spec.get("high"), spec.get("step"), spec.get("log", False)
    if not _is_number(low) or not _is_number(high) or not low < high or set(spec) - {"low", "high", "log", "step"}:
        raise ConfigError(f"{spot}: got {dict(spec)!r}, expected low < high with optional log and step")
    if not isinstance(log, bool):
        raise ConfigError(f"{spot}: log: got {log!r}, expected true or false")
    if log and low <= 0:
        raise ConfigError(f"{spot}: low: got {low}, expected a number above 0 with log")
    if step is None:
        return [low, high]
    if log:
        raise ConfigError(f"{spot}: log and step exclude each other")
    whole = isinstance(low, int) and isinstance(high, int)
    if not _is_number(step) or step <= 0 or (whole and not isinstance(step, int)):
        raise ConfigError(f"{spot}: step: got {step!r}, expected {'an integer' if whole else 'a number'} above 0")
    return [low, low + (high - low) // step * step]


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def space_of(section: TuningSection, recipe: Recipe) -> dict[str, Any]:
    """The part of the space that this cell has: settings of components that are off are left out."""
    return {
        key: spelled(spec)
        for key, spec in section.space.items()
        if not key.startswith("components.") or key.split(".")[1] in recipe.components
    }


def tuning_folder(root: Path, cell: str) -> Path:
    """Where a cell's search is. A name that holds a model's or path's slashes is spelled without, and told apart."""
    slug = re.sub(r"[^\w.+-]+", "-", cell).strip("-.")
    if slug != cell or len(slug) > 100:
        slug = f"{slug[:100]}-{hashlib.sha256(cell.encode()).hexdigest()[:8]}"
    return root / "tuning" / slug


def winners(root: Path) -> dict[str, dict[str, Any]]:
    """Cell name -> winning settings of the finished searches of a study."""
    found = {path: unsealed(read_json(path), path) for path in sorted(root.glob("tuning/*/tuning.json"))}
    return {expect(content, path, cell=str, params=dict)["cell"]: content["params"] for path, content in found.items()}


def job(grid: Grid, recipe: Recipe, root: Path) -> dict[str, Any]:
    """A cell's search as JSON-ready data for an executor."""
    return {
        "directory": str(tuning_folder(root, recipe.name).absolute()),
        "recipe": resolved(recipe),
        "tuning": plain(grid.tuning),
        "strategy": grid.executor.strategy,
        "home": str(project.home()),
    }


def run_search(work: Mapping[str, Any], steps: Steps | None = None) -> dict[str, Any]:
    """Run what is left of a cell's search and write `tuning.json`; its content.

    Each trial's settings follow from the seed, its number and the trials before it, so a search that was interrupted
    goes on as if it had not been.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folder = Path(work["directory"])
    section = build(TuningSection, work["tuning"], "tuning")
    project.enter(work.get("home"))
    recipe = parse_recipe(work["recipe"], str(folder))
    space = space_of(section, recipe)
    study = optuna.create_study(direction="maximize")
    trials: list[dict[str, Any]] = []
    for number in range(section.trials):
        study.sampler = optuna.samplers.TPESampler(seed=_seed(section.seed, number), n_startup_trials=STARTUP)
        trial = study.ask()
        params = {key: _suggest(trial, key, spec) for key, spec in space.items()}
        done = _trial(folder, number, params, recipe, section, trials, steps)
        if done["value"] is None:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED if done["pruned"] else optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, done["value"])
        trials.append(done)
    finished = [t for t in trials if t["value"] is not None]
    best = max(finished, key=lambda t: t["value"]) if finished else None
    result = {
        "cell": recipe.name,
        "task": section.task,
        "space": space,
        "trials": trials,
        "best": best["number"] if best else None,
        "params": best["params"] if best else {},
    }
    write_json(folder / "tuning.json", sealed(result))
    return result


def _trial(
    folder: Path,
    number: int,
    params: Mapping[str, Any],
    recipe: Recipe,
    section: TuningSection,
    before: list[dict[str, Any]],
    steps: Steps | None,
) -> dict[str, Any]:
    """One trial: a short run that may end it, then the whole one."""
    values = resolved(recipe)
    assign(values, params)
    evaluation = dataclasses.replace(recipe.eval, tasks=(section.task,), samples=section.samples, limit=section.limit)
    tuned = dataclasses.replace(
        parse_recipe(values, f"{folder.name}: trial {number}"), seed=section.seed, eval=evaluation
    )
    total = section.steps or int(trainer_value(tuned.trainer, "max_steps"))
    short = None
    if section.prune and total >= 1 / SHORT:
        short = _value(tuned, folder / f"trial-{number}-short", max(1, int(total * SHORT)), section, steps)
        known = [t["short"] for t in before if t["short"] is not None]
        if short is None or (len(known) >= STARTUP and short < statistics.median(known)):
            return {"number": number, "params": dict(params), "short": short, "value": None, "pruned": True}
    value = _value(tuned, folder / f"trial-{number}", total, section, steps)
    return {"number": number, "params": dict(params), "short": short, "value": value, "pruned": False}


def _value(recipe: Recipe, directory: Path, total: int, section: TuningSection, steps: Steps | None) -> float | None:
    """Validation accuracy after `total` steps; None when training diverged."""
    trainer = {**recipe.trainer, "max_steps": total, "save_strategy": "no"}
    record = run_cell(
        dataclasses.replace(recipe, trainer=trainer), directory, {"tuning": recipe.name}, quiet=True, steps=steps
    )
    if record.train.outcome != "finished":
        return None
    return avg_at_k(record.eval[section.task])


def _seed(seed: int, number: int) -> int:
    return int(hashlib.sha256(f"{seed}-{number}".encode()).hexdigest()[:8], 16)


def _suggest(trial: "optuna.Trial", key: str, spec: Any) -> Any:
    if isinstance(spec, list):
        return trial.suggest_categorical(key, spec)
    log, step = bool(spec.get("log", False)), spec.get("step")
    if isinstance(spec["low"], int) and isinstance(spec["high"], int):
        return trial.suggest_int(key, spec["low"], spec["high"], step=step or 1, log=log)
    return trial.suggest_float(key, float(spec["low"]), float(spec["high"]), step=step, log=log)
