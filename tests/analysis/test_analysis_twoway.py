"""Variances against hand computation, statsmodels and scipy."""

import itertools

import numpy as np
import pytest

from r3bench.analysis.statistics.bootstrap import two_way_bootstrap
from r3bench.analysis.statistics.distributions import holm, t_quantile, t_two_sided
from r3bench.analysis.statistics.effects import equivalence, interval
from r3bench.analysis.statistics.lattice import contrasts, error_model
from r3bench.analysis.statistics.twoway import two_way

FACTORS = {"a": ("off", "on"), "b": ("off", "on")}
CELLS = list(itertools.product(*FACTORS.values()))


def by_hand(y, cell_of, weights):
    """Run, question and overlap variance written out as loops: every cell has its own variance between runs."""
    runs, questions = y.shape
    means = [sum(row) / questions for row in y]
    contrast = [sum(weights[r] * y[r][q] for r in range(runs)) for q in range(questions)]
    centre = sum(contrast) / questions
    question = sum((d - centre) ** 2 for d in contrast) / (questions - 1) / questions
    run = overlap = 0.0
    for c in sorted(set(cell_of)):
        members = [r for r in range(runs) if cell_of[r] == c]
        mean = sum(means[r] for r in members) / len(members)
        size = sum(weights[r] ** 2 for r in members)
        run += size * sum((means[r] - mean) ** 2 for r in members) / (len(members) - 1)
        noise = 0.0
        for q in range(questions):
            cell_q = sum(y[r][q] for r in members) / len(members)
            noise += sum((y[r][q] - means[r] - cell_q + mean) ** 2 for r in members)
        overlap += size * noise / ((len(members) - 1) * (questions - 1)) / questions
    return run, question, overlap


@pytest.fixture
def grid():
    rng = np.random.default_rng(3)
    cell_of = np.repeat(np.arange(4), 3)
    y = rng.random((12, 7)) * 0.3 + rng.random(7)[None, :] * 0.5 + rng.normal(0, 0.05, (12, 1))
    return y, cell_of


def test_variance_parts_equal_hand_computation(grid):
    y, cell_of = grid
    found, _ = contrasts(FACTORS, CELLS, [3] * 4)
    error = error_model(FACTORS, CELLS, cell_of)
    for contrast in found:
        weights = contrast.weights[cell_of] / 3
        parts = two_way([y], weights[None], error)
        run, question, overlap = by_hand(y, cell_of.tolist(), weights)
        assert parts.run[0] == pytest.approx(run, rel=1e-10)
        assert parts.question[0] == pytest.approx(question, rel=1e-10)
        assert parts.overlap[0] == pytest.approx(overlap, rel=1e-10)
        assert parts.total[0] == pytest.approx(max(run + question - overlap, run, question), rel=1e-10)
        assert 2 <= parts.df_run[0] <= 8 and parts.df_question[0] == 6
        low, high = (
            t_quantile(0.975, d[0]) * v[0] ** 0.5 for d, v in ((parts.df_run, parts.run), (parts.df, parts.total))
        )
        assert low <= high * (1 + 1e-9)


def test_balanced_effects_equal_statsmodels_ols(grid):
    """With questions fixed, effects, standard errors, df and p are those of OLS on run means with +-1/2 coding."""
    sm = pytest.importorskip("statsmodels.api")
    y, cell_of = grid
    code = np.array([[0.5 if level == "on" else -0.5 for level in CELLS[c]] for c in cell_of])
    design = np.column_stack([np.ones(12), code, code[:, 0] * code[:, 1]])
    fit = sm.OLS(y.mean(axis=1), design).fit()
    found, _ = contrasts(FACTORS, CELLS, [3] * 4)
    main = [c for c in found if c.kind in ("main", "interaction")]
    parts = two_way(
        [y], np.stack([c.weights[cell_of] / 3 for c in main]), error_model(FACTORS, CELLS, cell_of, pooled=True)
    )
    these = interval(parts.estimate, parts.run, parts.df_run, 0.95)
    np.testing.assert_allclose(parts.estimate, fit.params[1:], atol=1e-12)
    np.testing.assert_allclose([i.se for i in these], fit.bse[1:], rtol=1e-10)
    np.testing.assert_allclose([i.p for i in these], fit.pvalues[1:], rtol=1e-8)
    np.testing.assert_allclose([(i.low, i.high) for i in these], fit.conf_int()[1:], rtol=1e-8)
    np.testing.assert_allclose(parts.df_run, fit.df_resid)


