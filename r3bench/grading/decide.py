"""The rules that spelling alone decides (no parser, no process), in their order."""

import re
from fractions import Fraction

from r3bench.grading.rules import CLOCK, Outcome, Pair, Rule, first, pair
from r3bench.grading.spelling.latex import MAX_LENGTH, dialect, untext
from r3bench.grading.spelling.measures import relation
from r3bench.grading.spelling.normalise import LETTER, is_words, spelled
from r3bench.grading.spelling.numbers import COMMA_SPACE, LOOSE, as_fraction, as_number, same_fraction
from r3bench.grading.spelling.spoken import date, full_name, quantity, spoken_number
from r3bench.grading.spelling.units import is_changed
from r3bench.grading.spelling.words import number_in_words

_CHOSEN = re.compile(r"(?:the\s+)?(?:correct\s+)?(?:option|choice|answer)\s*(?:is\b)?\s*:?\s*", re.IGNORECASE)
_CHOICE = re.compile(
    r"\(?\s*([A-J])\s*(\)[.:]?|[.:](?=\s|$)|(?=\s*\())\s*(.*)", re.DOTALL
)  # '(B) text', 'B. text', 'B (text)'
_ANOTHER = re.compile(
    r"\([A-J]\)|(?:(?<![a-zA-Z])(?:or|and|oder|und|ou|et|или)\s+|[,/&;|或和]\s*)\(?[A-J](?![A-Za-z^_(+*=-])|"
    r"(?<![A-Za-z\\])[A-J][.:)](?:\s|\Z)"
)
_JOINED = re.compile(
    r"\A\s*(?:[/&|+]|\\&|\\(?:lor|land)\b|[,;(–-]*\s*(?:(?:or|and|maybe|perhaps|possibly|probably|not\s*\Z|nor|"
    r"but|oder|und|vielleicht|ou|peut-être|или|и"
    r"|is\s+(?:not|wrong|incorrect|false)|isn't|could|might|seems|wrong|incorrect)(?![^\W\d_])|[或和]))",
    re.IGNORECASE,
)
_BOUND = re.compile(r"[<>]|\\(?:leq|geq|neq|lt|gt|ll|gg)(?![a-zA-Z])")
_BASED = re.compile(
    r"(?P<digits>[-+]?[\da-zA-Z]+(?:\.[\da-zA-Z]+)?)\s*(?:_\s*\{?\s*\(?\s*(?:base\s*)?(?P<low>\d+|[a-z]+)\s*\)"
    r"?\s*\}?|\(?\s*(?:in\s+)?base\s*[-–:]?\s*\{?(?P<said>\d+|[a-z]+)\}?\s*\)?)"
)
_DOTS = re.compile(r"\\ldots(?![a-zA-Z])|\.\.\.")
_CROSSED = re.compile(r"\\(?:[bx]?cancel|sout|st|not|neg|lnot|xout|hcancel)(?![a-zA-Z])")
_NONE = re.compile(
    r"(?:there\s+(?:is|are)\s+)?no\s+(?:real\s+)?(?:solutions?|roots?|such\s+\w+|real\s+solutions?)(?:\s+exists?)"
    r"?|(?:the\s+)?empty\s+set|\\emptyset|\\\{\s*\\\}|has\s+no\s+solutions?"
)
_UNDEFINED = re.compile(r"undefined|does\s+not\s+exist|dne|not\s+defined|doesn't\s+exist", re.IGNORECASE)
_INFINITY = re.compile(r"\+?\s*\\infty|(?:positive\s+)?infinity|infinite")
_CONNECTORS = re.compile(r"(?:and|und|et|y)\b\s*")
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_EASY = re.compile(
    r"-?(?:[0-9]{1,15}/[0-9]{1,15}|\\frac\{-?[0-9]{1,15}\}\{[0-9]{1,15}\}|[0-9]{1,15}(?:\.[0-9]{1,15})?)"
)
_LETTERS = re.compile(r"(?:[A-Z]\s*,\s*(?:and\s+)?)+[A-Z]")
_WORD = re.compile(r"[^\W_]+")


def _length(two: Pair) -> Outcome | None:
    if max(len(two.answer), len(two.gold)) <= MAX_LENGTH:
        return None
    if "".join(two.answer.split()) == "".join(two.gold.split()):
        return True, "the gold's text"
    whose = "answer" if len(two.answer) > MAX_LENGTH else "gold"
    return False, f"{whose} longer than {MAX_LENGTH} characters"


