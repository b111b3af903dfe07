"""The outer form of an answer: a list, set, tuple, interval, vector or ratio and its members, by spelling alone."""

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Literal

Kind = Literal["list", "set", "bracket", "vector", "ratio"]

_MEMBER_OF = re.compile(
    r"(?:[a-zA-Z]|\([a-zA-Z](?:\s*,\s*[a-zA-Z])+\))\s*\\in(?![a-zA-Z])\s*(?=[\[({\\])"
)  # 'x \in [1,2]'
_NAMES = re.compile(r"\(\s*[a-zA-Z]\s*(?:,\s*[a-zA-Z]\s*){1,9}\)\s*=\s*(?=[(\[])")  # '(x,y) = (1,2)'
_POINT = re.compile(
    r"(?:[A-Z](?:_\{?\d\}?)?'?\s*=?|[a-zA-Z](?:_\{?\w\}?)?\s*=|\\(?:vec|mathbf|overrightarrow)\s*\{?\w+\}?\s*=)"
    r"\s*(?=\()"
)  # 'A(1,2)', 'P = (1,2)'
_SEPARATORS = {
    "list": re.compile(
        r"[,;]|(?<![a-zA-Z\\])(?:and|or|und|oder|ou|et)(?![a-zA-Z])|\\(?:lor|land)(?![a-zA-Z])|(?<![а-я])(?:или|и)"
        r"(?![а-я])|[或和与、及]|또는|그리고"
    ),
    "comma": re.compile(r","),
    "semicolon": re.compile(r";"),
    "spaced": re.compile(r",(?=\s)|;|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])"),
    "spaced comma": re.compile(r",(?=\s)"),
    "colon": re.compile(r":"),
}
_MATRIX = re.compile(r"\\begin\s*\{([pb]?matrix)\}(.*)\\end\s*\{\1\}", re.DOTALL)
_CASES = re.compile(
    r"(?:\\\{\s*)?\\begin\s*\{(?:cases|dcases|rcases)\}(.*)\\end\s*\{(?:cases|dcases|rcases)\}", re.DOTALL
)
_BOUND = re.compile(r"-\s*(?:\\infty|\\inf)(?![a-zA-Z])")
_INFINITE = re.compile(r"[-+]?\s*(?:\\infty|\\inf)(?![a-zA-Z])")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?!\d)[^,;]*$")
_PLUS_MINUS = re.compile(r"\\pm(?![a-zA-Z])")
_MINUS_PLUS = re.compile(r"\\mp(?![a-zA-Z])")
_RATIO_PART = re.compile(r"[\d\s.{}/+*^-]|\\(?:frac|sqrt|pi|cdot)(?![a-zA-Z])")
_TOKEN = re.compile(r"\\begin\s*\{|\\end\s*\{|\\[{}]|[()\[\]{}]")
_HALF_OPEN = re.compile(
    r"([\[\](])\s*([^\[\](){};,]*(?:\{[^{}]*\}[^\[\](){};,]*)*)([;,])([^\[\](){};,]*(?:\{[^{}]*\}[^\[\](){};,]*)"
    r"*?)\s*([\[\])])"
)


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

    `1, 2`, `1; 2`, `1 and 2` and `1 \pm \sqrt 2` are lists, as are the rows of `cases` that have no conditions;
    `\{1,2\}` is a set; `(1,2)`, `[1,2)` and `[1;2[` are brackets, a point or an interval; a matrix of one row or column
    is a vector; `1:2:3` is a ratio; 1,234 is a list without `thousands` only.
    """
    text = outward(text.strip())
    for prefix in (_MEMBER_OF, _NAMES, _POINT):
        found = prefix.match(text)
        if found and (prefix is not _POINT or (text.endswith(")") and _closes(text[found.end() : -1]))):
            text = text[found.end() :]
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        return _vector(matrix.group(2))
    cases = _CASES.fullmatch(text)
    if cases:
        rows = [row.replace("&", " ").strip(" ,;") for row in re.split(r"\\\\", cases[1]) if row.strip(" ,;")]
        plain = "&" not in cases[1] or all(
            re.search(r"&\s*=", row) for row in re.split(r"\\\\", cases[1]) if "&" in row
        )
        return Parts("list", _expanded(tuple(rows))) if plain and len(rows) > 1 else None
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
    ratio = _split(text, _SEPARATORS["colon"]) if ":" in text else ()
    if len(ratio) > 1 and all(part and not _RATIO_PART.sub("", part) for part in ratio):
        return Parts("ratio", ratio)
    members = _expanded(_members(text, "list"))
    return Parts("list", members) if len(members) > 1 and all(members) else None


@lru_cache(maxsize=8192)
def outward(text: str) -> str:
    """Intervals with outward brackets, `]0,1[`, and with semicolons in the usual spelling."""
    if "[" not in text and "]" not in text:
        return text
    depth = 0
    balanced = True
    for char in text:
        depth += (char in "([") - (char in ")]")
        balanced = balanced and depth >= 0
    if balanced and depth == 0 and text[0] != "]":
        return text
    return _HALF_OPEN.sub(
        lambda m: f"{'(' if m[1] in '](' else '['}{m[2]}{m[3]}{m[4]}{')' if m[5] in '[)' else ']'}", text
    )


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
    pattern = _SEPARATORS["semicolon" if ";" in text else "comma"] if form == "tuple" else _SEPARATORS["list"]
    if ", " in text:
        spaced = _split(text, _SEPARATORS["spaced" if form == "list" else "spaced comma"])
        if any(_THOUSANDS.match(part) for part in spaced):
            return spaced
    return _split(text, pattern)


def split(text: str, pattern: "re.Pattern[str]") -> list[str]:
    """The parts of `text` between matches of `pattern` outside all brackets and environments; one part if they don't
    match."""
    level: list[int] = []
    depth = last = 0
    for token in _TOKEN.finditer(text):
        level += [depth] * (token.start() - last)
        word = token.group()
        opens = word.startswith("\\begin") or word[-1] in "([{"
        # an environment is a bracket, and the braces of its name are another
        change = 2 if word.startswith("\\begin") else 0 if word.startswith("\\end") else 1 if opens else -1
        level += [max(depth, depth + change, 1)] * len(word)
        depth += change
        last = token.end()
        if depth < 0:
            return [text]
    level += [depth] * (len(text) - last)
    if depth:
        return [text]
    out, start = [], 0
    for found in pattern.finditer(text):
        if level[found.start()] == 0:
            out.append(text[start : found.start()])
            start = found.end()
    out.append(text[start:])
    return out


def _split(text: str, pattern: "re.Pattern[str]") -> tuple[str, ...]:
    found = [part.strip() for part in split(text, pattern)]
    kept = [part for place, part in enumerate(found) if part or not 0 < place < len(found) or place == len(found) - 1]
    if len(found) > 1 and len(kept) < len(found) and re.search(r",\s*[,;]", text):
        return (text.strip(),)  # ',,'
    return tuple(kept)


def _expanded(members: tuple[str, ...]) -> tuple[str, ...]:
    r"""`a \pm b` as its two values; with a `\mp` several signs in one member go together, else each is free."""
    out: list[str] = []
    for member in members:
        count = len(_PLUS_MINUS.findall(member))
        if not count:
            out.append(member)
        elif _MINUS_PLUS.search(member) or count > 3:
            out.append(_MINUS_PLUS.sub("-", _PLUS_MINUS.sub("+", member)))
            out.append(_MINUS_PLUS.sub("+", _PLUS_MINUS.sub("-", member)))
        else:
            for signs in product("+-", repeat=count):
                rest = iter(signs)
                out.append(_PLUS_MINUS.sub(lambda _, rest=rest: next(rest), member))  # type: ignore[misc]
    return tuple(out)
