"""The rules that need mathematics, in their order. Inside a worker process only: any call here may hang or crash."""

import logging
import math
import re
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from typing import Any

from r3bench.grading.decide import decide
from r3bench.grading.members import cells, same_members
from r3bench.grading.read import read_spelt, spelt_for_parser
from r3bench.grading.rules import Outcome, Pair, Rule, first, pair
from r3bench.grading.sets import looks_like_set, real_set, same_set
from r3bench.grading.spelling.measures import unit
from r3bench.grading.spelling.normalise import spelled
from r3bench.grading.spelling.numbers import as_number, same_fraction
from r3bench.grading.spelling.structure import parts, split
from r3bench.grading.statements import Chain, chain, coordinates, in_order
from r3bench.grading.values import compare, same_equation

_PERCENT = re.compile(r"(.*\S)\s*%")
_ORDERED = re.compile(r"[<>]|\\(?:leq|geq|neq|in|notin|cup|cap|setminus)(?![a-zA-Z])")
_ORDER = re.compile(r"<|>|\\(?:leq|geq)(?![a-zA-Z])")
_TURNED = {"<": ">", ">": "<", r"\leq": r"\geq", r"\geq": r"\leq"}
_PRIME = re.compile(r"(?<=[a-zA-Z)}])'|(?<=\d)'|\\prime(?![a-zA-Z])")
_CASES = re.compile(
    r"(?:(?P<name>[^=]+)=\s*)?(?:\\\{\s*)?\\begin\s*\{d?cases\}(?P<rows>.*)\\end\s*\{d?cases\}", re.DOTALL
)
_CONDITION = re.compile(r"(?<![a-zA-Z])(?:if|when|for|where|is|an?|integer)(?![a-zA-Z])|[,;.:]")
_OTHERWISE = re.compile(r"otherwise|else|elsewhere|in all other cases")
_SIMPLE = r"(?:[a-zA-Z]|\\(?!frac)[a-zA-Z]+|[A-Z]{2,4}|[A-Za-z]{5,})(?:_\w+)?'*(?:\([^()]*\))?"
_EVEN = re.compile(r"(?<![a-zA-Z])even(?![a-zA-Z])")
_EVEN_ODD = re.compile(
    r"(?P<one>.{1,80}?)\s+(?:(?:if|when|for)\s+)?(?:all\s+)?(?P<name>[a-z])\s+(?:is\s+)?(?P<first>even|odd)\s+(?:and\s+)?"
    r"(?P<other>.{1,80}?)\s+(?:(?:if|when|for)\s+)?(?:all\s+)?(?P<same>[a-z])\s+(?:is\s+)?(?!(?P=first))(?:even|odd)\.?"
)
_OF_ONE = re.compile(r"([a-zA-Z](?:_\w+)?'*)\(([a-zA-Z])\)")
_IN = re.compile(r"([a-zA-Z])\s*\\in(?![a-zA-Z])")
_POWER = re.compile(r"(\d+)\s*\^\s*\{([\d^{}]*)\}")
_DECIMALS = re.compile(r"[-+]?\d*\.?(\d*)")


def same_value(answer: str, gold: str) -> Outcome:
    """Whether `answer` equals `gold` as mathematics, and why."""
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    simple = same_fraction(answer, gold)
    if simple is not None:
        return simple, "fraction: " + ("equal" if simple else "another value")
    return _same(_converted(pair(answer, gold)))


def _same(two: Pair) -> Outcome:
    return first(MATHEMATICS, two) or (False, "mathematics: not equal")


def _converted(two: Pair) -> Pair:
    """The pair with the answer's number in the gold's unit."""
    if two.units is True or two.units is False:
        return two
    if isinstance(two.units, Fraction):
        factor = rf"\frac{{{two.units.numerator}}}{{{two.units.denominator}}}"
    else:
        factor = r"\frac{\pi}{180}" if math.isclose(two.units, math.pi / 180) else r"\frac{180}{\pi}"
        if not (math.isclose(two.units, math.pi / 180) or math.isclose(two.units, 180 / math.pi)):
            factor = repr(float(two.units))
    return replace(two, ours=rf"({two.ours}) \cdot {factor}", units=True)


@lru_cache(maxsize=4096)
def compared(answer: str, gold: str) -> Outcome:
    """The verdict for a part of an answer."""
    return decide(answer, gold) or _same(_converted(pair(answer, gold)))


