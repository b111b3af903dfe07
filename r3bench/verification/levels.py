"""Do a run's factors say what its configuration has?"""

from collections.abc import Mapping
from typing import Any

from r3bench.config.load import resolve_components, resolved
from r3bench.config.sections import Recipe
from r3bench.config.strict import plain, spelled_number
from r3bench.errors import ConfigError
from r3bench.records import RunPaths, RunRecord
from r3bench.sweep.grid import factors_of, parse_grid
from r3bench.verification.findings import Findings

PREFIX = "components."


def check_levels(paths: RunPaths, record: RunRecord, recipe: Recipe, spec: Mapping[str, Any], found: Findings) -> None:
    """Every level in the record against the values it stands for.

    Args:
        paths: the run.
        record: its record.
        recipe: its configuration.
        spec: the content of `study.json`.
        found: takes what is found.
    """
    try:
        factors = {factor.name: factor for factor in factors_of(parse_grid(spec["grid"], "study.json"))}
    except (ConfigError, KeyError) as error:
        found.note(f"study.json: what its levels stand for can't be worked out here ({error})")
        return
    config = resolved(recipe)
    inner = {key for factor in factors.values() for level in factor.levels.values() for key in level} | {
        *spec["grid"].get("set", {})
    }
    for name, level in record.factors.items():
        found.looked("configurations")
        if name not in factors or level not in factors[name].levels:
            found.fault("configurations", paths.record, f"factors: {name}={level} is not a level of the grid")
            continue
        for key, value in factors[name].levels[level].items():
            if not _has(config, key, value, inner):
                found.fault(
                    "configurations",
                    paths.record,
                    f"factors: {name}={level} sets {key}; config.json differs",
                )


def _has(config: Mapping[str, Any], key: str, value: Any, keys: set[str]) -> bool:
    if key.startswith(PREFIX) and key.count(".") == 1:
        component = key.removeprefix(PREFIX)
        try:
            wanted = resolve_components({component: value}, "study.json").get(component)
        except ConfigError:
            return True  # it can't be told here
        stored = config["components"].get(component)
        refined = any(other.startswith(f"{key}.") for other in keys)
        return (wanted is None) == (stored is None) if refined else plain(wanted) == plain(stored)
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return True  # a shorthand, or a component that is off
        node = node[part]
    if isinstance(value, Mapping) or isinstance(node, Mapping):
        return True  # a whole section: its parts have defaults
    a, b = spelled_number(node), spelled_number(value)
    return a == b if a is not None and b is not None else plain(node) == plain(value)
