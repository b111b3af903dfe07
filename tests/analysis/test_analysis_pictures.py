"""What the figures draw and say: a dot per run, the declared confidence, sizes as in the tables, nothing constant."""

import dataclasses
import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from scenarios import count_solved
from simulate import CELLS, FACTORS, Setting, grids
from synthetic import Spec, make_study

from r3bench.analysis import load_study
from r3bench.analysis.declared import Declared
from r3bench.analysis.figures import plots
from r3bench.analysis.figures.data import orthogonal_contrasts, pictures_of, run_accuracies
from r3bench.analysis.results import Results, Run, Scores
from r3bench.analysis.statistics.cells import cell_rows
from r3bench.analysis.statistics.curves import cell_curves
from r3bench.analysis.statistics.effects import effects


def all_pictures(results):
    found, _ = effects(results, draws=0)
    rows = cell_rows(results)
    headline = rows[0].benchmark
    top, cells = ([x for x in y if x.benchmark == headline] for y in (found, rows))
    return {p.name: p for p in pictures_of(results, top, cells, headline) if p is not None}


@pytest.mark.parametrize("confidence", [0.95, 0.9, 0.8])
def test_every_run_is_a_dot_and_every_line_the_declared_interval(tmp_path, confidence):
    root = make_study(tmp_path / "s", Spec(metrics=True, diverged=[(1, 0)], analysis={"confidence": confidence}))
    results = load_study(root, metrics=True)
    shown = all_pictures(results)
    axes = shown["accuracy"].draw().axes[0]
    rows = [r for r in cell_rows(results) if r.accuracy]
    dots = {}
    for line in axes.lines:
        if line.get_marker() == ".":
            for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True):
                dots.setdefault(round(float(y)), []).append(x)
    spans = [tuple(line.get_xdata()) for line in axes.lines if line.get_marker() in ("None", "")]
    for place, row in enumerate(rows):
        assert len(dots[place]) == len(row.runs)
        assert np.mean(dots[place]) == pytest.approx(100 * row.accuracy.value)
        part = row.accuracy.like_these
        assert any(s == pytest.approx((100 * part.low, 100 * part.high)) for s in spans)
    for picture in shown.values():
        for told in re.findall(r"([0-9.]+) % interval", picture.caption):
            assert float(told) == pytest.approx(100 * confidence)
        for told in re.findall(r"p (?:is below|<) ([0-9.]+)", picture.caption):
            assert float(told.rstrip(".")) == pytest.approx(1 - confidence)
    assert f"{100 * confidence:g} % interval" in shown["accuracy"].caption
    assert f"{100 * confidence:g} % interval" in shown["curves-tokens"].caption


def test_bands_have_the_declared_confidence(tmp_path):
    root = make_study(tmp_path / "s", Spec(metrics=True))
    curves = cell_curves(load_study(root, metrics=True))

    def width(confidence):
        axes = plots.learning_curves(curves, "tokens", (), confidence).draw().axes[0]
        points = axes.collections[0].get_paths()[0].vertices[:, 1]
        return np.ptp(points)

    assert width(0.5) < width(0.8) < width(0.95)
    one = {label: runs[:1] for label, runs in curves.items()}
    assert "interval" not in plots.learning_curves(one, "tokens").caption


def test_questions_solved_are_drawn_as_they_were_logged(tmp_path):
    root = make_study(tmp_path / "s", Spec(metrics=True))
    assert "solved-tokens" not in all_pictures(load_study(root, metrics=True))  # logs of older versions
    count_solved(root)
    picture = all_pictures(load_study(root, metrics=True))["solved-tokens"]
    axes = picture.draw().axes[0]
    single = [line for line in axes.lines if line.get_alpha()]
    assert len(single) == len(list(root.glob("*/metrics.jsonl")))
    for line in single:
        assert line.get_ydata() == pytest.approx(np.arange(1, 61) / 100)  # not smoothed
        assert line.get_xdata() == pytest.approx(np.arange(1, 61) * 1700)
    assert axes.get_ylabel() == "questions solved"
    assert "ends at 0.60" in picture.alt


def results_of(means, factors, seeds=2, questions=50):
    runs, rows = [], []
    rng = np.random.default_rng(0)
    for cell, mean in means.items():
        for seed in range(seeds):
            runs.append(Run(f"{cell}-{seed}", seed, dict(zip(factors, cell, strict=True))))
            rows.append(rng.binomial(100, mean, questions))
    correct = np.array(rows)
    scores = Scores(tuple(map(str, range(questions))), np.full_like(correct, 100), correct)
    return Results("t", factors, tuple(runs), {"b": scores}, Declared())


def test_half_normal_sizes_are_those_of_the_tables():
    """In the picture's scaling an effect of k factors stands at 1 / 2^(k-1) of its table's size; the words say so."""
    (grid,) = grids(Setting(40, 8, 2), 1, seed=3)
    runs = tuple(Run(f"r{i}", i % 2, dict(zip(FACTORS, CELLS[c], strict=True))) for i, c in enumerate(grid.cell_of))
    scores = Scores(tuple(map(str, range(40))), np.full_like(grid.correct, 8), grid.correct)
    results = Results("s", FACTORS, runs, {"b": scores}, Declared())
    drawn = orthogonal_contrasts(results, "b")
    assert len(drawn) == 2 ** len(FACTORS) - 1
    printed = {e.term: e.estimate for e in effects(results, draws=0)[0] if e.kind in ("main", "interaction")}
    for term, size in drawn.items():
        if len(term) < 3:
            assert size * 2 ** (len(term) - 1) == pytest.approx(printed[":".join(term)], abs=1e-12)
    picture = all_pictures(results)["half-normal"]
    told = dict(re.findall(r"([a-z:]+) ([+-][0-9.]+)(?=,|\.$)", picture.alt))
    assert told
    for term, size in told.items():
        if term.count(":") < 2:
            assert float(size) == pytest.approx(100 * printed[term], abs=0.051)
    assert "half of its size in the tables" in picture.caption
    heights = sorted(y for line in picture.draw().axes[0].lines[:1] for y in line.get_ydata())
    assert heights == pytest.approx(sorted(100 * abs(v) for v in drawn.values()))


@pytest.mark.parametrize(("slope", "told"), [(1, "are more accurate"), (-1, "are less accurate"), (0, "don't clearly")])
def test_what_is_said_of_length_is_what_the_cells_show(slope, told):
    levels = tuple("abcdefgh")
    means = {(v,): 0.2 + (0.08 * i if slope else (0.3 if i % 2 else 0.1)) for i, v in enumerate(levels)}
    results = results_of(means, {"m": levels})
    tokens = np.repeat([[100.0 + 10 * i * (slope or 1)] for i in range(8) for _ in range(2)], 50, axis=1)
    results = dataclasses.replace(
        results, benchmarks={"b": dataclasses.replace(results.benchmarks["b"], tokens=tokens)}
    )
    caption = all_pictures(results)["length"].caption
    assert told in caption and "wrong" not in caption
    few = cell_rows(results)[:4]
    assert "trained cells" not in plots.accuracy_and_length(few, {}, 0.95).caption


def test_the_dots_of_an_average_are_the_runs_averages(tmp_path):
    results = load_study(make_study(tmp_path / "s", Spec(benchmarks={"a": 20, "b": 10})))
    found = run_accuracies(results, "macro")
    for row in cell_rows(results):
        if row.benchmark == "macro":
            assert np.mean(found[row.label]) == pytest.approx(row.accuracy.value) and len(found[row.label]) == len(
                row.runs
            )
    assert isinstance(all_pictures(results)["accuracy"].draw(), Figure)
