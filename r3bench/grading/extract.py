"""Finds the final answer in a model's response. Text in, text out; linear time whatever the text."""

import re
from dataclasses import dataclass
from typing import Literal

Form = Literal["boxed", "phrase", "number", "none"]

# `\boxed{`, `\boxed 5`, `\fbox{...}`; then the braces, escaped ones apart
_TOKEN = re.compile(r"\\(?:boxed|fbox|framebox)\s*(\{)?|\\[\\{}]|[{}]")
_LOOSE_BOX = re.compile(r"\s*([^\s{}$\\]+)")
_FILLED = re.compile(r"\S")
_PHRASE = re.compile(
    r"(?:####|(?:\banswer\b|答案)(?:\s*\*\*)?\s*(?:is|are|为|是|=|[:：])(?:\s*\*\*)?\s*[:：]?)[ \t]*", re.IGNORECASE
)
_MATH = re.compile(
    r"\$\$?([^$]{1,2000}?)\$\$?|\\\(((?:[^\\]|\\[^)]){1,2000}?)\\\)|\\\[((?:[^\\]|\\[^\]]){1,2000}?)\\\]"
)
_CHOICE = re.compile(r"\(?([A-J])\)?(?=[\s.:)*]|$)")
_NUMBER = re.compile(
    r"(?<![\w.])[-−+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+|(?<=\d))(?:\s*/\s*\d+(?![\d.]))?(?:\s*\\?%)?"
)
THOUGHT_END = "</think>"
TAIL = 4000  # characters at the end in which a phrase or a bare number is looked for


@dataclass(frozen=True)
class Answer:
    """What was found in a response."""

    text: str | None  # the answer as written, None when there is none
    form: Form  # how it was marked


def last_boxed(text: str) -> str | None:
    r"""The content of the last complete, non-empty `\boxed{...}` (outermost of a nested one), else None.

    Braces are balanced, `\{` and `\}` are not braces. A box that never closes is not an answer, but a complete
    one before it is. `\boxed 27` without braces counts as well.
    """
    stack: list[int | None] = []  # per open brace: where a box's content starts, or None for a plain brace
    found: tuple[int, int] | None = None  # a span: cutting every nested box out would take quadratic time
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token == "{":
            stack.append(None)
        elif token == "}":
            if stack:
                start = stack.pop()
                filled = _FILLED.search(text, start, match.start()) if start is not None else None
                if filled:
                    found = filled.start(), match.start()
        elif match.group(1):
            stack.append(match.end())
        elif token[1] in "bf":
            loose = _LOOSE_BOX.match(text, match.end())
            if loose:
                word = loose.group(1).rstrip(".,;:")
                found = (loose.start(1), loose.start(1) + len(word)) if word else found
    return text[found[0] : found[1]].strip() if found else None


def last_number(text: str) -> str | None:
    """The last number of the text as written (sign, thousands commas, fraction a/b and percent kept), else None."""
    found = None
    for match in _NUMBER.finditer(text[-TAIL:]):
        found = match.group()
    return found.strip() if found else None


def after_phrase(text: str) -> str | None:
    """What follows the last "answer is", "Answer:" or "####": a formula, a choice letter, a number or the line."""
    tail = text[-TAIL:]
    place = None
    for match in _PHRASE.finditer(tail):
        rest = tail[match.end() :].lstrip()
        if rest:
            place = len(tail) - len(rest)
    if place is None:
        return None
    rest = tail[place:].partition("\n")[0][:200]
    formula = _MATH.search(rest)
    if formula:
        return next(part for part in formula.groups() if part is not None).strip()
    rest = rest.strip().strip("*`\"' ")
    choice = _CHOICE.match(rest)
    if choice:
        return choice.group(1)
    number = _NUMBER.search(rest)
    if number:
        return number.group().strip()
    sentence = re.split(r"\.(?:\s|$)", rest, maxsplit=1)[0].strip("*`\"' ")
    return sentence or None


def final_answer(response: str, require_boxed: bool = True) -> Answer:
    r"""The final answer of a response: the last `\boxed{}`; unless `require_boxed`, else what follows the last
    "answer is", else the last number. What is said after `</think>` comes before all that was thought."""
    _, end, said = response.rpartition(THOUGHT_END)
    if end and not require_boxed:  # the last box is the last one either way
        answer = _find(said, require_boxed)
        if answer.text is not None:
            return answer
    return _find(response, require_boxed)


def _find(text: str, require_boxed: bool) -> Answer:
    boxed = last_boxed(text)
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
