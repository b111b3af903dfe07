"""What can be decided from spelling alone (no parser, no process)."""

import re

from r3bench.grading.normalise import LETTER, MAX_LENGTH, canonical, is_words, plain
from r3bench.grading.numbers import COMMA_SPACE, as_number, same_fraction
from r3bench.grading.units import MEASURED, another_unit, is_unit

_LETTER_FIRST = re.compile(  # '(B) text', 'B. text', 'B: text'
    r"\(?([A-J])(?:\)[.:]?|[.:](?=\s|$))"  # not 'B:C' or 'B.5'
    r"(?!\s*[,;]?\s*\(?[A-J]\)?\s*(?:$|[,;(]))"  # nor a second letter: '(B)(C)', '(B), (C)'
)
_LABEL = re.compile(r"(?:\(?([A-J])\)[.:]?|([A-J])[.:](?=\s))\s*(?=[^\s,;])")  # '(B) ' before a value
_CHOSEN = re.compile(r"(?:the\s+)?(?:correct\s+)?(?:option|choice|answer)\s*(?:is\b)?\s*:?\s*", re.IGNORECASE)
_PREFACE = re.compile(
    r"\A(?:(?:the\s+)?(?:final\s+)?answer(?:\s+is\b|\s*[:=])\s*:?\s*)?"
    r"(?:(?:=|\\(?:approx|simeq|thickapprox)(?![a-zA-Z]))\s*)*",
    re.IGNORECASE,
)
_RANGE = re.compile(  # 'for all x', ', k \in \mathbb{Z}' behind the only formula
    r",?\s*(?:for\s+(?:all|any|every|each)(?![a-zA-Z])|(?:,|where)\s*[a-zA-Z]\s*\\in\s*\\mathbb(?![a-zA-Z]))"
    r"(?:(?!\s(?:or|and)\s)[^=])*\Z"
)
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?\s*(?:([aApP])\.?\s*[mM]\.?)?")
_RELATION = re.compile(r"[<>]|\\(?:leq|geq|neq|lt|gt)(?![a-zA-Z])")
_NAMED = re.compile(r"([a-zA-Z])\s*=[^=]+")
_IN = re.compile(r"([a-zA-Z])\s*\\in(?![a-zA-Z]).*", re.DOTALL)
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_BASED = re.compile(r"[-+]?[\dA-F]+\s*_(?:\s*\{\s*(?=\d+\s*\}))?(\d+)\s*\}?")
_DOTS = re.compile(r"\\[lc]?dots(?![a-zA-Z])|\.\.\.|…")
_BARE_UNIT = re.compile(
    MEASURED + r"(?:(?:\s+(?:sq|cu)\.?)?\s*(?:[mck]m|kg|ft|in)|((?:\s+(?:[a-zA-Z]{3,}|(?:sq|cu)\.?(?![a-zA-Z])))+))"
    r"(?:\s*\^\s*\{?\d\}?)?$"
)
_PRIME = re.compile(r"(?<=[a-zA-Z)}])'|\\prime(?![a-zA-Z])")
_METRES = re.compile(r"([-+]?[\d.,]+)\s*m")


def plain_pair(answer: str, gold: str) -> tuple[str, str]:
    """Both in `plain` spelling, the answer also without what the gold doesn't have: "the answer is", the letter of the
    choice before its value, the unit or noun after its number."""
    ours, theirs = plain(answer), plain(gold)
    ours, theirs = _PREFACE.sub("", ours, count=1) or ours, _PREFACE.sub("", theirs, count=1) or theirs
    scope = _RANGE.search(ours)
    if scope and scope.start() and not _RANGE.search(theirs):
        ours = ours[: scope.start()]
    label = _LABEL.match(ours)
    if label and (label.group(1) or label.group(2)) not in theirs and not LETTER.fullmatch(theirs.replace(" ", "")):
        ours = ours[label.end() :]
    unit = _BARE_UNIT.search(ours)
    if unit and not _BARE_UNIT.search(theirs) and is_unit(unit.group()):
        ours = ours[: unit.start()]
    metres = _METRES.fullmatch(ours)
    if metres and not theirs.endswith("m"):
        ours = metres.group(1)
    return ours, theirs


