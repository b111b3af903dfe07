"""Finds the final answer in a model's response. Text in, text out; linear time whatever the text."""

import re
from dataclasses import dataclass
from typing import Literal

from r3bench.grading.runs import LONGEST, formula_of, last_formula

Form = Literal["boxed", "phrase", "number", "none"]

# `\boxed{`, `\boxed 5`, `\fbox{...}`; then the braces, escaped ones apart
_TOKEN = re.compile(r"\\(?:boxed|fbox|framebox)\s*(\{)?|\\[\\{}](?!boxed)|[{}]")
_LOOSE_BOX = re.compile(r"\s*([^\s{}$\\]+)")
_FILLED = re.compile(r"\S")
_PHRASE = re.compile(
    r"(?:####|(?:\b(?:final\s+)?answer\b|答案|正解|答え|정답|답|\brespuesta\b|\brisposta\b|\bresposta\b|\br[ée]ponse\b|"
    r"\bantwort\b|(?<!\w)ответ\b|\bodpowiedź\b"
    r"|\byanıt\b|\bcevap\b|\bcorrect\s+(?:option|choice)\b)(?:\s+(?:final|finale|correcta|correcte|is\s+therefore))?"
    r"(?:\s*\*\*)?\s*(?:is\b|are\b|ist\b|lautet\b|es\b|est\b|è\b|é\b|to\b|为|是|は|은|는|=|[:：])"
    r"(?:\s+(?:donc|also|thus|therefore|pues|entonces|então|quindi|equal\s+to|given\s+by))?(?:\s*\*\*)?"
    r"\s*[:：]?)[ \t]*",
    re.IGNORECASE,
)
# between two boxes of one answer: `x = \boxed{3}$ and $y = \boxed{5}`
_BETWEEN = re.compile(
    r"[\s$]*(?:\\[)\]])?[\s$]*(?:,|;|\\text\{\s*(?:and|or)\s*\}|and|or|&|,\s*(?:and|or)|und|oder|et|ou|y|и|或|和|"
    r"\\quad|\\qquad|\\,|\\;|\s)*[\s$]*(?:\\[(\[])?[\s$]*"
    r"(?P<name>(?:[a-zA-Z](?:_\{?\w+\}?)?\s*(?:=|\\in|:)\s*)?)",
)
_NAME_BEFORE = re.compile(r"([a-zA-Z](?:_\{?\w+\}?)?)\s*=\s*\Z")
_REFUSAL = re.compile(
    r"\b(?:i|we)\s*(?:'m|’m|am|are)?\s*(?:(?:not|un)\s*able|can\s*not|can['’]t|could\s*n[o'’]t|do\s*n[o'’]t\s+know|"
    r"do\s+not\s+know|did\s+not\s+find)\b",
    re.IGNORECASE,
)
THOUGHT_END = "</think>"
TAIL = 4000  # characters at the end in which a phrase or a bare number is looked for
APART = 60  # characters between two boxes that may belong to one answer


@dataclass(frozen=True)
class Answer:
    """What was found in a response."""

    text: str | None  # the answer as written, None when there is none
    form: Form  # how it was marked


def _boxes(text: str) -> list[tuple[int, int, int, int]]:
    r"""The last complete, non-empty boxes, outermost ones: (start of `\boxed`, content, end of content, end)."""
    stack: list[tuple[int, int] | None] = []  # per open brace: where a box and its content start; None: a plain brace
    found: list[tuple[int, int, int, int]] = []
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token == "{":
            stack.append(None)
        elif token == "}":
            if stack:
                box = stack.pop()
                filled = _FILLED.search(text, box[1], match.start()) if box is not None else None
                if box is not None and filled:
                    while found and found[-1][0] > box[0]:  # inside this one
                        found.pop()
                    found.append((box[0], filled.start(), match.start(), match.end()))
        elif match.group(1):
            stack.append((match.start(), match.end()))
        elif token[1] in "bf":
            loose = _LOOSE_BOX.match(text, match.end())
            if loose:
                word = loose.group(1).rstrip(".,;:")
                if word:
                    found.append(
                        (match.start(), loose.start(1), loose.start(1) + len(word), loose.start(1) + len(word))
                    )
        if len(found) > 64:
            del found[:32]
    return found


def last_boxed(text: str) -> str | None:
    r"""The content of the last complete, non-empty `\boxed{...}` (outermost of a nested one), else None.

    Braces are balanced, `\{` and `\}` are not braces. A box that never closes is not an answer, but a complete
    one before it is. `\boxed 27` without braces counts as well, and `\\boxed{27}`, escaped twice.
    """
    found = _boxes(text)
    return _content(text, found[-1]) if found else None


def _content(text: str, box: tuple[int, int, int, int]) -> str:
    """What a box holds; where it was escaped twice, so is that."""
    start, first, end, _ = box
    inside = text[first:end].strip()
    twice = start > 0 and text[start - 1] == "\\" and not (start > 1 and text[start - 2] == "\\")
    return inside.replace("\\\\", "\\") if twice else inside


def joined_boxes(text: str) -> str | None:
    r"""`last_boxed`, or the contents of several boxes that are one answer: `x = \boxed{3}$ and $x = \boxed{5}`."""
    found = _boxes(text)
    if not found:
        return None
    parts = [found[-1]]
    for box in reversed(found[:-1]):
        gap = text[box[3] : parts[0][0]]
        alone = not gap.strip(" $\n") and "\n" in gap  # a box on a line of its own says it again, or corrects
        if alone or len(gap) > APART or not _BETWEEN.fullmatch(gap) or len(parts) > 11:
            break
        parts.insert(0, box)
    contents = [_content(text, box) for box in parts]
    if len(set(contents)) == 1:
        return contents[-1]
    named = []
    for (place, *_), content in zip(parts, contents, strict=True):
        name = _NAME_BEFORE.search(text[max(0, place - 20) : place])
        named.append(f"{name[1]} = {content}" if name else content)
    return ", ".join(named)


def after_phrase(text: str) -> str | None:
    """What follows the last "answer is", "Answer:" or "####": a formula with what belongs to it, a choice, or the
    sentence."""
    tail = text[-TAIL:]
    place = None
    for match in _PHRASE.finditer(tail):
        rest = tail[match.end() :].lstrip()
        if rest:
            place = len(tail) - len(rest)
    return None if place is None else formula_of(tail[place:])


def last_number(text: str) -> str | None:
    """The last number of the text with the formula or list that it is part of, else None."""
    return last_formula(text[-TAIL:])


def final_answer(response: str, require_boxed: bool = True) -> Answer:
    r"""The final answer of a response: the last `\boxed{}`, or several that are one answer; unless `require_boxed`,
    else what follows the last "answer is", else the last number with its formula. What is said after `</think>`
    comes before all that was thought."""
    _, end, said = response.rpartition(THOUGHT_END)
    if end and len(said) < LONGEST and _REFUSAL.search(said) and not re.search(r"\d|\\boxed|\\fbox", said):
        return Answer(None, "none")  # what was thought before isn't given as the answer
    if end and not require_boxed:  # the last box is the last one either way
        answer = _find(said, require_boxed)
        if answer.text is not None:
            return answer
    return _find(response, require_boxed)


def _find(text: str, require_boxed: bool) -> Answer:
    boxed = joined_boxes(text)
    if boxed is not None:
        return Answer(boxed, "boxed")
    if not require_boxed:
        phrase = after_phrase(text)
        if phrase is not None:
            return Answer(phrase, "phrase")
        number = last_number(text)
        if number is not None:
            return Answer(number, "number")
    return Answer(None, "none")
