"""What a rule of grading is, and the two answers it is about."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from r3bench.grading.spelling.latex import MAX_LENGTH, dialect, untext
from r3bench.grading.spelling.measures import relation, unit
from r3bench.grading.spelling.normalise import LETTER
from r3bench.grading.spelling.numbers import as_number
from r3bench.grading.spelling.units import Amount, amount, bare_unit, is_changed

Outcome = tuple[bool, str]  # the verdict, and why in a few words

_TEXT_FIRST = re.compile(r"\A((?:\(|\\\$)?)\\text\{([^{}]*)\}(?=\s*\S)")
_ONLY_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_PREFACE = re.compile(
    r"\A\s*(?:(?:so|thus|hence|therefore)[\s,]+)?(?:"
    r"(?P<said>(?:the\s+|my\s+|our\s+)?[^\W\d_][^\d\\$=:<>(){}|]{0,80}?)\s*(?:\b(?:is|are|equals|gives|becomes|"
    r"was|will be)(?![^\W_])(?:\s+(?:equal\s+to|given\s+by|exactly))?\s*[:=]?|:(?!\s*\d+\s*\Z))"
    r"|(?P<answer>(?:final\s+)?(?:answer|ans|result|solution)\s*[=:]?(?=\s|\d|\\|-))"
    r")\s*(?=\S)",
    re.IGNORECASE,
)
_ABOUT = re.compile(
    r"\A\s*(?:(?:\\approx(?![a-zA-Z])|\\sim(?![a-zA-Z])|≈|=|(?:just\s+)?(?:about|approximately|approx\.?|roughly|"
    r"around|circa|ca\.|exactly|precisely|equals|etwa|ungefähr|rund"
    r"|environ|aproximadamente|approximativement|cerca\s+de|около|примерно|приблизительно|ровно)(?![^\W\d_])|大约|约|"
    r"約|およそ|약|就是|是)\s*)+(?=\S)",
    re.IGNORECASE,
)
_RANGE = re.compile(  # 'for all x', ', k \in \mathbb{Z}' behind the only formula
    r",?\s*\(?(?:\\text\{\s*)?(?:for\s+(?:all|any|every|each|some)(?![a-zA-Z])|(?:,|where)\s*[a-zA-Z]"
    r"\s*\\in\s*\\mathbb(?![a-zA-Z])|\\forall(?![a-zA-Z]))"
    r"(?:(?!\s(?:or|and)\s)[^=])*\Z"
)
_LABEL = re.compile(r"(?:\(([A-J])\)[.:]?|([A-J])\)|([A-J])[.:](?=\s))\s*(?=[^\s,;])")  # '(B) ' before a value
CLOCK = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?\s*(?:([aApP])\.?\s*[mM]\.?)?")
_NEGATIVE = re.compile(r"\A\s*(?:negative|minus)\s+(?=\d|\\(?:frac|sqrt|pi))", re.IGNORECASE)
_KIND = re.compile(
    r"\A\s*(?:the\s+)?(?:point|vector|ordered\s+(?:pair|triple)|interval|line|curve|circle|function)\s+"
    r"(?=\(|\[|\\begin|[a-z]\s*=)",
    re.IGNORECASE,
)
_RATIO = re.compile(r"\d+(?:\s*:\s*\d+)+")
_TO = re.compile(r"(?<=\d)\s*(?<![a-zA-Z\\])to(?![a-zA-Z])\s*(?=\d)")
_COMMA = re.compile(r"[-+]?(?:\d+,(?!\d{3}\Z)\d+|0,\d+)")  # a decimal comma: no thousands
_DOTTED = re.compile(
    r"(?<![\w.])(\d*\.\d{3,})\s*(?:\\ldots(?![a-zA-Z])|\.\.\.)\s*(?==|\\approx)|"
    r"(?<==)\s*(\d*\.\d{3,})\s*(?:\\ldots(?![a-zA-Z])|\.\.\.)\s*\Z"
)
_MAPS = re.compile(r"\A\s*(?:[a-zA-Z]\s*:\s*)?[a-zA-Z]\s*\\mapsto(?![a-zA-Z])\s*")
_FOUND = re.compile(r"\s*\(?\s*(?:as\s+(?:required|desired|claimed|needed)|Q\.?E\.?D\.?|✓)\s*\)?\s*\Z", re.IGNORECASE)


@dataclass(frozen=True)
class Pair:
    """An answer and a gold answer, ready to be compared."""

    answer: str  # as written
    gold: str  # as written
    ours: str  # the answer in `plain` spelling without what the gold doesn't have: preface, label, unit
    theirs: str  # the gold in the same spelling
    whole: str  # the answer in `plain` spelling with label and words
    units: bool | Fraction | float  # True: the same or not both known; False: others; else what `ours` is multiplied by
    words: tuple[str, str]  # what stood behind the two numbers


@dataclass(frozen=True)
class Rule:
    """One step of a verdict: it decides, or leaves the pair to the rules after it."""

    name: str  # shown in front of the reason
    says: str  # the rule in one sentence
    examples: tuple[tuple[str, str, bool], ...]  # (gold, answer, verdict) that this rule decides
    decide: Callable[[Pair], Outcome | None]  # the verdict, or None


def first(rules: tuple[Rule, ...], pair: Pair) -> Outcome | None:
    """The verdict of the first rule that has one, its reason after the rule's name."""
    for rule in rules:
        outcome = rule.decide(pair)
        if outcome is not None:
            return outcome[0], f"{rule.name}: {outcome[1]}"
    return None


