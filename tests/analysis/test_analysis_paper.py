"""The table a paper takes: what is in it, every choice read back, the rule behind its marks, and LaTeX that fits."""

import csv
import dataclasses
import io
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from grids import Regime, draw, truth
from paper import DOCUMENTS, compiled
from scipy import stats
from synthetic import Spec, make_study
from typer.testing import CliRunner

from r3bench.analysis import load_study, render_tables, write_tables
from r3bench.analysis.output.choices import Choices
from r3bench.analysis.output.external import load_any
from r3bench.analysis.output.frame import Column, Entry, Table
from r3bench.analysis.output.latex import joined, to_latex
from r3bench.analysis.results import Results, Run, Scores
from r3bench.analysis.statistics.cells import cell_rows
from r3bench.analysis.statistics.marks import letters, level_with_best
from r3bench.analysis.statistics.prepare import benchmark_sets, prepare
from r3bench.api.study import load
from r3bench.cli import app
from r3bench.errors import ConfigError

RESULTS = Path(__file__).parents[2] / "results"
LONG = "a_very_long_component_name_that_no_column_can_hold_in_one_line_" * 2
HOSTILE = r"50%_of&the\input{x} $y$ #1 {~^} " + LONG
FOUR = {name: ["off", "on"] for name in ("replay", "reflection", "ranking", "retrospective")}
FIVE = {"aime24": 30, "aime25": 30, "math500": 40, "minerva": 40, "olympiadbench": 40}


def results_of(cells, *, seeds=3, questions=(20,), samples=4, base=True, names=None, seed=0):
    """Results in memory; cells: label of one factor 'x' -> share right, the first one the reference."""
    rng = np.random.default_rng(seed)
    runs = [Run("base", 0, {}, base=True)] if base else []
    runs += [Run(f"{i}-{s}", s, {"x": level}) for i, level in enumerate(cells) for s in range(seeds)]
    share = np.array(([0.1] if base else []) + [v for v in cells.values() for _ in range(seeds)])
    scores = {}
    for n, count in enumerate(questions):
        right = rng.binomial(samples, np.broadcast_to(share[:, None], (len(runs), count)))
        ids = tuple(f"{q:03d}" for q in range(count))
        scores[(names or {}).get(n, f"b{n}")] = Scores(ids, np.full(right.shape, samples), right)
    return Results("made up", {"x": tuple(cells)}, tuple(runs), scores)


def odd_studies():
    """name -> results of the kinds that break tables."""
    plain = {"off": 0.3, "on": 0.5}
    found = {
        "hostile": results_of(
            {"off": 0.2, HOSTILE: 0.4, "b" * 90: 0.5}, questions=(20, 20), names={0: HOSTILE, 1: "m"}
        ),
        "one benchmark, one seed": results_of(plain, seeds=1),
        "no baseline runs": results_of({"x": 0.3, "y": 0.5}, base=False),
        "one cell": results_of({"off": 0.3}),
        "all right": results_of({"off": 0.2, "on": 1.0}),
        "much worse": results_of({"off": 0.99, "on": 0.01}, questions=(15, 15, 15)),
        "many": results_of({f"level{i:03d}": 0.5 for i in range(70)}, seeds=1, questions=(5,) * 12),
    }
    whole = results_of({"off": 0.3, "on": 0.5, "half": 0.4}, questions=(10, 10))
    second = whole.benchmarks["b1"]
    samples = second.samples.copy()
    samples[-3:] = 0
    gone = dataclasses.replace(second, samples=samples, correct=np.where(samples > 0, second.correct, 0))
    found["a cell without answers"] = dataclasses.replace(whole, benchmarks={**whole.benchmarks, "b1": gone})
    return found


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """16 cells, 5 benchmarks."""
    spec = Spec(factors=FOUR, seeds=(0, 1), benchmarks=FIVE, samples=2, effects={"replay": 0.8, "ranking": -0.6})
    return load_study(make_study(tmp_path_factory.mktemp("runs") / "large", spec))