def _empty(two: Pair) -> Outcome | None:
    if not two.ours and not two.words[0]:
        return False, "nothing to compare"
    return (False, "crossed out or negated") if _CROSSED.search(two.ours) and not _CROSSED.search(two.theirs) else None


def _unit(two: Pair) -> Outcome | None:
    return (False, "another unit") if two.units is False else None


def _time(two: Pair) -> Outcome | None:
    gold, answer = CLOCK.fullmatch(two.theirs), CLOCK.fullmatch(two.ours)
    sure = gold and (gold.group(4) or two.theirs.startswith("0") or ":0" in two.theirs)  # others may be ratios
    if not gold or not (sure or (answer and answer.group(4))):
        return None
    if answer is None:
        return False, "no time"
    halves = {(found.group(4) or "").lower() for found in (answer, gold)} - {""}
    clock, gold_clock = ([int(part or 0) for part in found.groups()[:3]] for found in (answer, gold))
    same = clock == gold_clock and len(halves) < 2
    if len(halves) == 1 and (
        max(clock[0], gold_clock[0]) > 12 or 0 in (clock[0], gold_clock[0])
    ):  # one of 12 hours, one of 24
        hours = [
            part[0] % 12 + 12 * (found.group(4).lower() == "p") if found.group(4) else part[0]
            for found, part in ((answer, clock), (gold, gold_clock))
        ]
        within = all(part[0] <= 12 for found, part in ((answer, clock), (gold, gold_clock)) if found.group(4))
        same = within and hours[0] == hours[1] and clock[1:] == gold_clock[1:]
    return same, "same time" if same else "another time"


def _day(two: Pair) -> Outcome | None:
    gold = date(untext(dialect(two.gold))) if two.gold[:200].count(" ") < 20 else None
    if gold is None:
        return None
    answer = date(untext(dialect(two.answer)))
    same = answer is not None and answer[:2] == gold[:2] and len({answer[2], gold[2]} - {""}) < 2
    return same, "the same day" if same else "another day"


def _pieces(two: Pair) -> Outcome | None:
    texts = [untext(dialect(text)).strip() for text in (two.answer, two.gold)]
    if not all(re.search(r"\d\s*[^\W\d_]", text) for text in texts):
        return None
    ours, theirs = quantity(texts[0]), quantity(texts[1])
    if ours is None or theirs is None or max(ours[2], theirs[2]) < 2:
        return None
    same = ours[:2] == theirs[:2]
    return same, "equal in sum" if same else "another sum"


def _base_of(text: str) -> tuple[str, int] | None:
    found = _BASED.fullmatch(text)
    if not found:
        return None
    named = found["low"] or found["said"]
    base = int(named) if named.isdigit() else number_in_words(named)
    if base is None or not 2 <= base <= 36:
        return None
    return found["digits"].upper(), base


def _base(two: Pair) -> Outcome | None:
    """52_8; a gold without base is a decimal number."""
    ours, theirs = _base_of(two.ours), _base_of(two.theirs)
    if theirs is not None:
        digits, base = theirs
        plain = ours[0] if ours else re.sub(r"[\s,]", "", two.ours).upper()
        if not re.fullmatch(r"[-+]?[\dA-Z]+", plain):
            return None
        if ours and ours[1] != base:
            return False, "another base"
        same = plain.lstrip("+").lstrip("0") == digits.lstrip("+").lstrip("0")
        return same, "same digits" if same else "other digits"
    number = as_number(two.theirs)
    if ours is None or number is None or not re.search(r"\d", ours[0]):
        return None
    try:
        same = int(ours[0], ours[1]) == number
    except ValueError:
        return False, "a digit that the base doesn't have"
    return same, "same number" if same else "another number"


def _spelling(two: Pair) -> Outcome | None:
    if two.units is not True and two.units is not False:
        return None
    ours, theirs = spelled(two.ours), spelled(two.theirs)
    alike = COMMA_SPACE.sub(",", two.ours) == COMMA_SPACE.sub(",", two.theirs)  # 58, 500 for 58,500
    if ours and (ours == theirs or alike):
        return True, "same text"
    if two.words != ("", "") and two.units is True and spelled(two.whole) == spelled(untext(dialect(two.gold)).strip()):
        return True, "same text"  # 5 m for 5 m, whatever m is
    if two.ours and _INFINITY.fullmatch(two.ours.lower()) and _INFINITY.fullmatch(two.theirs.lower()):
        return True, "both infinite"
    return None


