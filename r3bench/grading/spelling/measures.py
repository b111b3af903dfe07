"""Units that are known, by pint and CLDR: what they measure, and how two of them relate."""

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

_NAMES = {  # symbols and short names: pint's name
    "in": "inch",
    "inch": "inch",
    "inches": "inch",
    "ft": "foot",
    "feet": "foot",
    "yd": "yard",
    "mi": "mile",
    "lb": "pound",
    "lbs": "pound",
    "oz": "ounce",
    "gal": "gallon",
    "sec": "second",
    "secs": "second",
    "s": "second",
    "min": "minute",
    "mins": "minute",
    "h": "hour",
    "hr": "hour",
    "hrs": "hour",
    "deg": "degree",
    "gm": "gram",
    "gms": "gram",
    "g": "gram",
    "cc": "cm**3",
    "l": "liter",
    "L": "liter",
    "m": "meter",
    "mph": "mile/hour",
    "kph": "kilometer/hour",
    "kmh": "kilometer/hour",
    "kmph": "kilometer/hour",
    "ton": "metric_ton",
    "tons": "metric_ton",
    "yr": "year",
    "yrs": "year",
    "rad": "radian",
    "rads": "radian",
    "AU": "astronomical_unit",
    "ohm": "ohm",
    "ohms": "ohm",
    "Ω": "ohm",
    "N": "newton",
    "J": "joule",
    "W": "watt",
    "V": "volt",
    "A": "ampere",
    "K": "kelvin",
    "C": "coulomb",
    "F": "farad",
    "T": "tesla",
    "H": "henry",
    "Pa": "pascal",
    "Hz": "hertz",
    "mol": "mole",
    "moles": "mole",
    "erg": "erg",
    "ergs": "erg",
    "eV": "eV",
    "micron": "micrometer",
    "microns": "micrometer",
    "kilo": "kilogram",
    "kilos": "kilogram",
    "kgs": "kilogram",
    "metre": "meter",
    "metres": "meter",
    "litre": "liter",
    "litres": "liter",
    "d": "day",
}
_LOWER = frozenset(
    [
        "mm",
        "cm",
        "dm",
        "km",
        "nm",
        "pm",
        "fm",
        "um",
        "μm",
        "μs",
        "μg",
        "mg",
        "kg",
        "ml",
        "dl",
        "cl",
        "ms",
        "ns",
        "ps",
        "us",
        "bar",
        "mbar",
        "atm",
        "cal",
        "kcal",
        "psi",
        "torr",
        "ly",
        "pc",
        "kpc",
        "amu",
        "dyn",
        "cd",
        "lm",
        "lx",
        "ha",
        "acre",
    ]
)
_NOUNS = frozenset(
    [
        "count",
        "turn",
        "revolution",
        "cycle",
        "point",
        "hand",
        "particle",
        "bit",
        "dozen",
        "page",
        "pin",
        "pair",
        "score",
    ]
)
POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_MONEY = {  # how it is written: what it is
    "$": "$",
    "\\$": "$",
    "dollar": "$",
    "dollars": "$",
    "buck": "$",
    "bucks": "$",
    "usd": "$",
    "€": "€",
    "euro": "€",
    "euros": "€",
    "eur": "€",
    "£": "£",
    "gbp": "£",
    "sterling": "£",
    "¥": "¥",
    "yen": "¥",
    "yuan": "¥",
    "jpy": "¥",
    "cny": "¥",
    "rmb": "¥",
    "元": "¥",
    "円": "¥",
    "圆": "¥",
    "圓": "¥",
    "人民币": "¥",
    "₹": "₹",
    "rs": "₹",
    "inr": "₹",
    "rupee": "₹",
    "rupees": "₹",
    "₽": "₽",
    "rub": "₽",
    "ruble": "₽",
    "rubles": "₽",
    "руб": "₽",
    "рублей": "₽",
    "рубля": "₽",
    "kr": "kr",
    "zł": "zł",
    "kč": "kč",
    "chf": "CHF",
    "₩": "₩",
    "krw": "₩",
    "won": "₩",
    "원": "₩",
    "美元": "$",
    "欧元": "€",
    "英镑": "£",
    "日元": "¥",
}
_CENTS = frozenset(["cent", "cents", "¢", "penny", "pennies"])
UNIT_WORD = re.compile(
    r"([^\W\d_]+(?:-[^\W\d_]+)*|[£€¥₹¢₽₩₺₪₫฿₴₦₱₡₸]|\\?\$|/|'|\^\\circ|\\[a-zA-Z]+)\.?\s*(?:\^\s*\{?(-?\d)\}?)?"
)