def shown(text):
    """Rows of the first Markdown table: heading -> text, without bold."""
    first = "".join(text.split("### ")[1:2])
    lines = [line for line in first.splitlines() if line.startswith("|")]
    heads, *rows = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [dict(zip(heads, row, strict=True)) for row in rows[1:]]


def run(*arguments):
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    return done.exit_code, done.stdout, done.stderr


def test_wide_table_holds_what_the_cells_hold(study):
    results = load_study(study)
    rows = {(r.benchmark, r.label): r for r in cell_rows(results)}
    text = render_tables(results, layout="wide")
    table = shown(text)
    assert [row["cell"] for row in table] == ["untrained model", "all off", "ranking", "replay", "replay + ranking"]
    assert list(table[0]) == [
        "cell", "amc", "embedded", "average", "gain over all off", "runs", "answers", "tokens/answer",
        "generated tokens", "train s",
    ]  # fmt: skip
    back = list(csv.DictReader(io.StringIO(render_tables(results, "csv", "wide"))))
    for line, number in zip(table, back, strict=True):
        for head, name in (("amc", "amc"), ("embedded", "embedded"), ("average", "macro")):
            row = rows[name, line["cell"]]
            assert (
                float(number[head]) == row.accuracy.value
                and float(number[f"{head} low"]) == row.accuracy.like_these.low
            )
            sd = "" if row.seed_sd is None else f" ± {100 * row.seed_sd:.1f}"
            low, high = (100 * v for v in (row.accuracy.like_these.low, row.accuracy.like_these.high))
            assert line[head].replace("*", "") == f"{100 * row.accuracy.value:.1f}{sd} ({low:.1f} to {high:.1f})"
            assert (number[f"{head} sd"] == "") == (row.seed_sd is None)
            assert ("**" in line[head]) == (number[f"{head} marked"] == "yes")
    assert [row["answers"] for row in table] == ["280", "840", "840", "840", "840"]
    # the names of components that never acted go with every table
    assert "ranking was on and never acted in some cell" in text


def test_reference_comes_first_wherever_its_level_stands():
    results = results_of({"a": 0.3, "b": 0.5, "c": 0.4}, questions=(20, 20))
    turned = dataclasses.replace(results, factors={"x": ("c", "a", "b")})
    assert [row["cell"] for row in shown(render_tables(turned, layout="wide"))] == [
        "untrained model",
        "x=c",
        "x=a",
        "x=b",
    ]


def test_cells_not_shown_to_differ_from_the_best_by_a_plain_reference():
    """Each comparison again from run means and question means, balanced cells, by hand."""
    regime = Regime(factors=2, seeds=4, questions=(60,), gains=(0.9, 0.2), run=0.1)
    checked = 0
    for seed in range(6):
        results = draw(regime, np.random.default_rng(seed)).results
        data = prepare(results, "p", ("p",))
        rows = {r.label: r for r in cell_rows(results) if not r.base}
        labels = [results.label(c) for c in data.cells]
        top = max(labels, key=lambda label: rows[label].accuracy.value)
        # gains of a study whose reference is the best cell are the comparisons with the best
        best = dict(zip(results.factors, data.cells[labels.index(top)], strict=True))
        turned = {f: (best[f], *(v for v in levels if v != best[f])) for f, levels in results.factors.items()}
        again = [r for r in cell_rows(dataclasses.replace(results, factors=turned)) if not r.base]
        expected = {tuple(r.levels.values()): True if r.gain_off is None else bool(
            r.gain_off.like_these.p * (len(labels) - 1) >= 0.05) for r in again}  # fmt: skip
        found = dict(zip(data.cells, level_with_best(data, 0.95).tolist(), strict=True))
        assert found == expected
        p = {tuple(r.levels.values()): 2 * stats.t.sf(abs(r.gain_off.value) / r.gain_off.like_these.se,
             r.gain_off.like_these.df) for r in again if r.gain_off}  # fmt: skip
        assert all(found[c] == (3 * v >= 0.05) for c, v in p.items())
        checked += sum(not v for v in expected.values())
    assert checked > 3  # some are told apart, or nothing was tested


