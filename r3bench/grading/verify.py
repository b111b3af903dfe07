"""Mathematical equality by math-verify. Runs inside a worker process only: any call here may hang or crash."""

import logging
import re
import zlib
from functools import lru_cache
from typing import Any

from r3bench.grading.normalise import plain_pair

RELATIVE = 1e-4  # two values further apart than this are different, whatever rounding to decimals says
# math-verify takes 't', 'c', 'bc' and others for units; behind a formula they are variables (units are off before this)
_VARIABLES = re.compile(r"(?<![a-zA-Z])(?!(?:[ckm]m|kg|ft)$)[a-zA-Z]{1,2}$")


@lru_cache(maxsize=4096)
def parsed(text: str) -> list[Any]:
    """`text` as math-verify expressions; an empty list if it can't be read."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    rules = NormalizationConfig(units=not _VARIABLES.search(text), malformed_operators=True, nits=True)
    # all of the text or nothing: by default math-verify goes on to look for any number or fraction in it
    whole = LatexExtractionConfig(try_extract_without_anchor=False, boxed_match_priority=0, normalization_config=rules)
    return list(parse(rf"\boxed{{{text}}}", extraction_config=[whole], parsing_timeout=None))


def _value(expressions: list[Any]) -> complex | None:
    """The value of an expression with fixed numbers for its variables, None for anything but an expression.

    Variables are real and positive, and equal names get equal numbers.
    """
    from sympy import Expr, Float, Symbol

    expression = expressions[0]
    if not isinstance(expression, Expr) or isinstance(expression, Symbol):
        return None
    try:
        numbers = {s: Float(0.5 + zlib.crc32(s.name.encode()) / 2**31) for s in expression.free_symbols}
        return complex(expression.subs(numbers).evalf(15))
    except (AttributeError, TypeError, ValueError, OverflowError, ZeroDivisionError, NotImplementedError):
        return None


def same_value(answer: str, gold: str) -> tuple[bool, str]:
    """Whether `answer` equals `gold` as mathematics, and why."""
    from math_verify import verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    ours, theirs = (parsed(text) for text in plain_pair(answer, gold))
    if not theirs:
        return False, "gold can't be read as mathematics"
    if not ours:
        return False, "answer can't be read as mathematics"
    if "%" not in answer and "%" not in gold:  # 27 % may stand for 27 and for 0.27
        # most wrong answers end here; math-verify would try to simplify the difference, for seconds at worst, and
        # would accept two small decimals that are equal after six places
        a, b = _value(ours), _value(theirs)
        if a is not None and b is not None and abs(a - b) > RELATIVE * max(abs(a), abs(b)):
            return False, "another value"
    # gold first: the comparison is not symmetric
    if not verify(theirs, ours, allow_set_relation_comp=True, timeout_seconds=None):
        return False, "not equal"
    return True, "equal"
