"""Extraction and spelling, against plain references and on random text."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r3bench.grading import final_answer, last_boxed
from r3bench.grading.decide import decide
from r3bench.grading.spelling.normalise import MAX_LENGTH, canonical


def reference_last_boxed(text: str) -> str | None:
    """Tries every `\\boxed{` and counts braces from there: quadratic, but plainly right."""
    best = None
    for start in range(len(text)):
        if not text.startswith("\\boxed{", start):
            continue
        depth, i = 1, start + len("\\boxed{")
        while i < len(text) and depth:
            if text[i] == "\\" and i + 1 < len(text) and text[i + 1] in "\\{}":
                i += 2
                continue
            depth += (text[i] == "{") - (text[i] == "}")
            i += 1
        if depth == 0:
            content = text[start + len("\\boxed{") : i - 1].strip()
            if content and (best is None or i > best[0]):
                best = (i, content)
    return best[1] if best else None


pieces = st.lists(st.sampled_from(["\\boxed{", "{", "}", "\\{", "\\}", "1", "x", "\\frac", " ", "\\\\"]), max_size=30)


@given(pieces.map("".join))
@settings(max_examples=400, deadline=None)
def test_last_boxed_is_the_reference(text):
    assert last_boxed(text) == reference_last_boxed(text)


@given(st.text(alphabet=st.sampled_from("ab12\\{}$,.()% \n^_=-+"), max_size=80), st.text(max_size=40))
@settings(max_examples=300, deadline=None)
def test_nothing_raises_whatever_the_text(response, gold):
    for strict in (True, False):
        answer = final_answer(response, strict)
        if answer.text is not None:
            decide(answer.text, gold)
            assert canonical(canonical(answer.text)) is not None


@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))
@settings(max_examples=200, deadline=None)
def test_integers_are_settled_without_a_process(a, b):
    assert decide(f"{a:,}", str(b)) == (a == b, "number: equal" if a == b else "number: another number")


HOSTILE = {
    "open boxes": "\\boxed{" * 200_000,
    "open braces": "{" * 1_000_000,
    "commas": "1," * 500_000,
    "phrases": "the answer is " * 100_000,
    "full box": "\\boxed{" + "{}" * 300_000 + "}",
    "dollars": "$" * 200_000,
    "digits": "9" * 300_000,
    "loose boxes": "\\boxed " * 100_000,
    "unit of spaces": "\\boxed{1\\text{" + " " * 100_000 + "1}}",
    "fractions": "\\boxed{" + "\\frac{" * 30_000 + "1" + "}{2}" * 30_000 + "}",
    "spaces between": "\\boxed{1" + " " * 100_000 + "x}",
    "dots": "\\boxed{1" + "." * 100_000 + "}",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_time_grows_linearly_with_hostile_text(text):
    def cost(size):
        start = time.process_time()
        answer = final_answer(text[:size], False)
        if answer.text:
            decide(answer.text, "1")
            decide("1", answer.text)  # a gold of anyone's file
            canonical(answer.text)  # as a vote and for the second grader
        return time.process_time() - start

    full, tenth = cost(len(text)), min(cost(len(text) // 10) for _ in range(3))
    assert full < 40 * tenth + 0.5


def test_an_answer_of_any_length_is_bounded():
    assert decide("1+" * MAX_LENGTH + "1", "1") == (False, f"length: answer longer than {MAX_LENGTH} characters")


@pytest.mark.parametrize(
    ("response", "text", "form"),
    [
        (r"\boxed{a} and 5", "a", "boxed"),
        ("The answer is $x+1$. It took 3 steps.", "x+1", "phrase"),
        ("Answer: (C)", "C", "phrase"),
        ("**Answer:** 12 apples", "12 apples", "phrase"),
        ("**Final answer**: $x^2$", "x^2", "phrase"),
        ("put your final answer within the box, then 9", "9", "number"),
        ("The answer is:\n\n42\n", "42", "phrase"),
        ("#### 1,234", "1,234", "phrase"),
        ("first 3, then 4.5", "4.5", "number"),
        ("sum is -7%", "-7%", "number"),
        ("a ratio of 3/4", "3/4", "number"),
        ("nothing here", None, "none"),
        (r"<think>\boxed{3}</think> The answer is 4.", "4", "phrase"),
        (r"<think>\boxed{3}</think> so \boxed{4}", "4", "boxed"),
        (r"<think>\boxed{3}</think>", "3", "boxed"),
        ("<think>perhaps 3</think> I give up.", "3", "number"),
    ],
)
def test_forms(response, text, form):
    answer = final_answer(response, require_boxed=False)
    assert (answer.text, answer.form) == (text, form)


def test_deeply_nested_boxes_take_linear_time() -> None:
    depth = 100_000  # cutting each box out would copy 3.5 * depth^2 characters: minutes
    assert last_boxed(r"\boxed{" * depth + "7" + "}" * depth) == r"\boxed{" * (depth - 1) + "7" + "}" * (depth - 1)
    assert last_boxed(r"\boxed{" * depth + "}" * depth) == r"\boxed{" * (depth - 1) + "}" * (depth - 1)
