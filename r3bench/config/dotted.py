"""Settings by dotted keys: `trainer.beta`, `components.replay.rows`."""

from typing import Any

SHORTHAND = {"model": "name", "data": "name"}  # `model: embedded` means `model: {name: embedded}`


def assign(values: dict[str, Any], key: str, value: Any) -> str | None:
    """Set a dotted key in place; shorthands (`model: name`) and `component: true` become mappings on the way.

    Returns:
        What stands in its way and is no mapping, in words; None: nothing, it is set.
    """
    *parents, last = key.split(".")
    node = values
    for depth, name in enumerate(parents):
        child = node.get(name)
        if child is None or child is True:
            child = {}
        elif isinstance(child, str) and depth == 0 and name in SHORTHAND:
            child = {SHORTHAND[name]: child}
        elif not isinstance(child, dict):
            return f"'{'.'.join(parents[: depth + 1])}' is {child!r}, not a mapping"
        node[name] = child
        node = child
    node[last] = value
    return None
