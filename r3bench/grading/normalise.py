"""One canonical spelling for an answer, and what can be decided from spelling alone (no parser, no process)."""

import re
from decimal import Decimal, InvalidOperation
from functools import lru_cache

MAX_LENGTH = 2000  # characters of an answer; longer ones are wrong without being parsed

_WRAPPERS = (("**", "**"), ("`", "`"), ("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")  # not the marks that turn digits round
_DROPPED = re.compile(
    r"(\\\\)"  # the end of a matrix row stays; without it here its second half would go with the space behind it
    r"|\\(?:left|right|displaystyle|textstyle|limits|[bB]ig[lr]?|q?quad|[lL]arge|LARGE|huge)(?![a-zA-Z])"
    r"|\\(?:boldsymbol|bm|bold|bf|pmb|mathsf|underline)(?![a-zA-Z])|\\(?:text)?color\s*\{[a-zA-Z]{1,20}\}"
    r"|\\!\s*|\\[,;:> ]|~"
)
_GROUP = re.compile(r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*(?<!\\)\}")  # one group, with groups two deep inside
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mbox|operatorname)\s*\{([^{}]*)\}")
_SPELLING = (
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\frac\s*(\d)\s*(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\sqrt\s*(\d)"), r"\\sqrt{\1}"),
    (re.compile(r"\\(?:le|leqslant)(?![a-zA-Z])"), r"\\leq"),
    (re.compile(r"\\(?:ge|geqslant)(?![a-zA-Z])"), r"\\geq"),
    (re.compile(r"\\(?:ne)(?![a-zA-Z])"), r"\\neq"),
    (re.compile(r"\\varnothing(?![a-zA-Z])"), r"\\emptyset"),
    (re.compile(r"\\langle(?![a-zA-Z])"), "("),
    (re.compile(r"\\rangle(?![a-zA-Z])"), ")"),
    (re.compile(r"(?<![\\a-zA-Z])pi(?![a-zA-Z])"), r"\\pi "),
    (re.compile(r"(?<=\d)\s*\^\s*\{\s*(?:st|nd|rd|th)\s*\}"), ""),
    (re.compile(r"(?<![\d./])(\d{1,9})\s+(\d{1,9})\s*/\s*(\d{1,9})(?![\d./])"), r"\1\\frac{\2}{\3}"),
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
_LABEL = re.compile(r"(?:\(?([A-J])\)[.:]?|([A-J])[.:](?=\s))\s*(?=[^\s,;])")  # '(B) ' before a value
_CHOSEN = re.compile(r"(?:the\s+)?(?:correct\s+)?(?:option|choice|answer)\s*(?:is\b)?\s*:?\s*", re.IGNORECASE)
_PREFACE = re.compile(r"(?:the\s+)?(?:final\s+)?answer(?:\s+is\b|\s*[:=])\s*:?\s*", re.IGNORECASE)
_RELATION = re.compile(r"[<>]|\\(?:leq|geq|neq|lt|gt)(?![a-zA-Z])")
_NAMED = re.compile(r"([a-zA-Z])\s*=[^=]+")
_BASED = re.compile(r"\d+\s*_(?:\s*\{\s*(?=\d+\s*\}))?(\d+)\s*\}?")
_COMMA_SPACE = re.compile(r",\s+")
_LOOSE = re.compile(r"(?<!\d)\s+|\s+(?!\d)")  # spaces that separate no numbers
_DOTS = re.compile(r"\\[lc]?dots(?![a-zA-Z])|\.\.\.|…")
_MEASURED = r"(?:(?<=[\d}])|(?<=\\pi))"  # what a unit may follow
_TEXT_UNIT = re.compile(
    _MEASURED + r"(?:\s*\\(?:text|mathrm|mbox)\s*\{[^{}\d]*\}(?:\s*\^\s*\{?-?\d\}?)?(?:\s*(?:/|\\cdot(?![a-zA-Z])))?)+$"
)
_BARE_UNIT = re.compile(_MEASURED + r"(?:\s*(?:[mck]m|kg|ft)|((?:\s+[a-zA-Z]{3,})+))(?:\s*\^\s*\{?\d\}?)?$")
_PRIME = re.compile(r"(?<=[a-zA-Z)}])'|\\prime(?![a-zA-Z])")
_METRES = re.compile(r"([-+]?[\d.,]+)\s*m")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_UNIT_LETTERS = frozenset("mgshlJNWVACFK")  # metres, grams, ...; other single letters are variables, e and i numbers
_NO_UNIT = re.compile(  # words that change a number, bound it, join it to another or are one
    r"or|to|than|plus|minus|dozen|(?:hundred|thousand|million|billion|trillion)s?|factorial"
    r"|halves|thirds|(?:four|fif|six|seven|eigh|nin|ten)ths|alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda"
    r"|mu|nu|xi|rho|sigma|tau|phi|chi|psi|omega"
)
_REPEATING = re.compile(r"(?<![\d.])(\d{0,20})\.(\d{0,20})\\(?:overline|bar)\s*\{?(\d{1,20})\}?(?!\d)")


def plain(text: str) -> str:
    r"""`text` without math delimiters, commands for space, font and colour, `\text{}` wrappers and units, currency and
    degree signs, final stop. Longer than `MAX_LENGTH` it stays as it is."""
    if len(text) > MAX_LENGTH:
        return text
    text = _INVISIBLE.sub("", text).strip()
    for opening, closing in _WRAPPERS:
        if text.startswith(opening) and text.endswith(closing) and len(text) > len(opening) + len(closing):
            text = text[len(opening) : -len(closing)].strip()
    text = _DROPPED.sub(lambda match: match.group(1) or "", text).strip()
    if _GROUP.fullmatch(text):
        text = text[1:-1].strip()
    unit = _TEXT_UNIT.search(text)
    if unit and re.search(r"\d|\\pi", text[: unit.start()]) and is_unit(re.sub(r"\\[a-z]+", "", unit.group())):
        text = text[: unit.start()]
    text = _TEXT.sub(r" \1 ", text)
    for pattern, replacement in _SPELLING:
        text = pattern.sub(replacement, text)
    text = _REPEATING.sub(_fraction, text).strip()
    if text.endswith("\\") and not text.endswith("\\\\"):  # of a space command whose space was stripped
        text = text[:-1].rstrip()
    while len(text) > 1 and text[-1] in ".,;" and not text.endswith(r"\."):
        text = text[:-1].rstrip()
    return text


def _fraction(match: "re.Match[str]") -> str:
    r"""A repeating decimal as a fraction: 0.1\overline{6} is (16 - 1)/90."""
    whole, fixed, period = match.groups()
    over = int(whole + fixed + period) - int("0" + whole + fixed)
    return rf"\frac{{{over}}}{{{'9' * len(period) + '0' * len(fixed)}}}"


def plain_pair(answer: str, gold: str) -> tuple[str, str]:
    """Both in `plain` spelling, the answer also without what the gold doesn't have: "the answer is", the letter of the
    choice before its value, the unit or noun after its number."""
    ours, theirs = plain(answer), plain(gold)
    ours = _PREFACE.sub("", ours, count=1) if _PREFACE.match(ours) else ours
    label = _LABEL.match(ours)
    if label and (label.group(1) or label.group(2)) not in theirs and not _LETTER.fullmatch(theirs.replace(" ", "")):
        ours = ours[label.end() :]
    unit = _BARE_UNIT.search(ours)
    if unit and not _BARE_UNIT.search(theirs) and is_unit(unit.group()):
        ours = ours[: unit.start()]
    metres = _METRES.fullmatch(ours)
    if metres and not theirs.endswith("m"):
        ours = metres.group(1)
    return ours, theirs


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
    return not (_NO_UNIT.fullmatch(low) or low in _NOT_WORDS or low in _ALPHABET)  # 'abc', 'xyz' are products


def is_words(text: str) -> bool:
    """Whether an answer in `plain` spelling is a word or phrase rather than mathematics."""
    words = [word for word in _WORD.findall(text) if word.lower() not in _NOT_WORDS]
    return bool(words) and not re.search(r"[\d\\=^_+*/<>{}]", text)


@lru_cache(maxsize=16384)
def canonical(text: str) -> str:
    """The spelling in which equal-looking answers are equal strings (without case of words, without most spaces)."""
    text = plain(text)
    if len(text) > MAX_LENGTH:
        return text
    if is_words(text):
        return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()
    number = as_number(text)
    if number is not None:
        return _spell(number)
    letter = _LETTER.fullmatch(text.replace(" ", ""))
    if letter:
        return letter.group(1)
    text = _LOOSE.sub("", text)
    match = re.fullmatch(r"[a-zA-Z]=(.+)", text)
    return match.group(1) if match and "=" not in match.group(1) else text


def same_spelling(answer: str | None, gold: str) -> bool:
    """The second grader's verdict: equal once spelt alike, nothing more."""
    return answer is not None and canonical(answer) == canonical(gold)


def as_number(text: str) -> Decimal | None:
    """The value of a plain decimal (sign and thousands commas allowed, `plain` spelling), else None."""
    if _COMMA_SPACE.search(text):  # a list
        return None
    text = re.sub(r"(?<=\d)\s+(?=\d{3}(?!\d))", "", _LOOSE.sub("", text))
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
    if len(gold) > MAX_LENGTH:
        return False, f"gold longer than {MAX_LENGTH} characters"
    plain_answer, plain_gold = plain_pair(answer, gold)
    for pattern, what in ((_NAMED, "another variable"), (_BASED, "another number or base")):
        named_answer, named_gold = pattern.fullmatch(plain_answer), pattern.fullmatch(plain_gold)
        if named_answer and named_gold and named_answer.group(1) != named_gold.group(1):
            return False, what
    if len(_PRIME.findall(plain_answer)) != len(_PRIME.findall(plain_gold)):  # math-verify passes over them
        return False, "another derivative"
    ours, theirs = canonical(plain_answer), canonical(plain_gold)
    alike = _COMMA_SPACE.sub(",", plain_answer) == _COMMA_SPACE.sub(",", plain_gold)  # 58, 500 for 58,500
    if ours and (ours == theirs or alike):
        return True, "same text"
    number_a, number_g = as_number(plain_answer), as_number(plain_gold)
    if number_a is not None and number_g is not None:
        return number_a == number_g, "same number" if number_a == number_g else "another number"
    if number_g is not None and _RELATION.match(plain_answer):
        return False, "a relation, not a number"
    letter = _LETTER.fullmatch(plain_gold.replace(" ", ""))
    if letter:
        chosen = _CHOSEN.match(plain_answer)
        plain_answer = plain_answer[chosen.end() :] if chosen else plain_answer
        if plain_answer.replace(" ", "").strip("().:") == letter.group(1):
            return True, "same choice"
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
    if _DOTS.search(plain_answer) or _DOTS.search(plain_gold):  # what they stand for is not in the text
        return False, "another text, with dots"
    return None
