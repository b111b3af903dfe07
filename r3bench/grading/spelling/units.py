"""The unit, noun or currency around a number, apart from it.

What isn't a known unit (`measures`) is a noun: it leaves the number as it is, unless it is a word that
changes it (`words`).
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from r3bench.grading.spelling.measures import POWERS, UNIT_WORD, currency
from r3bench.grading.spelling.words import changes, multiple, nouns

TAIL = 120  # characters at the end in which a unit is looked for
_POWER = r"(?:\s*+\^\s*+\{?-?\d\}?)?+"
_PIECE = (
    rf"(?:\\text\{{[^{{}}]*\}}{_POWER}|(?<![\\a-zA-Z])[^\W\d_]+(?:-[^\W\d_]+)*\.?{_POWER}|/|\\cdot(?![a-zA-Z])|"
    rf"\^\\circ(?:\s*[CFK](?![a-zA-Z]))?|\\(?:Omega|mu)(?![a-zA-Z])"
    r"|[£€¥₹¢₽₩₺₪₫฿₴₦₱₡₸]|\\?\$)"
)
_TAIL = re.compile(rf"\s*+(?:{_PIECE}\s*+)++")
_BREAK = re.compile(r"(?<=[\d})])(?!\s*[\d{(])|(?<=\\pi)|(?<=\\pi )|(?<=\d\.)(?=\s)")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_MONEY_BEFORE = re.compile(
    r"\A\s*(?P<sign>[-+]?)\s*(?:\\text\{)?\s*(?P<code>US|CA|AU|NZ|HK|CN|R|C|A)?\s*(?P<money>\\?\$|"
    r"[£€¥₹¢₽₩₺₪₫฿₴₦₱₡₸]|Rs\.?|[A-Z]{3}(?![a-zA-Z]))\s*\}?\s*(?:\\\$)?(?=[\s\d.,+\\{-])"
)
_BARE = re.compile(  # what may stand behind a number without \text and still be a unit and no product of variables
    r"m|[cdknpfμµ]?m|[kmμµ]?g|[kMGT]?Hz|[kMGTm]?eV|[kMGm]?Pa|[kMm]?[JWNVA]|[md]?[lL]|kWh|mol|ft|in|yd|mi|lbs?|oz|"
    r"mph|kph|rad|deg|min|hrs?|h|s|[mnμ]s|Ω|[CFK]"
)
_SHORT = frozenset(["m", "g", "s", "h", "l", "L", "J", "N", "W", "V", "A", "C", "F", "K"])
MATHEMATICAL = frozenset(
    ["sin", "cos", "tan", "cot", "sec", "csc", "log", "exp", "sqrt", "max", "min", "inf", "infinity", "and", "mod"]
)
_ACCEPTED = frozenset(("/", "^\\circ", "\\Omega", "\\mu", "¢", "C", "F", "K"))
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Amount:
    """An answer and what stands behind or before its number."""

    number: str  # the answer without it, multiplied by the words behind it that do that
    words: str  # what was taken off; empty if nothing was
    worded: bool  # it stands in `\\text{}`, or is a sign or word that can be no variables
    multiplied: bool = False  # a word multiplied the number


@lru_cache(maxsize=8192)
def amount(text: str) -> Amount:
    r"""The answer, in the grader's dialect, apart from its unit, noun or currency.

    `5 \text{ million dollars}` is `(5) \cdot 1000000`; of words that change a number (or more, pairs) nothing is taken
    off, so that they are there to be compared.
    """
    money = _MONEY_BEFORE.match(text)
    before = ""
    if money and currency(money["money"]):
        before, text = currency(money["money"]), money["sign"] + text[money.end() :].lstrip("}").strip()
    start = _tail(text)
    number, tail = (text[:start].strip(), text[start:].strip()) if start is not None else (text, "")
    words = _words(tail)
    factor = Fraction(1)
    names = UNIT_WORD.findall(words)
    taken = 0
    for name, power in names:
        value = multiple(name) if not power else None
        if name in ("K", "M", "B") and before and len(names) == 1:
            value = Fraction({"K": 10**3, "M": 10**6, "B": 10**9}[name])
        if (
            value is None
            or (len(name) == 1 and name.isascii() and not (before or (name == "k" and "\\text" in tail)))
            or (value < 1 and taken)
        ):
            break
        factor *= value
        taken += 1
    if taken:
        rest = " ".join(name + (f"^{power}" if power else "") for name, power in names[taken:])
        rest = re.sub(r"^(?:of|an?|of an?|de|d|の)(?=\s|$)\s*", "", rest)
        if rest and not nouns(rest) and not currency(rest.strip()):
            return Amount(f"{before}{text}", "", False)
        return Amount(_times(number, factor), f"{before} {rest}".strip(), True, True)
    if not tail:
        return Amount(text, before, bool(before))
    worded = (
        "\\text" in tail
        or "^\\circ" in tail
        or bool(currency(words.strip()))
        or bool(re.search(r"[^\W\d_a-zA-Z]", tail))
    )
    known = all(
        currency(name) or name in _ACCEPTED or nouns(name) or (place and name.lower() in ("squared", "cubed"))
        for place, (name, _) in enumerate(names)
    )
    if (
        not known
        or not names
        or (names[0][0] in POWERS and names[0][0].endswith("ed"))
        or (names[0][0] == "/" and len(names) < 2)
    ):
        return Amount(f"{before}{text}" if before else text, "", False)
    return Amount(number, f"{before} {words}".strip(), worded)


def _times(number: str, factor: Fraction) -> str:
    plain = number.replace(",", "").replace(" ", "")
    if re.fullmatch(r"[-+]?\d*\.?\d+", plain):
        value = Fraction(plain) * factor
        return str(value) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    return rf"({number}) \cdot \frac{{{factor.numerator}}}{{{factor.denominator}}}"


def _tail(text: str) -> int | None:
    """Where the words behind the number begin."""
    if not text or (text[-1].isdigit() and "^" not in text[-3:]):
        return None
    for place in _BREAK.finditer(text, max(0, len(text) - TAIL)):
        start = place.start()
        if not 0 < start < len(text) or not _TAIL.fullmatch(text, start):
            continue
        if re.search(r"\d|\\pi|\\frac|\\sqrt", text[:start]) and not _open(text[:start]):
            return start
    return None


def _open(text: str) -> bool:
    return text.count("{") != text.count("}") or text.count("(") > text.count(")")


def _words(tail: str) -> str:
    text = _TEXT.sub(r" \1 ", tail).replace(r"\cdot", " ").replace("\\Omega", "Ω").replace("\\mu", "μ")
    text = re.sub(r"μ\s+(?=[a-zA-Z])", "μ", text)
    text = re.sub(r"([万萬亿億兆千百十만억조])(?=\S)", r"\1 ", text)
    return " ".join(re.sub(r"(?<![a-zA-Z])per(?![a-zA-Z])|(?<=\d|[a-z])\s*/\s*", " / ", text).split())


def bare_unit(words: str) -> bool:
    """Whether words without `\\text` are a unit or noun rather than a product of variables."""
    names = [name for name, _ in UNIT_WORD.findall(words) if name != "/"]
    if not names:
        return False
    several = len(names) > 1 or "^" in words
    for name in names:
        if currency(name) or name in ("^\\circ",):
            continue
        if len(name) == 1 and name.isascii():
            if not (name == "m" or (several and name in _SHORT)):
                return False
        elif (
            (len(name) < 3 and name.isascii() and not _BARE.fullmatch(name))
            or name.lower() in MATHEMATICAL
            or name in _ALPHABET
        ):
            return False
    return True


def is_changed(words: str) -> bool:
    """Whether a word of several makes another statement of the number before them."""
    return any(changes(word) for word in re.findall(r"[^\W\d_]{2,}|[^\W\d_a-zA-Z]+", words))
