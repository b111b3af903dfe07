"""Outer forms, units and formulas: what is read from an answer's text, and that equal formulas are found equal."""

import cmath
import math
import random
import time
from fractions import Fraction

import pytest

from r3bench.grading import Grader
from r3bench.grading.decide import decide
from r3bench.grading.spelling.latex import dialect
from r3bench.grading.spelling.measures import unit
from r3bench.grading.spelling.normalise import plain
from r3bench.grading.spelling.numbers import as_fraction
from r3bench.grading.spelling.structure import parts
from r3bench.grading.spelling.units import amount, bare_unit


@pytest.mark.parametrize(
    ("text", "same"),  # and the unit as pint's registry says it
    [
        (r"27\text{ cm}", "cm"),
        (r"864 \mbox{ inches}^2", "inch**2"),
        (r"34\text{ sq. in.}", "inch**2"),
        (r"428\text{ square centimeters}", "cm**2"),
        ("27 feet squared", "foot**2"),
        (r"164 \pi \mbox{ cubic feet}", "foot**3"),
        (r"15 \text{ cm²}", "cm**2"),
        ("5 mph", "mile/hour"),
        (r"5 \text{ miles per hour}", "mile/hour"),
        (r"9.8\ \mathrm{m}\,\mathrm{s}^{-2}", "m/s**2"),
        (r"9.8 \text{ m/s}^2", "m/s**2"),
        (r"3\text{ kPa}", "kilopascal"),
        (r"3\text{ MeV}", "megaelectronvolt"),
        (r"5 km/h", "kilometer/hour"),
        ("5 m²", "m**2"),
        ("5 Ω", "ohm"),
        ("5 厘米", "cm"),
        ("5 см", "cm"),
        ("5 Kilometer", "km"),
        ("5 años", "year"),
        ("27", None),
        (r"21\text{ dogs}", None),
        (r"20 \text{ square units}", None),
        ("x^2", None),
        (r"5 \text{ pairs}", None),
        (r"27 \text{ or more}", None),
    ],
)
def test_units_are_pints(text, same):
    import pint

    found = unit(amount(dialect(text)).words)
    if same is None:
        assert found is None
        return
    theirs = pint.UnitRegistry(non_int_type=Fraction).Quantity(Fraction(1), same).to_root_units()
    assert found is not None
    assert dict(found.powers) == {str(name): int(power) for name, power in theirs._units.items()}
    assert found.factor == theirs.magnitude


@pytest.mark.parametrize(
    ("text", "powers"),
    [
        (r"$\$18.90$", {"$": 1}),
        ("36 USD", {"$": 1}),
        ("£36", {"£": 1}),
        (r"\text{Rs. }36", {"₹": 1}),
        ("5 元", {"¥": 1}),
        ("5.4 ¢", {"cent": 1}),
        (r"\$36 \text{ each}", None),
        (r"\frac{270}7\text{ degrees}", {"degree": 1}),
        (r"90^{\circ}", {"degree": 1}),
        (r"25^\circ\text{C}", {"degC": 1}),
    ],
)
def test_money_and_angles(text, powers):
    found = unit(amount(dialect(text)).words)
    assert (found and dict(found.powers)) == powers


def test_letters_behind_a_number_are_variables():
    for text in ("3h+2s", "5t", "27x", "5mn", "3ab"):
        assert not bare_unit(amount(dialect(text)).words), text


@pytest.mark.parametrize(
    ("text", "kind", "members"),
    [
        ("1, -2", "list", ["1", "-2"]),
        (r"2, 3, \text{ and } 4", "list", ["2", "3", "4"]),
        (r"x=1 \text{ or } x=2", "list", ["x=1", "x=2"]),
        ("(-4, 27);(2, 15)", "list", ["(-4, 27)", "(2, 15)"]),
        ("2,400, 1,350, 864", "list", ["2,400", "1,350", "864"]),
        (r"1 \pm 2 \mp 3", "list", ["1 + 2 - 3", "1 - 2 + 3"]),
        (r"\{1 \pm a, -2\}", "set", ["1 + a", "1 - a", "-2"]),
        (r"x \in \{1, 2\}", "set", ["1", "2"]),
        ("(1, 2)", "bracket", ["1", "2"]),
        (r"\left[ \frac{1}{2}, 8 \right)", "bracket", [r"\frac{1}{2}", "8"]),
        ("(a,h,k) = (2,-1,-18)", "bracket", ["2", "-1", "-18"]),
        (r"\begin{pmatrix} 1 \\ 2/3 \end{pmatrix}", "vector", ["1", "2/3"]),
        (r"\begin{bmatrix} 1 & 2 \end{bmatrix}", "vector", ["1", "2"]),
        ("3 : 4 : 5", "ratio", ["3", "4", "5"]),
    ],
)
def test_forms(text, kind, members):
    found = parts(plain(text))
    assert found is not None and found.kind == kind
    assert [" ".join(member.split()) for member in found.members] == members