@pytest.mark.slow
def test_the_best_cell_is_among_the_marked():
    """The truly best cell is marked in at least 95 % of studies, whichever cell came out highest."""
    rng, kept, studies = np.random.default_rng(1), 0, 400
    regime = Regime(factors=3, seeds=3, questions=(40,), gains=(0.15, 0.1, 0.05), varies=0.0)
    real = truth(regime)
    best = max(real, key=real.__getitem__)
    for _ in range(studies):
        data = prepare(draw(regime, rng).results, "p", ("p",))
        kept += bool(level_with_best(data, 0.95)[data.cells.index(best)])
    assert kept / studies > 0.95 - 3 * math.sqrt(0.05 * 0.95 / studies)


def test_letters_are_shared_exactly_by_cells_not_shown_to_differ():
    results = results_of({"off": 0.15, "a": 0.5, "b": 0.55, "c": 0.95}, questions=(60,), samples=16)
    data = prepare(results, "b0", benchmark_sets(results)["b0"])
    found = letters(data, 0.95)
    rows = [r for r in cell_rows(results) if not r.base]
    for i, a in enumerate(data.cells):
        turned = dataclasses.replace(results, factors={"x": (a[0], *(v for v in results.factors["x"] if v != a[0]))})
        for row in (r for r in cell_rows(turned) if r.gain_off is not None):
            j = data.cells.index(tuple(row.levels.values()))
            assert bool(set(found[i]) & set(found[j])) == (row.gain_off.like_these.p * 6 >= 0.05)
    assert "a" in found[3] and len(set("".join(found))) > 1 and len(rows) == 4
    text = render_tables(results, layout="wide", choices=Choices(mark="letters"))
    assert [re.search(r"<sup>([a-z]+)</sup>", row["b0"])[1] for row in shown(text)[1:]] == found
    assert "cells that share a letter are not shown to differ (95 %, Bonferroni over all pairs)" in text


def test_nothing_is_marked_where_nothing_is_told_apart():
    for mark in ("bold", "letters"):
        text = render_tables(results_of({"off": 0.5, "on": 0.5}), layout="wide", choices=Choices(mark=mark))
        assert "no cell is marked: none is shown to differ from the highest mean" in text
        assert "**" not in text and "<sup>" not in text