def equal(answer: str, gold: str) -> bool:
    """Whether a part of an answer is right."""
    return compared(answer, gold)[0]


def _without_rule(outcome: Outcome) -> Outcome:
    return outcome[0], outcome[1].partition(": ")[2] or outcome[1]


def _coordinates(two: Pair) -> Outcome | None:
    members = [_IN.match(text) for text in (two.ours, two.theirs)]
    if members[0] and members[1] and members[0][1] != members[1][1]:
        return False, "another variable"
    ours, theirs = coordinates(two.ours), coordinates(two.theirs)
    if ours is None and theirs is None:
        return None
    if ours and theirs:
        if {name for name, _ in ours} != {name for name, _ in theirs}:
            return None if len(ours) == len(theirs) and _tupled(two.ours) else (False, "other names")
        golds = dict(theirs)
        same = all(equal(value, golds[name]) for name, value in ours)
        return same, "the same for every name" if same else "another value for a name"
    named, other = (ours, two.theirs) if ours else (theirs, two.ours)
    form = parts(other)
    assert named is not None
    if form is None or form.kind not in ("bracket", "list", "vector", "set"):
        return None if looks_like_set(other) else (False, "names and values where a single value is asked for")
    if form.kind == "set" or form.brackets not in ("", "()", "column", "row") or len(form.members) != len(named):
        return False, "names and values where something else is asked for"
    values = in_order(named) if ours or not _tupled(two.theirs) else tuple(value for _, value in named)
    pairs = zip(values, form.members, strict=True) if ours else zip(form.members, values, strict=True)
    same = all(equal(answer, gold) for answer, gold in pairs)
    return same, "the same in the order of the names" if same else "another value in the order of the names"


def _tupled(text: str) -> bool:
    return text.lstrip().startswith(("(", "["))


def _parity(two: Pair) -> Outcome | None:
    """One formula for even and one for odd numbers, against one for both."""
    if not _EVEN.search(two.ours) or _EVEN.search(two.theirs) or "cases" in two.theirs:
        return None
    text = re.sub(r"\\begin\{d?cases\}|\\end\{d?cases\}|\\\{|[&,;]", " ", two.ours).replace(r"\\", " ")
    found = _EVEN_ODD.fullmatch(text.strip())
    if not found or found["name"] != found["same"]:
        return None
    even, odd = found["one"].strip(), found["other"].strip()
    if found["first"] == "odd":
        even, odd = odd, even
    sign = rf"(-1)^{{{found['name']}}}"
    same = equal(rf"\frac{{1+{sign}}}{{2}} \cdot ({even}) + \frac{{1-{sign}}}{{2}} \cdot ({odd})", two.theirs)
    return same, "equal for even and odd numbers" if same else "another value"


def _members(two: Pair) -> Outcome | None:
    ours, theirs = parts(two.ours), parts(two.theirs)
    if (ours is None) != (theirs is None):  # where one is a list, 58,500 in the other may be one
        ours, theirs = ours or parts(two.ours, False), theirs or parts(two.theirs, False)
    if not (ours or theirs):
        return None
    if (ours is None and chain(two.ours)) or (theirs is None and chain(two.theirs)):
        return None  # S = {1, 2}: the name goes first
    return same_members(ours, theirs, two.ours, two.theirs, equal)


def _percentage(two: Pair) -> Outcome | None:
    ours, theirs = (_PERCENT.fullmatch(text) for text in (two.ours, two.theirs))
    if not (ours or theirs) or chain(two.ours) or chain(two.theirs):
        return None
    if not (ours and theirs) and (unit(two.words[0]) or unit(two.words[1]) or "basis" in two.words[0]):
        return False, "another unit"
    a, b = ours.group(1) if ours else two.ours, theirs.group(1) if theirs else two.theirs
    if ours and theirs:
        same = equal(a, b)
    elif theirs:
        same = equal(a, b) or equal(a, rf"\frac{{{b}}}{{100}}")
    else:
        number = as_number(b)
        whole = number is not None and abs(number) >= 1 and "." not in b  # a value below 1 is a factor of 100 away
        same = equal(rf"\frac{{{a}}}{{100}}", b) or (whole and equal(a, b))
    return same, "equal" if same else "another percentage"


