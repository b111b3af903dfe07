"""Lists, sets, tuples, vectors and ratios compared by their members."""

import re
from collections.abc import Callable

from r3bench.grading.rules import Outcome
from r3bench.grading.spelling.structure import Parts

Equal = Callable[[str, str], bool]  # whether a part of an answer is right

MATRIX = re.compile(
    r"(?:[A-Za-z](?:_\w|\^\{-1\})?\s*=\s*)?\\begin\s*\{pmatrix\}((?:(?!\\begin).)*)\\end\s*\{pmatrix\}", re.DOTALL
)
_ORDERED = re.compile(r"[<>]|\\(?:leq?|geq?|lt|gt|neq?|in|cup|cap|setminus)(?![a-zA-Z])")
_DESCRIBED = re.compile(
    r"\\(?:mid|cup|cap|setminus|mathbb|in|infty)(?![a-zA-Z])|[<>]|\\(?:leq|geq|neq)(?![a-zA-Z])|real"
)
REPEATED = 3  # equal values that are taken for one


def cells(text: str) -> list[list[str]] | None:
    """The entries of a matrix, row by row; None for anything else."""
    found = MATRIX.fullmatch(text.strip())
    if not found:
        return None
    rows = [row for row in re.split(r"\\\\", found[1]) if row.strip()]
    return [[cell.strip() for cell in row.split("&")] for row in rows]


def same_members(ours: Parts | None, theirs: Parts | None, answer: str, gold: str, equal: Equal) -> Outcome | None:
    """The verdict where at least one side has members; None where the whole is to be read.

    A set is no point or interval. A bare list doesn't say whether its order matters, so a tuple, which does say so, is
    right in the list's order only; a list that the gold gives as a tuple likewise.
    """
    if theirs is None:
        return _several_for_one(ours, answer, gold, equal) if ours else None
    if ours is None:
        if (
            len(theirs.members) > 1
            and theirs.kind == "list"
            and not _ORDERED.search(gold)
            and not _DESCRIBED.search(answer)
        ):
            return False, "one value, not a list"
        if theirs.kind == "set" and len(theirs.members) == 1:
            return (True, "its only member") if equal(answer, theirs.members[0]) else None
        return None
    kinds = ours.kind, theirs.kind
    if "ratio" in kinds:
        return _same_ratio(ours, theirs, equal) if kinds == ("ratio", "ratio") else None
    for one, other in ((ours, theirs), (theirs, ours)):
        if one.kind == "set" and len(one.members) == 1 and other.kind == "bracket":
            same = equal(one.members[0], gold) if one is ours else equal(answer, one.members[0])
            return same, "its only member" if same else "another member"
    if kinds in (("set", "bracket"), ("bracket", "set")):
        return False, "a set is no tuple or interval"
    if theirs.kind in ("list", "set"):
        if ours.kind in ("list", "set"):
            if _ORDERED.search(gold) and all(map(_ORDERED.search, (answer, gold))):
                return None
            return _any_order(ours, theirs, equal)
        ordered = ours.kind == "bracket" and (ours.brackets == "()" or len(ours.members) > 2)
    elif theirs.kind == "bracket":
        same = ours.brackets == theirs.brackets
        ordered = (ours.kind == "bracket" and same) or (ours.kind in ("list", "vector") and theirs.brackets == "()")
        if ours.kind == "bracket" and not same and len(ours.members) == 2:
            return False, "other brackets"
    else:
        ordered = ours.kind == "bracket" and ours.brackets == "()"
    return _in_order(ours, theirs, equal) if ordered else None


def _several_for_one(ours: Parts, answer: str, gold: str, equal: Equal) -> Outcome | None:
    """Several members where the gold is one value: right if they all are that value."""
    if ours.kind == "ratio":
        return (False, "a ratio of several") if len(ours.members) > 2 else None
    if ours.kind == "set" and len(ours.members) == 1:
        return (True, "its only member") if equal(ours.members[0], gold) else None
    if ours.kind != "list" or _DESCRIBED.search(gold) or any(map(_ORDERED.search, ours.members)):
        return None
    if r"\pm" not in answer and len(ours.members) <= REPEATED and all(equal(member, gold) for member in ours.members):
        return True, "one value, said twice"
    return False, "several values, not one"


def _in_order(ours: Parts, theirs: Parts, equal: Equal) -> Outcome:
    if len(ours.members) != len(theirs.members):
        return False, "another number of members"
    for answer, gold in zip(ours.members, theirs.members, strict=True):
        if not equal(answer, gold):
            return False, "another member"
    return True, "the same members in order"


def _any_order(ours: Parts, theirs: Parts, equal: Equal) -> Outcome:
    """In any order. Members count as often as they stand there only if the gold, a list, repeats one."""
    if len(ours.members) > 50 and len(ours.members) > 4 * len(theirs.members):
        return False, "another number of members"
    if theirs.kind == "list" and theirs.repeats:
        if len(ours.members) != len(theirs.members):
            return False, "another number of members"
        rest = list(theirs.members)
        for answer in ours.members:
            match = next((gold for gold in rest if equal(answer, gold)), None)
            if match is None:
                return False, "another member"
            rest.remove(match)
        return True, "the same members"
    missing = set(theirs.members)
    for answer in ours.members:
        matches = {gold for gold in theirs.members if equal(answer, gold)}
        if not matches:
            return False, "another member"
        missing -= matches
    return not missing, "a member is missing" if missing else "the same members"


def _same_ratio(ours: Parts, theirs: Parts, equal: Equal) -> Outcome:
    if len(ours.members) != len(theirs.members):
        return False, "a ratio of another number"
    first, *others = ours.members
    gold_first, *golds = theirs.members
    for answer, gold in zip(others, golds, strict=True):
        if not equal(rf"\frac{{{answer}}}{{{first}}}", rf"\frac{{{gold}}}{{{gold_first}}}"):
            return False, "another ratio"
    return True, "the same ratio"