def test_every_choice_is_read_back(study, tmp_path):
    def rows(*options):
        code, out, err = run("tables", study, "--out", tmp_path, *options)
        assert code == 0, err
        return shown(out) if "latex" not in options else [], out

    table, _ = rows("--columns", "average,amc,runs")
    assert list(table[0]) == ["cell", "average", "amc", "runs"]
    assert list(rows("--columns", "benchmarks")[0][0]) == ["cell", "amc", "embedded"]
    table, out = rows("--layout", "wide", "--rename", "replay=Replay", "--rename", "amc=AMC 23",
                      "--rename", "gain over all off=gain", "--rename", "all off=GRPO")  # fmt: skip
    assert [r["cell"] for r in table][1:] == ["GRPO", "ranking", "Replay", "Replay + ranking"]
    assert {"AMC 23", "gain"} <= set(table[0])
    for places in (0, 3):
        values = [r["amc"] for r in rows("--layout", "wide", "--decimals", places)[0]]
        assert all(len(n.partition(".")[2]) == places for v in values for n in re.findall(r"\d+(?:\.\d+)?", v))
        long = rows("--layout", "long", "--decimals", places)[0][1]["accuracy"]
        assert all(len(n.partition(".")[2]) == places for n in re.findall(r"\d+(?:\.\d+)?", long))
    out = rows("--caption", "Main results & more", "--label", "tab:a_b", "--format", "latex")[1]
    assert r"\caption{Main results \& more}" in out and r"\label{tab:a_b}" in out and out.count(r"\caption") == 1
    assert "### Main results" in rows("--caption", "Main results")[1]
    assert len(re.findall("^###", rows("--layout", "wide")[1], re.M)) == 1
    assert re.findall("^### (.*)", rows("--layout", "long")[1], re.M)[0] == "demo: macro average"
    effects = re.findall("^### (.*)", rows("--layout", "effects")[1], re.M)
    assert effects == ["demo: effects, macro average", "demo: tested effects by benchmark"]
    titles = re.findall("^### (.*)", rows("--only", "cells-amc,effects")[1], re.M)
    assert titles == ["demo: amc", "demo: effects, macro average"]
    assert len(re.findall("^###", rows("--only", "cells")[1], re.M)) == 3
    assert list(rows("--only", "effects", "--columns", "p,SE")[0][0]) == ["effect", "p", "SE"]
    cell = rows("--layout", "wide", "--sd", "subscript")[0][1]["amc"]
    assert re.fullmatch(r"\**[\d.]+\**<sub>[\d.]+</sub> \([\d.]+ to [\d.]+\)", cell)
    cell = rows("--layout", "wide", "--sd", "none", "--interval", "subscript")[0][1]["amc"]
    assert re.fullmatch(r"\**[\d.]+\**<sup>[\d.]+</sup><sub>[\d.]+</sub>", cell)
    cell = rows("--layout", "wide", "--sd", "brackets", "--interval", "pm")[0][1]["amc"]
    assert re.fullmatch(r"\**[\d.]+\** ± [\d.]+ \[[\d.]+\]", cell)
    cell = rows("--layout", "wide", "--sd", "none", "--interval", "none", "--mark", "none")[0][1]["amc"]
    assert re.fullmatch(r"[\d.]+", cell)
    assert r"\begin{table}" in rows("--layout", "wide", "--width", "column", "--format", "latex")[1]
    assert r"\begin{table*}" in rows("--layout", "wide", "--format", "latex")[1]
    names = {p.name for p in tmp_path.iterdir()}
    assert {f"{n}.{s}" for n in ("main", "chosen") for s in ("md", "tex", "html", "csv")} <= names


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--columns", "avrage"), "--columns: no column 'avrage'; did you mean 'average'"),
        (("--only", "efects"), "--only efects: no such table; did you mean 'effects'"),
        (("--rename", "replai=x"), "--rename replai=x: no such heading, cell or factor; did you mean 'replay'"),
        (("--layout", "wid"), "layout: got 'wid'; did you mean 'wide'"),
        (("--decimals", "9"), "--decimals: got 9, expected 0 to 6"),
        (("--sd", "subscrpt"), "--sd: got 'subscrpt'; did you mean 'subscript'"),
        (("--sd", "pm", "--interval", "pm"), "both are 'pm'"),
        (("--mark", "italic"), "--mark: got 'italic'"),
        (("--width", "colum"), "--width: got 'colum'; did you mean 'column'"),
        (("--label", "a}b"), "--label: got 'a}b'"),
        (("--only", "cells", "--columns", "runs"), "--columns is about one table"),
    ],
)
def test_a_wrong_choice_is_named(study, tmp_path, options, message):
    code, out, err = run("tables", study, "--out", tmp_path / "out", *options)
    assert code != 0 and message in err and not out and "Traceback" not in err


def test_analyze_takes_the_same_choices(study, tmp_path):
    write_tables(study, tmp_path)
    code, out, _ = run("analyze", tmp_path / "questions.parquet", "--columns", "average", "--decimals", "2")
    assert code == 0 and list(shown(out)[0]) == ["cell", "average"]
    frame = pd.read_parquet(tmp_path / "questions.parquet").rename(columns={"samples": "n"})
    frame.drop(columns=["outcome"], errors="ignore").to_csv(tmp_path / "t.csv", index=False)
    code, out, err = run("analyze", tmp_path / "t.csv", "--rename", "n=samples", "--rename", "replay=Replay",
                         "--factors", "Replay,ranking", "--layout", "wide")  # fmt: skip
    assert code == 0, err  # both are columns of the file
    assert "Replay + ranking" in [r["cell"] for r in shown(out)]


