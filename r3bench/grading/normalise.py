"""One canonical spelling for an answer, and what can be decided from spelling alone (no parser, no process)."""

import re
from decimal import Decimal, InvalidOperation

MAX_LENGTH = 2000  # characters of an answer; longer ones are wrong without being parsed

_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_DROPPED = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|limits|[bB]ig[lr]?|q?quad)(?![a-zA-Z])"
    r"|\\[!,;:> ]|~"
)
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mbox|operatorname)\s*\{([^{}]*)\}")
_SPELLING = (
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\frac\s*(\d)\s*(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\sqrt\s*(\d)"), r"\\sqrt{\1}"),
    (re.compile(r"\\(?:le|leqslant)(?![a-zA-Z])"), r"\\leq"),
    (re.compile(r"\\(?:ge|geqslant)(?![a-zA-Z])"), r"\\geq"),
    (re.compile(r"\\(?:ne)(?![a-zA-Z])"), r"\\neq"),
    (re.compile(r"\\?%"), "%"),
    (re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)|°"), ""),
    (re.compile(r"\\\$|(?<!\\)\$"), ""),
    (re.compile(r"(?<=\d)\{,\}(?=\d)"), ","),
    (re.compile(r"[−–—]"), "-"),
    (re.compile(r"×"), r"\\times "),
    (re.compile(r"(?<=\d)[eE](?=[-+]?\d{1,4}(?!\d))([-+]?)0*(\d+)"), r"\\times 10^{\1\2}"),
)
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?")
_WORD = re.compile(r"(?<![\\a-zA-Z])[A-Za-z]{3,}")
_NOT_WORDS = frozenset(
    ("sin", "cos", "tan", "cot", "sec", "csc", "log", "exp", "sqrt", "max", "min", "inf", "infinity", "and", "mod")
)
_LETTER = re.compile(r"\(?([A-J])\)?")
_LETTER_FIRST = re.compile(  # '(B) text', 'B. text', 'B: text'
    r"\(?([A-J])(?:\)[.:]?|[.:](?=\s|$))"  # not 'B:C' or 'B.5'
    r"(?!\s*[,;]?\s*\(?[A-J]\)?\s*(?:$|[,;(]))"  # nor a second letter: '(B)(C)', '(B), (C)'
)
_TEXT_UNIT = re.compile(r"(?<=\d)\s*\\(?:text|mathrm|mbox)\s*\{\s*[^{}\d]*\}(?:\^\{?\d\}?)?$")


def plain(text: str) -> str:
    r"""`text` without math delimiters, spacing commands, `\text{}` wrappers, currency and degree signs, final stop."""
    text = text.strip()
    for opening, closing in _WRAPPERS:
        if text.startswith(opening) and text.endswith(closing) and len(text) > len(opening) + len(closing):
            text = text[len(opening) : -len(closing)].strip()
    text = _DROPPED.sub("", text)
    text = _TEXT_UNIT.sub("", text)
    text = _TEXT.sub(r" \1 ", text)
    for pattern, replacement in _SPELLING:
        text = pattern.sub(replacement, text)
    text = text.strip()
    while len(text) > 1 and text[-1] in ".,;" and not text.endswith(r"\."):
        text = text[:-1].rstrip()
    return text


def is_words(text: str) -> bool:
    """Whether an answer in `plain` spelling is a word or phrase rather than mathematics."""
    words = [word for word in _WORD.findall(text) if word.lower() not in _NOT_WORDS]
    return bool(words) and not re.search(r"[\d\\=^_+*/<>{}]", text)


def canonical(text: str) -> str:
    """The spelling in which equal-looking answers are equal strings (case of words and all spaces dropped)."""
    text = plain(text)
    if is_words(text):
        return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()
    number = as_number(text)
    if number is not None:
        return _spell(number)
    letter = _LETTER.fullmatch(text.replace(" ", ""))
    if letter:
        return letter.group(1)
    text = re.sub(r"\s+", "", text)
    match = re.fullmatch(r"[a-zA-Z]=(.+)", text)
    return match.group(1) if match and "=" not in match.group(1) else text


def as_number(text: str) -> Decimal | None:
    """The value of a plain decimal (sign and thousands commas allowed, `plain` spelling), else None."""
    text = text.replace(" ", "")
    while text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    if not text or len(text) > 200 or not _NUMBER.fullmatch(text) or not any(c.isdigit() for c in text):
        return None
    try:
        return Decimal(text.replace(",", ""))
    except InvalidOperation:
        return None


def _spell(number: Decimal) -> str:
    text = format(number, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "+0", "") else text.removeprefix("+")


def decide(answer: str, gold: str) -> tuple[bool, str] | None:
    """The verdict where spelling alone settles it, with its reason; None where mathematics is needed.

    Settled: equal canonical spellings; two plain decimals; a gold that is words; a gold that is a choice letter.
    """
    if len(answer) > MAX_LENGTH:
        return False, f"answer longer than {MAX_LENGTH} characters"
    ours, theirs = canonical(answer), canonical(gold)
    if ours == theirs and ours:
        return True, "same text"
    plain_answer, plain_gold = plain(answer), plain(gold)
    number_a, number_g = as_number(plain_answer), as_number(plain_gold)
    if number_a is not None and number_g is not None:
        return number_a == number_g, "same number" if number_a == number_g else "another number"
    letter = _LETTER.fullmatch(plain_gold.replace(" ", ""))
    if letter:
        first = _LETTER_FIRST.match(plain_answer)
        if first:
            same = first.group(1) == letter.group(1)
            return same, "same choice" if same else "another choice"
        if _LETTER.fullmatch(plain_answer.replace(" ", "")):
            return False, "another choice"
    if is_words(plain_gold):
        if is_words(plain_answer):
            return False, "another text"
        words = re.sub(r"[^a-z0-9]+", " ", plain_answer.lower()).strip()
        return words == theirs, "same text" if words == theirs else "another text"
    if not plain_answer:
        return False, "empty answer"
    return None