def _number(two: Pair) -> Outcome | None:
    ours, theirs = as_number(two.ours), as_number(two.theirs)
    if ours is None or theirs is None:
        if theirs is not None and _BOUND.match(two.ours):
            return False, "a relation, not a number"
        if (
            theirs is not None
            and re.search(r"\d", two.ours)
            and is_changed(re.sub(r"\\[a-zA-Z]+", " ", two.ours))
            and not re.search(r"\\|\(|,", two.ours)
        ):
            return (
                None
                if re.search(
                    r"(?<![a-zA-Z])(?:or|and|max|min|log|ln|sin|cos|tan|exp|sqrt|plus|minus|times)(?![a-zA-Z])",
                    two.ours,
                )
                else (False, "a word that changes the number")
            )
        return None
    if two.units is not True:
        same = abs(Fraction(ours) * Fraction(two.units) - Fraction(theirs)) <= Fraction(1, 10**9) * abs(
            Fraction(theirs)
        )
        return same, "equal after conversion" if same else "another number after conversion"
    return ours == theirs, "equal" if ours == theirs else "another number"


def _choice(two: Pair) -> Outcome | None:
    letter = LETTER.fullmatch(two.theirs.replace(" ", ""))
    if not letter:
        return None
    text = re.sub(r"\A\s*\$|\$\s*\Z", "", two.whole)
    chosen = _CHOSEN.match(text)
    text = text[chosen.end() :] if chosen else text
    if text.replace(" ", "").strip("().:") == letter.group(1):
        return True, "same choice"
    found = _CHOICE.fullmatch(text.strip())
    if found:
        rest = found[3]
        if _JOINED.match(rest) or _ANOTHER.search(rest):
            return False, "several choices, or a remark about one"
        same = found[1] == letter.group(1)
        return same, "same choice" if same else "another choice"
    if LETTER.fullmatch(text.replace(" ", "")):
        return False, "another choice"
    if _ANOTHER.search(text) and re.search(r"(?<![a-zA-Z])(?:or|and|not)(?![a-zA-Z])", text):
        return False, "several choices, or a remark about one"
    return None


def _none(two: Pair) -> Outcome | None:
    for pattern in (_NONE, _UNDEFINED):
        if pattern.fullmatch(two.theirs.lower().strip(" .")) and pattern.fullmatch(two.ours.lower().strip(" .")):
            return True, "the same said otherwise"
    return None


def _numeral(two: Pair) -> Outcome | None:
    for text, other, unit in ((two.ours, two.theirs, two.words[1]), (two.theirs, two.ours, two.words[0])):
        said = spoken_number(text) if text[:1].isalpha() else None
        if said is None:
            continue
        value, noun = said
        counted = re.fullmatch(r"(\d+)\s+([a-zA-Z][a-zA-Z\s]*)", other)
        if counted and noun and not unit:
            other, unit = counted[1], counted[2].strip()
        number = as_fraction(LOOSE.sub("", other))
        if number is None and other[:1].isalpha():
            second = spoken_number(other)
            if second is not None and second[1].lower() == noun.lower():
                number = second[0]
        elif number is not None and noun:  # a gold in words wants its noun
            if text is two.theirs and unit.lower() != noun.lower():
                continue
            if unit and relation(noun, unit) is not True:
                return False, "another unit"
        if number is not None:
            return number == value, "same number" if number == value else "another number"
    return None


def _words(two: Pair) -> Outcome | None:
    if _LETTERS.fullmatch(two.theirs) and _LETTERS.fullmatch(two.ours.upper()):
        same = set(re.findall("[A-Z]", two.ours.upper())) == set(re.findall("[A-Z]", two.theirs))
        return same, "same letters" if same else "other letters"
    if (
        not is_words(two.theirs)
        or _NONE.fullmatch(two.theirs.lower())
        or re.fullmatch(r".*\breals?\b.*", two.theirs.lower())
    ):
        return None
    if _product(two.theirs) and _product(two.ours):
        return None
    words, theirs = (
        " ".join(map(full_name, _WORD.findall(re.sub(r"(?<![a-zA-Z])and\b", " ", text.lower()))))
        for text in (two.ours, two.theirs)
    )
    same = words == theirs or (
        "," in two.theirs
        and sorted(words.split()) == sorted(theirs.split())
        and all(len(word) == 1 for word in theirs.split())
    )
    return same, "same words" if same else "other words"


