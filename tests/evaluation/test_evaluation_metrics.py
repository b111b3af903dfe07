"""Scores against enumeration of everything they are an expectation of."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r3bench.errors import StateError
from r3bench.evaluation.compare import paired, sign_flip_p
from r3bench.evaluation.metrics import QUANTILES, majority, pass_at_k, pass_curve, token_figures
from r3bench.evaluation.summary import counts, summarise


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_average_over_all_subsets(n):
    for c in range(n + 1):
        right = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(right, k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_pass_at_k_does_not_overflow():
    assert pass_at_k(2000, 1, 1000) == pytest.approx(0.5)
    assert pass_at_k(1024, 3, 512) == pytest.approx(1 - math.comb(1021, 512) / math.comb(1024, 512))


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 5), (4, 2, 0)])
def test_pass_at_k_refuses_impossible_counts(n, c, k):
    with pytest.raises(ValueError, match="expected 0 <= c <= n"):
        pass_at_k(n, c, k)


def brute_majority(answers):
    """Every voter order equally likely to break a tie: the mean verdict over the most frequent candidates."""
    votes = [("right" if right else text) for text, right in answers if text is not None]
    if not votes:
        return 0.0
    most = max(votes.count(v) for v in votes)
    winners = [v for v in sorted(set(votes)) if votes.count(v) == most]
    return sum(v == "right" for v in winners) / len(winners)


@given(st.lists(st.sampled_from([("5", True), ("6", False), ("7", False), (None, False)]), min_size=1, max_size=8))
@settings(max_examples=200, deadline=None)
def test_majority_is_the_enumeration(answers):
    assert majority(answers) == pytest.approx(brute_majority(answers))


def test_majority_counts_spellings_of_one_answer_together():
    answers = [(r"\frac{1}{2}", True), ("0.5", True), ("3", False), ("3.0", False), (r"\dfrac12", True)]
    assert majority(answers) == 1.0
    assert majority(answers[:4]) == 0.5


def rows(table, **extra):
    """`table`: question -> list of (extracted, correct, tokens)."""
    return [
        {"question": q, "repeat": r, "extracted": text, "correct": right, "tokens": tokens, "truncated": tokens >= 9,
         "timed_out": False, "grader": "g", "response": f"{q}{r}{text}", "gold": {"a": "1", "b": "4.0"}.get(q, "8"),
         **extra}
        for q, answers in table.items() for r, (text, right, tokens) in enumerate(answers)
    ]  # fmt: skip


def test_a_summary_by_hand():
    table = {
        "a": [("1", True, 4), ("1", True, 6), ("2", False, 9), (None, False, 9)],
        "b": [("3", False, 2), ("3", False, 2), ("4", True, 2), ("5", False, 2)],
        "c": [("9", False, 1)] * 4,
    }
    got = summarise(rows(table))
    assert (got["questions"], got["samples"]) == (3, 4)
    assert got["avg@4"] == pytest.approx((2 / 4 + 1 / 4 + 0) / 3)
    assert got["pass@4"] == pytest.approx(2 / 3)
    assert got["pass_curve"] == pytest.approx([3 / 12, (5 / 6 + 1 / 2) / 3, (1 + 3 / 4) / 3, 2 / 3])
    assert got["maj@4"] == pytest.approx((1 + 0 + 0) / 3)
    assert got["mean_tokens"] == pytest.approx(40 / 12)
    assert got["total_tokens"] == 40
    assert got["tokens_right"]["mean"] == pytest.approx(4)
    assert got["tokens_per_correct"] == pytest.approx(40 / 3)
    assert got["truncated"] == pytest.approx(2 / 12)
    assert got["no_answer"] == pytest.approx(1 / 12)
    assert got["agreement"] == 1.0
    table["b"][0] = ("4", False, 2)
    assert summarise(rows(table))["agreement"] == pytest.approx(11 / 12)
    two = summarise(rows(table), samples=2)
    assert two["avg@2"] == pytest.approx((1 + 0 + 0) / 3)


def test_summaries_of_incomplete_answers_are_refused():
    with pytest.raises(StateError, match="no stored answers"):
        summarise([])
    table = {"a": [("1", True, 1)] * 3, "b": [("1", True, 1)] * 2}
    assert summarise(rows(table))["samples"] == 2
    with pytest.raises(StateError, match="question b has 2 answers, expected 3"):
        summarise(rows(table), samples=3)


def test_no_right_answer_has_no_tokens_per_right_answer():
    got = token_figures(np.array([3, 5]), np.array([False, False]))
    assert got["tokens_per_correct"] is None and got["tokens_right"] is None
    assert got["tokens_wrong"]["q50"] == 4


def quantile(values, q):
    """Linear between order statistics: position q (n - 1), counted from 0."""
    values = sorted(values)
    place = q * (len(values) - 1)
    low = int(place)
    return values[low] + (place - low) * (values[min(low + 1, len(values) - 1)] - values[low])


@given(st.lists(st.tuples(st.integers(1, 9000), st.booleans()), min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_lengths_are_those_of_the_answers_one_by_one(answers):
    tokens, correct = (np.array(column) for column in zip(*answers, strict=True))
    got = token_figures(tokens, correct)
    lengths = {True: [t for t, c in answers if c], False: [t for t, c in answers if not c]}
    for name, right in (("tokens_right", True), ("tokens_wrong", False)):
        if not lengths[right]:
            assert got[name] is None
            continue
        wanted = {f"q{round(100 * q)}": quantile(lengths[right], q) for q in QUANTILES}
        assert got[name] == pytest.approx({**wanted, "mean": sum(lengths[right]) / len(lengths[right])})
    assert got["total_tokens"] == sum(t for t, _ in answers)
    assert got["mean_tokens"] == pytest.approx(got["total_tokens"] / len(answers))
    if lengths[True]:
        assert got["tokens_per_correct"] == pytest.approx(got["total_tokens"] / len(lengths[True]))


def test_pass_curve_rises_and_ends_in_any_right():
    c = np.array([0, 1, 5, 16])
    curve = pass_curve(16, c)
    assert curve.shape == (16,) and (np.diff(curve) >= -1e-12).all()
    assert curve[0] == pytest.approx(c.mean() / 16) and curve[-1] == pytest.approx(0.75)


def test_counts_are_per_question():
    assert counts(rows({"a": [("1", True, 1), ("2", False, 1)], "b": [("1", True, 1)]})) == {"a": (2, 1), "b": (1, 1)}


def brute_sign_flip(d):
    sums = [
        abs(sum(s * x for s, x in zip(signs, d, strict=True))) for signs in itertools.product((-1, 1), repeat=len(d))
    ]
    return sum(s >= abs(sum(d)) - 1e-9 for s in sums) / len(sums)


@pytest.mark.parametrize("seed", range(5))
def test_the_sign_flip_test_is_the_enumeration(seed):
    d = np.random.default_rng(seed).integers(-4, 5, size=9) / 4
    assert sign_flip_p(d) == pytest.approx(brute_sign_flip(d[d != 0]))


@pytest.mark.parametrize(("better", "worse"), [(9, 2), (5, 5), (8, 0), (3, 11)])
def test_with_one_answer_each_it_is_the_exact_mcnemar_test(better, worse):
    from statsmodels.stats.contingency_tables import mcnemar

    d = np.array([1.0] * better + [-1.0] * worse + [0.0] * 7)
    assert sign_flip_p(d) == pytest.approx(mcnemar([[4, better], [worse, 3]], exact=True).pvalue)


def test_it_is_scipys_paired_permutation_test():
    from scipy import stats

    rng = np.random.default_rng(4)
    for _ in range(3):
        a, b = rng.integers(0, 9, 10) / 8, rng.integers(0, 9, 10) / 8
        theirs = stats.permutation_test(
            (a, b), lambda x, y: np.mean(x - y), permutation_type="samples", n_resamples=np.inf
        ).pvalue
        assert sign_flip_p(a - b) == pytest.approx(theirs)


def test_many_questions_use_random_signs_that_agree_with_enumeration():
    from r3bench.evaluation import compare

    d = np.random.default_rng(0).normal(0.3, 1, size=16)
    exact = sign_flip_p(d)
    assert exact == pytest.approx(brute_sign_flip(d))
    patched, compare.EXACT = compare.EXACT, 4
    try:
        assert sign_flip_p(d) == pytest.approx(exact, abs=0.02)
    finally:
        compare.EXACT = patched


def test_the_paired_interval_is_scipys():
    from scipy import stats

    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 5, 40) / 4, rng.integers(0, 5, 40) / 4
    got = paired(a, b)
    interval = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (got["low"], got["high"]) == pytest.approx((interval.low, interval.high))
    assert got["better"] + got["worse"] + got["equal"] == 40
    assert got["difference"] == pytest.approx(a.mean() - b.mean())
    assert paired(a, a)["p"] == 1.0
    assert paired(a, a)["low"] is None  # no question differs: nothing tells how far others might


def test_the_paired_interval_holds_where_few_questions_differ():
    """30 hard questions, and the one model twice to three times as good: the plain t interval holds at 84 %."""
    from scipy import special, stats

    rng, studies, questions, samples = np.random.default_rng(3), 800, 30, 16
    logits = rng.normal(-7, 3, (studies, questions)) + rng.normal(0, 0.5, (2, studies, questions))
    logits[0] += 1.5
    share = rng.binomial(samples, special.expit(logits)) / samples
    points = stats.norm.ppf((np.arange(4000) + 0.5) / 4000) * np.sqrt(3**2 + 0.5**2)
    true = special.expit(-5.5 + points).mean() - special.expit(-7 + points).mean()
    found = [paired(*pair) for pair in share.transpose(1, 0, 2)]
    held = [f["low"] <= true <= f["high"] for f in found if f["low"] is not None]
    plain = [abs(d.mean() - true) <= stats.t.ppf(0.975, 29) * d.std(ddof=1) / 30**0.5 for d in share[0] - share[1]]
    assert np.mean(held) > 0.92 and np.mean(plain) < 0.89, (np.mean(held), np.mean(plain))


def test_false_positives_stay_at_the_level():
    rng = np.random.default_rng(2)
    hits = [sign_flip_p(rng.integers(0, 5, 12) / 4 - rng.integers(0, 5, 12) / 4) <= 0.05 for _ in range(300)]
    assert np.mean(hits) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)
