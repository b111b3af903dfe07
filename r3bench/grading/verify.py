"""Mathematical equality by math-verify. Runs inside a worker process only: any call here may hang or crash."""

import logging
from functools import lru_cache
from typing import Any

from r3bench.grading.normalise import plain

RELATIVE = 1e-4  # two numbers math-verify calls equal must also agree to this, or its rounding hid the difference


@lru_cache(maxsize=4096)
def parsed(text: str) -> list[Any]:
    """`text` as math-verify expressions; an empty list if it can't be read."""
    from math_verify import parse

    # without the box math-verify reads only numbers and formulas in dollar signs
    return list(parse(rf"\boxed{{{text}}}", parsing_timeout=None))


def _value(expressions: list[Any]) -> float | None:
    try:
        number = expressions[0].evalf(15)
        return float(number) if number.is_number and number.is_real else None
    except (AttributeError, TypeError, ValueError, OverflowError, IndexError):
        return None


def same_value(answer: str, gold: str) -> tuple[bool, str]:
    """Whether `answer` equals `gold` as mathematics, and why."""
    from math_verify import verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    ours, theirs = parsed(plain(answer)), parsed(plain(gold))
    if not theirs:
        return False, "gold can't be read as mathematics"
    if not ours:
        return False, "answer can't be read as mathematics"
    # gold first: the comparison is not symmetric
    if not verify(theirs, ours, allow_set_relation_comp=True, timeout_seconds=None):
        return False, "not equal"
    a, b = _value(ours), _value(theirs)
    percent = "%" in answer or "%" in gold
    if a is not None and b is not None and not percent and abs(a - b) > RELATIVE * max(abs(a), abs(b)):
        return False, "equal only after rounding"
    return True, "equal"
