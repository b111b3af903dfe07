"""What the audit found and what was put right, in small; `python tests/analysis/audit.py` is the whole of it."""

import numpy as np
import pytest
from audit import REGIMES, audit
from grids import Regime

from r3bench.analysis.statistics.effects import equivalence, interval
from r3bench.analysis.statistics.shares import share_interval


def test_the_accuracy_of_a_cell_that_solves_little():
    """Estimate +- t x SE covered 78 % here."""
    found = audit(REGIMES["2 % right, 4 answers"], 60)
    assert found["cell"] > 0.91 and found["these cell"] > 0.92, found


def test_the_accuracy_of_a_cell_where_nearly_every_question_is_always_or_never_solved():
    """5 % right on 30 questions: one answer right by luck told more than none, and 86 % of the intervals held."""
    found = audit(Regime(factors=1, ease=-8.8, spread=5.0), 300)
    assert found["cell"] > 0.93, found["cell"]


def test_fewer_solved_questions_make_no_shorter_interval_than_none():
    none = share_interval(0.0, 0.0, 1e9, 0.95, 30, 30, 0)
    one = share_interval(1 / 480, (1 / 480) ** 2, 29.0, 0.95, 30, 30, 1)
    ten = share_interval(10 / 480, 10 / 480**2, 29.0, 0.95, 30, 30, 10)
    assert none.high == pytest.approx(0.1157, abs=1e-4)  # Clopper and Pearson: none of 30
    assert one.high > 0.6 * none.high and ten.high < one.high


def test_a_share_of_independent_answers_has_the_exact_binomial_interval():
    stats = pytest.importorskip("scipy.stats")
    for right, count in ((0, 30), (1, 30), (7, 50), (50, 50)):
        p = right / count
        exact = stats.binomtest(right, count).proportion_ci(0.95, method="exact")
        found = share_interval(p, p * (1 - p) / count, 1e9, 0.95, count)
        assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=1e-6)
    few = share_interval(0.2, 0.01, 3.0, 0.95, 30)
    many = share_interval(0.2, 0.01, 100.0, 0.95, 30)
    assert few.low < many.low < 0.2 < many.high < few.high and few.se == pytest.approx(0.1)
    assert (
        share_interval(0.2, np.nan, 3.0, 0.95, 30).low is None and share_interval(0.2, 0.01, 0.0, 0.95, 30).low is None
    )


def test_answers_that_are_all_alike_are_no_proof_of_no_effect():
    """30 questions that nobody solved: the effect, 2.3 points, was called negligible with p = 0."""
    found = audit(REGIMES["2 % right, the same, 1 answer"], 250)
    assert found["wrong negligible"] < 0.02 < found["no interval"], found
    one = interval(np.zeros(1), np.zeros(1), 9.0, 0.95)[0]
    assert (one.se, one.low, one.p) == (None, None, None)
    assert np.isnan(equivalence(np.zeros(1), np.zeros(1), 9.0, 0.01)[0])


def test_bootstrap_limits_hold_over_few_degrees_of_freedom():
    """Four of them; plain percentiles covered 88 %."""
    found = audit(REGIMES["2^2 x 2, 500 x 4, noisy training"], 150, draws=200)
    assert all(found[f"bootstrap {kind}"] > 0.92 for kind in ("main", "interaction", "add_one")), found


@pytest.mark.parametrize("name", ["seeds 1 to 5", "4 of 16 cells missing", "macro average of 30 and 500"])
def test_unequal_and_partial_grids(name):
    found = audit(REGIMES[name], 60)
    for key in ("main", "main*", "interaction", "cell", "gain"):
        assert 0.9 < found.get(key, 0.95) < 0.995, (key, found)
    assert found["best"] > 0.9 and found["wrong verdict"] < 0.14 and found["wrong interaction"] < 0.14, found


def test_the_audit_sees_intervals_that_are_too_short(monkeypatch):
    from r3bench.analysis.statistics import effects as module

    regime = Regime(factors=1, questions=(100,))
    assert audit(regime, 80)["main"] > 0.9
    original = module.t_quantile
    monkeypatch.setattr(module, "t_quantile", lambda probability, df: original(probability, df) / 2)
    assert audit(regime, 80)["main"] < 0.85
