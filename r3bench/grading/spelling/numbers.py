"""Plain numbers and fractions in `plain` spelling, exactly."""

import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction

_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?")
_FRACTION = re.compile(  # 3/4, \\frac{3}{4}, 2\\frac{3}{4}, with signs
    r"([-+]?)\s*(?:(\d*)\s*\\frac\s*\{\s*([-+]?\d+)\s*\}\s*\{\s*([-+]?\d+)\s*\}|(\d+)\s*/\s*(\d+|\(\s*-\d+\s*\)))"
)
APART = 1e-4  # values further apart than this are different, whatever rounding to decimals says
COMMA_SPACE = re.compile(r",\s+")
LOOSE = re.compile(r"(?<!\d)\s+|\s+(?!\d)")  # spaces that separate no numbers


def as_number(text: str) -> Decimal | None:
    """The value of a plain decimal (sign and thousands commas allowed, `plain` spelling), else None."""
    if COMMA_SPACE.search(text):  # a list
        return None
    text = re.sub(r"(?<=\d)\s+(?=\d{3}(?!\d))", "", LOOSE.sub("", text))
    while text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    if not text or len(text) > 200 or not _NUMBER.fullmatch(text) or not any(c.isdigit() for c in text):
        return None
    try:
        return Decimal(text.replace(",", ""))
    except InvalidOperation:
        return None


def as_fraction(text: str) -> Fraction | None:
    """The value of a fraction, mixed number or plain decimal (`plain` spelling), else None."""
    if len(text) > 200:
        return None
    found = _FRACTION.fullmatch(text)
    if not found:
        number = as_number(text)
        return None if number is None else Fraction(number)
    sign, whole, above, below, left, right = found.groups()
    above, below = (left, right.strip("() ")) if left else (above, below)
    if int(below) == 0 or (whole and not 0 <= int(above) < int(below)):
        return None
    value = Fraction(int(whole or 0)) + Fraction(int(above), int(below))
    return -value if sign == "-" else value


def same_fraction(answer: str, gold: str) -> bool | None:
    """Whether two plain numbers or fractions are equal; None for anything else, and for decimals as close as a rounded
    fraction is."""
    if not (_FRACTION.fullmatch(answer) or _FRACTION.fullmatch(gold)):
        return None
    ours, theirs = as_fraction(answer), as_fraction(gold)
    if ours is None or theirs is None:
        return None
    if ours == theirs:
        return True
    decimal = "." in answer or "." in gold
    return None if decimal and abs(ours - theirs) <= APART * max(abs(ours), abs(theirs)) else False


def spell(number: Decimal) -> str:
    """A number in digits, without a plus or zeros behind the point."""
    text = format(number, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "+0", "") else text.removeprefix("+")
