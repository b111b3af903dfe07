"""Equations as text: chains of sides, the names that some sides are, and values given to names."""

import re
from dataclasses import dataclass
from functools import lru_cache

from r3bench.grading.spelling.structure import parts, split

_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi psi omega "
    "Gamma Delta Theta Lambda Xi Sigma Upsilon Phi Psi Omega ell hbar partial nabla"
)
_ACCENTS = (
    r"\\(?:hat|vec|bar|overline|tilde|d?dot|widehat|overrightarrow|mathcal|mathscr|mathbb|widetilde)\s*"
    r"(?:\{[\w\s\\']+\}|[a-zA-Z])"
)
_SYMBOL = rf"(?:[a-zA-Z]|\\(?:{'|'.join(_GREEK.split())})(?![a-zA-Z])|{_ACCENTS})"
_INDEX = r"(?:\s*_\s*(?:\{[^{}]{1,40}\}|\w|\\[a-zA-Z]+))?"
_ARGUMENTS = r"(?:\s*(?:\([^()=]{0,60}(?:\([^()=]{0,30}\))?[^()=]{0,30}\)|\[[^\[\]=]{0,40}\]))?"
_LETTER = rf"{_SYMBOL}{_INDEX}'*"
_NAME = re.compile(
    rf"\s*(?:(?:m\s*)?\\(?:angle|triangle|Delta|measuredangle|widehat)\s*)?(?:"
    rf"{_LETTER}(?:\s*\^\s*\{{?(?:\*|\\ast|\([n\d]\)|-1)\}}?)?{_ARGUMENTS}"  # f, x_1, f'(3), P(A|B), f^{-1}(x)
    rf"|(?:\s*{_LETTER}){{2,4}}{_ARGUMENTS}"  # AB, A'B', ab
    rf"|{_LETTER}(?:\s*[-+]\s*{_LETTER}){{1,5}}"  # m+n
    rf"|\\frac\s*\{{\s*{_LETTER}\s*\}}\s*\{{\s*{_LETTER}\s*\}}|{_LETTER}\s*/\s*{_LETTER}"  # m/n
    r"|\\frac\s*\{\s*(?:d|\\partial)\s*(?:\^\{?\d\}?)?\s*[a-zA-Z]?\s*\}\s*\{\s*(?:d|\\partial)\s*[a-zA-Z]"
    r"\s*(?:\^\{?\d\}?)?\s*\}\s*[a-zA-Z]?(?:\([a-zA-Z]\))?"
    r"|\|\s*(?:[A-Z]{1,4}|[A-Z]\s*\\(?:cup|cap|setminus|times)\s*[A-Z]|\\(?:vec|overrightarrow|mathbf)\s*\{\w+\}|"
    r"[a-z]{2,4})\s*\|"
    r"|\\\|\s*[^=\d|]{1,30}\\\||\\(?:lim|deg|dim|det|ker|sup|inf|operatorname|Pr)(?![a-zA-Z])[^=]{0,60}|\[\s*[A-Z]"
    r"{3,6}\s*\]|\\(?:max|min|gcd|operatorname)[^=\d]{0,40}"
    r"|\(?\s*[^\W\d_]+(?:[\s-]+[^\W\d_]+){0,7}\s*\)?"  # words
    r")\s*(?:\\text\{[^{}]*\})?\s*"
)
_RELATION = re.compile(r"(?<![<>!:])=(?!=)|\\(?:approx|equiv)(?![a-zA-Z])")
_ORDER = re.compile(r"[<>]|\\(?:leq|geq|neq|lt|gt|ll|gg|in|notin|subset|subseteq)(?![a-zA-Z])")
_DERIVATIVE = re.compile(r"\\frac\{d(?:\^\{?(\d)\}?)?([a-zA-Z])\}\{d[a-zA-Z](?:\^\{?\d\}?)?\}")
_CONGRUENCE = re.compile(r"\\[pb]?mod(?![a-zA-Z])")
_ORDERS = ("xyz", "rθz", "ρθφ", "rθφ", "ahk")  # of coordinates, where it isn't the alphabet's
_NAMED_TUPLE = re.compile(
    r"\s*[(\[]\s*([a-zA-Z\\]\w*(?:_\{?\w+\}?)?(?:\s*,\s*[a-zA-Z\\]\w*(?:_\{?\w+\}?)?){1,9})\s*[)\]]\s*=\s*(?=[(\[])"
)