def decide(answer: str, gold: str) -> tuple[bool, str] | None:
    """The verdict where spelling alone settles it, with its reason; None where mathematics is needed.

    Settled: equal canonical spellings; two plain decimals; a gold that is words; a gold that is a choice letter.
    """
    if len(answer) > MAX_LENGTH:
        return False, f"answer longer than {MAX_LENGTH} characters"
    if len(gold) > MAX_LENGTH:
        return False, f"gold longer than {MAX_LENGTH} characters"
    if another_unit(answer, gold):
        return False, "another unit"
    plain_answer, plain_gold = plain_pair(answer, gold)
    time = _CLOCK.fullmatch(plain_gold)
    if time and (time.group(4) or plain_gold.startswith("0") or ":0" in plain_gold):  # others may be ratios
        return _same_time(_CLOCK.fullmatch(plain_answer), time)
    for pattern in (_NAMED, _IN):
        named_answer, named_gold = pattern.fullmatch(plain_answer), pattern.fullmatch(plain_gold)
        if named_answer and named_gold and named_answer.group(1) not in _COMMAND.sub("", plain_gold):
            return False, "another variable"  # but y = 2x may be x = y/2
    based_answer, based_gold = _BASED.fullmatch(plain_answer), _BASED.fullmatch(plain_gold)
    if based_answer and based_gold and based_answer.group(1) != based_gold.group(1):
        return False, "another number or base"
    if len(_PRIME.findall(plain_answer)) != len(_PRIME.findall(plain_gold)):  # math-verify passes over them
        return False, "another derivative"
    ours, theirs = canonical(plain_answer), canonical(plain_gold)
    alike = COMMA_SPACE.sub(",", plain_answer) == COMMA_SPACE.sub(",", plain_gold)  # 58, 500 for 58,500
    if ours and (ours == theirs or alike):
        return True, "same text"
    number_a, number_g = as_number(plain_answer), as_number(plain_gold)
    if number_a is not None and number_g is not None:
        return number_a == number_g, "same number" if number_a == number_g else "another number"
    if number_g is not None and _RELATION.match(plain_answer):
        return False, "a relation, not a number"
    letter = LETTER.fullmatch(plain_gold.replace(" ", ""))
    if letter:
        chosen = _CHOSEN.match(plain_answer)
        plain_answer = plain_answer[chosen.end() :] if chosen else plain_answer
        if plain_answer.replace(" ", "").strip("().:") == letter.group(1):
            return True, "same choice"
        first = _LETTER_FIRST.match(plain_answer)
        if first:
            same = first.group(1) == letter.group(1)
            return same, "same choice" if same else "another choice"
        if LETTER.fullmatch(plain_answer.replace(" ", "")):
            return False, "another choice"
    if is_words(plain_gold):
        words, theirs = (
            " ".join(re.findall(r"(?!and\b)\b[a-z0-9]+", text.lower())) for text in (plain_answer, plain_gold)
        )
        return words == theirs, "same text" if words == theirs else "another text"
    if not plain_answer:
        return False, "empty answer"
    if _DOTS.search(plain_answer) or _DOTS.search(plain_gold):  # what they stand for is not in the text
        return False, "another text, with dots"
    same = same_fraction(plain_answer, plain_gold)
    return None if same is None else (same, "equal" if same else "another value")


def _same_time(answer: "re.Match[str] | None", gold: "re.Match[str]") -> tuple[bool, str]:
    """Times of day; a.m. or p.m. may be left out."""
    if answer is None:
        return False, "no time"
    halves = {(found.group(4) or "").lower() for found in (answer, gold)} - {""}
    clock, gold_clock = ([int(part or 0) for part in found.groups()[:3]] for found in (answer, gold))
    same = clock == gold_clock and len(halves) < 2
    return same, "same time" if same else "another time"
