"""Study folders to tables: loading, four renderings, failures, layouts, trace."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys

import pytest
from synthetic import Spec, make_study, record_again

from r3bench.analysis import load_study, render_tables, trace, write_tables
from r3bench.analysis.output.frame import Column, Entry, Table
from r3bench.analysis.output.latex import to_latex
from r3bench.analysis.output.provenance import trace_text
from r3bench.analysis.output.render import latex_text, plain, to_csv, to_html, to_markdown
from r3bench.analysis.output.reported_rows import reported, reported_table, scores, sources
from r3bench.analysis.output.tables import by_benchmark_table, cell_frame, study_tables
from r3bench.analysis.statistics.cells import best_cells, cell_rows
from r3bench.analysis.statistics.effects import effects
from r3bench.errors import ConfigError, StateError
from r3bench.records import write_study

HOSTILE = (
    '*<script>alert(1)</script> \\input{/etc/passwd} $x^2_3 & 50% #~ | `*_[a](b) "q" -- {x}\u202e\u0007\n\\end{table}'
)


def test_study_counts_equal_the_answers_on_disk(study):
    import pyarrow.parquet as pq

    results = load_study(study)
    assert list(results.factors) == ["replay", "ranking"]
    assert results.planned == 12 and len(results.runs) == 13
    for i, run in enumerate(results.runs):
        for task, score in results.benchmarks.items():
            rows = pq.read_table(study / run.run / "eval" / task).to_pandas()
            by_question = rows.groupby("question")
            assert list(by_question.groups) == list(score.questions)
            assert by_question["correct"].sum().tolist() == score.correct[i].tolist()
            assert by_question["truncated"].sum().tolist() == score.truncated[i].tolist()
            assert by_question["tokens"].mean().tolist() == pytest.approx(score.tokens[i].tolist())
            assert set(score.samples[i]) == {4}


def test_cells_show_gain_over_the_untrained_model_with_an_interval(study):
    rows = [r for r in cell_rows(load_study(study)) if r.benchmark == "embedded"]
    assert [r.label for r in rows] == ["untrained model", "all off", "ranking", "replay", "replay + ranking"]
    base, off, full = rows[0], rows[1], rows[4]
    assert base.base and base.gain_base is None and base.accuracy.like_these.se > 0
    assert full.gain_base.value == pytest.approx(full.accuracy.value - base.accuracy.value)
    assert full.gain_off.value == pytest.approx(full.accuracy.value - off.accuracy.value)
    assert full.gain_base.like_these.low > 0  # the made-up gain is large
    assert full.acted == {"replay": (3, 3), "ranking": (0, 3)}
    assert full.generated_tokens == 101_000 and full.train_seconds == 51
    text = render_tables(study)
    assert "ranking NEVER" in text and "never acted" in text


def test_best_cell_allows_for_having_been_picked(study):
    results = load_study(study)
    best = next(b for b in best_cells(results) if b.benchmark == "embedded")
    rows = [r for r in cell_rows(results) if r.benchmark == "embedded" and r.gain_off]
    top = max(rows, key=lambda r: r.gain_off.value)
    assert (best.label, best.gain, best.candidates) == (top.label, top.gain_off.value, 3)
    assert best.p_adjusted == pytest.approx(min(1, 3 * top.gain_off.like_these.p))
    alone = top.gain_off.like_these
    stats = pytest.importorskip("scipy.stats")
    assert best.gain - best.low == pytest.approx(stats.t.ppf(1 - 0.05 / 6, alone.df) * alone.se)
    assert f"highest mean: {best.label}" in render_tables(study)


def test_figures_of_the_evaluation_have_a_table(study):
    text = render_tables(study)
    assert "### demo: answers, embedded" in text
    assert "| cell | maj@4 | pass@4 | no answer % |" in text and "| all off | 50.0 | 75.0 | 12.5 |" in text


def test_main_effects_are_shown_on_every_benchmark(study):
    results = load_study(study)
    found, _ = effects(results, draws=0)
    table = by_benchmark_table(results, found)
    assert [c.name for c in table.columns] == ["effect", "macro average", "amc", "embedded"]
    cells = {(row[0].text, c.name): e for row in table.rows for c, e in zip(table.columns, row, strict=True)}
    for effect in found:
        if effect.kind == "main":
            entry = cells[effect.term, "macro average" if effect.benchmark == "macro" else effect.benchmark]
            assert entry.value == effect.estimate and entry.strong == (effect.p_adjusted < 0.05)
    assert "### demo: tested effects by benchmark" in render_tables(study)


def test_the_untrained_model_alone_has_its_interval(tmp_path):
    root = make_study(tmp_path / "s", Spec(seeds=()))
    row = cell_rows(load_study(root))[0]
    assert row.base and row.accuracy.like_these.se > 0 and row.accuracy.like_these.df == 39
    assert "untrained model" in render_tables(root)


def test_diverged_runs_are_scored_shown_and_dropped_only_in_the_sensitivity_rows(troubled):
    results = load_study(troubled)
    assert {r.run: r.outcome for r in results.runs if r.outcome != "finished"} == {
        "ranking-s0-000000000002": "diverged",
        "replay-s1-000000000003": "failed",
    }
    base = next(r for r in cell_rows(results) if r.base).accuracy.value
    ranking = next(r for r in cell_rows(results) if r.label == "ranking")
    assert (len(ranking.runs), ranking.diverged, ranking.missing) == (3, 1, ())
    finished = next(r for r in cell_rows(results, "drop") if r.label == "ranking").accuracy.value
    assert ranking.accuracy.value == pytest.approx((2 * finished + base) / 3)
    zero = next(r for r in cell_rows(results, "zero") if r.label == "ranking").accuracy.value
    assert zero == pytest.approx(2 * finished / 3)
    text = render_tables(troubled)
    assert "Sensitivity" in text and "2 finished, 1 diverged" in text and "ValueError: boom" in text
    found, notes = effects(results, draws=0)
    assert any("1 of 9 runs diverged: scored as the untrained model" in n for n in notes)
    assert any("partial grid: 3 of 4" in n for n in notes)
    assert {e.assumes for e in found if e.kind == "main"} == {"no interaction at all"}


def test_unfinished_and_torn_studies(tmp_path):
    with pytest.raises(StateError, match="no such study folder"):
        load_study(tmp_path / "nothing")
    with pytest.raises(StateError, match="no finished run"):
        load_study(tmp_path)
    root = make_study(tmp_path / "s", Spec(seeds=(0, 1)))
    (root / "replay-s1-000000000003" / "run.json").unlink()
    results = load_study(root)
    assert any("1 of 8 planned runs have not finished: replay-s1" in n for n in results.notes)


def test_runs_measured_in_different_ways_are_called_out(tmp_path):
    import pyarrow.parquet as pq

    root = make_study(tmp_path / "s", Spec(seeds=(0,), settings={"temperature": 1.0, "model": "a"}))
    assert not any("different" in n for n in load_study(root).notes)
    for shard in root.glob("replay-s0-*/eval/embedded/*.parquet"):
        table = pq.read_table(shard)
        pq.write_table(table.replace_schema_metadata({b"r3bench": b'{"temperature": 0.6, "model": "b"}'}), shard)
        record_again(shard.parents[2])
    assert any("measured with different temperature (0.6, 1.0)" in n for n in load_study(root).notes)
    assert "different temperature" in render_tables(root)


def test_an_answer_in_two_shards_counts_once(tmp_path):
    root = make_study(tmp_path / "s", Spec(seeds=(0,)))
    before = load_study(root).benchmarks["embedded"]
    for shard in list(root.glob("*/eval/embedded/*.parquet")):
        shutil.copy(shard, shard.with_name(f"z-{shard.name}"))
        record_again(shard.parents[2])
    after = load_study(root).benchmarks["embedded"]
    assert after.samples.tolist() == before.samples.tolist() and after.correct.tolist() == before.correct.tolist()
    assert after.tokens.tolist() == before.tokens.tolist()


def test_partly_measured_run_is_named_and_left_out(tmp_path):
    import pyarrow.parquet as pq

    root = make_study(tmp_path / "s", Spec(seeds=(0, 1)))
    for shard in (root / "replay-s0-000000000003" / "eval" / "embedded").glob("*.parquet"):
        pq.write_table(pq.read_table(shard).slice(0, 30), shard)
    record_again(root / "replay-s0-000000000003")
    results = load_study(root)
    assert any("replay-s0-000000000003: answers to 30 of 40 questions of embedded" in n for n in results.notes)
    found, notes = effects(results, draws=0)
    assert found and any("unbalanced grid: 1 to 2" in n for n in notes)


def test_declared_section_is_read_and_checked(tmp_path):
    declared = {"primary": ["ranking"], "margin": 0.05, "failed_score": "zero", "question": "Does it?"}
    root = make_study(tmp_path / "good", Spec(analysis=declared))
    results = load_study(root)
    assert results.declared.primary == ("ranking",) and results.declared.question == "Does it?"
    for values, message in [
        ({"margn": 1}, "analysis.margn: unknown key; did you mean 'margin'"),
        ({"margin": "x"}, "analysis.margin: got 'x', expected a number"),
        ({"failed_score": "skip"}, "failed_score: got 'skip'"),
        ({"primary": "replay"}, "analysis.primary: got 'replay', expected a list"),
        ({"confidence": 95}, "confidence: got 95"),
    ]:
        spec = json.loads((root / "study.json").read_text())
        spec["grid"]["analysis"] = values
        write_study(spec, root / "study.json")
        with pytest.raises(ConfigError) as error:
            load_study(root)
        assert message in str(error.value) and "study.json" in str(error.value)


def test_csv_round_trips(study):
    rows = cell_rows(load_study(study))
    text = render_tables(study, "csv")
    back = list(csv.DictReader(io.StringIO(text)))
    assert len(back) == len(rows) == 15
    for line, row in zip(back, rows, strict=True):
        record = row.record()
        assert line["benchmark"] == row.benchmark and line["cell"] == row.label
        for key in ("accuracy", "accuracy_low", "gain_base", "gain_off_se", "tokens", "generated_tokens"):
            assert (float(line[key]) if line[key] else None) == record[key]
        assert line["runs"].split() == list(row.runs)
        assert line.get("replay", "") == row.levels.get("replay", "")
    assert to_csv(cell_frame(rows)) == text


def test_written_files(study, tmp_path):
    names = [p.name for p in write_tables(study, tmp_path / "out")]
    main = ["main.md", "main.tex", "main.csv", "main.html"]
    assert names == ["tables.md", "tables.tex", "tables.html", *main, "cells.csv", "effects.csv", "questions.parquet"]
    effect = next(csv.DictReader(io.StringIO((tmp_path / "out" / "effects.csv").read_text())))
    found, _ = effects(load_study(study), draws=500)
    assert float(effect["estimate"]) == found[0].estimate and float(effect["se"]) == found[0].like_these.se


def test_unknown_format_names_the_nearest(study):
    with pytest.raises(ConfigError, match=r"format: got 'latx'.*'latex'"):
        render_tables(study, "latx")


def test_best_is_marked_only_where_it_is_shown(tmp_path):
    clear = make_study(tmp_path / "clear", Spec(effects={"replay": 3.0, "ranking": 3.0}, benchmarks={"e": 300}))
    unclear = make_study(tmp_path / "unclear", Spec(effects={}, benchmarks={"e": 300}))
    assert [r.label for r in cell_rows(load_study(clear)) if r.best] == ["replay + ranking"]
    assert not [r for r in cell_rows(load_study(unclear)) if r.best]
    assert "**" in render_tables(clear).split("###")[1]
    assert "no cell is marked best" in render_tables(unclear)


def hostile_table():
    return Table(HOSTILE, [Column(HOSTILE, "left"), Column("n")], [[Entry(HOSTILE), Entry("x" * 10**6)]], [HOSTILE])


def test_hostile_text_is_text_everywhere():
    table = hostile_table()
    page = to_html(table)
    assert "<script" not in page and "\u202e" not in page and "&lt;script&gt;" in page
    tex = to_latex(table)
    assert "\\input" not in tex and len(re.findall(r"\\end{table\*?}", tex)) == 1 and "\\textbackslash{}input\\{" in tex
    text = to_markdown(table)
    assert "<script" not in text.replace("\\<", "") and "\u202e" not in text
    assert len(text.splitlines()) == 7  # nothing broke out of its line
    assert max(map(len, (page, tex, text))) < 10_000
    csv.field_size_limit(10**7)
    row = list(csv.reader(io.StringIO(to_csv(table))))[1]
    assert row[0] == HOSTILE  # CSV keeps what was there
    assert plain("a\u2066b\x00c\nd") == "abc d"
    assert latex_text("R³ é ☃") == "R3 e ?"


@pytest.mark.parametrize(
    "text",
    ["# big", "> quoted", "- item", "1. item", "2) item", "+ item", "=====", "https://evil.example", "www.evil.example",
     "a@evil.example", "[a](b)", "![a](b)", "<b>x</b>", "<https://a.b>", "&lt;", "`x`", "**x**", "_x_", "~~x~~",
     "a | b", "$x^2$", "$$x$$", "\\", "<!-- x", "| - |"],
)  # fmt: skip
def test_hostile_markdown_is_text(text):
    """By a parser of CommonMark with GitHub's tables: nothing but text, which reads as what was given."""
    parser = pytest.importorskip("markdown_it").MarkdownIt("gfm-like", {"linkify": False})
    shown = to_markdown(Table(text, [Column(text, "left")], [[Entry(text)]], [text]))
    blocks = [t for t in parser.parse(shown) if t.type != "inline"]
    kinds = ["heading", "table", "thead", "tr", "th", "tbody", "tr", "td", "bullet_list", "list_item", "paragraph"]
    assert [t.type.removesuffix("_open") for t in blocks if t.nesting == 1] == kinds
    assert not [t for t in blocks if t.nesting == 0]
    inlines = [t for t in parser.parse(shown) if t.type == "inline"]
    assert len(inlines) == 4
    for inline in inlines:
        assert {t.type for t in inline.children} <= {"text", "text_special"}
        assert "".join(t.content for t in inline.children) == text
    for name in ("http", "www.", "a@", "$x"):  # what GitHub makes of bare text: links, formulas
        assert name not in shown.replace("\\$", "")