Powers = tuple[tuple[str, int], ...]  # names with their powers, sorted


@dataclass(frozen=True)
class Unit:
    """A unit that is known."""

    powers: Powers  # of base units, currencies or degrees
    factor: Fraction | float  # of those units in one of this


def currency(word: str) -> str:
    """The sign of a currency by its sign, code or name; empty if it is none."""
    low = word.lower().rstrip(".")
    if low in _MONEY:
        return _MONEY[low]
    if len(word) == 1 and unicodedata.category(word) == "Sc" and word != "¢":
        return word
    return word if re.fullmatch("[A-Z]{3}", word) and word in _codes() else ""


@lru_cache(maxsize=1)
def _codes() -> frozenset[str]:
    from babel.numbers import list_currencies

    return frozenset(list_currencies("en"))


@lru_cache(maxsize=1)
def _registry() -> Any:
    import pint

    return pint.UnitRegistry(non_int_type=Fraction)


@lru_cache(maxsize=2048)
def unit(words: str) -> Unit | None:
    """The unit that `Amount.words` name; None where there is none or one that isn't known (apples, square units)."""
    powers: dict[str, int] = {}
    factor: Fraction | float = Fraction(1)
    sign, pending, last = 1, 1, None
    text = re.sub(r"\^\\circ\s*([CFK])(?![a-zA-Z])", r"deg\1", words).replace("^\\circ", " degree ")
    text = re.sub(r"pounds?\s+sterling", "£", text)
    text = re.sub(r"(?<![a-zA-Z])(?:US|U\.S\.|Canadian|Australian)\s+(?=dollar)", "", text)
    text = re.sub(
        r"(?<![a-zA-Z])degrees?\s+(?:(C|F)elsius|(C|F)ahrenheit|(C|F))(?![a-zA-Z])",
        lambda m: "deg" + "".join(filter(None, m.groups())),
        text,
    )
    for name, exponent in UNIT_WORD.findall(text):
        low = name.lower()
        if name == "/":
            sign = -1
            continue
        if low in POWERS:
            if low in ("squared", "cubed"):
                if last is None:
                    return None
                for base, power in last[0]:
                    powers[base] = powers.get(base, 0) + sign * power * (POWERS[low] - 1)
                factor = factor * last[1] ** (sign * (POWERS[low] - 1))
            else:
                pending = POWERS[low]
            continue
        last = _one(name)
        if last is None:
            return None
        times = sign * int(exponent or 1) * pending
        for base, power in last[0]:
            powers[base] = powers.get(base, 0) + times * power
        factor = factor * last[1] ** times
        pending = 1
    left = tuple(sorted((name, power) for name, power in powers.items() if power))
    return Unit(left, factor) if left and pending == 1 else None


@lru_cache(maxsize=2048)
def _one(name: str) -> tuple[Powers, Fraction | float] | None:
    """One unit in base units."""
    low = name.lower()
    if low in _CENTS:
        return (("cent", 1),), Fraction(1)
    money = currency(name)
    if money:
        return ((money, 1),), Fraction(1)
    if low in ("degree", "degrees", "deg"):
        return (("degree", 1),), Fraction(1)
    if low in ("radian", "radians", "rad", "rads"):
        return (("radian", 1),), Fraction(1)
    if name in ("degC", "degF", "degK"):
        return ((name, 1),), Fraction(1)
    found = _NAMES.get(name) or _NAMES.get(low if len(low) > 1 else name) or _physical(name) or _elsewhere(low)
    if found is None:
        return None
    quantity = _registry().Quantity(Fraction(1), found).to_root_units()
    return tuple(
        (str(base), int(power)) for base, power in quantity._units.items() if int(power) == power
    ), quantity.magnitude


