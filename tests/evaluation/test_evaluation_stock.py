"""Stock lm-eval's scoring against ours on the same responses: where they differ, and why."""

from dataclasses import dataclass

import pytest

from r3bench.grading import Grader, final_answer


@dataclass(frozen=True)
class Item:
    cause: str  # of the disagreement
    answer: str
    response: str
    stock: bool  # what lm-eval's hendrycks_math500 says
    ours: bool


DOLLARS = r"From $4\cdot 4$ we get $\boxed{16}$."
ITEMS = [
    Item("stock takes all between the first and the last dollar sign", "16", DOLLARS, False, True),
    Item("stock never looks for a box", r"\frac{1}{2}", r"\[\boxed{\frac{1}{2}}\]", False, True),
    Item("stock compares spelling", r"5\sqrt{2}", r"\boxed{\sqrt{50}}", False, True),
    Item("stock compares spelling, and ours demands a box", r"\frac{1}{2}", r"$0.500$", False, False),
    Item("stock accepts a formula without a box", "27", "We find $27$", True, False),
    Item("stock accepts a bare answer", "27", "27", True, False),
    Item("both reject another number", "27", r"$\boxed{26}$", False, False),
    Item("both reject a response without an answer", "27", "I am not sure.", False, False),
]


def stock(item: Item) -> bool:
    """lm-eval's own scoring function; it takes one response and the reference solution."""
    utils = pytest.importorskip("lm_eval.tasks.hendrycks_math.utils")
    return bool(utils.process_results({"solution": rf"\boxed{{{item.answer}}}"}, [item.response])["exact_match"])


@pytest.mark.parametrize("item", ITEMS, ids=[item.cause for item in ITEMS])
def test_stock_and_ours_on_one_response(item):
    with Grader() as grader:
        ours = grader.grade([item.response], [item.answer])[0].correct
    assert (stock(item), ours) == (item.stock, item.ours)


@pytest.mark.parametrize(
    ("response", "whole", "after"),  # what stock finds as it is, and with its `think_end_token` set to </think>
    [
        (r"<think>\boxed{3}</think> so \boxed{4}", "4", "4"),
        (r"<think>so \boxed{3}</think> I am done.", "3", None),
        (r"<think>so \boxed{3}</think>", "3", None),
        (r"<think>so \boxed{3}. Let me check", "3", "3"),  # cut while thinking
        (r"<think>\boxed{3}, no: \boxed{5}</think> I mean \boxed{3}. No: \boxed{4}", "4", "4"),
    ],
)
def test_a_box_in_the_thinking_counts_as_it_does_in_stock(response, whole, after):
    """The choice that docs/evaluation.md states, against lm-eval's own functions."""
    models = pytest.importorskip("lm_eval.models.utils")
    utils = pytest.importorskip("lm_eval.tasks.hendrycks_math.utils")

    def stock(end):
        box = utils.last_boxed_only_string(models.postprocess_generated_text(response, None, end))
        return None if box is None else utils.remove_boxed(box)

    assert (stock(None), stock("</think>")) == (whole, after)
    assert final_answer(response).text == whole


def test_without_a_demanded_box_ours_accepts_all_that_stock_does():
    with Grader(require_boxed=False) as grader:
        for item in ITEMS:
            if stock(item):
                assert grader.grade([item.response], [item.answer])[0].correct


def test_every_disagreement_on_stored_answers_is_listed_with_its_cause(tmp_path):
    """`benchmarks/stock_scoring.py` on answers that were stored and graded as an evaluation does it."""
    import importlib.util
    from pathlib import Path

    from r3bench.evaluation import shards

    pytest.importorskip("lm_eval.tasks.hendrycks_math.utils")
    with Grader() as grader:
        verdicts = grader.grade([item.response for item in ITEMS], [item.answer for item in ITEMS])
    rows = [
        {"question": f"q{i}", "repeat": 0, "seed": i, "response": item.response, "tokens": 9, "gold": item.answer,
         "extracted": v.extracted, "reason": v.reason, "correct": v.correct, "truncated": False, "timed_out": False,
         "grader": grader.name}
        for i, (item, v) in enumerate(zip(ITEMS, verdicts, strict=True))
    ]  # fmt: skip
    shards.write(tmp_path / "math", "s", rows, {"task": "math"})
    path = Path(__file__).parents[2] / "benchmarks" / "stock_scoring.py"
    spec = importlib.util.spec_from_file_location("stock_scoring", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.compare(tmp_path, "math")
    differ = {f"q{i}": item for i, item in enumerate(ITEMS) if item.stock != item.ours}
    assert [item["question"] for item in found["disagreements"]] == list(differ)
    for item in found["disagreements"]:
        assert (item["stock"], item["ours"]) == (differ[item["question"]].stock, differ[item["question"]].ours)
    assert found["answers"] == len(ITEMS)
    assert found["only ours right"] + found["only stock right"] == len(differ) == 5
    causes = {item["question"]: item["cause"] for item in found["disagreements"]}
    assert "first and the last dollar sign" in causes["q0"] and "whole response" in causes["q1"]
    assert "no answer of the form demanded" in causes["q4"] and "no answer of the form demanded" in causes["q5"]
