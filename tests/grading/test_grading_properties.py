"""What holds for every answer: symmetry, and what can be written otherwise; and every changed digit or sign counts."""

import json
import os
import random
import re
from pathlib import Path

import pytest

from r3bench.grading import Grader

NUMBERS = [
    "7",
    "12",
    "105",
    "3.25",
    "0.6",
    r"\frac{3}{7}",
    r"\frac{22}{9}",
    r"4\sqrt{5}",
    r"\frac{\sqrt{3}}{8}",
    r"6\pi",
]
FORMULAS = [
    "x^2+3x-4",
    r"\frac{2x+1}{x-5}",
    r"7e^{3t}",
    r"\ln(5y)+2",
    r"2\sin(3x)",
    r"a^2b-6ab^2",
    r"\sqrt{x+8}",
    "n(n+3)",
]
GROUPS = [
    "(3,-5)",
    r"\left(2,\frac{5}{3}\right)",
    "[4,9)",
    r"(-\infty,6]",
    "2, 5, 11",
    r"\{1,4,8\}",
    "1+6i",
    "3:8",
    "x=14",
]
GROUPS += [
    r"\begin{pmatrix}1&5\\-2&7\end{pmatrix}",
    "y=3x-8",
    "x^2+y^2=49",
    "x>17",
    r"12\%",
    r"\$45.50",
    r"35^\circ",
    "312_5",
]
ALL = NUMBERS + FORMULAS + GROUPS


def grade(pairs):
    """Verdicts of (gold, answer) pairs."""
    with Grader() as grader:
        return grader.grade([rf"\boxed{{{answer}}}" for _, answer in pairs], [gold for gold, _ in pairs])


def spaced(text):
    return re.sub(
        r"(?<=[-+=,(])|(?=[-+=,)])", " ", text.replace(r"\left(", r"\left (").replace(r"\right)", r"\right )")
    )


WAYS = {
    "spaces": spaced,
    "thin spaces": lambda text: re.sub(r"(?<=[+=,])", r"\\,", text),
    "left and right": lambda text: re.sub(
        r"(?<!\\left)(?<!\\right)(?<![a-zA-Z{\\])([()\[\]])",
        lambda found: (r"\left" if found[1] in "([" else r"\right") + found[1],
        text,
    ),
    "dfrac": lambda text: text.replace(r"\frac", r"\dfrac"),
    "tfrac": lambda text: text.replace(r"\frac", r"\tfrac"),
    "dollars": lambda text: f"${text}$",
    "parentheses of TeX": lambda text: rf"\({text}\)",
    "stop": lambda text: f"{text}.",
    "braces": lambda text: f"{{{text}}}",
    "display": lambda text: rf"\displaystyle {text}",
}


@pytest.mark.parametrize("way", WAYS)
def test_another_way_to_write_it_is_right_on_both_sides(way):
    pairs = [(text, WAYS[way](text)) for text in ALL]
    pairs += [(b, a) for a, b in pairs]
    wrong = [(pair, verdict.reason) for pair, verdict in zip(pairs, grade(pairs), strict=True) if not verdict.correct]
    assert not wrong


def digits_changed(text, chance):
    """`text` with one digit of a number replaced."""
    places = [found.start() for found in re.finditer(r"\d", text)]
    place = chance.choice(places)
    other = chance.choice([digit for digit in "123456789" if digit != text[place]])
    return text[:place] + other + text[place + 1 :]


def test_a_changed_digit_anywhere_is_wrong():
    chance = random.Random(16)
    pairs = []
    for text in ALL:
        for place in (found.start() for found in re.finditer(r"\d", text)):
            for digit in chance.sample([one for one in "123456789" if one != text[place]], 2):
                pairs.append((text, text[:place] + digit + text[place + 1 :]))
    assert len(pairs) > 120
    accepted = [pair for pair, verdict in zip(pairs, grade(pairs), strict=True) if verdict.correct]
    assert not accepted


def test_a_changed_sign_anywhere_is_wrong():
    pairs = [(text, f"-{text}") for text in NUMBERS] + [(text, f"-({text})") for text in FORMULAS]
    for text in ALL:
        for found in re.finditer(r"(?<=[\w)}])[-+](?=[\w\\])|(?<=[(,&=])-|(?<=\\\\)-", text):
            if text[found.start() :].startswith(r"-\infty"):
                continue
            turned = "+" if found.group() == "-" else "-"
            pairs.append((text, text[: found.start()] + turned + text[found.end() :]))
    assert len(pairs) > 30
    accepted = [pair for pair, verdict in zip(pairs, grade(pairs), strict=True) if verdict.correct]
    assert not accepted


def test_verdicts_are_symmetric():
    """Among values of one kind; a gold's unit, name or percent sign may be left out by an answer, not the other way."""
    chance = random.Random(5)
    values = NUMBERS + FORMULAS + [one for one in GROUPS if not re.search(r"%|\\\$|circ|_5|x=", one)]
    pairs = [(a, WAYS[chance.choice(list(WAYS))](b)) for a in values for b in chance.sample(values, 8)]
    for (gold, answer), one, two in zip(
        pairs, grade(pairs), grade([(answer, gold) for gold, answer in pairs]), strict=True
    ):
        assert one.correct is two.correct, (gold, answer, one, two)


DATA = os.environ.get("R3BENCH_DATA")
EVALUATION = ["aime24", "aime25", "aime26", "amc23", "amc_2022_2023", "math500", "minerva", "olympiadbench"]


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="R3BENCH_DATA is not set")
@pytest.mark.parametrize("name", [*EVALUATION, "gsm8k_test", "gsm8k_train", "math_train", "aime_train"])
def test_golds_are_right_against_themselves_and_wrong_against_a_thousand_others(name):
    """The pairs that are equal are named with the reason in EQUAL."""
    lines = (Path(DATA) / f"{name}.jsonl").read_text().split("\n")
    answers = [str(json.loads(line)["answer"]) for line in lines if line]
    own = [(gold, gold) for gold in dict.fromkeys(answers)]
    wrong = [pair for pair, verdict in zip(own, grade(own), strict=True) if not verdict.correct]
    assert not wrong
    chance = random.Random(name)
    pairs = []
    while len(pairs) < 1000:
        gold, other = chance.sample(answers, 2)
        if "".join(gold.split()) != "".join(other.split()):
            pairs.append((gold, other))
    accepted = {pair for pair, verdict in zip(pairs, grade(pairs), strict=True) if verdict.correct}
    unexplained = {pair for pair in accepted if not explained(*pair)}
    assert not unexplained, unexplained


def explained(gold, other):
    """Other golds that are the same value: written otherwise, with a name, unit, degree or percent sign."""
    bare = [
        re.sub(
            r"\\(?:text|mbox|mathrm|textbf)\s*\{[^{}]*\}|\^\{?\\circ\}?|\\[%$!,; ]|[\s,$]|\\[dt](?=frac)|\\left|"
            r"\\right|^[a-z]=|[{}\\]",
            "",
            text.replace(r"\dfrac", r"\frac").replace(r"\tfrac", r"\frac"),
        )
        for text in (gold, other)
    ]
    return re.sub("^[a-z]=", "", bare[0]) == re.sub("^[a-z]=", "", bare[1])