def _physical(name: str) -> str | None:
    """pint's name, where `name` is the full English name of a unit, or a symbol of one that is no common word."""
    registry = _registry()
    for word in (name, name.lower()):
        for prefix, stem, suffix in registry.parse_unit_name(word):
            if stem in _NOUNS or len(stem) < 2:
                continue
            if word.removesuffix("s").removesuffix("e") in (prefix + stem, (prefix + stem).removesuffix("e")):
                return prefix + stem
            if not suffix and word == name and len(word) <= 4 and (not word.islower() or word in _LOWER):
                return prefix + stem
    return None


_CLDR = (
    "length-millimeter length-centimeter length-meter length-kilometer length-inch length-foot length-mile "
    "length-yard mass-gram "
    "mass-kilogram mass-milligram mass-tonne volume-liter volume-milliliter duration-second duration-minute "
    "duration-hour duration-day "
    "duration-week duration-month duration-year speed-kilometer-per-hour speed-meter-per-second "
    "area-square-centimeter area-square-meter "
    "area-square-kilometer area-hectare volume-cubic-centimeter volume-cubic-meter"
)


@lru_cache(maxsize=1)
def _translations() -> dict[str, str]:
    from babel.units import format_unit

    from r3bench.grading.spelling.words import LANGUAGES

    found: dict[str, str] = {}
    for code in _CLDR.split():
        parts = code.partition("-")[2].replace("tonne", "metric_ton").split("-per-")
        names = []
        for part in parts:
            power = 2 if part.startswith("square-") else 3 if part.startswith("cubic-") else 1
            names.append(part.removeprefix("square-").removeprefix("cubic-") + (f"**{power}" if power > 1 else ""))
        for language in LANGUAGES:
            for number in (1, 2, 5):
                for length in ("long", "short"):
                    word = format_unit(number, code, length, locale=language)  # type: ignore[arg-type]
                    word = re.sub(r"[\d\u0660-\u0669\u06f0-\u06f9\s.]", "", word).lower()
                    if len(word) > 1 or not word.isascii():
                        found.setdefault(word, "/".join(names))
    return found


def _elsewhere(low: str) -> str | None:
    return _translations().get(low.rstrip("."))


def relation(answer: str, gold: str) -> Fraction | float | bool:
    """How the units behind two numbers relate: True the same, one of them unknown, or none; False another; else what
    the answer's number has to be multiplied by."""
    if not answer or not gold or answer == gold or answer.lower().rstrip("s.") == gold.lower().rstrip("s."):
        return True
    pounds = [bool(re.fullmatch(r"pounds?|lbs?", words.strip())) for words in (answer, gold)]
    money = [len(words) == 1 and unicodedata.category(words) == "Sc" for words in (answer, gold)]
    if (pounds[0] and money[1]) or (pounds[1] and money[0]):  # money too
        return "£" in (answer, gold)
    theirs = unit(gold)
    ours = unit(answer) if theirs else None
    if ours is None or theirs is None:
        return True
    a, b = dict(ours.powers), dict(theirs.powers)
    if a == b:
        return True if ours.factor == theirs.factor else ours.factor / theirs.factor
    if (
        len(b) == 1
        and next(iter(b)) in _MONEY.values()
        and ours.powers[0:1]
        and next(iter(b)) in a
        and b.items() <= a.items()
    ):
        return True  # an amount may be said to be per something
    if set(a) | set(b) <= {"cent", "$", "€"} and len(a) == len(b) == 1:
        return Fraction(1, 100) if "cent" in a else Fraction(100) if "cent" in b else False
    return bool({*a, *b} == {"degree", "degC"} or {*a, *b} == {"degree", "degF"})