NO_MEMBERS = ["27", "1,234", "f(1,2)", r"(1,2) \cup (3,4)", r"\{x \mid x > 2, x < 3\}", "(x+1)(x-2)", "(1,2", "1,2)"]
NO_MEMBERS += ["1,,2", r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\{\}", "origin", "()", "8:34 p.m"]


@pytest.mark.parametrize("text", NO_MEMBERS)
def test_no_members(text):
    assert parts(plain(text)) is None


def test_fractions_are_exact():
    random.seed(4)
    for _ in range(200):
        a, b = random.randint(-999, 999), random.randint(1, 99)
        sign = "-" if a < 0 else ""
        spellings = [f"{a}/{b}", rf"{sign}\frac{{{abs(a)}}}{{{b}}}", rf"\frac{{{-a}}}{{{-b}}}"]
        if abs(a) > b:
            spellings.append(rf"{sign}{abs(a) // b}\frac{{{abs(a) % b}}}{{{b}}}")
        for text in spellings:
            value = as_fraction(plain(text))
            assert value is not None and value.numerator * b == a * value.denominator, text
    assert as_fraction(r"\frac{1}{0}") is None and as_fraction("1/0") is None
    assert as_fraction(r"2\frac{3}{2}") is None  # no mixed number


# LaTeX and the same in Python, which is the reference
ATOMS = [
    ("x", lambda x, n: x),
    (r"\sqrt{x}", lambda x, n: cmath.sqrt(x)),
    (r"\sqrt{\frac{1}{x}}", lambda x, n: cmath.sqrt(1 / x)),
    (r"\frac{1}{\sqrt{x}}", lambda x, n: 1 / cmath.sqrt(x)),
    (r"\sin^2 x", lambda x, n: cmath.sin(x) ** 2),
    (r"1-\cos^2 x", lambda x, n: 1 - cmath.cos(x) ** 2),
    (r"\frac{1-\cos 2x}{2}", lambda x, n: (1 - cmath.cos(2 * x)) / 2),
    (r"e^{ix}", lambda x, n: cmath.exp(1j * x)),
    (r"\cos x + i \sin x", lambda x, n: cmath.cos(x) + 1j * cmath.sin(x)),
    (r"\ln(x^n)", lambda x, n: cmath.log(x**n)),
    (r"n \ln x", lambda x, n: n * cmath.log(x)),
    ("x^{n+1}", lambda x, n: x ** (n + 1)),
    (r"x \cdot x^n", lambda x, n: x * x**n),
    ("n!", lambda x, n: math.gamma(n + 1)),
    ("n(n-1)!", lambda x, n: n * math.gamma(n)),
    (r"\binom{n+1}{2}", lambda x, n: (n + 1) * n / 2),
    (r"\frac{n(n+1)}{2}", lambda x, n: n * (n + 1) / 2),
    (r"\frac{x^2-n^2}{x-n}", lambda x, n: (x * x - n * n) / (x - n)),
    ("x+n", lambda x, n: x + n),
    ("n+x+10^{-9}", lambda x, n: x + n + 1e-9),
]


def test_formulas_are_equal_exactly_where_their_values_are():
    places = [(0.37, 2.4), (1.83, 0.6), (2.9, 5.2)]
    pairs = [(a, b) for a in ATOMS for b in ATOMS if a is not b]
    with Grader(workers=2) as grader:
        verdicts = grader.grade([rf"\boxed{{{a}}}" for (a, _), _ in pairs], [b for _, (b, _) in pairs])
    for ((a, f), (b, g)), verdict in zip(pairs, verdicts, strict=True):
        equal = all(abs(f(x, n) - g(x, n)) < 1e-12 * abs(f(x, n)) for x, n in places)
        assert verdict.correct is equal, (a, b, verdict)


HOSTILE = ["(", "{", "[", r"\{", ")", " ", "  ,", "1,", "a ", r"\sqrt ", r"\sqrt(", r"\sqrt[", r"\frac{", r"\text{a} "]
HOSTILE += ["cm ", r"^{\prime", "'", "or ", "= ", r"\in ", r"\pm ", "%", "1:", r"1^\circ", r"\choose", r"{a\choose"]
HOSTILE += ["answer is ", r"=\approx ", "for all ", r", k\in\mathbb", "1/", "1.", "½", "√(", r"\sin 1°", "1 m", "(A) "]
HOSTILE += ["sq ", "per ", "m/s ", "1 percent", r"\begin{pmatrix}", r"\\", "(1,2),", "1_{", r"E_{1", r"\overline{1}"]


def test_spelling_takes_little_time_whatever_the_text():
    start = time.process_time()
    for part in HOSTILE:
        text = (part * 2000)[:1990]
        for answer in (text, "1" + text, text + "!", "5 " + text):
            for gold in ("27", r"27 \text{ cm}", "(1,2)", "1:05", "x=5"):
                decide(answer, gold)
            parts(plain(answer))
    assert time.process_time() - start < 60  # about 1 s; a pattern that tries all ways would take hours
