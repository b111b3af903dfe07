"""The outer form of an answer: a list, set, tuple, interval, vector or ratio and its members, by spelling alone."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Kind = Literal["list", "set", "bracket", "vector", "ratio"]

_MEMBER_OF = re.compile(r"[a-zA-Z]\s*\\in(?![a-zA-Z])\s*(?=[\[({\\])")  # 'x \in [1,2]', 'x \in \{1,2\}'
_NAMES = re.compile(r"\(\s*[a-zA-Z]\s*(?:,\s*[a-zA-Z]\s*){1,9}\)\s*=\s*(?=\()")  # '(x,y) = (1,2)'
_WORDS = re.compile(r"(?:and|or)(?![a-zA-Z])")
_MATRIX = re.compile(r"\\begin\s*\{([pb]?matrix)\}(.*)\\end\s*\{\1\}", re.DOTALL)
_BOUND = re.compile(r"-\s*(?:\\infty|\\inf)(?![a-zA-Z])")
_INFINITE = re.compile(r"[-+]?\s*(?:\\infty|\\inf)(?![a-zA-Z])")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?!\d)[^,;]*$")
_PLUS_MINUS = re.compile(r"\\pm(?![a-zA-Z])")
_MINUS_PLUS = re.compile(r"\\mp(?![a-zA-Z])")
_RATIO_PART = re.compile(r"[\d\s.{}/+*^-]|\\(?:frac|sqrt|pi|cdot)(?![a-zA-Z])")


@dataclass(frozen=True)
class Parts:
    """An answer taken apart once."""

    kind: Kind
    members: tuple[str, ...]  # as written
    brackets: str = ""  # of a tuple or interval: '()', '[)', ...; open at infinity

    @property
    def repeats(self) -> bool:
        """Whether a member is written twice."""
        return len({member.replace(" ", "") for member in self.members}) < len(self.members)


@lru_cache(maxsize=8192)
def parts(text: str, thousands: bool = True) -> Parts | None:
    r"""The outer form of an answer in `plain` spelling; None for anything that has no members.

    `1, 2`, `1; 2`, `1 and 2` and `1 \pm \sqrt 2` are lists; `\{1,2\}` is a set; `(1,2)` and `[1,2)` are brackets, a
    point or an interval; a matrix of one row or column is a vector; `1:2:3` is a ratio; 1,234 is a list without
    `thousands` only.
    """
    text = text.strip()
    for prefix in (_MEMBER_OF, _NAMES):
        found = prefix.match(text)
        text = text[found.end() :] if found else text
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        return _vector(matrix.group(2))
    if text.startswith(r"\{") and text.endswith(r"\}") and _closes(text[1:-2]):
        inner = text[2:-2]
        members = _members(inner, "list")
        if any(sign in inner for sign in ("|", ":", r"\mid")) or not members or not all(members):
            return None  # described, not listed
        return Parts("set", _expanded(members))
    if text[:1] in "([" and text[-1:] in ")]" and len(text) > 2 and _closes(text[:-1]):
        members = _members(text[1:-1], "tuple")
        if len(members) < 2 or not all(members) or _PLUS_MINUS.search(text):
            return None
        opening = "(" if _BOUND.match(members[0]) else text[0]
        closing = ")" if _INFINITE.fullmatch(members[-1]) else text[-1]
        return Parts("bracket", members, opening + closing)
    if thousands and _THOUSANDS.match(text):
        return None
    ratio = _split(text, ":") if ":" in text else ()
    if len(ratio) > 1 and all(part and not _RATIO_PART.sub("", part) for part in ratio):
        return Parts("ratio", ratio)
    members = _expanded(_members(text, "list"))
    return Parts("list", members) if len(members) > 1 and all(members) else None


def _vector(body: str) -> Parts | None:
    rows = [row.split("&") for row in body.strip().removesuffix("\\\\").split("\\\\")]
    if len(rows) > 1 and all(len(row) == 1 for row in rows):
        members = tuple(row[0].strip() for row in rows)
    elif len(rows) == 1 and len(rows[0]) > 1:
        members = tuple(cell.strip() for cell in rows[0])
    else:
        return None
    return Parts("vector", members, "column" if len(rows) > 1 else "row") if all(members) else None


def _closes(text: str) -> bool:
    """Whether the first bracket of `text`, which lacks the last one of the answer, is open to the end."""
    depth = 0
    for position, char in enumerate(text):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth == 0 and position:
                return False
    return depth == 1


def _members(text: str, form: Literal["list", "tuple"]) -> tuple[str, ...]:
    """Split at outer commas, in a list also at semicolons and words; commas of thousands are kept if others have
    spaces."""
    separators, words = (",;", True) if form == "list" else (",", False)
    if ", " in text:
        spaced = _split(text, separators, words, spaced=True)
        if any(_THOUSANDS.match(part) for part in spaced):
            return spaced
    return _split(text, separators, words)


def _split(text: str, separators: str, words: bool = False, spaced: bool = False) -> tuple[str, ...]:
    """The parts of `text` between separators outside all brackets, with `spaced` only those before a space; one part
    if the brackets don't match."""
    found, depth, start, position = [], 0, 0, 0
    while position < len(text):
        char = text[position]
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth < 0:
                return (text.strip(),)
        elif depth == 0 and char in separators and not (spaced and text[position + 1 : position + 2] != " "):
            found.append(text[start:position])
            start = position + 1
        elif words and depth == 0 and char in "ao" and not text[position - 1 : position].isalpha():
            word = _WORDS.match(text, position)
            if word and text[position - 1 : position] != "\\":
                before = text[start:position].strip()
                if before or not found:  # ', and' separates once
                    found.append(before)
                start = position = word.end()
                continue
        position += 1
    if depth:
        return (text.strip(),)
    found.append(text[start:])
    return tuple(part.strip() for part in found)


def _expanded(members: tuple[str, ...]) -> tuple[str, ...]:
    r"""`a \pm b` as its two values; several signs in one member go together."""
    out: list[str] = []
    for member in members:
        if _PLUS_MINUS.search(member):
            out.append(_MINUS_PLUS.sub("-", _PLUS_MINUS.sub("+", member)))
            out.append(_MINUS_PLUS.sub("+", _PLUS_MINUS.sub("-", member)))
        else:
            out.append(member)
    return tuple(out)