def test_latex_compiles(study, tmp_path):
    if shutil.which("pdflatex") is None:
        pytest.skip("no pdflatex")
    tables = [*study_tables(load_study(study)), hostile_table(), reported_table("r3-table1")]
    body = "\n".join(to_latex(t) for t in tables)
    layout = render_tables(study, "latex", "r3-table3")
    head = "\\documentclass{article}\\usepackage{booktabs,siunitx,threeparttable}\\begin{document}\n"
    document = head + body + layout + "\\end{document}"
    (tmp_path / "t.tex").write_text(document)
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "t.tex"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "t.pdf").stat().st_size > 10_000
    assert "\\toprule" in body and "\\bottomrule" in body


def test_paper_layouts_keep_reported_rows_apart(study):
    text = render_tables(study, layout="r3-table3")
    measured = [line for line in text.splitlines() if "| measured |" in line]
    quoted = [line for line in text.splitlines() if "| reported |" in line]
    assert [line.split("|")[1].strip() for line in measured] == ["full", "w/o replay", "w/o ranking"]
    assert len(quoted) == 4 and "arXiv 2601.19620v1" in text and "another harness" in text
    assert "60.59" in text and "54.12" in text
    first = render_tables(study, layout="r3-table1")
    assert first.count("| measured |") == 5 and first.count("| reported |") == 13
    with pytest.raises(ConfigError, match=r"layout: got 'r3-table2'"):
        render_tables(study, layout="r3-table2")
    found, _ = effects(load_study(study), draws=0)
    assert {e.benchmark for e in found} == {"macro", "embedded", "amc"}  # no reported number is in an effect


