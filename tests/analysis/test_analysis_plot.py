"""`r3bench plot`: files are read back, for their size, fonts, dots and data; what flattens a figure is cut and said."""

import dataclasses
import json
import re
import struct
import sys
import warnings
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from json_page import documented
from scenarios import _along
from synthetic import Spec, make_study
from typer.testing import CliRunner

import r3bench
from r3bench.analysis.comparing.heldout import held_out
from r3bench.analysis.figures.effect_plots import forest
from r3bench.analysis.figures.files import printed
from r3bench.analysis.figures.kinds import KINDS, NEEDS, OTHER_NAMES
from r3bench.analysis.figures.of_study import picture
from r3bench.analysis.letters import families
from r3bench.analysis.output.at_k import at_k
from r3bench.analysis.reading.study import load_study
from r3bench.analysis.statistics.cells import cell_rows
from r3bench.analysis.statistics.effects import Interval, effects
from r3bench.cli import app

ODD = {"a_b&c%": ["off", r"x^2$ #1 \frac{1}{2}"], "<b>": ["off", "a level with so long a name that no label holds it"]}
RUN = CliRunner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """2 x 2 cells with odd names, 3 seeds, logs, measured checkpoints, wrong answers with values."""
    spec = Spec(factors=ODD, benchmarks={"embedded": 20, "amc": 12}, samples=5, metrics=True, wrong_values=2)
    root = make_study(tmp_path_factory.mktemp("runs") / "odd", spec)
    _along(root)
    return root


def plot(*words: str) -> list[Path]:
    done = RUN.invoke(app, ["plot", *words])
    assert done.exit_code == 0, done.stderr or done.exception
    return [Path(line) for line in done.stdout.splitlines()]


