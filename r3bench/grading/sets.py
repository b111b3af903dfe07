"""Sets of real numbers: intervals, inequalities, unions, described sets, as sympy's. In a worker process only."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from r3bench.grading.read import read
from r3bench.grading.spelling.structure import outward, parts, split
from r3bench.grading.values import compare

_OR = re.compile(r"\\(?:lor|cup)(?![a-zA-Z])|(?<![a-zA-Z\\])(?:or|oder|ou)(?![a-zA-Z])|(?<![а-я])или(?![а-я])|或|、")
_AND = re.compile(
    r"\\(?:land|cap)(?![a-zA-Z])|(?<![a-zA-Z\\])(?:and|und|et|but|with|where)(?![a-zA-Z])|(?<![а-я])и(?![а-я])|且|和"
)
_COMMA = re.compile(r"[,;]")
_MINUS = re.compile(
    r"\\setminus(?![a-zA-Z])|(?<=[})\]R])\s*-\s*(?=\\\{)|\\backslash|(?<![a-zA-Z])(?:except|without)(?![a-zA-Z])"
)
_RELATION = re.compile(r"<|>|=|\\(?:leq|geq|neq|lt|gt)(?![a-zA-Z])")
_SIGNS = {"<": "<", ">": ">", "=": "=", r"\leq": "<=", r"\geq": ">=", r"\neq": "!=", r"\lt": "<", r"\gt": ">"}
_IN = re.compile(r"\s*([a-zA-Z])\s*\\(not)?in(?![a-zA-Z])\s*(.*)", re.DOTALL)
_SUCH = re.compile(
    r"\\\{\s*([a-zA-Z])\s*(?:\\in\s*\\mathbb\s*\{?R\}?)?\s*(?:\\mid|\||:|\\colon)\s*(.*)\\\}\s*", re.DOTALL
)
_REALS = re.compile(
    r"\\mathbb\s*\{?R\}?|(?:the\s+)?(?:set\s+of\s+)?(?:all\s+)?real(?:s|\s+numbers?)|all\s+reals?|(?:all|any|"
    r"every)\s+real\s+(?:values?|numbers?)(?:\s+of\s+)?\s*[a-z]?|[a-z]\s+is\s+any\s+real\s+number"
)
_HALF = re.compile(
    r"\\mathbb\s*\{?R\}?\s*(?:_\s*\{?\s*(\\geq|\\leq|>|<|\+|-)\s*(0?)\s*\}?|\^\s*\{?\s*([+-])\s*\}?|"
    r"\^\s*\{?\s*\\?\*\s*\}?)"
)
_EMPTY = re.compile(r"\\emptyset|\\\{\s*\\\}")
_SIGNALS = re.compile(
    r"<|>|\\(?:leq|geq|neq|cup|cap|setminus|infty|mathbb|emptyset|in|notin)(?![a-zA-Z])|real|\\mid|\\\{|[\[(][^()"
    r"\[\]]*,[^()\[\]]*[\])]"
)


@dataclass(frozen=True)
class RealSet:
    """A set of real numbers, and the variable it was described by."""

    variable: str | None
    points: Any  # sympy.Set


def looks_like_set(text: str) -> bool:
    """Whether a text may be a set of real numbers."""
    return bool(_SIGNALS.search(text))


@lru_cache(maxsize=2048)
def real_set(text: str) -> RealSet | None:
    """The set that a text in `plain` spelling says; None if it says none, or one with variables for bounds."""
    if len(text) > 400:
        return None
    from sympy import SympifyError

    try:
        return _any(outward(text.strip()), 0)
    # sympy's ways to say that it can't decide a bound or solve an inequality
    except (TypeError, ValueError, NotImplementedError, AttributeError, SympifyError, ZeroDivisionError):
        return None


def _joined(found: list[RealSet | None], how: Any) -> RealSet | None:
    kept = [one for one in found if one is not None]
    names = {one.variable for one in kept} - {None}
    if len(kept) < len(found) or len(names) > 1:
        return None
    return RealSet(next(iter(names), None), how(*(one.points for one in kept)))


def _any(text: str, depth: int) -> RealSet | None:
    from sympy import Complement, Intersection, Union

    text = text.strip()
    if depth > 8 or not text:
        return None
    for pattern, how in ((_OR, Union), (_AND, Intersection)):
        pieces = [piece for piece in split(text, pattern) if piece.strip(" ,;")]
        if len(pieces) > 1:
            named = _shared(pieces)
            return _joined([_any(piece.strip(" ,;"), depth + 1) for piece in named], how)
    pieces = split(text, _MINUS)
    if len(pieces) > 1:
        found = [_any(piece, depth + 1) for piece in pieces]
        whole = _joined(found, lambda first, *rest: Complement(first, Union(*rest)))
        return whole
    pieces = split(text, _COMMA)
    if len(pieces) > 1 and all(_RELATION.search(piece) or _IN.fullmatch(piece) for piece in pieces):
        found = [_any(piece, depth + 1) for piece in pieces]
        both = _joined(found, Intersection)
        return _joined(found, Union) if both is not None and both.points.is_empty else both
    return _one(text, depth)


def _shared(pieces: list[str]) -> list[str]:
    r"""`x < 2 or > 3`: the variable of the first for all."""
    first = re.match(r"\s*([a-zA-Z])\s*(?=<|>|\\(?:leq|geq|lt|gt)|=)", pieces[0])
    if not first:
        return pieces
    return [
        pieces[0],
        *(first[1] + piece if re.match(r"\s*(?:<|>|\\(?:leq|geq|lt|gt))", piece) else piece for piece in pieces[1:]),
    ]


def _one(text: str, depth: int) -> RealSet | None:
    from sympy import Complement, EmptySet, FiniteSet, Interval, Reals, S

    if _EMPTY.fullmatch(text):
        return RealSet(None, EmptySet)
    if _REALS.fullmatch(text.lower() if "\\" not in text else text):
        return RealSet(None, Reals)
    half = _HALF.fullmatch(text)
    if half:
        sign = half[1] or half[3]
        if sign is None:
            return RealSet(None, Complement(Reals, FiniteSet(0)))
        above = sign in ("+", ">", r"\geq")
        is_open = sign not in (r"\geq", r"\leq")
        return RealSet(
            None, Interval(0, S.Infinity, is_open, True) if above else Interval(S.NegativeInfinity, 0, True, is_open)
        )
    member = _IN.fullmatch(text)
    if member:
        inner = _any(member[3], depth + 1)
        if inner is None:
            return None
        return RealSet(member[1], Complement(Reals, inner.points) if member[2] else inner.points)
    described = _SUCH.fullmatch(text)
    if described:
        return _any(described[2], depth + 1)
    form = parts(text)
    if form is not None and form.kind == "set":
        values = [_number(one) for one in form.members]
        return RealSet(None, FiniteSet(*values)) if None not in values else None
    if form is not None and form.kind == "bracket" and len(form.members) == 2 and text[0] in "([" and text[-1] in ")]":
        low, high = (_number(one) for one in form.members)
        if low is None or high is None or not bool(low < high):
            return None
        return RealSet(None, Interval(low, high, form.brackets[0] == "(", form.brackets[1] == ")"))
    if text[:1] == "(" and text[-1:] == ")" and split(text[1:-1], _OR)[0] != text[1:-1]:
        return _any(text[1:-1], depth + 1)
    if re.fullmatch(r"\\\{[^{}]+\\\}", text) and "," not in text:
        value = _number(text[2:-2])
        return RealSet(None, FiniteSet(value)) if value is not None else None
    return _related(text)


def _related(text: str) -> RealSet | None:
    """The solutions of a chain of relations in one variable."""
    from sympy import Eq, Ge, Gt, Intersection, Le, Lt, Ne, Reals

    signs = [found.group() for found in _RELATION.finditer(text)]
    sides = split(text, _RELATION)
    if len(sides) < 2 or len(sides) > 5 or len(signs) != len(sides) - 1:
        return None
    read_sides = [read(side.strip()) for side in sides]
    names = set().union(*(getattr(side, "free_symbols", set()) for side in read_sides))
    if any(side is None for side in read_sides) or len(names) != 1:
        return None
    kinds = {"<": Lt, ">": Gt, "=": Eq, "<=": Le, ">=": Ge, "!=": Ne}
    found = []
    for first, sign, second in zip(read_sides, signs, read_sides[1:], strict=False):
        relation = kinds[_SIGNS[sign]](first, second)
        if relation in (True, False):
            return None
        found.append(relation.as_set())
    (name,) = names
    return RealSet(name.name, Intersection(Reals, *found))


def _number(text: str) -> Any:
    from sympy import Expr

    value = read(text.strip())
    return value if isinstance(value, Expr) and not value.free_symbols and value.is_extended_real else None


def _pieces(points: Any) -> list[tuple[Any, Any, bool, bool]] | None:
    from sympy import FiniteSet, Interval, Union

    members = points.args if isinstance(points, Union) else (points,)
    out = []
    for one in members:
        if one.is_empty:
            continue
        if isinstance(one, Interval):
            out.append((one.start, one.end, bool(one.left_open), bool(one.right_open)))
        elif isinstance(one, FiniteSet):
            out += [(value, value, False, False) for value in one]
        elif type(one).__name__ == "Reals":
            from sympy import S

            out.append((S.NegativeInfinity, S.Infinity, True, True))
        else:
            return None
    return sorted(out, key=lambda piece: (float(piece[0]), float(piece[1])))


def same_set(ours: RealSet, theirs: RealSet) -> bool | None:
    """Whether two sets are the same; None where their bounds can't be told apart."""
    if ours.variable and theirs.variable and ours.variable != theirs.variable:
        return False
    a, b = _pieces(ours.points), _pieces(theirs.points)
    if a is None or b is None:
        return bool(ours.points == theirs.points) or None
    if len(a) != len(b):
        return False
    for first, second in zip(a, b, strict=True):
        if first[2:] != second[2:]:
            return False
        for x, y in zip(first[:2], second[:2], strict=True):
            if not (x == y or (x.is_finite and y.is_finite and compare(x, y))):
                return False
    return True