def test_a_column_of_a_file_is_told_from_a_heading(study, tmp_path):
    """Whatever the source: a table or a pattern."""
    write_tables(study, tmp_path)
    frame = pd.read_parquet(tmp_path / "questions.parquet").query("base != 'model'")
    frame = frame.drop(columns=["outcome", "base"], errors="ignore").rename(columns={"samples": "n"})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_csv(tmp_path / "t.tsv", index=False, sep="\t")
    frame.to_json(tmp_path / "t.jsonl", orient="records", lines=True)
    for kind in ("csv", "tsv", "jsonl"):
        options = ("--rename", "n=samples", "--rename", "ranking=Ranking", "--rename", "untrained model=base",
                   "--factors", "replay,Ranking", "--layout", "wide")  # fmt: skip
        code, out, err = run("analyze", tmp_path / f"t.{kind}", *options)
        assert code == 2 and "untrained model=base: no such heading" in err, (kind, err)
        code, out, err = run("analyze", tmp_path / f"t.{kind}", *options[:4], *options[6:], "--rename", "runs=n")
        assert code == 0 and {"cell", "n"} < {*shown(out)[0]}, (kind, err)
        assert "replay + Ranking" in [r["cell"] for r in shown(out)]
    for (seed, level), rows in frame.query("ranking == 'off'").groupby(["seed", "replay"]):
        place = tmp_path / "out" / f"{level}-{seed}"
        place.mkdir(parents=True)
        lines = rows.query("benchmark == 'amc'")[["question", "correct"]].assign(correct=lambda r: r["correct"] > 0)
        lines.to_json(place / "amc.jsonl", orient="records", lines=True)
    options = ("--rename", "rep=replay", "--rename", "all off=GRPO", "--layout", "wide")
    code, out, err = run("analyze", f"{tmp_path}/out/{{rep}}-{{seed}}/{{benchmark}}.jsonl", *options)
    assert code == 0 and [r["cell"] for r in shown(out)] == ["GRPO", "replay"], err


def test_json_refuses_what_is_for_printed_tables(study):
    code, out, err = run("analyze", study, "--json", "--decimals", "2")
    assert code != 0 and not out and "--decimals is for tables that are printed" in err
    code, out, err = run("analyze", study, "--json", "--rename", "replay=x")
    assert code != 0 and not out and "--rename" in err


def test_a_study_in_python_takes_the_choices(study):
    found = load(study)
    text = found.table("csv", "wide", columns=["average"], rename={"replay": "Replay"})
    assert text.splitlines()[0] == "cell,average,average sd,average low,average high,average marked"
    assert "Replay" in text
    with pytest.raises(ConfigError, match="collumns: no such choice; did you mean 'columns'"):
        found.table(collumns=["average"])
    with pytest.raises(ConfigError, match="columns: got 'average', expected a list of names"):
        found.table(columns="average")


@pytest.mark.parametrize("name", odd_studies())
@pytest.mark.parametrize("to", ["markdown", "html", "csv", "latex"])
def test_odd_studies_have_a_wide_table(name, to):
    results = odd_studies()[name]
    text = render_tables(results, to, "wide")
    assert "nan" not in re.sub("[a-z]*nan[a-z]+", "", text.lower()) and "None" not in text
    if to == "latex":
        assert "\\input{x}" not in text.replace("\\textbackslash{}input\\{", "")
    if name == "all right" and to == "markdown":
        assert "100.0" in text


def test_a_two_level_factor_prints_one_effect_once():
    text = render_tables(results_of({"off": 0.3, "on": 0.5}), layout="effects")
    assert [row["kind"] for row in shown(text)] == ["main"]


