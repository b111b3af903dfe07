"""Formulas compared by their values at fixed places. Inside a worker process only: an evaluation may hang.

Two formulas that agree to 35 digits at three places are the same one there; math-verify's `simplify` takes longer and
finds less (no `\\sqrt{1/n} = 1/\\sqrt n`, as `n` might be negative). Variables are positive first; where a formula has
steps or absolute values, or the usual name of a real variable, places of both signs have to agree as well.
"""

import cmath
import hashlib
from typing import Any

from r3bench.grading.spelling.numbers import APART

POINTS = 3  # places at which two formulas are compared to many digits
DIGITS = 50  # of the numbers put in for variables
AGREE = 1e-35  # relative difference at which two values with that many digits are the same
AGREE_FLOAT = 1e-14  # the same where a decimal point limits the digits to 15
AGREE_ROUGH = 1e-9  # the same at the places that are looked at to 15 digits
LARGE = 1e12  # beyond this a difference of one is too close to call with variables put in
SIGNED = 6  # places of both signs
STEPPED = 48  # places of both signs for formulas with steps: whole numbers, halves, and neither
WHOLE = 60  # whole places for formulas of whole numbers
REAL_NAMES = frozenset("xyztuvw")  # what may be negative without being said so
WHOLE_NAMES = frozenset("ijklmnpqNMK")


def compare(ours: Any, theirs: Any) -> bool | None:
    """Whether two sympy expressions are the same by their values; None where values don't settle it."""
    from sympy import Expr, Float, Symbol

    if any(not isinstance(one, Expr) or isinstance(one, Symbol) for one in (ours, theirs)):
        return None
    if ours.is_Rational and theirs.is_Rational:
        return bool(ours == theirs)
    both = (ours, theirs)
    variable = any(one.free_symbols or _opaque(one) for one in both)
    if not variable:
        return _same_number(ours, theirs, any(one.has(Float) for one in both))
    names = {symbol.name for one in both for symbol in one.free_symbols}
    if (
        _of_whole_numbers(ours)
        and _of_whole_numbers(theirs)
        and names <= WHOLE_NAMES
        and any(map(_steps_at_whole, both))
    ):
        return _agree(ours, theirs, [_whole_place(point) for point in range(WHOLE)])
    if any(map(_stepped, both)):
        return _agree(ours, theirs, [_stepped_place(point) for point in range(STEPPED)])
    rough = any(one.has(Float) for one in both)
    for point in range(POINTS):
        settled = _same_at(ours, theirs, point, rough)
        if settled is not True:
            return settled
    return not (names & REAL_NAMES and _agree(ours, theirs, [_signed_place(point) for point in range(SIGNED)]) is False)


def _same_number(ours: Any, theirs: Any, rough: bool) -> bool | None:
    values = [_value(one, _place(0), 15) for one in (ours, theirs)]
    if values[0] is None or values[1] is None:
        return None
    a, b = (complex(value) for value in values)
    if not (cmath.isfinite(a) and cmath.isfinite(b)):  # beyond a double
        return False if abs(values[0] - values[1]) > APART * abs(values[1]) else None
    size = max(abs(a), abs(b))
    if abs(a - b) > APART * size:
        return False
    if rough:
        return None if abs(a - b) > AGREE_FLOAT * size else True
    # exactly: sympy raises the working precision until the difference has digits or none are left
    difference = (_real_roots(ours) - _real_roots(theirs)).evalf(15)
    same = all(part == 0 or getattr(part, "_prec", 0) == 1 for part in difference.as_real_imag())
    return True if same else None


def _same_at(ours: Any, theirs: Any, point: int, rough: bool) -> bool | None:
    place = _place(point)
    values = [_value(one, place, 15) for one in (ours, theirs)]
    if values[0] is None or values[1] is None:
        return None
    a, b = (complex(value) for value in values)
    if not (cmath.isfinite(a) and cmath.isfinite(b)):
        return False if abs(values[0] - values[1]) > APART * abs(values[1]) else None
    size = max(abs(a), abs(b))
    if abs(a - b) > APART * size:
        return False
    if rough:
        return True if abs(a - b) <= AGREE_FLOAT * size else None
    exact = [_value(one, place, DIGITS) for one in (ours, theirs)]
    if size >= LARGE or exact[0] is None or exact[1] is None:
        return None
    return True if abs(complex(exact[0] - exact[1])) <= AGREE * size else None


