"""One canonical spelling for an answer: text in, text out (no parser, no process)."""

import re
from functools import lru_cache

from r3bench.grading.spelling.latex import MAX_LENGTH, dialect, untext
from r3bench.grading.spelling.numbers import LOOSE, as_number, spell
from r3bench.grading.spelling.units import MATHEMATICAL, amount, bare_unit

__all__ = ["LETTER", "MAX_LENGTH", "canonical", "is_words", "plain", "same_spelling", "spelled"]

_WORD = re.compile(r"(?<![\\a-zA-Z])[^\W\d_]{2,}")
LETTER = re.compile(r"\(?([A-J])\)?")
_INDEX = re.compile(r"([_^])\{([a-zA-Z0-9])\}")
_NAMED = re.compile(r"[a-zA-Z]=([^=]+)")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"


@lru_cache(maxsize=16384)
def plain(text: str) -> str:
    r"""`text` in the grader's dialect without `\text{}` wrappers and what stands behind its number in them. Longer than
    `MAX_LENGTH` it stays as it is."""
    if len(text) > MAX_LENGTH:
        return text
    whole = dialect(text)
    given = amount(whole)
    taken = given.worded or (given.words != "m" and bare_unit(given.words))
    return untext(given.number if taken else whole).strip()


def is_words(text: str) -> bool:
    """Whether an answer in `plain` spelling is a word or phrase rather than mathematics."""
    if re.search(r"[\d\\=^_+*/<>{}|%]", text):
        return False
    words = [word for word in _WORD.findall(text) if word.lower() not in MATHEMATICAL and word not in _ALPHABET]
    return any(len(word) > 2 or word.lower() in ("no", "up") for word in words)


def spelled(text: str) -> str:
    """The spelling in which equal-looking answers are equal strings, of a text in `plain` spelling."""
    if len(text) > MAX_LENGTH:
        return text
    if is_words(text):
        return re.sub(r"[^\w]+", " ", text.lower()).strip()
    number = as_number(text)
    if number is not None:
        return spell(number)
    letter = LETTER.fullmatch(text.replace(" ", ""))
    if letter:
        return letter.group(1)
    return _INDEX.sub(r"\1\2", LOOSE.sub("", text))


@lru_cache(maxsize=16384)
def canonical(text: str) -> str:
    """The spelling by which answers are counted: without case of words, most spaces, and a name before the value."""
    text = spelled(plain(text).removesuffix("^\\circ").strip())
    named = _NAMED.fullmatch(text)
    return named.group(1) if named else text


def same_spelling(answer: str | None, gold: str) -> bool:
    """The second grader's verdict: equal once spelt alike, nothing more."""
    return answer is not None and canonical(answer) == canonical(gold)