def paper_tables(studies):
    """name -> text of every layout, in both widths and with every form of interval."""
    tables = {}
    for number, results in enumerate(studies):
        for layout in ("wide", "long", "effects") if len(results.cells) > 1 else ("wide", "long"):
            for width in ("page", "column"):
                said = Choices(width=width)
                tables[f"t{number}-{layout}-{width}"] = render_tables(results, "latex", layout, said)
        for mark, sd, interval in (("letters", "subscript", "brackets"), ("none", "brackets", "subscript")):
            said = Choices(mark=mark, sd=sd, interval=interval)
            tables[f"c{number}-{mark}"] = render_tables(results, "latex", "wide", said)
    return tables


def test_latex_fits_the_page(large, tmp_path):
    """The recorded studies, 16 cells on 5 benchmarks, and a hostile one, on one column and on two: all fits."""
    recorded = [load_any(RESULTS / n / "questions.parquet") for n in ("quickstart", "embedded_components")]
    studies = [*recorded, large, odd_studies()["hostile"]]
    tables = {f"w{i}": render_tables(results, "latex", "wide") for i, results in enumerate(studies)}
    first = tables["w2"].partition(r"\end{tabular*}")[0]
    assert all(name in first for name in (*FIVE, "average"))  # side by side, not in two panels
    tables["k2"] = render_tables(large, "latex", "pass@k", Choices(width="column"))
    tables["e1"] = render_tables(recorded[1], "latex", "effects", Choices(width="column"))  # with notes for a page
    for name in ("default height", "two columns"):
        found = compiled(tmp_path / name.replace(" ", "-"), tables, DOCUMENTS[name])
        assert not [c for c in found if "multiply" not in c]


def test_floats_are_placed_between_tables_and_never_inside_of_one():
    one = to_latex(Table("t", [Column("cell", "left"), Column("b")], [[Entry("x"), Entry("1")]], ["a note"]))
    assert r"\begin{tablenotes}" in one
    text = joined([one] * 60)
    inside = re.findall(r"\\begin\{table\*?\}.*?\\end\{table\*?\}", text, re.S)
    assert len(inside) == 60 and not any(r"\clearpage" in part for part in inside)
    between = [part.count(r"\begin{table*}") for part in text.split(r"\clearpage")]
    assert max(between) <= 8


@pytest.mark.slow
@pytest.mark.parametrize("name", DOCUMENTS)
def test_all_latex_fits_the_page(large, tmp_path, name):
    recorded = [load_any(RESULTS / n / "questions.parquet") for n in ("quickstart", "embedded_components")]
    found = compiled(tmp_path, paper_tables([*recorded, large, *odd_studies().values()]), DOCUMENTS[name])
    assert not [c for c in found if "multiply" not in c]


def test_latex_that_is_too_wide_is_seen(tmp_path):
    """Broken on purpose: the same table without its panels sticks out of a column."""
    text = render_tables(results_of({"off": 0.3, "on": 0.5}, questions=(10,) * 6), "latex", "wide")
    assert compiled(tmp_path, {"t": text.replace("table*", "table")}, DOCUMENTS["two columns"])


def test_minus_signs_notes_and_alignment_in_latex(study):
    text = render_tables(study, "latex", "wide")
    assert "S[table-format=" in text and r"\begin{tablenotes}" in text and r"\pm" in text
    assert not re.search(r"\(-\d", text)  # limits below zero have true minus signs
    assert re.search(r"\(\$-\$\d", text)


def test_choosing_imports_nothing_heavy(study):
    code = (
        "import sys; from pathlib import Path; from r3bench.analysis import render_tables;"
        "from r3bench.analysis.output.choices import Choices;"
        f"study = Path({str(study)!r});"
        "[render_tables(study, to, 'wide', Choices(mark='letters')) for to in ('latex', 'html', 'csv')];"
        "print([m for m in ('torch', 'pandas', 'matplotlib', 'scipy.stats', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