@lru_cache(maxsize=8192)
def pair(answer: str, gold: str) -> Pair:
    """The two made ready."""
    if max(len(answer), len(gold)) > MAX_LENGTH:
        return Pair(answer, gold, answer, gold, answer, True, ("", ""))
    ours, theirs = _opened(dialect(answer)), _opened(dialect(gold))
    whole = untext(ours).strip()
    theirs = _without_preface(theirs)
    if not re.search(r"(?<![a-zA-Z])(?:is|are)(?![a-zA-Z])", theirs):
        ours = _without_preface(ours)
    ours, theirs = _ABOUT.sub("", ours, count=1), _ABOUT.sub("", theirs, count=1)
    ours, theirs = _NEGATIVE.sub("-", ours, count=1), _NEGATIVE.sub("-", theirs, count=1)
    ours = _KIND.sub("", ours, count=1)
    ours = _MAPS.sub("", ours, count=1) if "mapsto" not in theirs else ours
    ours = _FOUND.sub("", ours) or ours
    ours = _DOTTED.sub(lambda found: found[1] or found[2], ours)
    scope = _RANGE.search(ours)
    if scope and scope.start() and not _RANGE.search(theirs):
        ours = ours[: scope.start()]
    label = _LABEL.match(ours)
    if label and next(filter(None, label.groups())) not in theirs and not LETTER.fullmatch(theirs.replace(" ", "")):
        ours = ours[label.end() :]
    return _measured(answer, gold, ours, theirs, whole)


def _measured(answer: str, gold: str, ours: str, theirs: str, whole: str) -> Pair:
    """The pair apart from its units."""
    if CLOCK.fullmatch(untext(theirs).strip()):
        return Pair(answer, gold, untext(ours).strip(), untext(theirs).strip(), whole, True, ("", ""))
    mine, other = amount(ours), amount(theirs)
    gold_bare = other.words and not other.worded and bare_unit(other.words) and len(other.words) > 1
    use_gold = bool(other.words) and (other.worded or bool(gold_bare))
    letters = not use_gold and bool(re.search(r"[a-zA-Z]\s*(?:\^\s*\{?\w\}?)?$", theirs))
    use_mine = bool(mine.words or mine.multiplied) and (mine.worded or (bare_unit(mine.words) and not letters))
    if use_gold and mine.words and not use_mine and unit(mine.words) and unit(other.words):
        use_mine = unit(mine.words).powers == unit(other.words).powers  # type: ignore[union-attr]
    ours = _untexted(mine, ours, use_mine)
    theirs = _untexted(other, theirs, use_gold or other.multiplied)
    words = (mine.words if use_mine else "", other.words if use_gold else "")
    if _RATIO.fullmatch(theirs):
        ours = _TO.sub(":", ours)
    elif "." in theirs and _COMMA.fullmatch(ours) and as_number(theirs) is not None:
        ours = ours.replace(",", ".")
    return Pair(answer, gold, ours, theirs, whole, _units(words, ours, theirs), words)


def _untexted(found: Amount, text: str, use: bool) -> str:
    return untext(found.number if use else text).strip()


def _units(words: tuple[str, str], ours: str, theirs: str) -> bool | Fraction | float:
    """As `Pair.units`; an angle in degrees may be said in radians with pi, and the other way round."""
    degrees = ["^\\circ" in one or one.lower().startswith(("deg", "degree")) for one in words]
    radians = [one.lower() in ("", "rad", "rads", "radian", "radians") for one in words]
    pis = [r"\pi" in text for text in (ours, theirs)]
    if degrees[0] and radians[1] and pis[1]:
        return math.pi / 180
    if degrees[1] and radians[0] and pis[0] and not pis[1]:
        return 180 / math.pi
    return relation(*words)


def _opened(text: str) -> str:
    only = _ONLY_TEXT.fullmatch(text)
    if only:
        text = only[1].strip()
    return _TEXT_FIRST.sub(lambda found: f"{found[1]}{found[2]} ", text, count=1)


def _without_preface(text: str) -> str:
    found = _PREFACE.match(text)
    if (
        found
        and not is_changed(re.sub(r"\b(?:is|are|was)\b", "", found.group()))
        and not LETTER.fullmatch((found["said"] or "").strip())
    ):
        return text[found.end() :]
    return text