def test_unbalanced_partial_grid_equals_statsmodels_ols():
    """A half fraction of 2^3 with unequal seeds: main effects of the additive model, weighted by runs."""
    sm = pytest.importorskip("statsmodels.api")
    factors = dict.fromkeys("abc", ("off", "on"))
    cells = [c for c in itertools.product(*factors.values()) if c.count("on") % 2]
    runs = [1, 4, 2, 3]
    cell_of = np.repeat(np.arange(4), runs)
    rng = np.random.default_rng(0)
    y = rng.random((10, 20))
    found, notes = contrasts(factors, cells, runs)
    main = [c for c in found if c.kind == "main"]
    assert [c.term for c in main] == ["a", "b", "c"]
    assert all(c.assumes == "no interaction at all" for c in main)
    assert any("partial grid: 4 of 8" in n for n in notes) and any("unbalanced grid: 1 to 4" in n for n in notes)
    assert any("interaction of a:b" in n for n in notes)
    average = (cell_of == np.arange(4)[:, None]) / np.array(runs)[:, None]
    parts = two_way([y], np.stack([c.weights for c in main]) @ average, error_model(factors, cells, cell_of))
    code = np.array([[0.5 if level == "on" else -0.5 for level in cells[c]] for c in cell_of])
    fit = sm.OLS(y.mean(axis=1), sm.add_constant(code)).fit()
    np.testing.assert_allclose(parts.estimate, fit.params[1:], atol=1e-10)


def test_mixed_model_gives_the_same_effect_and_standard_error():
    """Balanced data: statsmodels' random-intercept model (run as group) agrees with the run-clustered estimate."""
    smf = pytest.importorskip("statsmodels.formula.api")
    import pandas as pd

    rng = np.random.default_rng(1)
    cell_of = np.repeat(np.arange(2), 6)
    y = rng.normal(0, 0.05, (12, 40)) + rng.normal(0, 0.08, (12, 1)) + 0.1 * cell_of[:, None]
    frame = pd.DataFrame({"y": y.ravel(), "x": np.repeat(cell_of, 40), "run": np.repeat(np.arange(12), 40)})
    fit = smf.mixedlm("y ~ x", frame, groups=frame["run"]).fit(reml=True)
    factors, cells = {"x": ("off", "on")}, [("off",), ("on",)]
    weights = np.where(cell_of == 1, 1 / 6, -1 / 6)[None]
    parts = two_way([y], weights, error_model(factors, cells, cell_of))
    assert parts.estimate[0] == pytest.approx(fit.params["x"], abs=1e-8)
    assert parts.run[0] ** 0.5 == pytest.approx(fit.bse["x"], rel=1e-3)


def test_quantiles_p_values_and_adjustments_equal_scipy_and_statsmodels():
    stats = pytest.importorskip("scipy.stats")
    multipletests = pytest.importorskip("statsmodels.stats.multitest").multipletests
    for df in (1, 2.5, 5, 32, 1e9):
        assert t_quantile(0.975, df) == pytest.approx(stats.t.ppf(0.975, df), rel=1e-6)
        assert t_two_sided(np.array(2.3), df) == pytest.approx(2 * stats.t.sf(2.3, df), rel=1e-6)
    p = np.array([0.01, 0.04, 0.03, 0.5, 0.0, 1.0])
    np.testing.assert_allclose(holm(p), multipletests(p, method="holm")[1])
    gappy = np.array([0.01, np.nan, 0.04])
    np.testing.assert_allclose(holm(gappy), [0.02, np.nan, 0.04])
    assert np.isnan(t_quantile(0.975, 0))