def _agree(first_side: str, second: str) -> bool:
    """Whether two sides of an equation are equal, or one is the other rounded to its decimals."""
    if equal(first_side, second) or equal(second, first_side):
        return True
    for rounded, other in ((first_side, second), (second, first_side)):
        number = as_number(rounded)
        found = _DECIMALS.fullmatch(rounded.replace(",", "").strip())
        value = read_spelt(spelt_for_parser(other))
        if number is None or not found or value is None or getattr(value, "free_symbols", True):
            continue
        try:
            if abs(float(value) - float(number)) <= 0.6 * 10.0 ** -len(found[1]) and ("." in rounded or "." in other):
                return True
        except (TypeError, ValueError, OverflowError):  # no real number
            continue
    return False


def _all_agree(sides: tuple[str, ...]) -> bool:
    return len(sides) <= 4 and all(_agree(a, b) for a, b in combinations(sides, 2))


def _statement(two: Pair) -> Outcome | None:
    ours, theirs = chain(two.ours), chain(two.theirs)
    if ours is None and theirs is None:
        return None
    ours = _computed(ours) if ours else None
    several = ours is not None and len(ours.values) > 1 and bool(ours.names or theirs is None)
    if ours is not None and several and not _all_agree(ours.values):
        plain = len(ours.values) == 2 and not ours.names
        return False, "an equation, not a value" if plain else "sides that differ"
    if theirs is None:
        assert ours is not None
        if _ORDERED.search(two.theirs) and not parts(two.theirs):
            return None
        verdicts = [compared(value, two.theirs) for value in ours.values]
        return _without_rule(next((one for one in verdicts if one[0]), verdicts[0]))
    if ours is None:
        if len(theirs.values) > 1 and (
            theirs.names or not all(_agree(a, b) for a, b in combinations(theirs.values, 2))
        ):
            return None
        if _ORDERED.search(two.ours) and not parts(two.ours):
            return None
        verdicts = [compared(two.ours, value) for value in theirs.values]
        return _without_rule(next((one for one in verdicts if one[0]), verdicts[0]))
    return _two_statements(ours, theirs)


def _computed(found: Chain) -> Chain:
    r"""`A = \pi r^2 = 9\pi` without the formulas between the name and what they come to."""
    if not found.names or len(found.values) < 2:
        return found
    read = [read_spelt(spelt_for_parser(value)) for value in found.values]
    free = [bool(getattr(value, "free_symbols", True)) for value in read]
    if free[-1] or not free[0] or free != sorted(free, reverse=True):
        return found
    return replace(found, values=tuple(value for value, one in zip(found.values, free, strict=True) if not one))


