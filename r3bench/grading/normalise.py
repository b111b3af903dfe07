"""One canonical spelling for an answer: text in, text out (no parser, no process)."""

import re
from functools import lru_cache

from r3bench.grading.numbers import LOOSE, as_number, spell
from r3bench.grading.units import MEASURED, NOT_WORDS, is_unit

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
    (
        re.compile(r"\\sqrt\s*(\[[^\[\]]{1,20}\])?\s*(\d+)"),
        r"\\sqrt\1{\2}",
    ),  # meant so, though TeX sets one digit under it
    (re.compile(r"\\sqrt\s*(\[[^\[\]]{1,20}\])?\s*\(([^()]*)\)"), r"\\sqrt\1{\2}"),
    (re.compile(r"\\[dt]binom(?![a-zA-Z])"), r"\\binom"),
    (
        re.compile(r"\{([^{}]*)\\choose(?![a-zA-Z])([^{}]*)\}|\A([^{}]*)\\choose(?![a-zA-Z])([^{}]*)\Z"),
        r"\\binom{\1\3}{\2\4}",
    ),
    (re.compile(r"\^\s*\{\s*((?:\\prime\s*){1,3})\}|\^\s*(\\prime)(?![a-zA-Z])"), lambda m: "'" * m[0].count("prime")),
    (re.compile(r"\(\s*(\d+)\s*\)\s*(?=_)"), r"\1"),  # of a base
    (re.compile(r"\\(?:le|leqslant)(?![a-zA-Z])"), r"\\leq"),
    (re.compile(r"\\(?:ge|geqslant)(?![a-zA-Z])"), r"\\geq"),
    (re.compile(r"\\(?:ne)(?![a-zA-Z])"), r"\\neq"),
    (re.compile(r"\\varnothing(?![a-zA-Z])"), r"\\emptyset"),
    (re.compile(r"\\langle(?![a-zA-Z])"), "("),
    (re.compile(r"\\rangle(?![a-zA-Z])"), ")"),
    (re.compile(r"(?<![\\a-zA-Z])pi(?![a-zA-Z])"), r"\\pi "),
    (re.compile(r"(?<=\d)\s*\^\s*\{\s*(?:st|nd|rd|th)\s*\}"), ""),
    (re.compile(r"(?<![\d./])(\d{1,9})\s+(\d{1,9})\s*/\s*(\d{1,9})(?![\d./])"), r"\1\\frac{\2}{\3}"),
    (re.compile(r"\\?%|(?<=[\d}])\s*(?:percent(?:age)?|pct)(?![a-zA-Z])"), "%"),
    (re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)|°|\\degree(?![a-zA-Z])"), ""),
    (re.compile(r"\\\$|(?<!\\)\$"), ""),
    (re.compile(r"(?<=\d)\{,\}(?=\d)"), ","),
    (re.compile(r"(?<=\d)[eE](?=[-+]?\d{1,4}(?!\d))([-+]?)0*(\d+)"), r"\\times 10^{\1\2}"),
)
_SIGNS = str.maketrans(
    {
        **dict.fromkeys("−–—", "-"),
        **dict.fromkeys("·⋅", r"\cdot "),
        **dict.fromkeys("’′", "'"),
        "×": r"\times ",
        "÷": r"\div ",
        "√": r"\sqrt ",
        "±": r"\pm ",
        "≈": r"\approx ",
        "∞": r"\infty ",
        "≤": r"\leq ",
        "≥": r"\geq ",
        "≠": r"\neq ",
        "∪": r"\cup ",
        "∩": r"\cap ",
        "∈": r"\in ",
        "∅": r"\emptyset ",
        "⟨": "(",
        "⟩": ")",
        "¢": "",
        "€": "",
        "²": "^{2}",
        "³": "^{3}",
        "½": r"\frac{1}{2}",
        "¼": r"\frac{1}{4}",
        "¾": r"\frac{3}{4}",
        "⅓": r"\frac{1}{3}",
        "⅔": r"\frac{2}{3}",
        "α": r"\alpha ",
        "β": r"\beta ",
        "γ": r"\gamma ",
        "δ": r"\delta ",
        "θ": r"\theta ",
        "λ": r"\lambda ",
        "μ": r"\mu ",
        "π": r"\pi ",
        "ρ": r"\rho ",
        "σ": r"\sigma ",
        "τ": r"\tau ",
        "φ": r"\phi ",
        "ω": r"\omega ",
    }
)
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
_ANGLE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ)|°|\\degree(?![a-zA-Z]))")
_WORD = re.compile(r"(?<![\\a-zA-Z])[A-Za-z]{3,}")
LETTER = re.compile(r"\(?([A-J])\)?")
_INDEX = re.compile(r"([_^])\{([a-zA-Z0-9])\}")
_TEXT_UNIT = re.compile(
    MEASURED + r"(?:\s*\\(?:text|mathrm|mbox)\s*\{[^{}\d]*\}(?:\s*\^\s*\{?-?\d\}?)?(?:\s*(?:/|\\cdot(?![a-zA-Z])))?)+$"
)
_REPEATING = re.compile(r"(?<![\d.])(\d{0,20})\.(\d{0,20})\\(?:overline|bar)\s*\{?(\d{1,20})\}?(?!\d)")