def test_equivalence_equals_two_one_sided_tests():
    stats = pytest.importorskip("scipy.stats")
    p = equivalence(np.array([0.002]), np.array([0.003**2]), 20, 0.01)
    low, high = stats.t.sf((0.002 + 0.01) / 0.003, 20), stats.t.sf((0.01 - 0.002) / 0.003, 20)
    assert p[0] == pytest.approx(max(low, high), rel=1e-9)


def test_bootstrap_spread_is_the_two_way_standard_error(grid):
    y, cell_of = grid
    found, _ = contrasts(FACTORS, CELLS, [3] * 4)
    weights = np.stack([c.weights[cell_of] / 3 for c in found])
    error = error_model(FACTORS, CELLS, cell_of)
    for scores in ([y], [y, y[:, :5] ** 2]):
        parts = two_way(scores, weights, error)
        draws = two_way_bootstrap(scores, weights, error, parts, draws=20_000, seed=0)
        np.testing.assert_allclose(draws.mean(axis=0), parts.estimate, atol=0.005)
        np.testing.assert_allclose(draws.std(axis=0), np.sqrt(parts.total), rtol=0.05)
        again = two_way_bootstrap(scores, weights, error, parts, draws=100, seed=0)
        np.testing.assert_array_equal(again, two_way_bootstrap(scores, weights, error, parts, draws=100, seed=0))


def test_macro_average_is_the_mean_of_benchmarks_with_independent_questions(grid):
    y, cell_of = grid
    z = np.random.default_rng(5).random((12, 11))
    error = error_model(FACTORS, CELLS, cell_of)
    weights = contrasts(FACTORS, CELLS, [3] * 4)[0][0].weights[cell_of][None] / 3
    one, two, both = (two_way(s, weights, error) for s in ([y], [z], [y, z]))
    assert both.estimate[0] == pytest.approx((one.estimate[0] + two.estimate[0]) / 2)
    assert both.question[0] == pytest.approx((one.question[0] + two.question[0]) / 4)
    assert 6 <= both.df_question[0] <= 16
    joint = (y.mean(axis=1) + z.mean(axis=1)) / 2
    own = [joint[cell_of == c].var(ddof=1) for c in range(4)]
    assert both.run[0] == pytest.approx(sum((weights[0, cell_of == c] ** 2).sum() * own[c] for c in range(4)))


def test_one_seed_pools_interactions_of_three_and_more_factors():
    factors = dict.fromkeys("abcd", ("off", "on"))
    cells = list(itertools.product(*factors.values()))
    error = error_model(factors, cells, np.arange(16))
    assert (error.df, error.source) == (5, "interactions")
    code = np.array([[1 if level == "on" else -1 for level in c] for c in cells])
    high = [np.prod(code[:, list(s)], axis=1) / 4 for n in (3, 4) for s in itertools.combinations(range(4), n)]
    y = np.random.default_rng(0).random((16, 9))
    pooled = sum((h @ y.mean(axis=1)) ** 2 for h in high) / 5
    parts = two_way([y], np.full((1, 16), 1 / 16), error)
    assert parts.run[0] == pytest.approx(pooled / 16)


def test_nothing_to_estimate_noise_from_gives_no_interval():
    error = error_model(FACTORS, CELLS, np.arange(4))
    parts = two_way([np.random.default_rng(0).random((4, 9))], np.eye(4)[:1] - np.eye(4)[1:2], error)
    assert error.source == "none"
    assert interval(parts.estimate, parts.total, parts.df, 0.95)[0].se is None