def _agree(ours: Any, theirs: Any, places: "list[Any]") -> bool | None:
    """Whether two formulas are equal at all places where both are real; None if there are few such places."""
    seen = 0
    for place in places:
        values = [_value(one, place, 15) for one in (ours, theirs)]
        if values[0] is None or values[1] is None:
            continue
        a, b = (complex(value) for value in values)
        if not (cmath.isfinite(a) and cmath.isfinite(b)):
            continue
        size = max(abs(a), abs(b), 1e-9)
        if abs(a.imag) + abs(b.imag) > AGREE_ROUGH * size:
            continue
        seen += 1
        if abs(a - b) > AGREE_ROUGH * size:
            return False
    return True if 3 * seen >= len(places) else None


def same_equation(ours: Any, theirs: Any) -> bool:
    """Whether two expressions, set to zero, say the same: one is a multiple of the other by a constant, or they have
    the same root in a variable that both are linear in, or the same solutions for every variable."""
    from sympy import Derivative, Symbol, ordered, solve
    from sympy.core.function import AppliedUndef

    both = [
        one.xreplace({part: Symbol(str(part)) for part in one.atoms(Derivative, AppliedUndef)})
        for one in (ours, theirs)
    ]
    stepped = any(map(_stepped, both))
    places = [_place(point) for point in range(POINTS)] + [_signed_place(point) for point in range(SIGNED)]
    places += [_stepped_place(point) for point in range(STEPPED)] if stepped else []
    constant = _constant_ratio(both, places)
    if constant:
        return True
    if stepped:
        return _same_by_root(both, places) is True
    unknowns = list(ordered(both[1].free_symbols))
    settled = _same_by_root(both, places)
    if settled is not None:
        return settled
    for unknown in unknowns:
        answers, golds = (solve(one, unknown) for one in both)
        if len(answers) != len(golds) or not all(any(compare(one, gold) for gold in golds) for one in answers):
            return False
    return bool(unknowns)


def _constant_ratio(both: "list[Any]", places: "list[Any]") -> bool:
    """Whether one expression is a multiple of the other by a number."""
    ratio = None
    seen = 0
    for place in places:
        a, b = (_value(one, place, 30) for one in both)
        if a is None or b is None:
            continue
        a, b = complex(a), complex(b)
        if abs(a) < 1e-12 and abs(b) < 1e-12:
            continue
        if min(abs(a), abs(b)) < 1e-12 * max(abs(a), abs(b), 1):
            return False
        if ratio is None:
            ratio = a / b
        elif abs(a / b - ratio) > AGREE_ROUGH * abs(ratio):
            return False
        seen += 1
    return seen >= POINTS


def _same_by_root(both: "list[Any]", places: "list[Any]") -> bool | None:
    """Whether both are linear in one variable with the same root everywhere; None if they are in none."""
    from sympy import ordered

    for unknown in ordered(both[1].free_symbols & both[0].free_symbols):
        lines = [_line(one, unknown) for one in both]
        if lines[0] is None or lines[1] is None:
            continue
        roots = [-constant / slope for slope, constant in filter(None, lines)]
        same = _agree_or_complex(roots[0], roots[1], places)
        if same is None:
            continue
        return same and all(_no_more(*line) for line in lines if line)
    return None


def _line(expression: Any, unknown: Any) -> tuple[Any, Any] | None:
    """Slope and constant of an expression that is linear in a variable."""
    from sympy import expand

    parts = expand(expression)
    constant = parts.as_independent(unknown, as_Add=True)[0]
    slope = expand((parts - constant) / unknown)
    return (slope, constant) if not slope.has(unknown) and slope != 0 else None


def _no_more(slope: Any, constant: Any) -> bool:
    """Whether `slope * y + constant = 0` says no more than `y = -constant / slope`: slope and constant have no factor
    in common, which would be zero for every y (`xy = x` has the line x = 0 as well)."""
    from sympy import fraction, gcd, together

    if not slope.free_symbols or constant == 0:
        return not slope.free_symbols
    common = gcd(fraction(together(slope))[0], fraction(together(constant))[0])
    return not common.free_symbols


def _agree_or_complex(ours: Any, theirs: Any, places: "list[Any]") -> bool | None:
    seen = 0
    for place in places:
        values = [_value(one, place, 15) for one in (ours, theirs)]
        if values[0] is None or values[1] is None:
            continue
        a, b = (complex(value) for value in values)
        if not (cmath.isfinite(a) and cmath.isfinite(b)):
            continue
        seen += 1
        if abs(a - b) > AGREE_ROUGH * max(abs(a), abs(b), 1e-9):
            return False
    return True if seen >= POINTS else None


def _value(expression: Any, place: Any, digits: int) -> Any:
    """The value with the numbers of a place for its variables, None if it has none."""
    from sympy import I, S

    try:
        value = _real_roots(_filled(expression, place)).evalf(digits)
        # a part of which no digit is certain is a zero that can't be seen to be one
        real, imaginary = (S.Zero if getattr(part, "_prec", 0) == 1 else part for part in value.as_real_imag())
        return real + I * imaginary if real.is_finite and imaginary.is_finite else None
    # sympy's ways to say that an expression has no value at these numbers
    except (AttributeError, TypeError, ValueError, OverflowError, ZeroDivisionError, NotImplementedError):
        return None


