"""Mathematical equality by math-verify. Runs inside a worker process only: any call here may hang or crash."""

import logging
import re
from functools import lru_cache
from typing import Any

from r3bench.grading.decide import decide, plain_pair
from r3bench.grading.structure import Parts, parts
from r3bench.grading.values import compare, same_equation

# math-verify takes 't', 'c', 'bc' and others for units; behind a formula they are variables (units are off before this)
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
)
_EQUALS = re.compile(r"(?<![<>!\\:])=")
_NAME = re.compile(r"(?:[a-zA-Z]|\\(?!frac|sqrt|sum|int|begin)[a-zA-Z]+|\|)[\w\s\\{}()|',]*")
_OR = re.compile(r"\s+or\s+")
_PERCENT = re.compile(r"(.*\S)\s*%")
_ORDERED = re.compile(r"[<>]|\\(?:leq?|geq?|lt|gt|neq?|in|cup|cap|setminus)(?![a-zA-Z])")


def same_value(answer: str, gold: str) -> tuple[bool, str]:
    """Whether `answer` equals `gold` as mathematics, and why."""
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    return _same(*plain_pair(answer, gold))


@lru_cache(maxsize=4096)
def _member(answer: str, gold: str) -> bool:
    settled = decide(answer, gold)
    return (settled or _same(*plain_pair(answer, gold)))[0]


def _same(answer: str, gold: str) -> tuple[bool, str]:
    ours, theirs = parts(answer), parts(gold)
    if (ours is None) != (theirs is None):  # where one is a list, 58,500 in the other may be one
        ours, theirs = ours or parts(answer, False), theirs or parts(gold, False)
    if ours or theirs:
        settled = _same_parts(ours, theirs, gold)
        if settled is not None:
            return settled
    if answer.endswith("%") or gold.endswith("%"):
        return _same_percentage(answer, gold)
    unnamed = _without_name(answer, gold)
    if unnamed != (answer, gold):
        return decide(*unnamed) or _same(*plain_pair(*unnamed))
    return _same_expression(answer, gold)


def _same_parts(ours: Parts | None, theirs: Parts | None, gold: str) -> tuple[bool, str] | None:
    """The verdict where at least one side has members; None where math-verify is to read the whole.

    A set is no point or interval. A bare list doesn't say whether its order matters, so a tuple, which does say so, is
    right in the list's order only; a list that the gold gives as a tuple likewise.
    """
    if theirs is None:
        return (False, "a ratio of several") if ours and ours.kind == "ratio" and len(ours.members) > 2 else None
    if ours is None:
        if theirs.kind == "list" and not _ORDERED.search(gold):
            return False, "one value, not a list"
        return None
    kinds = ours.kind, theirs.kind
    if "ratio" in kinds:
        return _same_ratio(ours, theirs) if kinds == ("ratio", "ratio") else None
    if kinds in (("set", "bracket"), ("bracket", "set")):
        return False, "a set is no tuple or interval"
    if theirs.kind in ("list", "set"):
        if ours.kind in ("list", "set"):
            return _same_members(ours, theirs)
        ordered = ours.kind == "bracket" and (ours.brackets == "()" or len(ours.members) > 2)
    elif theirs.kind == "bracket":
        same = ours.brackets == theirs.brackets
        ordered = (ours.kind == "bracket" and same) or (ours.kind in ("list", "vector") and theirs.brackets == "()")
    else:
        ordered = ours.kind == "bracket" and ours.brackets == "()"
    return _in_order(ours, theirs) if ordered else None


def _in_order(ours: Parts, theirs: Parts) -> tuple[bool, str]:
    if len(ours.members) != len(theirs.members):
        return False, "another number of members"
    for answer, gold in zip(ours.members, theirs.members, strict=True):
        if not _member(answer, gold):
            return False, "another member"
    return True, "same members"


def _same_members(ours: Parts, theirs: Parts) -> tuple[bool, str]:
    """In any order. Members count as often as they stand there only if the gold, a list, repeats one."""
    if theirs.kind == "list" and theirs.repeats:
        if len(ours.members) != len(theirs.members):
            return False, "another number of members"
        rest = list(theirs.members)
        for answer in ours.members:
            match = next((gold for gold in rest if _member(answer, gold)), None)
            if match is None:
                return False, "another member"
            rest.remove(match)
        return True, "same members"
    missing = set(theirs.members)
    for answer in ours.members:
        matches = {gold for gold in theirs.members if _member(answer, gold)}
        if not matches:
            return False, "another member"
        missing -= matches
    return not missing, "a member is missing" if missing else "same members"