def _product(text: str) -> bool:
    """Whether letters may be a product: `abc`, `a \\cdot b`."""
    return bool(re.fullmatch(r"(?:[a-zA-Z]\s*(?:\\cdot|\\times|\*)?\s*){1,4}", text)) and not re.fullmatch(
        r"(?i)yes|no|true|even|odd|none|zero|one|two|six|ten|up|down|left|red|blue", text
    )


def _dots(two: Pair) -> Outcome | None:
    if not (_DOTS.search(two.ours) or _DOTS.search(two.theirs)):
        return None
    return False, "other text, with dots"  # what they stand for is not in the text


def _fraction(two: Pair) -> Outcome | None:
    if two.units is not True:
        return None
    same = same_fraction(two.ours, two.theirs)
    return None if same is None else (same, "equal" if same else "another value")


SPELLING = (
    Rule(
        "length",
        f"An answer longer than {MAX_LENGTH:,} characters is right only if it is the gold's text.",
        (),
        _length,
    ),
    Rule(
        "empty",
        "Nothing, and what is crossed out or negated, is wrong.",
        (("27", r"\cancel{27}", False), ("27", r"\phantom{27}", False)),
        _empty,
    ),
    Rule(
        "unit",
        "Two units that are known and measure other things are wrong; of units that measure the same "
        "the second is converted.",
        (("3 kg", "3 cm", False), (r"\$5", "£5", False)),
        _unit,
    ),
    Rule(
        "time",
        "Times of day are compared as such; a.m. or p.m. may be left out; 15:45 is 3:45 p.m.",
        (("10:05", "10:05 am", True), ("10:05", "2:1", False), ("3:45 pm", "15:45", True)),
        _time,
    ),
    Rule(
        "day",
        "Days of the year are compared by month and day, and by year where both give one.",
        ((r"\text{March 14}", r"\text{14th of March}", True), (r"\text{March 14}", r"\text{March 15}", False)),
        _day,
    ),
    Rule(
        "sum",
        "Amounts in several units are compared by their sum.",
        ((r"2 \text{ hours } 30 \text{ minutes}", r"150 \text{ minutes}", True),),
        _pieces,
    ),
    Rule(
        "choice",
        "A gold that is a letter wants that letter, alone or before its text; a second letter or a remark is wrong.",
        (("B", "(B) 27", True), ("B", "(A) or (B)", False)),
        _choice,
    ),
    Rule(
        "number",
        "Two decimal numbers are equal or not.",
        (("1234", "1,234.0", True), ("27", "28", False), (r"5 \text{ m}", r"500 \text{ cm}", True)),
        _number,
    ),
    Rule(
        "spelling",
        "Equal text after normalising is right.",
        ((r"\frac{1}{2}", r"\dfrac12", True), ("5 m", r"5\text{ m}", True)),
        _spelling,
    ),
    Rule(
        "base",
        "Numbers with a base are compared by base and digits; a gold without base is decimal, an answer "
        "without base has the gold's.",
        (("52_8", r"52\text{ (base 8)}", True), ("1050", "1050_5", False)),
        _base,
    ),
    Rule(
        "none",
        "The ways to say that there is no solution, or that something is undefined, are the same.",
        ((r"\text{no solution}", r"\emptyset", True),),
        _none,
    ),
    Rule(
        "numeral",
        "A number in English words is that number.",
        (("27", r"\text{twenty-seven}", True), (r"\frac{2}{3}", r"\text{two thirds}", True)),
        _numeral,
    ),
    Rule(
        "words",
        "A gold that is words is compared word by word, without case.",
        ((r"\text{red, blue}", "red and blue", True), (r"\text{even}", r"\text{not even}", False)),
        _words,
    ),
    Rule(
        "dots", "A list with dots is right only as the gold's text.", ((r"1,2,\ldots", r"1,2,3,\ldots", False),), _dots
    ),
    Rule(
        "fraction",
        "Two fractions of whole numbers are equal or not.",
        ((r"\frac{1}{2}", "2/4", True), (r"\frac{1}{2}", "1/3", False)),
        _fraction,
    ),
)


def decide(answer: str, gold: str) -> Outcome | None:
    """The verdict where spelling alone settles it, with its reason; None where mathematics is needed."""
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(gold):  # most answers; what the rules would say, sooner
        same = int(answer) == int(gold)
        return same, f"number: {'equal' if same else 'another number'}"
    if _EASY.fullmatch(answer) and _EASY.fullmatch(gold):
        same_value = same_fraction(answer, gold)
        if same_value is not None:
            return same_value, f"fraction: {'equal' if same_value else 'another value'}"
    return first(SPELLING, pair(answer, gold))