def _real_roots(expression: Any) -> Any:
    """Odd roots of negative numbers as the real ones: `\\sqrt[3]{-8}` is -2, as at school."""
    from sympy import Pow

    if not any(one.exp.is_Rational and one.exp.q % 2 and one.exp.q > 1 for one in expression.atoms(Pow)):
        return expression

    def real(base: Any, exponent: Any) -> Any:
        if exponent.is_Rational and exponent.q % 2 and exponent.q > 1 and base.is_extended_real and base.is_negative:
            root = (-base) ** exponent
            return -root if exponent.p % 2 else root
        return base**exponent

    return expression.replace(Pow, real)


def _filled(expression: Any, place: Any) -> Any:
    """The expression with numbers for variables, derivatives and functions of no known form: equal names and arguments
    get equal numbers."""
    from sympy import Derivative
    from sympy.core.function import AppliedUndef

    derivatives = {one: place(str(one)) for one in expression.atoms(Derivative)}
    if derivatives:
        expression = expression.xreplace(derivatives)
    symbols = {one: place(one.name) for one in expression.free_symbols}
    if symbols:
        expression = expression.xreplace(symbols)
    if expression.has(AppliedUndef):
        expression = expression.replace(
            lambda one: isinstance(one, AppliedUndef),
            lambda one: place(str(one.func) + "".join(f" {complex(arg.evalf(15)):.9g}" for arg in one.args)),
        )
    return expression


def _hash(point: int, name: str) -> int:
    """Four bytes without pattern: a checksum's bits would differ alike between two names at every place."""
    return int.from_bytes(hashlib.blake2b(f"{point} {name}".encode(), digest_size=4).digest(), "big")


def _place(point: int) -> Any:
    """Positive numbers with many digits."""
    from sympy import Float, Integer

    return lambda name: Integer(1) / 2 + Float(_hash(point, name), DIGITS) / 2**31


def _signed_place(point: int) -> Any:
    """Numbers of both signs: the first places are negative for all variables, then as it comes."""
    from sympy import Float

    def number(name: str) -> Any:
        size = Float(0.3 + _hash(point + 100, name) / 2**31, 30)
        return -size if point < 2 or _hash(point + 200, name) & 64 else size

    return number


def _stepped_place(point: int) -> Any:
    """Whole numbers, halves and others, of both signs, up to 8."""
    from sympy import Float, Integer, Rational

    def number(name: str) -> Any:
        seed = _hash(point + 300, name)
        sign = 1 if seed & 64 else -1
        if point % 4 == 0:
            return sign * Integer(seed % 8)
        if point % 4 == 1:
            return sign * Rational(2 * (seed % 8) + 1, 2)
        return sign * Float((seed % 80_021) / 10_007, 30)

    return number


def _whole_place(point: int) -> Any:
    """Whole numbers: all alike up to 24, then mixed ones of both signs up to 150."""
    from sympy import Integer

    def number(name: str) -> Any:
        if point < 24:
            return Integer(1 + point)
        seed = _hash(point + 400, name)
        size = Integer(1 + seed % 150)
        return -size if point >= 48 and seed & 4096 else size

    return number


def _opaque(expression: Any) -> bool:
    from sympy import Derivative
    from sympy.core.function import AppliedUndef

    return bool(expression.has(AppliedUndef, Derivative))


def _stepped(expression: Any) -> bool:
    """Whether a formula may agree with another on one side of a place only."""
    from sympy import Abs, Heaviside, Max, Min, Mod, Piecewise, arg, ceiling, conjugate, floor, im, re, sign

    return bool(expression.has(Abs, Heaviside, Max, Min, Mod, Piecewise, arg, ceiling, conjugate, floor, im, re, sign))


def _steps_at_whole(expression: Any) -> bool:
    """Whether a formula is meant for whole numbers: floor, ceiling, a remainder or (-1)^n of a variable."""
    from sympy import Mod, Pow, ceiling, floor

    return any(one.free_symbols for one in expression.atoms(floor, ceiling, Mod)) or any(
        one.exp.free_symbols and one.base.is_number and one.base.is_negative for one in expression.atoms(Pow)
    )


def _of_whole_numbers(expression: Any) -> bool:
    from sympy import cos, pi, sin

    return _steps_at_whole(expression) or any(
        one.free_symbols and one.args[0].has(pi) for one in expression.atoms(sin, cos)
    )
