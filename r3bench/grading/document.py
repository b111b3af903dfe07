"""The rules of grading as a page of the documentation, and by name. `python -m r3bench.grading.document` prints it."""

from r3bench.grading.decide import SPELLING
from r3bench.grading.rules import Rule
from r3bench.grading.verify import MATHEMATICS

HEAD = r"""# The rules of grading

How an answer that was found is compared with the gold answer. The rules run in this order and the first that decides
gives the verdict; its name stands in front of the reason (`boxed: unit: another unit`, where `boxed` says how the
answer was marked). This page is printed by `python -m r3bench.grading.document`; [Measuring a model](evaluation.md)
says how an answer is found in a response, and how a gold is read that leaves something open.

Before the rules both texts are brought into one spelling: digits and letters of any script, superscripts and
full-width signs as ASCII; fonts, colours, sizes and spaces off; one command for each thing (`\dfrac` is `\frac`).
What the answer has and the gold has not is taken off: "the answer is", "about", the letter of a choice before its
value, "for all x", a unit or noun behind the number. A word that multiplies the number (million, 万, dozen,
hundredths) does so.
"""
PARTS = (
    ("By spelling", "Decided at once, without a parser.", SPELLING),
    (
        "By mathematics",
        "Decided in a process that can be killed. Parts of an answer go through all the rules again.",
        MATHEMATICS,
    ),
)


def rule_named(reason: str) -> Rule | None:
    """The rule that a verdict's reason names, None if it names none."""
    name = reason.split(": ")[1] if reason.count(": ") else ""
    return next((rule for _, _, rules in PARTS for rule in rules if rule.name == name), None)


def page() -> str:
    """The page, in Markdown."""
    lines = [HEAD]
    for title, about, rules in PARTS:
        lines += [f"## {title}", "", about, "", "| rule | says | for example |", "|---|---|---|"]
        for rule in rules:
            shown = "; ".join(
                f"gold {_code(gold)}: {_code(answer)} is {'right' if right else 'wrong'}"
                for gold, answer, right in rule.examples
            )
            lines.append(f"| {rule.name} | {rule.says} | {shown} |")
        lines.append("")
    return "\n".join(lines)


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


if __name__ == "__main__":
    print(page(), end="")
