"""LaTeX to sympy, by latex2sympy2_extended, with its choices narrowed. Inside a worker process only: it may hang."""

import re
from functools import lru_cache
from typing import Any

# the parser takes 't', 'c', 'bc' and others for units; behind a formula they are variables (units are off before this)
_VARIABLES = re.compile(r"(?<![a-zA-Z])(?!(?:[ckm]m|kg|ft)$)[a-zA-Z]{1,2}$")
_READABLE = (  # what the parser passes over or fails at, as names it keeps
    (re.compile(r"([a-zA-Z])('{1,3})"), lambda found: rf"{found[1]}_{{{'prime' * len(found[2])}}}"),
    (re.compile(r"\\(d?dot|hat|vec|bar|tilde)\s*(\\[a-zA-Z]+|[a-zA-Z](?![a-zA-Z]))"), r"\\\1{\2}"),
    (re.compile(r"_\s*(?:\{\s*\\([a-zA-Z]+)\s*\}|\\([a-zA-Z]+))"), lambda found: f"_{{{found[1] or found[2]}}}"),
    (
        re.compile(r"(?<![a-zA-Z\\])([Ee])\s*_\s*(?:\{(\w+)\}|(\w))"),
        lambda found: f"K_{{{found[1]}{found[2] or found[3]}}}",
    ),
    (re.compile(r"(?<![a-zA-Z\\])(arc(?:sin|cos|tan)|sin|cos|tan|cot|sec|csc|ln|log|exp)(?![a-zA-Z])"), r"\\\1 "),
    (re.compile(r"\\gamma(?![a-zA-Z]|\s*_)"), r"g_{gamma}"),  # else the function
    (re.compile(r"\\lg(?![a-zA-Z])"), r"\\log_{10} "),
    (re.compile(r"(?<![a-zA-Z\\])(max|min|gcd|lcm)\s*(?=\()"), r"\\\1"),
)


TERMS = 400  # of a sum or product that is worked out


def spelt_for_parser(text: str) -> str:
    """`text` as latex2sympy2_extended reads it best."""
    from latex2sympy2_extended import NormalizationConfig
    from latex2sympy2_extended.latex2sympy2 import normalize_latex

    for pattern, replacement in _READABLE:
        text = pattern.sub(replacement, text)
    rules = NormalizationConfig(
        units=not _VARIABLES.search(text), malformed_operators=True, nits=True, boxed="last", equations=False
    )
    return normalize_latex(text, rules)


def read(text: str) -> Any:
    """`text` as a sympy object, None if it can't be read. Letters keep their case, but `C` is the constant `c`; `i` is
    the imaginary unit."""
    return read_spelt(spelt_for_parser(text))


@lru_cache(maxsize=4096)
def read_spelt(text: str) -> Any:
    """`read` of a text that has been through `spelt_for_parser`."""
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
    from sympy import I, Symbol

    conversion = ConversionConfig(lowercase_symbols=False)
    try:
        expression = latex2sympy(text, is_real=True, normalization_config=None, conversion_config=conversion)
    except (RecursionError, MemoryError):
        raise
    except Exception:  # noqa: BLE001, hostile text: the parser fails in many ways
        return None
    symbols = getattr(expression, "free_symbols", ())
    renamed = {s: I if s.name == "i" else Symbol("c", real=True) for s in symbols if s.name in ("i", "C")}
    return _summed(expression.xreplace(renamed) if renamed else expression)


def _summed(expression: Any) -> Any:
    """Finite sums and products of numbers worked out, where they have few terms."""
    from sympy import Expr, Product, Sum

    if not isinstance(expression, Expr) or not expression.has(Sum, Product):
        return expression
    for one in expression.atoms(Sum, Product):
        for _, low, high in (limit for limit in one.limits if len(limit) == 3):
            if not (low.is_Integer and high.is_Integer and 0 <= high - low <= TERMS):
                return expression
    return expression.doit()