@dataclass(frozen=True)
class Chain:
    """`name = ... = value`, taken apart."""

    names: tuple[str, ...]  # sides that are names, in one spelling
    values: tuple[str, ...]  # the other sides, as written
    rounded: bool  # one of the relations is an approximation

    @property
    def sides(self) -> int:
        return len(self.names) + len(self.values)


def is_name(side: str) -> bool:
    """Whether a side of an equation is only a name: `x`, `f'(3)`, `A'B'`, `m+n`, `\\frac{dy}{dx}`, words."""
    return (
        len(side) <= 120
        and bool(_NAME.fullmatch(side))
        and not re.search(r"\A\s*(?:sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|lim)(?![a-zA-Z])", side)
        and side.strip() not in ("i", "e")
    )


def spelt_name(side: str) -> str:
    """One spelling of a name: without spaces and braces; `\\frac{dy}{dx}` as `y'`."""
    side = re.sub(r"\s+", "", side)
    derived = _DERIVATIVE.fullmatch(side)
    if derived:
        return derived[2] + "'" * int(derived[1] or 1)
    return re.sub(r"[{}]", "", side).replace("\\left", "").replace("\\right", "")


@lru_cache(maxsize=4096)
def chain(text: str) -> Chain | None:
    """The sides of an equation; None where there is no relation outside all brackets, or one of order."""
    if "=" not in text and "\\approx" not in text and "\\equiv" not in text:
        return None
    if _ORDER.search(text) or _CONGRUENCE.search(text) or r"\begin{cases}" in text:
        return None
    sides = split(text, _RELATION)
    if len(sides) < 2 or not all(side.strip() for side in sides):
        return None
    names = [side for side in sides if is_name(side)]
    values = [side.strip() for side in sides if not is_name(side)]
    if not values:  # x = y: the last one is the value
        names, values = list(sides[:-1]), [sides[-1].strip()]
    return Chain(tuple(map(spelt_name, names)), tuple(values), "\\approx" in text)


@lru_cache(maxsize=4096)
def coordinates(text: str) -> tuple[tuple[str, str], ...] | None:
    """(name, value) of `x=1, y=2` and `(x,y)=(1,2)`; None for anything else, and for several values of one name."""
    tupled = _NAMED_TUPLE.match(text)
    if tupled:
        names = [spelt_name(name) for name in tupled[1].split(",")]
        found = parts(text[tupled.end() :])
        if found is None or found.kind != "bracket" or len(found.members) != len(names) or len(set(names)) < len(names):
            return None
        return tuple(zip(names, found.members, strict=True))
    found = parts(text)
    if found is None or found.kind not in ("list", "bracket", "set", "vector"):
        return None
    chains = [chain(member) for member in found.members]
    if not all(one and len(one.names) == 1 and len(one.values) == 1 for one in chains):
        return None
    named = [(one.names[0], one.values[0]) for one in chains if one]
    letters = {re.sub(r"_\w+", "", name) for name, _ in named}
    return tuple(named) if len(letters) == len(named) else None


def in_order(named: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """The values in the usual order of their names: x, y, z; r and theta; else alphabetical."""
    if all(
        re.fullmatch(r"\\?(?:text|operatorname)?[a-z]{3,}", name) and "\\" not in name[1:] for name, _ in named
    ) and not any(name.lstrip("\\") in _GREEK.split() for name, _ in named):
        return tuple(value for _, value in named)  # words have no order
    signs = {"\\theta": "θ", "\\rho": "ρ", "\\phi": "φ"}
    short = [(signs.get(name, name), value) for name, value in named]
    for order in _ORDERS:
        if all(name in order for name, _ in short):
            return tuple(value for _, value in sorted(short, key=lambda pair: order.index(pair[0])))
    return tuple(
        value for _, value in sorted(short, key=lambda pair: (pair[0].startswith("\\"), pair[0].lower(), pair[0]))
    )
