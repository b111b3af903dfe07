"""Answers in words, dates, durations, decimal commas and sentences without a box, both ways."""

import pytest

from r3bench.grading import Grader

BOXED = [  # (gold, answers that are right, answers that are wrong)
    (r"\frac{2}{3}", ["two thirds", "two-thirds"], ["three halves", "two thirds of it", "two or three"]),
    (r"\frac12", ["one half", "a half", "half", "0{,}5"], ["half past", "a third", "0{,}05"]),
    (r"\frac72", ["three and a half"], ["three", "three and a third"]),
    ("42", ["Forty two marbles", "forty-two"], ["forty-two or so", "forty-two dozen", "forty-two or forty-three"]),
    ("-5", [r"\text{negative }5", "minus five", "{-}5"], ["five", r"\text{positive }5"]),
    ("20 days", ["twenty days"], ["twenty weeks", "twenty-one days"]),
    ("two lines", ["2 lines", "Two lines"], ["2", "2 points", "three lines"]),
    ("2.50", [r"2{,}50\text{ €}", "2,5"], ["250", "2{,}05", "2,500"]),
    ("2500", ["2{,}500"], ["2{,}50", "2.5"]),
    (r"\text{March 14}", ["14 March", "March 14th", "14th of March", "Mar. 14"], ["March 15", "May 14", "14"]),
    (r"\text{May 3, 2020}", ["3 May 2020", "May 3"], ["May 3, 2021", "May 2, 2020"]),
    ("Wednesday", ["Wed", "Wed."], ["Tue", "Wed or Thu"]),
    ("3:45 PM", ["15:45", "3:45", "3:45 p.m."], ["3:45 am", "16:45", "15:46"]),
    ("12:30 AM", ["0:30", "00:30"], ["12:30 PM", "12:30 p.m."]),
    ("f(x)=ax+b", ["f(t)=at+b"], ["f(a)=xa+b", "f(b)=ab+x"]),
    ("3:30", ["3:30 p.m."], ["4:30 p.m.", "15:30 am"]),
    (
        r"2\text{ hours }30\text{ minutes}",
        [r"150\text{ minutes}", "2.5 hours", "2 h 30 min"],
        ["2 hours", "250 minutes"],
    ),
    (r"5\text{ feet }3\text{ inches}", ["63 inches"], ["53 inches", "5 feet", "63 feet"]),
    ("3:2", [r"3\text{ to }2", "6 to 4"], ["2 to 3", "3 to 5"]),
    ("5 kJ", ["5000 J"], ["5 J", "500 J"]),
    (r"\frac{\pi}{2}", [r"\frac\pi2", r"90^\circ", r"\theta=\frac\pi2"], [r"\frac{\pi}{2}^\circ", r"\frac2\pi"]),
    (r"\frac{2}{\pi}", [r"\frac2\pi", r"\frac{2}\pi"], [r"\frac\pi2"]),
    (r"\frac{\sqrt{3}}{2}", [r"\frac{\sqrt{3}}2", r"\frac{\sqrt3}2"], [r"\frac2{\sqrt3}"]),
    ("17.5%", [r"17{,}5\%", "0.175"], [r"17.5\text{ basis points}", r"17.5^\circ"]),
    (r"120^\circ", ["120"], [r"120\%"]),
    ("f(x)=x^2+1", ["f(t)=t^2+1", "x^2+1"], ["g(t)=t^2+1", "f(t)=x^2+1", "f(t)=t^2-1"]),
    (
        r"9\pi",
        [r"A=\pi r^2=\pi\cdot 3^2=9\pi", r"A=\pi r^2=9\pi"],
        [r"A=\pi r^2=8\pi", r"A=9\pi=8\pi", r"\pi r^2=9\pi"],
    ),
    ("27", ["x=27"], ["2x=27", "x=2x=28", "x=27=28"]),
    (r"\frac{5}{11}", [r"0.454545\ldots = 0.\overline{45}"], [r"0.464646\ldots = 0.\overline{46}"]),
    ("-2, 7", [r"\text{min}=-2, \text{max}=7"], [r"\text{min}=-2, \text{max}=8"]),
    (r"1\pm\sqrt{19}", [r"1\mp\sqrt{19}"], [r"-1\mp\sqrt{19}"]),
    (
        "(1,4)",
        [r"\text{the point }(1,4)", r"[1,4]^T", r"\begin{pmatrix}1&4\end{pmatrix}^T"],
        [r"\text{the point }(4,1)"],
    ),
]
ANY = [
    ("27", ["She has twenty-seven apples.", "The answer is 27."]),
    ("x^2", ["The derivative is x²."]),
    (r"\pi", ["The area is π.", "The area is $\\pi$."]),
    ("C", ["The correct option is C.", "The correct choice is (C)."]),
    ("3x^2", ["The derivative is 3·x².", "The derivative is 3x²."]),
    (r"\frac{hc}{\lambda}", ["The energy is $E = \\frac{h c}{\\lambda}$."]),
    ("3000000", ["There are about three million."]),
]
NOT = [  # no claim that the answer is the gold
    ("27", "The answer isn't 27."),
    ("27", "The answer can't be 27."),
    ("27", "It cannot be 27"),
    ("27", "27 is wrong."),
    ("27", "It might be 27, or not."),
    ("27", "Anything but 27"),
    ("27", "The answer is 27? No, 28."),
    ("28", "27 students, or 28?"),
    ("28", "27 students, or maybe 28"),
    ("28", "Is it 28?"),
    ("E", "Answer: A, E"),
    ("E", "Answer: D or E"),
    (r"\pi", "The area is not π."),
    (r"\pi", "The area is $\\pi$ or $2\\pi$."),
    ("1", "This is the one case."),
]


@pytest.fixture(scope="module")
def boxed():
    with Grader() as grader:
        yield grader


def test_answers_in_boxes(boxed):
    cases = [
        (gold, text, right)
        for gold, *both in BOXED
        for right, texts in zip((True, False), both, strict=True)
        for text in texts
    ]
    verdicts = boxed.grade([rf"So $\boxed{{{text}}}$." for _, text, _ in cases], [gold for gold, _, _ in cases])
    wrong = [
        (*case, verdict.reason) for case, verdict in zip(cases, verdicts, strict=True) if verdict.correct != case[2]
    ]
    assert not wrong


def test_sentences_without_a_box():
    cases = [(gold, text, True) for gold, texts in ANY for text in texts] + [(gold, text, False) for gold, text in NOT]
    with Grader(require_boxed=False) as grader:
        verdicts = grader.grade([text for _, text, _ in cases], [gold for gold, _, _ in cases])
    wrong = [(*case, verdict) for case, verdict in zip(cases, verdicts, strict=True) if verdict.correct != case[2]]
    assert not wrong


def test_a_refusal_after_the_thinking_takes_its_box_back(boxed):
    thought = "<think>3+5 = \\boxed{8}</think>\n"
    said = ["I am not able to give an answer.", "I don't know.", "That is all.", "It is \\boxed{8}."]
    assert [one.correct for one in boxed.grade([thought + text for text in said], ["8"] * 4)] == [
        False,
        False,
        True,
        True,
    ]
