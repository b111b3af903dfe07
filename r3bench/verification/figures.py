"""Figures of a record beside the same ones made anew."""

import json
import math
from typing import Any


def short(value: Any) -> str:
    """A value for a message."""
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)[:60]


def close(a: Any, b: Any) -> bool:
    """Whether two JSON values are the same but for rounding."""
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(close, a, b))
    return bool(a == b)
