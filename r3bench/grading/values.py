"""Formulas compared by their values at a few fixed places. Inside a worker process only: an evaluation may hang.

Two formulas that agree to 35 digits at three places are the same one; math-verify's `simplify` takes longer and finds
less (no `\\sqrt{1/n} = 1/\\sqrt n`, as `n` might be negative). Variables are real and positive.
"""

import cmath
import zlib
from typing import Any

from r3bench.grading.numbers import APART

POINTS = 3  # places at which two formulas are compared
DIGITS = 50  # of the numbers put in for variables
AGREE = 1e-35  # relative difference at which two values with that many digits are the same
AGREE_FLOAT = 1e-14  # the same where a decimal point limits the digits to 15
LARGE = 1e12  # beyond this a difference of one is too close to call with variables put in


def compare(ours: Any, theirs: Any) -> bool | None:
    """Whether two sympy expressions are the same by their values; None where values don't settle it."""
    from sympy import Expr, Float, Symbol

    if any(not isinstance(one, Expr) or isinstance(one, Symbol) for one in (ours, theirs)):
        return None
    if ours.is_Rational and theirs.is_Rational:
        return bool(ours == theirs)
    both = (ours, theirs)
    variable = any(one.free_symbols or _opaque(one) for one in both)
    rough = any(one.has(Float) for one in both)
    for point in range(POINTS if variable else 1):
        values = [_value(one, point, 15) for one in both]
        if values[0] is None or values[1] is None:
            return None
        a, b = (complex(value) for value in values)
        if not (cmath.isfinite(a) and cmath.isfinite(b)):  # beyond a double
            return False if abs(values[0] - values[1]) > APART * abs(values[1]) else None
        size = max(abs(a), abs(b))
        if abs(a - b) > APART * size:
            return False
        if rough:
            if abs(a - b) > AGREE_FLOAT * size:
                return None
        elif not _equal(ours, theirs, point, variable, size):
            return None
    return None if variable and any(_stepped(one) for one in both) else True


def same_equation(ours: Any, theirs: Any) -> bool:
    """Whether two expressions, set to zero, say the same: one is a multiple of the other by a constant, or they have
    the same root in a variable that both are linear in, or the same solutions for every variable."""
    from sympy import Derivative, Symbol, ordered, solve
    from sympy.core.function import AppliedUndef

    both = [
        one.xreplace({part: Symbol(str(part)) for part in one.atoms(Derivative, AppliedUndef)})
        for one in (ours, theirs)
    ]
    values = [[_value(one, point, DIGITS) for one in both] for point in range(POINTS)]
    if all(value is not None and complex(value) for pair in values for value in pair):
        ratios = [complex(a / b) for a, b in values]
        if all(abs(ratio - ratios[0]) <= AGREE_FLOAT * abs(ratio) for ratio in ratios):
            return True
    unknowns = list(ordered(both[1].free_symbols))
    for unknown in unknowns:
        found = [_root(one, unknown, point) for point in range(POINTS) for one in both]
        roots = [root for root in found if root is not None]
        if len(roots) == len(found):
            pairs = zip(roots[::2], roots[1::2], strict=True)
            return all(abs(a - b) <= AGREE_FLOAT * max(abs(a), abs(b)) for a, b in pairs)
    for unknown in unknowns:
        answers, golds = (solve(one, unknown) for one in both)
        if len(answers) != len(golds) or not all(any(compare(one, gold) for gold in golds) for one in answers):
            return False
    return bool(unknowns)


def _root(expression: Any, unknown: Any, point: int) -> complex | None:
    """Where the expression is zero as a function of one variable, at a place for the others; None if not linear."""
    values = [_value(expression.xreplace({unknown: place}), point, 15) for place in _places()]
    if any(value is None for value in values):
        return None
    zero, one, two = (complex(value) for value in values)
    size = max(abs(zero), abs(one), abs(two))
    if (
        not size < float("inf")
        or abs(two - 2 * one + zero) > AGREE_FLOAT * size
        or abs(one - zero) <= AGREE_FLOAT * size
    ):
        return None
    return -zero / (one - zero)


def _places() -> "tuple[Any, ...]":
    from sympy import Integer

    return Integer(0), Integer(1), Integer(2)


def _equal(ours: Any, theirs: Any, point: int, variable: bool, size: float) -> bool:
    if not variable:  # exactly: sympy raises the working precision until the difference has digits or none are left
        difference = (ours - theirs).evalf(15)
        return all(part == 0 or getattr(part, "_prec", 0) == 1 for part in difference.as_real_imag())
    a, b = _value(ours, point, DIGITS), _value(theirs, point, DIGITS)
    return size < LARGE and a is not None and b is not None and abs(complex(a - b)) <= AGREE * size


def _value(expression: Any, point: int, digits: int) -> Any:
    """The value with the fixed numbers of a place for its variables, None if it has none."""
    from sympy import I, S

    try:
        value = _filled(expression, point).evalf(digits)
        # a part of which no digit is certain is a zero that can't be seen to be one
        real, imaginary = (S.Zero if getattr(part, "_prec", 0) == 1 else part for part in value.as_real_imag())
        return real + I * imaginary if real.is_finite and imaginary.is_finite else None
    # sympy's ways to say that an expression has no value at these numbers
    except (AttributeError, TypeError, ValueError, OverflowError, ZeroDivisionError, NotImplementedError):
        return None


def _filled(expression: Any, point: int) -> Any:
    """The expression with numbers for variables, derivatives and functions of no known form: equal names and arguments
    get equal numbers."""
    from sympy import Derivative
    from sympy.core.function import AppliedUndef

    derivatives = {one: _number(str(one), point) for one in expression.atoms(Derivative)}
    if derivatives:
        expression = expression.xreplace(derivatives)
    symbols = {one: _number(one.name, point) for one in expression.free_symbols}
    if symbols:
        expression = expression.xreplace(symbols)
    if expression.has(AppliedUndef):
        expression = expression.replace(
            lambda one: isinstance(one, AppliedUndef),
            lambda one: _number(str(one.func) + "".join(f" {complex(arg.evalf(15)):.9g}" for arg in one.args), point),
        )
    return expression


def _number(name: str, point: int) -> Any:
    from sympy import Float, Integer

    return Integer(1) / 2 + Float(zlib.crc32(f"{point} {name}".encode()), DIGITS) / 2**31


def _opaque(expression: Any) -> bool:
    from sympy import Derivative
    from sympy.core.function import AppliedUndef

    return bool(expression.has(AppliedUndef, Derivative))


def _stepped(expression: Any) -> bool:
    """Whether a formula may agree with another on one side of a place only."""
    from sympy import Abs, Heaviside, Max, Min, Mod, Piecewise, arg, ceiling, conjugate, floor, im, re, sign

    return bool(expression.has(Abs, Heaviside, Max, Min, Mod, Piecewise, arg, ceiling, conjugate, floor, im, re, sign))
