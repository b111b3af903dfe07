"""Effects of a lattice: brute-force Shapley, the paper's ablation table, families, missing cells."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r3bench.analysis import analyze
from r3bench.analysis.declared import Declared
from r3bench.analysis.results import Results, Run, Scores, order_levels
from r3bench.analysis.statistics.distributions import t_two_sided
from r3bench.analysis.statistics.effects import effects
from r3bench.analysis.statistics.lattice import contrasts
from r3bench.errors import ConfigError

FOUR = dict.fromkeys(("replay", "retrospective", "reflection", "ranking"), ("off", "on"))


def results_from(means, factors, *, questions=1, noise=0.0, seeds=1, declared=None, samples=10_000):
    """Results whose cell means are `means` (cell -> accuracy), with optional noise per run and question."""
    rng = np.random.default_rng(0)
    runs, correct = [], []
    for cell, mean in means.items():
        for seed in range(seeds):
            runs.append(Run(f"{'-'.join(cell)}-s{seed}", seed, dict(zip(factors, cell, strict=True))))
            p = np.clip(mean + rng.normal(0, noise) + rng.normal(0, noise, questions), 0, 1)
            correct.append(np.round(p * samples))
    shape = (len(runs), questions)
    scores = Scores(tuple(map(str, range(questions))), np.full(shape, samples), np.array(correct).astype(int))
    return Results("t", factors, tuple(runs), {"bench": scores}, declared or Declared())


def value(found, kind, term):
    return next(e for e in found if (e.kind, e.term) == (kind, term))


def test_shapley_equals_all_orders():
    rng = np.random.default_rng(0)
    means = {cell: round(float(rng.random()), 4) for cell in itertools.product(*FOUR.values())}
    found, _ = effects(results_from(means, FOUR), draws=0)
    names = list(FOUR)

    def worth(on):
        return means[tuple("on" if f in on else "off" for f in names)]

    for name in names:
        gains = []
        for order in itertools.permutations(names):
            before = set(order[: order.index(name)])
            gains.append(worth(before | {name}) - worth(before))
        assert len(gains) == math.factorial(4)
        assert value(found, "shapley", name).estimate == pytest.approx(np.mean(gains), abs=1e-9)
    total = sum(value(found, "shapley", n).estimate for n in names)
    assert total == pytest.approx(worth(set(names)) - worth(set()), abs=1e-9)


def test_main_and_interaction_are_the_textbook_contrasts():
    means = {("off", "off"): 0.2, ("off", "on"): 0.3, ("on", "off"): 0.5, ("on", "on"): 0.9}
    found, _ = effects(results_from(means, {"a": ("off", "on"), "b": ("off", "on")}), draws=0)
    assert value(found, "main", "a").estimate == pytest.approx(0.45)
    assert value(found, "main", "b").estimate == pytest.approx(0.25)
    assert value(found, "interaction", "a:b").estimate == pytest.approx((0.9 - 0.5) - (0.3 - 0.2))
    assert value(found, "leave_one_out", "a").estimate == pytest.approx(0.6)
    assert value(found, "add_one", "a").estimate == pytest.approx(0.3)


def test_papers_leave_one_out_drops():
    """R3 Table 3 (five benchmarks, cell means): drops of the mean 6.47, 3.24 and 5.67 from 60.59."""
    rows = {
        ("on", "on", "on"): (47.50, 89.27, 77.33, 34.21, 54.64),
        ("off", "on", "on"): (35.62, 86.57, 71.76, 30.95, 45.68),
        ("on", "off", "on"): (41.25, 87.54, 73.87, 32.38, 51.72),
        ("on", "on", "off"): (36.88, 86.84, 71.83, 30.58, 48.47),
    }
    factors = {"ccr": ("off", "on"), "isr": ("off", "on"), "serr": ("off", "on")}
    runs = tuple(Run("-".join(c), 0, dict(zip(factors, c, strict=True))) for c in rows)
    benchmarks = {}
    for i, name in enumerate(("aime24", "math", "amc", "minerva", "olympiad")):
        correct = np.array([[round(100 * r[i])] for r in rows.values()])
        benchmarks[name] = Scores(("q",), np.full((4, 1), 10_000), correct)
    found, notes = effects(Results("r3", factors, runs, benchmarks), draws=0)
    macro = [e for e in found if e.benchmark == "macro" and e.kind == "leave_one_out"]
    drops = {e.term: round(100 * e.estimate, 2) for e in macro}
    assert drops == {"ccr": 6.47, "isr": 3.24, "serr": 5.67}
    assert all(e.like_these.se is None and e.p_adjusted is None for e in macro)  # one run per cell: no interval
    assert any("add seeds" in n for n in notes)
    assert not any(e.kind in ("shapley", "add_one", "interaction") for e in found)
    assert any("not estimable" in n and "shapley" in n for n in notes)


def test_leave_one_out_design_with_seeds_has_intervals():
    """Four cells of 2^3, three seeds: drops with 8 degrees of freedom, main effects only under an assumption."""
    factors = dict.fromkeys("abc", ("off", "on"))
    means = {c: 0.3 + 0.1 * c.count("on") for c in itertools.product(*factors.values()) if c.count("on") >= 2}
    found, notes = effects(results_from(means, factors, questions=50, noise=0.02, seeds=3), draws=200)
    for name in "abc":
        effect = value(found, "leave_one_out", name)
        assert (
            effect.assumes is None
            and 2 <= effect.these.df <= 4
            and effect.family == "primary"
            and effect.like_these.low < 0.1 < effect.like_these.high
        )
        main = value(found, "main", name)
        assert main.assumes == "no interaction at all"
        assert main.estimate == pytest.approx(effect.estimate)  # what an additive model makes of this design
    assert not any(e.kind in ("interaction", "add_one", "shapley") for e in found)
    assert any("partial grid: 4 of 8" in n for n in notes)


def test_papers_table_as_a_long_table(tmp_path):
    rows = ["run,seed,ccr,isr,serr,benchmark,question,samples,correct"]
    for name, levels, mean in [("full", "on,on,on", 6059), ("a", "off,on,on", 5412), ("b", "on,off,on", 5735),
                               ("c", "on,on,off", 5492)]:  # fmt: skip
        rows.append(f"{name},0,{levels},maths,all,10000,{mean}")
    (tmp_path / "r3.csv").write_text("\n".join(rows) + "\n")
    found = analyze(tmp_path / "r3.csv")
    drops = {e["term"]: round(100 * e["estimate"], 2) for e in found["effects"] if e["kind"] == "leave_one_out"}
    assert drops == {"ccr": 6.47, "isr": 3.24, "serr": 5.67}
    json.dumps(found, allow_nan=False)


def test_levels_beyond_on_and_off_are_compared_with_the_reference():
    factors = {"ranking": ("off", "on", "random"), "replay": ("off", "on")}
    means = {c: 0.1 * i for i, c in enumerate(itertools.product(*factors.values()))}
    found, _ = effects(results_from(means, factors), draws=0)
    assert value(found, "main", "ranking=random").estimate == pytest.approx(0.4)
    assert value(found, "main", "ranking=on").estimate == pytest.approx(0.2)
    assert value(found, "interaction", "ranking=random:replay").estimate == pytest.approx(0.0, abs=1e-12)
    assert value(found, "leave_one_out", "ranking=random").estimate == pytest.approx(0.4)


def test_half_fraction_gives_main_effects_under_a_named_assumption():
    """2^(4-1) of resolution IV: mains are free of two-way interactions, two-way interactions are aliased in pairs."""
    cells = [c for c in itertools.product(*FOUR.values()) if c.count("on") % 2 == 0]
    found, notes = contrasts(FOUR, cells, [1] * 8)
    main = [c for c in found if c.kind == "main"]
    assert len(main) == 4
    assert all(c.assumes == "no interaction of three or more factors" for c in main)
    assert all((c.weights**2).sum() == pytest.approx(0.5) for c in main)
    assert not [c for c in found if c.kind == "interaction"]
    assert any("interaction of" in n for n in notes)


def test_variances_of_the_designs_are_the_known_ones():
    """Per run variance: factorial main 0.25, Shapley 0.33, leave-one-out and add-one 2."""
    cells = list(itertools.product(*FOUR.values()))
    found, _ = contrasts(FOUR, cells, [1] * 16)
    size = {kind: [float((c.weights**2).sum()) for c in found if c.kind == kind] for kind in
            ("main", "interaction", "shapley", "leave_one_out", "add_one")}  # fmt: skip
    assert size["main"] == pytest.approx([0.25] * 4)
    assert size["interaction"] == pytest.approx([1.0] * 6)
    assert size["shapley"] == pytest.approx([1 / 3] * 4, abs=0.01)
    assert size["leave_one_out"] == size["add_one"] == pytest.approx([2.0] * 4)
    assert all(abs(c.weights.sum()) < 1e-12 for c in found)


def test_families_and_verdicts():
    means = {c: 0.3 + 0.2 * (c[0] == "on") for c in itertools.product(*FOUR.values())}
    declared = Declared(primary=("replay", "ranking"), margin=0.02)
    found, _ = effects(results_from(means, FOUR, questions=200, noise=0.01, seeds=3, declared=declared), draws=100)
    primary = [e for e in found if e.family == "primary"]
    assert {(e.kind, e.term) for e in primary} == {("main", "replay"), ("main", "ranking")}
    smaller = min(primary, key=lambda e: e.p_adjusted)
    p = t_two_sided(np.array([smaller.estimate / smaller.like_these.se]), smaller.df_verdict)[0]
    assert smaller.p_adjusted == pytest.approx(min(1.0, 2 * p), rel=1e-9)
    assert all(e.p_adjusted >= e.like_these.p and e.df_verdict <= e.like_these.df for e in primary)
    assert value(found, "main", "replay").verdict() == "up"
    assert value(found, "main", "reflection").verdict() == "negligible"
    assert value(found, "main", "replay").boot_low < 0.2 < value(found, "main", "replay").boot_high
    with pytest.raises(ConfigError, match=r"no factor 'replya'.*did you mean 'replay'"):
        effects(results_from(means, FOUR, declared=Declared(primary=("replya",))), draws=0)
    with pytest.raises(ConfigError, match="no benchmark 'amc'"):
        effects(results_from(means, FOUR, declared=Declared(macro=("amc", "bench"))), draws=0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(2, 3), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_contrasts_of_any_complete_lattice(sizes, seed):
    """Weights add up to zero; Shapley values share out the whole gain; an additive table has no interaction."""
    factors = {f"f{i}": ("off", "on", "other")[:n] for i, n in enumerate(sizes)}
    cells = list(itertools.product(*factors.values()))
    found, notes = contrasts(factors, cells, [1] * len(cells))
    assert not notes and all(c.assumes is None and abs(c.weights.sum()) < 1e-9 for c in found)
    rng = np.random.default_rng(seed)
    means = rng.random(len(cells))
    shared = sum(c.weights @ means for c in found if c.kind == "shapley" and not c.term.endswith("=other"))
    assert shared == pytest.approx(means[cells.index(("on",) * len(sizes))] - means[cells.index(("off",) * len(sizes))])
    worth = {(f, level): 0.0 if level == "off" else rng.normal() for f, levels in factors.items() for level in levels}
    additive = np.array([sum(worth[pair] for pair in zip(factors, cell, strict=True)) for cell in cells])
    for contrast in found:
        value_of = contrast.weights @ additive
        if contrast.kind == "interaction":
            assert value_of == pytest.approx(0, abs=1e-9)
        else:
            level = contrast.term.partition("=")[2] or "on"
            assert value_of == pytest.approx(worth[contrast.factors[0], level])


def test_one_declared_benchmark_is_the_headline():
    means = dict.fromkeys(itertools.product(*FOUR.values()), 0.5)
    results = results_from(means, FOUR, questions=3, seeds=2)
    both = dataclasses.replace(results, benchmarks={"a": results.benchmarks["bench"], **results.benchmarks})
    found, _ = effects(both, draws=0)
    assert {e.benchmark for e in found if e.family == "primary"} == {"macro"}
    found, _ = effects(dataclasses.replace(both, declared=Declared(macro=("bench",))), draws=0)
    assert {e.benchmark for e in found if e.family == "primary"} == {"bench"}


def test_level_order_puts_the_reference_first():
    assert order_levels(["on", "off"]) == ("off", "on")
    assert order_levels(["random", "on", "off"]) == ("off", "on", "random")
    assert order_levels(["10", "2", "1"]) == ("1", "2", "10")
    assert order_levels(["b", "a"], ["b", "a"]) == ("b", "a")
    assert order_levels(["True", "False"]) == ("False", "True")


def test_runs_that_all_answer_alike_have_no_effect_and_say_so():
    """Updates too small to change an answer: what rounding leaves of the variance is no standard error."""
    rng = np.random.default_rng(1)
    factors = {name: FOUR[name] for name in ("replay", "ranking")}
    runs = [
        Run(f"{cell}-s{seed}", seed, dict(zip(factors, cell, strict=True)))
        for cell in itertools.product(*factors.values())
        for seed in range(3)
    ]
    counts = {"a": rng.integers(0, 4, 8), "b": rng.integers(0, 8, 3)}
    benchmarks = {
        name: Scores(tuple(map(str, range(len(row)))), np.full((12, len(row)), 7), np.tile(row, (12, 1)))
        for name, row in counts.items()
    }
    found, notes = effects(Results("t", factors, tuple(runs), benchmarks, Declared()), draws=0)
    assert {(e.estimate, e.like_these.se, e.like_these.p, e.these.p) for e in found} == {(0.0, None, None, None)}
    assert {e.verdict() for e in found if e.family} == {
        "unresolved"
    }  # nothing was seen to vary, so nothing can be said of size
    assert any("changed nothing here" in note for note in notes)
    changed = np.tile(counts["a"], (12, 1))
    changed[3, 2] += 1
    benchmarks["a"] = dataclasses.replace(benchmarks["a"], correct=changed)
    found, notes = effects(Results("t", factors, tuple(runs), benchmarks, Declared()), draws=0)
    assert any(e.like_these.se for e in found) and [n.partition(":")[0] for n in notes if "changed nothing" in n] == [
        "b"
    ]