def plain(text: str) -> str:
    r"""`text` without math delimiters, commands for space, font and colour, `\text{}` wrappers and units, currency and
    degree signs, final stop. Longer than `MAX_LENGTH` it stays as it is."""
    if len(text) > MAX_LENGTH:
        return text
    text = _INVISIBLE.sub("", text).strip()
    if not text.isascii():
        text = text.translate(_SIGNS)
    for opening, closing in _WRAPPERS:
        if text.startswith(opening) and text.endswith(closing) and len(text) > len(opening) + len(closing):
            text = text[len(opening) : -len(closing)].strip()
    text = _DROPPED.sub(lambda match: match.group(1) or "", text).strip()
    if _GROUP.fullmatch(text):
        text = text[1:-1].strip()
    text = _unstopped(text)
    unit = _TEXT_UNIT.search(text)
    if unit and re.search(r"\d|\\pi", text[: unit.start()]) and is_unit(re.sub(r"\\[a-z]+", "", unit.group())):
        text = text[: unit.start()]
    text = _TEXT.sub(r" \1 ", text)
    if _TRIGONOMETRY.search(text):  # elsewhere the sign makes no difference
        text = _ANGLE.sub(r"(\\frac{\1 \\pi}{180})", text)
    for pattern, replacement in _SPELLING:
        text = pattern.sub(replacement, text)
    text = _REPEATING.sub(_fraction, text).strip()
    if text.endswith("\\") and not text.endswith("\\\\"):  # of a space command whose space was stripped
        text = text[:-1].rstrip()
    return _unstopped(text)


def _unstopped(text: str) -> str:
    while len(text) > 1 and text[-1] in ".,;" and not text.endswith(r"\."):
        text = text[:-1].rstrip()
    return text


def _fraction(match: "re.Match[str]") -> str:
    r"""A repeating decimal as a fraction: 0.1\overline{6} is (16 - 1)/90."""
    whole, fixed, period = match.groups()
    over = int(whole + fixed + period) - int("0" + whole + fixed)
    return rf"\frac{{{over}}}{{{'9' * len(period) + '0' * len(fixed)}}}"


def is_words(text: str) -> bool:
    """Whether an answer in `plain` spelling is a word or phrase rather than mathematics."""
    words = [word for word in _WORD.findall(text) if word.lower() not in NOT_WORDS]
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
        return spell(number)
    letter = LETTER.fullmatch(text.replace(" ", ""))
    if letter:
        return letter.group(1)
    text = _INDEX.sub(r"\1\2", LOOSE.sub("", text))
    match = re.fullmatch(r"[a-zA-Z]=(.+)", text)
    return match.group(1) if match and "=" not in match.group(1) else text


def same_spelling(answer: str | None, gold: str) -> bool:
    """The second grader's verdict: equal once spelt alike, nothing more."""
    return answer is not None and canonical(answer) == canonical(gold)
