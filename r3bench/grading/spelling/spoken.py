"""Numbers, dates and durations said in words: "two thirds", "forty-two marbles", "March 14th", "2 hours 30 minutes"."""

import re
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from r3bench.grading.spelling.measures import unit
from r3bench.grading.spelling.words import multiple, nouns, number_in_words

_YEAR = "january february march april may june july august september october november december"
_MONTHS = _YEAR.split()
_DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
_SHORT = {
    **{name[:3]: name for name in (*_MONTHS, *_DAYS)},
    "sept": "september",
    "tues": "tuesday",
    "thur": "thursday",
    "thurs": "thursday",
}
_DATE = re.compile(
    r"(?:on\s+)?(?:(?P<month>[a-z]{3,9})\.?\s*(?P<day>\d{1,2})|(?:the\s+)?(?P<first>\d{1,2})"
    r"(?:\s*of)?\s*(?P<then>[a-z]{3,9})\.?)(?:\s*,?\s*(?P<year>\d{4}))?"
)
_ORDINAL = re.compile(r"(?<=\d)\s*(?:\^\s*\{?\s*)?(?:st|nd|rd|th)(?![a-z])\s*\}?")
_PIECE = re.compile(r"(\d+(?:\.\d+)?)\s*([^\W\d_]+)\s*,?\s*(?:and\s+)?")
_SIGN = re.compile(r"(?:minus|negative)\s+", re.IGNORECASE)
_APART = re.compile(r"(?:of|out|in|per|past|to|after|before|way|from)\b")
_PART = re.compile(r"(?:(?P<count>.+?)[\s-]+)?(?P<part>[a-z]+)", re.IGNORECASE)


@lru_cache(maxsize=1024)
def spoken_number(text: str) -> tuple[Fraction, str] | None:
    """The number that English words spell and the noun behind it: ("two thirds", "minus five", "forty-two marbles");
    None where there is none, or another word changes it."""
    text = " ".join(re.sub(r"[^\w\s-]+\Z", "", text).split())
    if len(text) > 120 or not re.fullmatch(r"[a-zA-Z\s-]+", text):
        return None
    sign = _SIGN.match(text)
    if sign:
        positive = spoken_number(text[sign.end() :])
        return None if positive is None or positive[0] < 0 else (-positive[0], positive[1])
    words = text.split()
    for end in range(len(words), 0, -1):
        value = _value(" ".join(words[:end]).lower())
        if value is None:
            continue
        rest = " ".join(words[end:])
        if rest and (
            not nouns(rest) or any(_value(word.lower()) is not None or multiple(word) for word in words[end:])
        ):
            return None
        return (
            (value, rest) if not re.match(r"(?:of|out|in|per|past|to|after|before|way|from)\b", rest.lower()) else None
        )
    return None


def _value(text: str) -> Fraction | None:
    """Of words that are a number and nothing else."""
    whole = number_in_words(text)
    if whole is not None:
        return Fraction(whole)
    mixed, _, rest = text.rpartition(" and ")
    above = number_in_words(mixed) if mixed else None
    if above is not None:
        below = _value(rest)
        return above + below if below is not None and 0 < below < 1 else None
    found = _PART.fullmatch(text)
    part = multiple(found["part"]) if found else None
    if found is None or part is None or not 0 < part < 1:
        return None
    if found["count"] is None:
        return part if found["part"] == "half" else None
    times = 1 if found["count"] in ("a", "an") else number_in_words(found["count"])
    return part * times if times is not None else None


def date(text: str) -> tuple[str, int, str] | None:
    """(month, day, year or nothing) of a day of the year in English words."""
    found = _DATE.fullmatch(_ORDINAL.sub("", " ".join(text.lower().split())).strip(" ."))
    if not found:
        return None
    month = full_name(found["month"] or found["then"])
    day = int(found["day"] or found["first"])
    return (month, day, found["year"] or "") if month in _MONTHS and 1 <= day <= 31 else None


def full_name(word: str) -> str:
    """A day of the week or month written out; any other word as it is."""
    return _SHORT.get(word.rstrip("."), word)


def quantity(text: str) -> tuple[tuple[tuple[str, int], ...], Fraction, int] | None:
    """(base units, amount, how many pieces) of "2 hours 30 minutes": sizes of one kind, each unit smaller than the one
    before; None for anything else."""
    text = " ".join(text.replace(",", " ").split())
    pieces = _PIECE.findall(text + " ")
    if not pieces or len(pieces) > 4 or _PIECE.sub("", text + " ").strip():
        return None
    known = [unit(name) for _, name in pieces]
    if any(one is None or one.powers != known[0].powers or not isinstance(one.factor, Fraction) for one in known):  # type: ignore[union-attr]
        return None
    factors = [Fraction(one.factor) for one in known if one]
    if any(after >= before for before, after in pairwise(factors)):
        return None
    total = sum((Fraction(size) * factor for (size, _), factor in zip(pieces, factors, strict=True)), Fraction(0))
    return known[0].powers if known[0] else (), total, len(pieces)
