"""A component's state as JSON values with its arrays apart, and back."""

from typing import Any

import numpy as np

ARRAY = "__array__"  # marks a place in the JSON values whose value is among the arrays


def split(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """`value` as JSON values, its arrays moved to `arrays` under their path."""
    if isinstance(value, np.ndarray):
        arrays[path] = np.ascontiguousarray(value)
        return {ARRAY: path}
    if isinstance(value, dict):
        return {str(key): split(item, f"{path}/{key}", arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [split(item, f"{path}/{i}", arrays) for i, item in enumerate(value)]
    return value.item() if isinstance(value, np.generic) else value


def join(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Inverse of `split`."""
    if isinstance(value, dict):
        if set(value) == {ARRAY}:
            return arrays[value[ARRAY]]
        return {key: join(item, arrays) for key, item in value.items()}
    return [join(item, arrays) for item in value] if isinstance(value, list) else value