def _same_ratio(ours: Parts, theirs: Parts) -> tuple[bool, str]:
    if len(ours.members) != len(theirs.members):
        return False, "a ratio of another number"
    first, *others = ours.members
    gold_first, *golds = theirs.members
    for answer, gold in zip(others, golds, strict=True):
        if not _member(rf"\frac{{{answer}}}{{{first}}}", rf"\frac{{{gold}}}{{{gold_first}}}"):
            return False, "another ratio"
    return True, "same ratio"


def _same_percentage(answer: str, gold: str) -> tuple[bool, str]:
    """27 % is right for 27, and for 0.27; and the other way round."""
    ours, theirs = (_PERCENT.fullmatch(text) for text in (answer, gold))
    a, b = ours.group(1) if ours else answer, theirs.group(1) if theirs else gold
    equal = _member(a, b)
    if not equal and not (ours and theirs):
        equal = _member(rf"\frac{{{a}}}{{100}}", b) if ours else _member(a, rf"\frac{{{b}}}{{100}}")
    return equal, "equal" if equal else "another percentage"


def _without_name(answer: str, gold: str) -> tuple[str, str]:
    """Without the name that only one of the two gives its value: `f(3) = 5`, `m_{\\max} = n - 1`, `5 = x`."""
    sides = [_EQUALS.split(text) for text in (answer, gold)]
    out = []
    for text, mine, other in ((answer, sides[0], sides[1]), (gold, sides[1], sides[0])):
        if len(mine) == 2 and len(other) == 1 and not _ORDERED.search(text):
            named = [bool(_NAME.fullmatch(side.strip())) for side in mine]
            if named[0] != named[1]:
                text = mine[named[0]].strip() or text
            elif named[0]:
                text = mine[1].strip() or text
        out.append(text)
    return out[0], out[1]


def parsed(text: str) -> list[Any]:
    """`text` as an expression, and as math-verify spells it; an empty list if it can't be read.

    Letters keep their case, but `C` is the constant `c`; `i` is the imaginary unit.
    """
    from latex2sympy2_extended import NormalizationConfig
    from latex2sympy2_extended.latex2sympy2 import normalize_latex

    for pattern, replacement in _READABLE:
        text = pattern.sub(replacement, text)
    rules = NormalizationConfig(
        units=not _VARIABLES.search(text), malformed_operators=True, nits=True, boxed="last", equations=False
    )
    spelled = normalize_latex(text, rules)
    # a chain of equations that can't be read may have a last side that can
    forms = [spelled] if "," in spelled or ";" in spelled else [spelled, _EQUALS.split(spelled)[-1]]
    read = next((found for found in map(_read, dict.fromkeys(forms)) if found is not None), None)
    return [one for one in (read, spelled) if one is not None and one != ""]


@lru_cache(maxsize=4096)
def _read(text: str) -> Any:
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
    return expression.xreplace(renamed) if renamed else expression


def _alternatives(text: str) -> list[Any]:
    """`x < 2 or x > 3` as a union; empty for anything else."""
    from sympy import Rel, Union

    members = [parsed(part) for part in _OR.split(text)] if _ORDERED.search(text) else []
    relations = [member[0] for member in members if member and isinstance(member[0], Rel)]
    if (
        len(relations) < 2
        or len(relations) < len(members)
        or len(set().union(*(r.free_symbols for r in relations))) > 1
    ):
        return []
    return [Union(*(relation.as_set() for relation in relations))]


def _same_expression(answer: str, gold: str) -> tuple[bool, str]:
    from math_verify import verify
    from sympy import Eq, Expr, Rel

    ours, theirs = _alternatives(answer) or parsed(answer), parsed(gold)
    if not theirs:
        return False, "gold can't be read as mathematics"
    if not ours:
        return False, "answer can't be read as mathematics"
    by_value = compare(ours[0], theirs[0])
    if by_value is not None:
        return by_value, "equal" if by_value else "another value"
    if isinstance(ours[0], Rel) and isinstance(theirs[0], Rel):
        if {str(s) for s in ours[0].free_symbols} != {str(s) for s in theirs[0].free_symbols}:
            return False, "other variables"
        if all(isinstance(one, Eq) and isinstance(one.rhs, Expr) for one in (ours[0], theirs[0])):
            same = same_equation(*(one.lhs - one.rhs for one in (ours[0], theirs[0])))
            return same, "equal" if same else "another equation"
    # gold first: the comparison is not symmetric
    if not verify(theirs, ours, allow_set_relation_comp=True, timeout_seconds=None):
        return False, "not equal"
    return True, "equal"
