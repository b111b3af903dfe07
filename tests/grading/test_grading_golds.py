"""Gold answers of the real sets graded against themselves in eight surface forms."""

import json
import os
import re
from pathlib import Path

import pytest

from r3bench.grading import Grader
from r3bench.grading.pool import Pool

DATA = os.environ.get("R3BENCH_DATA")
SETS = ["aime24", "aime25", "aime26", "amc23", "amc_2022_2023", "math500", "minerva", "olympiadbench", "gsm8k_test"]
FORMS = {
    "boxed": lambda g: rf"Therefore the answer is $\boxed{{{g}}}$.",
    "display": lambda g: rf"\[ \boxed{{ {g} }} \] I hope this is correct.",
    "after another box": lambda g: rf"First \boxed{{-1}}? No: \boxed{{\displaystyle {g}}}.",
    "other commands": lambda g: (
        r"\boxed{" + g.replace(r"\frac", r"\dfrac").replace(r"\left", "").replace(r"\right", "") + "}"
    ),
    "colour": lambda g: rf"\boxed{{\textcolor{{blue}}{{{g}}}}}",
    "bold": lambda g: rf"**Answer:** $\boxed{{\boldsymbol{{{g}}}}}$",
    "slash": lambda g: r"\boxed{" + re.sub(r"^(-?)\\frac\{(\d+)\}\{(\d+)\}$", r"\1\2/\3", g) + "}",
    "spaces": lambda g: r"\boxed{" + re.sub(r"(?<=[,+=])(?=\S)", r"\\, ", g) + "}",
}
KNOWN_EQUAL = {"math500": [("5", "x=5")]}  # neighbours that are equal, one names its variable
pytestmark = pytest.mark.skipif(not DATA, reason="R3BENCH_DATA is not set")


def golds(name: str) -> list[str]:
    return [json.loads(line)["answer"] for line in (Path(DATA) / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", SETS)
def test_golds_are_right_in_every_form(name):
    answers = golds(name)
    with Grader() as grader:
        for form, write in FORMS.items():
            verdicts = grader.grade([write(gold) for gold in answers], answers)
            wrong = [(gold, verdict) for gold, verdict in zip(answers, verdicts, strict=True) if not verdict.correct]
            assert not wrong, f"{form}: {len(wrong)} of {len(answers)}: {wrong[:3]}"


@pytest.mark.parametrize("name", ["math500", "minerva", "olympiadbench"])
def test_golds_equal_themselves_as_mathematics_too(name):
    """The same without the comparison of spelling, so that the parser is known to read every gold."""
    pool = Pool(timeout=10.0, workers=2)
    answers = [gold for gold in golds(name) if not gold.lstrip("-").isdigit()]
    words = [
        gold for gold in answers if re.fullmatch(r"\\text\{[^\d]*\}", gold)
    ]  # compared as text, see normalise.decide
    try:
        results = pool.run([(gold, gold) for gold in answers])
    finally:
        pool.close()
    wrong = [(g, r) for g, r in zip(answers, results, strict=True) if not r[0] and g not in words]
    assert not wrong, wrong


@pytest.mark.parametrize("name", ["amc23", "amc_2022_2023", "aime24"])
def test_a_choice_letter_before_the_value_is_no_part_of_it(name):
    """How models answer contests with choices."""
    answers = golds(name)
    with Grader() as grader:
        right = grader.grade([rf"\boxed{{\textbf{{(C)}}\ {gold}}}" for gold in answers], answers)
        wrong = grader.grade([rf"\boxed{{\textbf{{(C)}}\ {int(gold) + 1}}}" for gold in answers], answers)
    assert all(verdict.correct for verdict in right)
    assert not any(verdict.correct for verdict in wrong)


@pytest.mark.parametrize("name", SETS)
def test_neighbouring_golds_are_not_accepted(name):
    answers = golds(name)
    others = answers[1:] + answers[:1]
    different = [(a, b) for a, b in zip(answers, others, strict=True) if a != b][:150]
    with Grader() as grader:
        verdicts = grader.grade([rf"\boxed{{{b}}}" for _, b in different], [a for a, _ in different])
    accepted = [pair for pair, verdict in zip(different, verdicts, strict=True) if verdict.correct]
    assert accepted == KNOWN_EQUAL.get(name, []), accepted


INTEGER = re.compile(r"(?<![\d.,!])\d{1,3}(?![\d.,]|\\!)")


def near_misses(gold: str) -> list[str]:
    """The gold with its last integer raised by one, its first sign turned, its brackets or its order exchanged."""
    out = []
    integers = list(INTEGER.finditer(gold))
    if integers:
        last = integers[-1]
        out.append(f"{gold[: last.start()]}{int(last.group()) + 1}{gold[last.end() :]}")
    sign = re.search(r"(?<=[\w)}] )[-+]|^-", gold)
    if sign:
        out.append(f"{gold[: sign.start()]}{'+' if sign.group() == '-' else '-'}{gold[sign.end() :]}")
    bare = gold.replace(r"\left", "").replace(r"\right", "").strip()
    pair = re.fullmatch(r"([\[(])([^(),]+),([^(),]+)([\])])", bare)
    if pair:
        opening, first, second, closing = pair.groups()
        out.append(rf"\{{{first},{second}\}}")
        if first.strip() != second.strip():
            out.append(f"{opening}{second},{first}{closing}")
        if "infty" not in gold:
            out.append(f"{'[('[opening == '[']}{first},{second}{closing}")
    return out


@pytest.mark.parametrize("name", ["math500", "minerva", "olympiadbench"])
def test_near_misses_are_not_accepted(name):
    pairs = [(miss, gold) for gold in dict.fromkeys(golds(name)) for miss in near_misses(gold) if miss != gold]
    assert len(pairs) > 100
    with Grader() as grader:
        verdicts = grader.grade([rf"\boxed{{{miss}}}" for miss, _ in pairs], [gold for _, gold in pairs])
    accepted = [pair for pair, verdict in zip(pairs, verdicts, strict=True) if verdict.correct]
    assert not accepted, accepted
    assert not any(verdict.timed_out for verdict in verdicts)
