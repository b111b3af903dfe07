"""The unit behind a number, where it is one that is known, so that 27 cm is not taken for 27 m."""

import re
from functools import lru_cache

TAIL = 80  # characters at the end in which a unit is looked for

_NAMES = {  # canonical name: other names; plurals in s are understood
    "mm": "millimeter millimetre",
    "cm": "centimeter centimetre",
    "m": "meter metre",
    "km": "kilometer kilometre",
    "in": "inch inches",
    "ft": "foot feet",
    "yd": "yard",
    "mi": "mile",
    "mg": "milligram",
    "g": "gram gm",
    "kg": "kilogram",
    "lb": "pound lbs",
    "oz": "ounce",
    "ml": "milliliter millilitre",
    "l": "liter litre",
    "gal": "gallon",
    "s": "second sec",
    "min": "minute",
    "h": "hour hr",
    "day": "",
    "week": "",
    "month": "",
    "year": "yr",
    "degree": "deg",
    "radian": "rad",
    "dollar": "usd",
    "euro": "eur",
    "cent": "",
}
_UNITS = {other: name for name, others in _NAMES.items() for other in (name, *others.split())}
_SHORT = {"mph": ("mi", "h"), "kph": ("km", "h"), "kmh": ("km", "h"), "kmph": ("km", "h")}
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_CURRENCY = ((r"\$", "dollar"), ("€", "euro"), ("¢", "cent"))
_MONEY = frozenset(("dollar", "euro", "cent"))
_SPACE = re.compile(r"\\[,;:!> ]|~|\\q?quad(?![a-zA-Z])|(?<!\\)\$|\{\}")
_WRAPPER = re.compile(r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mbox|operatorname)\s*\{([^{}]*)\}")
_DEGREE = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![a-zA-Z])|°")
_NAMED = r"(?:[a-zA-Z.]++\s*+(?:\^\s*+\{?-?\d\}?)?+\s*+)++"  # possessive: a hostile text must not be tried in all ways
_ENDED = re.compile(  # a number, and a unit behind it: words, with powers, per other words
    rf"(?P<number>.*(?:[\d}})]|\\pi))\s*(?P<unit>{_NAMED}(?:/\s*{_NAMED})?)", re.DOTALL
)
_WORD = re.compile(r"([a-z]+)\.?\s*(?:\^\s*\{?(-?\d)\}?)?")
_COMMANDS = re.compile(r"\\(?:d|t|c)?frac|\\sqrt|\\pi|\\cdot|\\times|\\left|\\right|\\approx")

NOT_WORDS = frozenset(
    ("sin", "cos", "tan", "cot", "sec", "csc", "log", "exp", "sqrt", "max", "min", "inf", "infinity", "and", "mod")
)
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_UNIT_LETTERS = frozenset("mgshlJNWVACFK")  # metres, grams, ...; other single letters are variables, e and i numbers
_NO_UNIT = re.compile(  # words that change a number, bound it, join it to another or are one
    r"or|to|than|plus|minus|dozen|(?:hundred|thousand|million|billion|trillion)s?|factorial"
    r"|halves|thirds|(?:four|fif|six|seven|eigh|nin|ten)ths|alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda"
    r"|mu|nu|xi|rho|sigma|tau|phi|chi|psi|omega"
)
MEASURED = r"(?:(?<=[\d}])|(?<=\\pi))"  # what a unit may follow

Unit = tuple[tuple[str, int], ...]  # names with their powers, sorted


@lru_cache(maxsize=4096)
def unit_of(text: str) -> Unit | None:
    r"""The unit of an answer as written: `27\text{ cm}^2` has cm to the second; None where there is none or one that
    isn't known (apples, square units), or where the letters may be variables (`3h + 2s`)."""
    text = _WRAPPER.sub(r" \1 ", _SPACE.sub(_spaced, text.strip()[-TAIL:]))
    powers: dict[str, int] = {}
    for sign, name in _CURRENCY:
        if sign in text:
            powers[name] = 1
            text = text.replace(sign, "").strip()
    if powers and not re.search("[a-zA-Z]", _COMMANDS.sub("", text)):
        return tuple(powers.items())
    text = _DEGREE.sub(" degree ", text).replace("²", "^2").replace("³", "^3").strip().rstrip(".")
    found = _ENDED.fullmatch(text)
    if not found or re.search("[a-zA-Z]", _COMMANDS.sub("", found.group("number"))):
        return None
    above, _, below = re.sub(r"(?<![a-zA-Z])per(?![a-zA-Z])", "/", found.group("unit").lower()).partition("/")
    if not (_add(above, 1, powers) and _add(below, -1, powers)):
        return None
    return tuple(sorted((name, power) for name, power in powers.items() if power)) or None


def another_unit(answer: str, gold: str) -> bool:
    """Whether both name a unit that is known, and not the same. An amount may be said to be per something."""
    unit = unit_of(gold)
    given = unit_of(answer) if unit else None
    if not unit or not given or given == unit:
        return False
    return unit[0][0] not in _MONEY or len(unit) > 1 or unit[0] not in given


def _spaced(match: "re.Match[str]") -> str:
    return "" if match.group() in (r"\!", "$", "{}") else " "


def _add(words: str, sign: int, powers: dict[str, int]) -> bool:
    """Add the units named in `words` to `powers`; False if one isn't known."""
    pending = 1  # of 'square' before its unit
    last = None
    for word, exponent in _WORD.findall(words):
        if word in _POWERS:
            if word in ("squared", "cubed"):
                if last is None:
                    return False
                powers[last] += sign * (_POWERS[word] - 1)
            else:
                pending = _POWERS[word]
            continue
        names = _SHORT.get(word) or (_UNITS.get(word) or _UNITS.get(word.removesuffix("s")),)
        for place, name in enumerate(names):
            if name is None:
                return False
            last = name
            direction = sign if place == 0 else -sign
            powers[name] = powers.get(name, 0) + direction * int(exponent or 1) * pending
        pending = 1
    return pending == 1


def is_unit(text: str) -> bool:
    """Whether the words of `text`, found behind a number, are a unit or noun: they leave its value as it is."""
    words = re.findall(r"[a-zA-Z]+", text)
    if words and words[0].lower() in ("squared", "cubed"):  # 5 squared, but 5 feet squared
        return False
    return all(_unit_word(word) for word in words)


def _unit_word(word: str) -> bool:
    if len(word) == 1:
        return word in _UNIT_LETTERS
    low = word.lower()
    return not (_NO_UNIT.fullmatch(low) or low in NOT_WORDS or low in _ALPHABET)  # 'abc', 'xyz' are products