def _two_statements(ours: Chain, theirs: Chain) -> Outcome | None:
    if not (ours.names and theirs.names and len(theirs.values) == 1):
        return None
    if set(ours.names) & set(theirs.names) or any(_function_of(a, b) for a in ours.names for b in theirs.names):
        return _without_rule(compared(ours.values[0], theirs.values[0]))
    mine, golds = (re.fullmatch(_OF_ONE, found.names[0]) for found in (ours, theirs))
    if mine and golds and mine[1] == golds[1] and len(ours.names) == len(theirs.names) == len(ours.values) == 1:
        used = re.findall(r"\\[a-zA-Z]+|[a-zA-Z]", ours.values[0])
        if golds[2] not in used or golds[2] == mine[2]:  # f(t) for f(x)
            value = re.sub(
                r"\\[a-zA-Z]+|[a-zA-Z]",
                lambda letter: f" {golds[2]} " if letter[0] == mine[2] else letter[0],
                ours.values[0],
            )
            return _without_rule(compared(value, theirs.values[0]))
    if not all(re.fullmatch(_SIMPLE, name) for name in (*ours.names, *theirs.names)):
        return None
    letters = set(re.findall(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", theirs.values[0])))
    if not any(name in letters for name in ours.names):
        return False, "another name"
    return None  # y = 2x may be x = y/2


def _function_of(a: str, b: str) -> bool:
    """`f(x)` and `y`, or `f(x)` and `f`, name the same thing; `f(x)` and `g(x)`, or `f(x)` and `x`, don't."""
    for function, name in ((a, b), (b, a)):
        found = re.fullmatch(r"([a-zA-Z](?:_\w+)?('*))\(([a-zA-Z](?:,[a-zA-Z])*)\)", function)
        if found and (name == found[1] or (name == "y" + found[2] and "y" not in found[3])):
            return True
    return False


def _sets(two: Pair) -> Outcome | None:
    if not (looks_like_set(two.ours) or looks_like_set(two.theirs)):
        return None
    theirs = real_set(two.theirs)
    ours = real_set(two.ours) if theirs is not None else None
    if ours is None or theirs is None:
        turned = _turned(two.ours)
        return (True, "the same relation") if turned and spelled(turned) == spelled(two.theirs) else None
    same = same_set(ours, theirs)
    return None if same is None else (same, "the same set" if same else "another set")


def _turned(text: str) -> str | None:
    """`c > b > a` for `a < b < c`."""
    signs = [found.group() for found in _ORDER.finditer(text)]
    sides = split(text, _ORDER)
    if not signs or len(sides) != len(signs) + 1:
        return None
    out = sides[-1].strip()
    for sign, side in zip(reversed(signs), reversed(sides[:-1]), strict=True):
        out += f" {_TURNED[sign]} {side.strip()}"
    return out


def _matrix(two: Pair) -> Outcome | None:
    ours, theirs = cells(two.ours), cells(two.theirs)
    if ours is None or theirs is None:
        return None
    if [len(row) for row in ours] != [len(row) for row in theirs]:
        return False, "another shape"
    same = all(equal(a, b) for mine, other in zip(ours, theirs, strict=True) for a, b in zip(mine, other, strict=True))
    return same, "the same entries" if same else "another entry"


def _piecewise(two: Pair) -> Outcome | None:
    ours, theirs = _CASES.fullmatch(two.ours.strip()), _CASES.fullmatch(two.theirs.strip())
    if not theirs or "&" not in theirs["rows"]:
        return None
    if not ours:
        return (
            (False, "one case only")
            if "begin" not in two.ours and not re.search(r"\||\(-1\)|max|min|floor", two.ours)
            else None
        )
    mine, golds = (_rows(found["rows"]) for found in (ours, theirs))
    if len(mine) != len(golds):
        return None
    for value, condition in mine:
        if not any(equal(value, gold) and _same_condition(condition, other) for gold, other in golds):
            return False, "another case"
    return True, "the same cases"


def _rows(text: str) -> list[tuple[str, str]]:
    out = []
    for row in re.split(r"\\\\", text):
        if row.strip():
            value, _, condition = row.partition("&")
            out.append((value.strip(" ,;"), " ".join(_CONDITION.sub(" ", condition).split())))
    return out


def _same_condition(ours: str, theirs: str) -> bool:
    if spelled(ours.lower()) == spelled(theirs.lower()):
        return True
    if _OTHERWISE.search(ours.lower()) or _OTHERWISE.search(theirs.lower()):
        return True  # what is left over by equal cases
    a, b = real_set(ours), real_set(theirs)
    return a is not None and b is not None and bool(same_set(a, b))


def _prime(two: Pair) -> Outcome | None:
    if (
        len(_PRIME.findall(two.ours)) != len(_PRIME.findall(two.theirs))
        and not chain(two.ours)
        and not chain(two.theirs)
    ):
        return False, "another derivative"  # the parser passes over them
    return None


def parsed(text: str) -> list[Any]:
    """`text` as an expression, and as the parser spells it; without the first if it can't be read."""
    spelt = spelt_for_parser(text)
    expression = read_spelt(spelt)
    return [one for one in (expression, spelt) if one is not None and one != ""]


def _value(two: Pair) -> Outcome | None:
    powers = [_POWER.fullmatch(text.strip()) for text in (two.ours, two.theirs)]
    if powers[0] and powers[1] and powers[0][1] == powers[1][1] and max(len(found[2]) for found in powers if found) > 6:
        same = equal(powers[0][2], powers[1][2])  # a tower of powers has no value to compare
        return same, "equal" if same else "another power"
    ours, theirs = parsed(two.ours), parsed(two.theirs)
    if not theirs:
        return False, "gold can't be read as mathematics"
    if not ours:
        return False, "answer can't be read as mathematics"
    settled = compare(ours[0], theirs[0])
    return None if settled is None else (settled, "equal" if settled else "another value")


def _equation(two: Pair) -> Outcome | None:
    from sympy import Eq, Expr, Rel

    ours, theirs = parsed(two.ours)[0], parsed(two.theirs)[0]
    if isinstance(ours, Rel) and isinstance(theirs, Rel):
        if {str(s) for s in ours.free_symbols} != {str(s) for s in theirs.free_symbols}:
            return False, "other variables"
        if all(
            isinstance(one, Eq) and isinstance(one.rhs, Expr) and isinstance(one.lhs, Expr) for one in (ours, theirs)
        ):
            same = same_equation(*(one.lhs - one.rhs for one in (ours, theirs)))
            return same, "the same equation" if same else "another equation"
    if isinstance(ours, Rel) != isinstance(theirs, Rel) and (isinstance(ours, Expr) or isinstance(theirs, Expr)):
        return False, "an equation and a value"
    return None


def _library(two: Pair) -> Outcome | None:
    from math_verify import verify

    ours, theirs = parsed(two.ours), parsed(two.theirs)
    # gold first: the comparison is not symmetric
    same = verify(theirs, ours, allow_set_relation_comp=True, timeout_seconds=None)
    return bool(same), "equal" if same else "not equal"


MATHEMATICS = (
    Rule(
        "percent",
        "A percentage equals itself without the sign and the hundredth of it; the sign added to a "
        "gold is passed over for whole "
        "numbers only.",
        ((r"27\%", "0.27", True), ("27", r"27\%", True), ("0.25", r"0.25\%", False)),
        _percentage,
    ),
    Rule(
        "parity",
        "A formula for even and one for odd numbers are compared with one for both.",
        (
            (
                r"\lceil n/2\rceil",
                r"n/2 \text{ if } n \text{ is even, } (n+1)/2 \text{ if } n \text{ is odd}",
                True,
            ),
            (
                r"\lceil n/2\rceil",
                r"n/2 \text{ if } n \text{ is even, } (n-1)/2 \text{ if } n \text{ is odd}",
                False,
            ),
        ),
        _parity,
    ),
    Rule(
        "names",
        "Values given to names are compared name by name; unnamed values are in the order of the names.",
        (("(3,5)", "x=3, y=5", True), ("(3,5)", "y=3, x=5", False)),
        _coordinates,
    ),
    Rule(
        "members",
        "Lists and sets are compared member by member in any order, tuples and intervals in theirs.",
        (("1,2", r"2 \text{ and } 1", True), ("(1,2)", r"\{1,2\}", False), ("27", r"26 \text{ or } 27", False)),
        _members,
    ),
    Rule(
        "statement",
        "A name before a value is taken off; several sides have to be equal, a side that is more "
        "than a name makes an equation.",
        (("27", "x=27", True), ("27", "2x=27", False), ("27", "26=27", False), ("x=27", "y=27", False)),
        _statement,
    ),
    Rule(
        "set",
        "Intervals, inequalities, unions and described sets are compared as sets of real numbers.",
        ((r"(3,\infty)", "x>3", True), ("[0,1)", r"0\le x\le 1", False)),
        _sets,
    ),
    Rule(
        "matrix",
        "Matrices are compared entry by entry.",
        (
            (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"[[1,\frac42],[3,4]]", True),
            (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "[[1,3],[2,4]]", False),
        ),
        _matrix,
    ),
    Rule(
        "cases",
        "Formulas by cases are compared case by case.",
        ((r"\begin{cases}1&x>0\\0&x\le 0\end{cases}", r"\begin{cases}0&x\le 0\\1&x>0\end{cases}", True),),
        _piecewise,
    ),
    Rule("derivative", "As many primes as the gold has.", (("f'(x)", "f(x)", False),), _prime),
    Rule(
        "value",
        "Formulas that agree at fixed places, of both signs where signs or steps matter, are equal; "
        "whole-number formulas at whole numbers.",
        (
            (r"\sqrt{8}", r"2\sqrt{2}", True),
            ("|x-1|", "x-1", False),
            (r"\lceil n/2\rceil", r"\lfloor\frac{n+1}{2}\rfloor", True),
        ),
        _value,
    ),
    Rule(
        "equation",
        "Two equations are equal if they have the same solutions.",
        (("y=2x+1", "2x-y+1=0", True), ("3x+4y=12", "3x+4y=13", False)),
        _equation,
    ),
    Rule(
        "math-verify",
        "What is left is math-verify's.",
        ((r"x \equiv 3 \pmod{7}", r"x \equiv 3 \pmod{8}", False),),
        _library,
    ),
)