def test_files_are_as_wide_as_a_column_with_their_fonts_inside(folder, tmp_path, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # whoever needs a display needs this
    for width, inches, formats in (("column", 3.25, "pdf,svg,png"), ("page", 5.5, "pdf"), ("4", 4.0, "svg")):
        for path in plot(
            str(folder), "accuracy", "--format", formats, "--width", width, "--out", str(tmp_path / width)
        ):
            content = path.read_bytes()
            if path.suffix == ".pdf":
                box = re.search(rb"/MediaBox \[ 0 0 ([0-9.]+) ([0-9.]+) \]", content)
                assert float(box[1]) == pytest.approx(72 * inches)
                assert b"/FontFile2" in content and b"/Type3" not in content
            elif path.suffix == ".svg":
                text = content.decode()
                assert float(re.search(r'<svg [^>]*width="([0-9.]+)pt"', text)[1]) == pytest.approx(72 * inches)
                assert "<text" not in text and "font-family" not in text  # letters are shapes
            else:
                assert struct.unpack(">I", content[16:20])[0] == pytest.approx(300 * inches, abs=1)
    for again in plot(str(folder), "accuracy", "--format", "pdf,svg", "--out", str(tmp_path / "again")):
        assert again.read_bytes() == (tmp_path / "column" / again.name).read_bytes()


def test_every_run_is_a_dot_at_its_accuracy_in_the_file(folder, tmp_path):
    (svg,) = plot(str(folder), "cells", "--benchmark", "amc", "--format", "svg", "--out", str(tmp_path))
    assert svg.name == "accuracy-amc.svg"
    dots = [(float(x), float(y)) for x, y in re.findall(
        r'<use [^>]*x="([0-9.]+)" y="([0-9.]+)" style="[^"]*fill-opacity: 0.7', svg.read_text())]  # fmt: skip
    rows = [r for r in cell_rows(load_study(folder)) if r.benchmark == "amc"]
    runs = [v for r in rows for v in (r.run_means or (r.accuracy.value,))]
    assert len(dots) == len(runs) == 13
    slope, start = np.polyfit(runs, [x for x, _ in dots], 1)
    assert np.allclose([x for x, _ in dots], start + slope * np.array(runs), atol=1e-3) and slope > 0
    assert len({y for _, y in dots}) == len(rows)


def test_every_kind_is_drawn_or_says_what_it_needs(folder, tmp_path):
    listed = RUN.invoke(app, ["plot", str(folder), "--list"]).stdout.splitlines()
    assert [line.split()[0] for line in listed] == list(KINDS) == list(NEEDS)
    have = {line.split()[0] for line in listed if "not in these results" not in line}
    assert have == set(KINDS) - {"solved-tokens", "half-normal"}
    kinds = documented(RUN.invoke(app, ["plot", str(folder), "--json"]).stdout, "plot-kinds")["kinds"]
    assert {k for k, there in kinds.items() if there} == have
    done = RUN.invoke(app, ["plot", str(folder), *sorted(have), "--out", str(tmp_path), "--format", "svg", "--json"])
    made = documented(done.stdout, "plot")["made"]
    assert [Path(p).stem for p in made] == sorted(have) and all(Path(p).stat().st_size > 5000 for p in made)
    for kind in set(KINDS) - have:
        done = RUN.invoke(app, ["plot", str(folder), kind])
        assert done.exit_code == 3 and NEEDS[kind] in done.stderr and done.stderr.count("\n") == 1
    assert set(OTHER_NAMES.values()) <= set(KINDS)
    told = " ".join(RUN.invoke(app, ["plot", "--help"], env={"COLUMNS": "400", "TERMINAL_WIDTH": "400"}).stdout.split())
    assert all(kind in told for kind in KINDS)


def test_choices_that_cannot_be_say_so_in_a_line(folder):
    for words, code, said in (
        (["efects"], 2, "figure: got 'efects'; did you mean 'effects'?"),
        (["pass@"], 2, "did you mean 'pass@k'?"),
        (["accuracy", "--width", "colum"], 2, "did you mean 'column'?"),
        (["accuracy", "--width", "0.5"], 2, "expected 2 to 20 inches"),
        (["accuracy", "--format", "pdf,jpg"], 2, "--format: got 'jpg'"),
        (["accuracy", "--benchmark", "amcc"], 3, "did you mean 'amc'?"),
        (["accuracy", "--k", "2"], 2, "--k is about pass-at-k and maj-at-k"),
        (["pass-at-k", "--k", "1,9"], 2, "--k 9: expected 1 to 5"),
        (["curves-tokens", "--benchmark", "amc"], 2, "curves-tokens is of training questions"),
        (["solved-tokens"], 3, "training logs that count solved questions"),
    ):
        done = RUN.invoke(app, ["plot", str(folder), *words])
        assert done.exit_code == code and said in done.stderr and done.stderr.count("\n") == 1, (words, done.stderr)


def test_interactions_are_drawn_only_where_there_are_any(tmp_path):
    root = make_study(tmp_path / "one", Spec(factors={"replay": ["off", "on"]}, samples=1))
    done = RUN.invoke(app, ["plot", str(root), "interactions"])
    assert done.exit_code == 3 and "it needs two factors" in done.stderr
    kinds = json.loads(RUN.invoke(app, ["plot", str(root), "--list", "--json"]).stdout)["kinds"]
    assert {k for k, there in kinds.items() if there} == {"effects", "accuracy", "length", "questions"}
    assert "several answers to a question" in RUN.invoke(app, ["plot", str(root), "pass-at-k"]).stderr


def test_lines_of_k_and_of_checkpoints_hold_the_numbers(folder):
    results = load_study(folder, metrics=True)
    axes = printed(picture(results, "maj-at-k", "embedded", (1, 3, 5)), 3.25).axes[0]
    rows = {(r.label, r.k): r for r in at_k(results, "maj", (1, 3, 5)) if r.benchmark == "embedded"}
    lines = [line for line in axes.lines if line.get_marker() != "."]
    dots = [xy for line in axes.lines if line.get_marker() == "." for xy in line.get_xydata().tolist()]
    labels = list(dict.fromkeys(label for label, _ in rows))
    for line, label in zip(lines, labels, strict=True):
        expected = [(k, 100 * rows[label, k].value.value) for k in (1, 3, 5)]
        assert line.get_xydata() == pytest.approx(np.array(expected))
    assert len(dots) == 13 * 3 and {x for x, _ in dots} == {1.0, 3.0, 5.0}
    bands = [c.get_paths()[0].vertices for c in axes.collections]
    part = rows[labels[1], 3].value.like_these
    at_three = {round(float(y), 6) for x, y in bands[1] if x == 3}
    assert at_three == {round(100 * part.low, 6), round(100 * part.high, 6)}
    found = held_out(folder, results)
    axes = printed(picture(results, "heldout-seconds"), 3.25).axes[0]
    drawn = [line.get_xydata() for line in axes.lines if line.get_marker() == "."]
    runs = [run for mine in found.cells.values() for run in mine]
    assert len(drawn) == len(runs)
    for xy, run in zip(drawn, runs, strict=True):
        assert xy == pytest.approx(np.column_stack([run.seconds, 100 * run.accuracy]))
    frame = r3bench.load(folder).held_out
    assert frame["accuracy"].tolist() == [v for run in runs for v in run.accuracy]
    assert frame["seconds"].tolist() == [v for run in runs for v in run.seconds]
    assert len(r3bench.load(_table()).held_out) == 0


def test_an_outlier_does_not_flatten_the_others():
    study = r3bench.load(_table())
    found, _ = effects(study._results, draws=0)
    main = [e for e in found if e.kind == "main"]
    assert forest(main, 0.01).draw().axes[0].get_xlim()[1] < 40
    one = Interval(0.2, 3.0, -0.9, 0.35, 0.4)
    wild = [dataclasses.replace(main[0], like_these=one, these=one), *main[1:]]
    far = [dataclasses.replace(main[0], estimate=0.8, like_these=Interval(0.1, 3.0, 0.6, 0.99, 0.01)), *main[1:]]
    for rows, said in ((wild, {"-90.0", "+35.0"}), (far, {"+80.0, to +99.0"})):
        shown = forest(rows, 0.01)
        axes = shown.draw().axes[0]
        low, high = axes.get_xlim()
        widest = max(abs(100 * v) for e in rows[1:] for v in (e.like_these.low, e.like_these.high))
        assert max(abs(low), abs(high)) < 1.5 * widest
        assert {t.get_text() for t in axes.texts} == said and "Arrows: beyond the scale" in shown.caption
        assert sum(line.get_marker() in "<>" for line in axes.lines) == len(said)
        for line in axes.lines:
            assert all(low <= x <= high for x in line.get_xdata() if line.get_marker() not in "<>" and x not in (0, 1))
    alike = [dataclasses.replace(e, like_these=one, these=one) for e in main]
    assert "Arrows" not in forest(alike, 0.01).caption  # where all are long, nothing is cut


def _table(start=0.3, more=0.1):
    rng = np.random.default_rng(0)
    return pd.DataFrame([
        {"run": f"{m}{s}", "seed": s, "method": m, "benchmark": "b", "question": q, "samples": 8,
         "correct": int(rng.binomial(8, start + more * "abcd".index(m)))}
        for m in "abcd" for s in range(4) for q in range(100)
    ])  # fmt: skip


def test_a_cell_far_off_does_not_flatten_the_others(tmp_path):
    table = _table(0.6, 0.02)
    table.loc[table["method"] == "c", "correct"] = 0
    results = r3bench.load(table)._results
    shown = picture(results, "accuracy")
    assert "Beyond the scale: method=c" in shown.caption
    axes = shown.draw().axes[0]
    assert axes.get_xlim()[0] > 10 and {t.get_text() for t in axes.texts} == {"← 0.0"}


def test_an_untrained_model_far_below_does_not_flatten_the_lines_of_k(folder):
    table = _table(0.9, 0.005).assign(base="")
    rng = np.random.default_rng(1)
    start = [{"run": "start", "seed": 0, "method": "", "benchmark": "b", "question": q, "samples": 8, "base": "model",
              "correct": int(rng.binomial(8, 0.02))} for q in range(100)]  # fmt: skip
    shown = picture(r3bench.load(pd.concat([table, pd.DataFrame(start)]))._results, "pass-at-k")
    assert "Not drawn, far away: the untrained model, " in shown.caption and "untrained model 1.8 at k = 1" in shown.alt
    axes = shown.draw().axes[0]
    assert axes.get_ylim()[0] > 70 and len(axes.get_legend_handles_labels()[1]) == 4
    assert "Not drawn" not in picture(load_study(folder), "pass-at-k").caption


@pytest.mark.parametrize("cells", [1, 40])
def test_names_of_any_length_fit_into_any_number_of_rows(cells, tmp_path):
    names = [f"{i * 'and so on ':.70}_{i}_%&<b>$x^2$" + " and so on" * 12 for i in range(cells)]
    spec = Spec(factors={"f": ["off", *names][:cells]}, seeds=(0, 1), benchmarks={f"b{i}": 3 for i in range(1)})
    results = load_study(make_study(tmp_path / "s", spec))
    for kind in ("accuracy", "pass-at-k")[: 1 + (cells == 1)]:
        figure = printed(picture(results, kind), 3.25)
        drawn = figure.axes[0].get_yticklabels() if kind == "accuracy" else figure.legends[0].get_texts()
        boxes = [t.get_window_extent() for t in drawn]
        assert len(boxes) == cells + 1 == len({t.get_text() for t in drawn})
        for a, b in combinations(boxes, 2):  # none on another
            assert a.y0 > b.y1 - 3 or a.y1 < b.y0 + 3 or a.x1 < b.x0 or b.x1 < a.x0
        width, height = figure.get_size_inches() * figure.dpi
        assert all(b.x0 > -1 and b.x1 < width + 1 and b.y0 > -2 and b.y1 < height + 2 for b in boxes)
        assert figure.axes[0].get_position().width > 0.3


def test_letters_without_a_font_are_named_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("r3bench.analysis.letters.OTHERS", ())
    families.cache_clear()
    root = make_study(tmp_path / "s", Spec(factors={"\u65b9": ["off", "\u91cd\u653e"]}, seeds=(0, 1), samples=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = RUN.invoke(app, ["plot", str(root), "accuracy", "effects", "--out", str(tmp_path)])
    assert done.exit_code == 0 and done.stderr.count("\n") == 2, done.stderr
    assert "warning: accuracy: no font of this machine has \u653e \u65b9 \u91cd" in done.stderr
    families.cache_clear()


def test_from_python_the_same_figures(folder, tmp_path):
    study = r3bench.load(folder)
    path = study.plot.save("forest", tmp_path / "f.pdf", "page")
    assert (
        path.read_bytes()
        == plot(str(folder), "forest", "--width", "page", "--out", str(tmp_path / "o"))[0].read_bytes()
    )
    assert study.plot.pass_at_k(ks=[1, 2]).get_ylabel() == "pass@k, points"
    assert study.plot.maj_at_k("amc").get_xlabel() == "k, answers to a question"
    assert study.plot.held_out("seconds").get_xlabel() == "device seconds"
    with pytest.raises(r3bench.ConfigError, match="--format: got 'gif'"):
        study.plot.save("forest", tmp_path / "f.gif")
