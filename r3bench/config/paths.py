"""Paths in recipes and grids: named as seen from the file they stand in, kept as seen from the project."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from r3bench import project, prompts

NAMED = ("data", "data.name", "model", "model.name")  # keys with a path, or a name of another kind
PROMPTS = ("data.system", "data.template", "eval.system", "eval.template")
FUNCTIONS = ("reward.functions",)


def localised(key: str, value: Any, base: Path) -> Any:
    """A value of a recipe (`key`: dotted, empty for a whole one) with the paths in it as seen from the project.

    Args:
        base: folder of the file that it stands in.
    """
    if isinstance(value, Mapping):
        return {name: localised(f"{key}.{name}" if key else str(name), inner, base) for name, inner in value.items()}
    if key in FUNCTIONS and isinstance(value, list | tuple):
        return [localised(key, name, base) for name in value]
    if not isinstance(value, str):
        return value
    if key.startswith("data") and key in NAMED:
        return project.spelled(value, base) if project.is_relative(value) else value
    if key in NAMED and not project.is_relative(value) and "/" not in value:
        return value  # a built-in model, whatever folder has its name
    if key in NAMED or (key in PROMPTS and prompts.is_file(value)):
        return project.spelled(value, base)
    if key in FUNCTIONS:
        place, colon, function = value.rpartition(":")
        return f"{project.spelled(place, base)}:{function}" if colon and place.endswith(".py") else value
    return value


def localised_keys(keys: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Dotted keys with their values, as `localised`."""
    return {key: localised(key, value, base) for key, value in keys.items()}