def test_reported_rows_have_sources_and_add_up():
    assert {s.source for s in scores()} == set(sources())
    for source in sources().values():
        assert source.url.startswith("https://arxiv.org/") and source.harness and source.caveat
    for row in ("R³-1.5B", "R³-1.5B w/o CCR", "R³-1.5B w/o ISR", "R³-1.5B w/o SERR"):
        values = {s.benchmark: s.value for s in reported("r3-table3") if s.model == row}
        mean = values.pop("mean")
        assert len(values) == 5 and mean == pytest.approx(sum(values.values()) / 5, abs=0.006)
    printed = {s.model: s.value for s in reported("r3-table1") if s.benchmark == "mean"}
    assert len(printed) == 13
    for model, mean in printed.items():
        values = [s.value for s in reported("r3-table1") if s.model == model and s.benchmark != "mean"]
        slip = 0.44 if model == "STILL-3-1.5B" else 0.015  # the paper's own slip, said in the caveat
        assert mean == pytest.approx(sum(values) / len(values), abs=slip), model
    assert len(reported("r3-table2")) == 12 * 15
    with pytest.raises(ConfigError, match=r"reported rows: got 'r3-tabel2'"):
        reported("r3-tabel2")
    assert "reported" in to_markdown(reported_table("rrl"))


