"""Grid files: which factors are varied, over which seeds, from which recipe, and how cells are run."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from r3bench import catalog, project
from r3bench.analysis.declared import declared_from
from r3bench.config.load import apply_overrides, read_yaml
from r3bench.config.paths import localised, localised_keys
from r3bench.config.strict import build, inside, plain, show, spelled_number, truth_hint
from r3bench.errors import ConfigError, nearest
from r3bench.sweep.design import Design

SEEDS = 2**32  # seeds are below this, as in a recipe
OWN_KEYS = {  # first part of a config key -> what a grid has for it; as a factor it would change nothing, or be lost
    "eval": "how runs are measured is the same for all of them; use the grid's 'eval' section",
    "seed": "every cell is run with each of the grid's 'seeds'",
    "name": "cells are named after their levels; the grid's 'name' names the study",
}
STUDY_NAME = re.compile(r"\w[\w.+ -]{0,99}")


@dataclass(frozen=True)
class BudgetSection:
    """Where every cell stops training. Exactly one is set."""

    steps: int | None = None  # optimiser steps, written to trainer.max_steps
    generated_tokens: int | None = None  # completion tokens sampled, extra groups included

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.generated_tokens is None):
            raise ValueError("expected exactly one of steps and generated_tokens")
        for name in ("steps", "generated_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: got {value}, expected at least 1")


@dataclass(frozen=True)
class RetrySection:
    """Further attempts a cell gets after a failure, by class. A diverged run is an outcome and never repeated."""

    bug: int = 0  # an exception in our code or the user's: it would only happen again
    out_of_memory: int = 4  # each halves the micro-batch and doubles accumulation
    preempted: int = 10  # killed or lost from outside; resumes from its newest checkpoint
    timeout: int = 1  # no progress for `hang_after` seconds

    def __post_init__(self) -> None:
        for name in ("bug", "out_of_memory", "preempted", "timeout"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected 0 or above")


@dataclass(frozen=True)
class ExecutorSection:
    """Where cells run."""

    kind: Literal["local", "slurm", "ray", "inline"] = "local"  # inline: in the dispatcher's own process, one by one
    slots: int | None = None  # cells at a time; null: one per GPU group, without GPUs one per CPU core
    gpus: int = 1  # GPUs per cell, where there are any; more than one runs under torchrun
    strategy: Literal["ddp", "fsdp2", "zero2", "zero3"] = "ddp"  # how a model is spread over a cell's GPUs
    options: dict[str, Any] = field(default_factory=dict)  # slurm: submitit parameters; ray: remote() options

    def __post_init__(self) -> None:
        if self.slots is not None and self.slots < 1:
            raise ValueError(f"slots: got {self.slots}, expected at least 1 or null")
        if self.gpus < 1:
            raise ValueError(f"gpus: got {self.gpus}, expected at least 1")
        if self.options and self.kind in ("local", "inline"):
            raise ValueError(f"options: got {self.options} with kind '{self.kind}', which has none; expected them with "
                             "slurm or ray")  # fmt: skip
        if self.strategy != "ddp" and self.gpus == 1:
            raise ValueError(f"strategy: {self.strategy} splits a model over processes, expected gpus of 2 or more")


@dataclass(frozen=True)
class NotifySection:
    """Who is told how the study goes. It never holds up or fails a run."""

    command: str | None = None  # for /bin/sh; facts are in its environment, R3BENCH_EVENT, R3BENCH_MESSAGE, ...
    url: str | None = None  # http(s): JSON is posted to it; another scheme: apprise's. Recorded without what is secret
    events: tuple[Literal["run_failed", "run_diverged", "run_finished", "study_ended"], ...] = (
        "run_failed", "run_diverged", "study_ended",
    )  # what is told  # fmt: skip
    timeout: float = 60.0  # seconds after which a command is killed, a post given up

    def __post_init__(self) -> None:
        if not 0 < self.timeout <= 3600:
            raise ValueError(f"timeout: got {self.timeout}, expected seconds above 0 and up to 3600")


@dataclass(frozen=True)
class TuningSection:
    """Search for hyper-parameters inside every cell before its runs, on a validation split only."""

    space: dict[str, Any]  # config key -> {low, high, log?, step?} or a list of choices
    trials: int = 8  # per cell, the same for all
    seed: int = 1000  # training seed of the search; kept apart from the grid's seeds
    steps: int | None = None  # optimiser steps per trial; null: the cell's own
    task: str = "embedded-validation"  # validation task that decides; never an evaluation benchmark of the grid
    samples: int = 4  # answers per validation question
    limit: int | None = None  # first N validation questions
    prune: bool = True  # stop a trial that is behind the median of the finished ones

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ValueError(f"trials: got {self.trials}, expected at least 1")
        if not 0 <= self.seed < SEEDS:
            raise ValueError(f"seed: got {self.seed}, expected 0 to {SEEDS - 1}")
        for name in ("steps", "samples", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: got {value}, expected at least 1")
        if not self.space:
            raise ValueError("space: empty, expected at least one config key")


@dataclass(frozen=True)
class Grid:
    """A grid file. A factor is a component's name (levels `off`, `on`, presets or settings), a dotted config key
    (levels are values), or any other name whose levels each set several dotted keys."""

    recipe: str  # base recipe: a name or a path
    factors: dict[str, Any]  # factor -> list of levels, or level name -> value
    seeds: tuple[int, ...] = (0, 1, 2)  # every cell is run with each
    design: Design = "full"  # which combinations of levels are run
    cells: tuple[dict, ...] = ()  # type: ignore[type-arg]  # design `list`: factor -> level, one mapping per cell
    set: dict[str, Any] = field(default_factory=dict)  # dotted config key -> value, applied to the recipe first
    base_model: bool = True  # also evaluate the model as it is before training
    budget: BudgetSection | None = None  # where training stops; null: the recipe's
    eval: dict[str, Any] = field(default_factory=dict)  # keys of the recipe's eval section to change
    tuning: TuningSection | None = None  # search inside every cell; null: none
    retries: RetrySection = field(default_factory=RetrySection)  # further attempts by failure class
    executor: ExecutorSection = field(default_factory=ExecutorSection)  # where cells run
    notify: NotifySection = field(default_factory=NotifySection)  # who is told of failures and of the end
    hang_after: float = 1800.0  # seconds without a step, an evaluated shard or a checkpoint before a cell is killed
    disk_floor_gb: float = 2.0  # free space below which no cell is started and no checkpoint written
    analysis: dict[str, Any] = field(default_factory=dict)  # what the analysis fixes in advance, see `Declared`
    keep: Literal["all", "model", "none"] = "model"  # after a verified evaluation: all; no checkpoints; no weights
    description: str = ""  # shown by `r3bench list`
    name: str = ""  # the study's folder; the file's name unless given
    home: str = ""  # the project, where names and paths are looked for first: the file's; never written, nor read

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds: got {list(self.seeds)}, expected a list of distinct seeds")
        for seed in self.seeds:
            if not 0 <= seed < SEEDS:
                raise ValueError(f"seeds: got {seed}, expected 0 to {SEEDS - 1}")
        if not self.factors:
            raise ValueError("factors: empty, expected at least one factor")
        if self.design == "list" and not self.cells:
            raise ValueError("cells: missing, expected a list of cells with design 'list'")
        if self.design != "list" and self.cells:
            raise ValueError(f"cells: only used with design 'list', not with '{self.design}'")
        if self.hang_after <= 0:
            raise ValueError(f"hang_after: got {self.hang_after}, expected seconds above 0")
        if self.disk_floor_gb < 0:
            raise ValueError(f"disk_floor_gb: got {self.disk_floor_gb}, expected 0 or above")
        if self.tuning is not None and self.tuning.seed in self.seeds:
            raise ValueError(f"tuning.seed: got {self.tuning.seed}, which is one of the grid's seeds; expected another")


@dataclass(frozen=True)
class Factor:
    """One factor with its levels, base first; `levels[name]` maps dotted config keys to values."""

    name: str
    levels: dict[str, dict[str, Any]]
    bundle: bool = False  # neither a component nor a config key: a name for settings that go together


def load_grid(name: str, overrides: Sequence[str] = ()) -> Grid:
    """The grid called `name` in `ablations/` (the user's first), or at that path.

    Args:
        name: a name or a path.
        overrides: `key=value`, changes to the recipe as in the grid's `set`; `eval.` keys as in its `eval`.

    Raises:
        ConfigError: naming the file, key, value and expectation.
    """
    project.enter(None)
    path = catalog.grid_path(name)
    catalog.enter_project(path)
    values = read_yaml(path)
    values.setdefault("name", path.stem)
    values = _localised(values, path.parent)
    for override in overrides:
        key = override.partition("=")[0].strip()
        value: Any = apply_overrides({}, [override])
        for part in key.split("."):
            value = value[part]
        section, own = ("eval", key.removeprefix("eval.")) if key.startswith("eval.") else ("set", key)
        values[section] = {**(values.get(section) or {}), own: value}
    grid = parse_grid(values, str(path))
    return replace(grid, home=str(project.home()))


def grid_from(values: Mapping[str, Any], where: str, base: Path) -> Grid:
    """The grid in a mapping whose paths are as seen from `base`, the project.

    Raises:
        ConfigError: naming `where`, key, value and expectation.
    """
    project.enter(base)
    return replace(parse_grid(_localised(dict(values), base), where), home=str(project.home()))


def _localised(values: dict[str, Any], base: Path) -> dict[str, Any]:
    """A grid's values with the paths in it as seen from the project."""
    if isinstance(values.get("recipe"), str) and catalog.is_path(values["recipe"]):
        values["recipe"] = project.spelled(values["recipe"], base)
    for section in ("set", "eval"):
        if isinstance(values.get(section), Mapping):
            prefix = "eval." if section == "eval" else ""
            found = localised_keys({f"{prefix}{key}": value for key, value in values[section].items()}, base)
            values[section] = {key.removeprefix(prefix): value for key, value in found.items()}
    if isinstance(values.get("factors"), Mapping):
        values["factors"] = {name: _localised_levels(str(name), v, base) for name, v in values["factors"].items()}
    return values


def _localised_levels(name: str, levels: Any, base: Path) -> Any:
    """The levels of a factor; a list whose items change becomes a mapping, so that levels are called as written."""
    if isinstance(levels, Mapping):
        return {
            level: localised_keys(value, base) if isinstance(value, Mapping) else localised(name, value, base)
            for level, value in levels.items()
        }
    if isinstance(levels, list):
        found = [localised(name, level, base) for level in levels]
        return {_text(level): value for level, value in zip(levels, found, strict=True)} if found != levels else levels
    return levels


def parse_grid(values: Mapping[str, Any], where: str) -> Grid:
    """A checked `Grid` from a mapping; `on` and `off` may be written bare, as YAML reads them."""
    values = dict(values)
    if isinstance(values.get("factors"), Mapping):
        values["factors"] = {
            _text(factor): {_text(k): v for k, v in levels.items()} if isinstance(levels, Mapping) else levels
            for factor, levels in values["factors"].items()
        }
    if isinstance(values.get("cells"), list):
        values["cells"] = [
            {_text(f): _text(level) for f, level in cell.items()} if isinstance(cell, Mapping) else cell
            for cell in values["cells"]
        ]
    if "home" in values:
        raise ConfigError(f"{inside(where, 'home')}: got {show(values['home'])} for an unknown key")
    grid = build(Grid, values, where)
    if "name" in values:
        check_study_name(grid.name, inside(where, "name"))
    for key in grid.set:
        if key in ("seed", "name"):
            raise ConfigError(f"{where}: set.{key}: can't be set; {OWN_KEYS[key]}")
    parsed = {f.name: f for f in factors_of(grid, where)}
    _check_set(grid, parsed, where)
    declared_from(grid.analysis, f"{where}: analysis", factors=parsed)
    for number, cell in enumerate(grid.cells):
        for factor, level in cell.items():
            spot = inside(where, f"cells[{number}]")
            if factor not in parsed:
                raise ConfigError(f"{spot}: no factor '{factor}'{nearest(factor, parsed)}")
            if level not in parsed[factor].levels:
                read = "; YAML reads a bare no or off as 'off', yes or on as 'on': quote a level called otherwise"
                hint = nearest(str(level), parsed[factor].levels) + (read if level in ("on", "off") else "")
                raise ConfigError(f"{spot}.{factor}: no level '{level}'{hint}")
    return grid


def _check_set(grid: Grid, factors: Mapping[str, Factor], where: str) -> None:
    """`ConfigError` for a setting that no cell would have, because a factor replaces it at every level."""
    for key in grid.set:
        for factor in factors.values():
            if all(any(f"{key}.".startswith(f"{own}.") for own in level) for level in factor.levels.values()):
                raise ConfigError(
                    f"{where}: set.{key}: every level of factor '{factor.name}' replaces it; expected the setting in "
                    f"the factor's levels, such as {factor.name}: {{first: ..., second: ...}}"
                )


def factors_of(grid: Grid, where: str = "grid") -> list[Factor]:
    """The factors with their levels as dotted keys to set."""
    spot = inside(where, "factors")
    factors = [_factor(name, levels, inside(spot, name)) for name, levels in grid.factors.items()]
    setter: dict[str, str] = {}
    for factor in factors:
        for key in {key: None for keys in factor.levels.values() for key in keys}:
            if key in setter:
                raise ConfigError(
                    f"{inside(spot, factor.name)}: sets {key}, which factor '{setter[key]}' sets as well; "
                    "expected every key in one factor"
                )
            setter[key] = factor.name
    return factors


def check_study_name(name: str, where: str) -> None:
    """`ConfigError` unless `name` can be a folder's, everywhere."""
    if not STUDY_NAME.fullmatch(name) or len(name.encode()) > 200:
        raise ConfigError(
            f"{where}: got {show(name)}, expected a plain folder name: up to 100 letters, digits, spaces and . _ + -, "
            "the first a letter, digit or _"
        )


def _factor(name: str, levels: Any, where: str) -> Factor:
    components = catalog.component_names()
    if name == "base":
        raise ConfigError(f"{where}: 'base' marks the model before training; expected another name for this factor")
    if name not in components:
        _check_own(name, where)
    bundle = name not in components and "." not in name
    if bundle and not isinstance(levels, Mapping):
        raise ConfigError(
            f"{where}: not a component and not a dotted config key, expected levels that set config keys, such as "
            f"{{off: {{reward.length_bonus: false}}}}{nearest(name, components)}"
        )
    if isinstance(levels, Mapping):
        items = list(levels.items())
    elif isinstance(levels, Sequence) and not isinstance(levels, str):
        items = [(_text(level), level) for level in levels]
    else:
        raise ConfigError(f"{where}: got {levels!r}, expected a list of levels or a mapping of names to values")
    names = [level for level, _ in items]
    if len(names) < 2 or len(set(names)) != len(names):
        raise ConfigError(f"{where}: got levels {names}, expected at least two distinct ones")
    if bundle:
        for level, keys in items:
            if not isinstance(keys, Mapping) or not all(isinstance(key, str) for key in keys):
                raise ConfigError(f"{where}.{level}: got {keys!r}, expected a mapping of config keys to values")
            for key in keys:
                _check_own(key, f"{where}.{level}.{key}")
        for key in {
            key: None for _, keys in items for key in keys if key.removeprefix("components.") not in components
        }:
            _check_texts([keys[key] for _, keys in items if key in keys], f"{where}: {key}")
        return Factor(name, {level: dict(keys) for level, keys in items}, bundle=True)
    if name in components:
        for level, value in items:
            if level in ("on", "off") and _component_value(value) is (level == "off"):
                raise ConfigError(f"{where}.{level}: got {show(value)}, the opposite of what the level is called")
    else:
        _check_texts([value for _, value in items], where)
    key = f"components.{name}" if name in components else name
    return Factor(name, {level: {key: _component_value(v) if name in components else v} for level, v in items})


def _check_texts(values: Sequence[Any], where: str) -> None:
    """`ConfigError` for a truth value among texts: YAML has read one of them otherwise than it was meant."""
    texts = [value for value in values if isinstance(value, str) and spelled_number(value) is None]
    for value in values:
        if isinstance(value, bool) and texts:
            raise ConfigError(f"{where}: got {show(value)} beside the text '{texts[0]}'{truth_hint(value)}")


def _check_own(key: str, where: str) -> None:
    top = key.partition(".")[0]
    if top in OWN_KEYS and ("." in key or top != "eval"):
        raise ConfigError(f"{where}: can't be a factor; {OWN_KEYS[top]}")


def _component_value(value: Any) -> Any:
    """A component's level as the recipe spells it: `on` and `off` (texts or YAML booleans) to true and false."""
    return {"on": True, "off": False}.get(value, value) if isinstance(value, str) else value


def _text(value: Any) -> str:
    """A level's name; YAML reads bare `on` and `off` as booleans."""
    if value is True:
        return "on"
    if value is False:
        return "off"
    if isinstance(value, list) and value and all(item == "accuracy" or ":" in str(item) for item in value):
        return "+".join(str(item).rpartition(":")[2] for item in value)  # reward functions, by their names
    return str(value)


def written(grid: Grid) -> dict[str, Any]:
    """A grid as JSON-ready data, without where it was found."""
    values: dict[str, Any] = plain(grid)
    del values["home"]
    return values