def test_trace_lists_what_a_cell_rests_on(study):
    found = trace(study, "replay + ranking")
    assert [r["run"] for r in found["runs"]] == [f"replay+ranking-s{s}-000000000004" for s in range(3)]
    first = found["runs"][0]
    assert first["commit"] == "0123456789abcdef" and first["config_hash"] == "000000000004"
    assert first["environment"]["packages"] == {"trl": "1.16.0"} and first["answers"] == {"amc": 120, "embedded": 160}
    assert json.loads(json.dumps(found)) == found
    assert len(trace(study, "replay=on")["runs"]) == 6
    assert len(trace(study, "untrained model")["runs"]) == 1
    assert len(trace(study, "replay-s1-000000000003")["runs"]) == 1
    assert "config_hash: 000000000004" in trace_text(study, "replay + ranking")
    for cell, message in [("replay + rankng", "did you mean 'replay"), ("replai=on", "did you mean 'replay'"),
                          ("replay=onn", "did you mean 'on'")]:  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            trace(study, cell)


def test_tables_import_nothing_heavy(study):
    code = (
        "import sys; from pathlib import Path; from r3bench.analysis import render_tables;"
        f"render_tables(Path({str(study)!r}));"
        "heavy = ('torch', 'trl', 'transformers', 'pandas', 'matplotlib', 'scipy.stats', 'jinja2');"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_gains_are_over_the_reference_where_that_is_not_off(tmp_path):
    """A factor without an off level: its first one is the reference, and is no "all off"."""
    spec = Spec(factors={"replay": ["off", "on"], "rate": ["1e-4", "2e-4"]}, effects={"rate": 0.5})
    text = render_tables(make_study(tmp_path / "s", spec))
    assert "| gain over reference |" in text and "all off" not in text
    assert "- reference, every factor at its first level: rate=1e-4" in text
    assert ") over reference, allowing" in text
    plain = render_tables(make_study(tmp_path / "t"))
    assert "| gain over all off |" in plain and "reference" not in plain
