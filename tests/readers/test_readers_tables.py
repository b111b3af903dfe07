"""Tables with one row per answer or per question, in every dress in which they are met."""

import gzip
import json

import pandas as pd
import pytest
from test_readers_formats import ANSWERS, BOTH, figures
from typer.testing import CliRunner
from written import groups, long_form

from r3bench.analysis import analyze
from r3bench.analysis.output.external import load_any
from r3bench.analysis.reading.columns import Reading
from r3bench.analysis.reading.outside import Outside
from r3bench.cli import app
from r3bench.errors import ConfigError, DataError
from r3bench.readers.options import Options

ROWS = ANSWERS.drop(columns=["prompt"])


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    path = tmp_path_factory.mktemp("long") / "long.csv"
    long_form(ANSWERS, tokens=True).to_csv(path, index=False)
    return figures(analyze(path, reading=BOTH), tokens=True)


def comma(frame):
    return frame.astype({"tokens": float}).map(lambda v: str(v).replace(".", ",") if isinstance(v, float) else v)


def utf16(frame, path):
    path.write_bytes(frame.to_csv(index=False).encode("utf-16"))


def packed(frame, path):
    path.write_bytes(gzip.compress(("\ufeff" + frame.to_csv(index=False)).encode()))


DRESSES = {
    "a.csv": lambda f, p: f.to_csv(p, index=False),
    "a.tsv": lambda f, p: f.to_csv(p, index=False, sep="\t"),
    "mark.csv": lambda f, p: f.to_csv(p, index=False, encoding="utf-8-sig"),
    "semicolon.csv": lambda f, p: f.to_csv(p, index=False, sep=";"),
    "decimal.csv": lambda f, p: comma(f).to_csv(p, index=False, sep=";"),
    "decimal-quoted.csv": lambda f, p: comma(f).to_csv(p, index=False),
    "utf16.csv": utf16,
    "packed.csv.gz": packed,
    "a.jsonl": lambda f, p: f.to_json(p, orient="records", lines=True, force_ascii=False),
    "a.jsonl.gz": lambda f, p: f.to_json(p, orient="records", lines=True),
    "a.json": lambda f, p: f.to_json(p, orient="records"),
    "a.parquet": lambda f, p: f.to_parquet(p),
    "a.xlsx": lambda f, p: f.to_excel(p, index=False),
    "words.csv": lambda f, p: f.assign(correct=f["correct"].astype(bool).map({True: "Yes", False: "no"})).to_csv(p),
    "numbers.csv": lambda f, p: f.assign(correct=f["correct"].astype(int)).to_csv(p, index=False),
}


@pytest.mark.parametrize("name", list(DRESSES))
def test_answers_in_any_dress_give_the_table(name, tmp_path, wanted):
    if name == "words.csv":
        DRESSES[name](ROWS, tmp_path / name)
        found = analyze(tmp_path / name, reading=Reading(reference={"method": "grpo"}, ignore=("Unnamed: 0",)))
    else:
        DRESSES[name](ROWS, tmp_path / name)
        found = analyze(tmp_path / name, reading=BOTH)
    assert figures(found, tokens=True) == wanted


@pytest.mark.parametrize("name", [n for n in DRESSES if n not in ("words.csv", "numbers.csv")])
def test_counts_in_any_dress_give_the_table(name, tmp_path, wanted):
    DRESSES[name](long_form(ANSWERS, tokens=True), tmp_path / name)
    assert figures(analyze(tmp_path / name, reading=BOTH), tokens=True) == wanted


def test_data_frames_of_answers_and_of_counts(wanted):
    assert figures(analyze(ROWS, reading=BOTH), tokens=True) == wanted
    counts = long_form(ANSWERS, tokens=True)
    before = counts.copy()
    assert figures(analyze(counts, reading=BOTH), tokens=True) == wanted
    pd.testing.assert_frame_equal(counts, before)
    assert figures(analyze(counts.set_index("run"), reading=BOTH), tokens=True) == wanted
    with pytest.raises(DataError, match="got a list, expected a path or a pandas DataFrame"):
        analyze([1])
    with pytest.raises(DataError, match=r"the table: row 2: correct"):
        analyze(ROWS.assign(correct=["x" if i == 1 else "1" for i in range(len(ROWS))]))


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_files_in_parts_are_one_table(suffix, tmp_path, wanted):
    for number, (_, part) in enumerate(groups(ROWS, "run")):
        DRESSES[f"a.{suffix}"](part, tmp_path / f"part-{number:02}.{suffix}")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x.csv").write_text("broken")
    (tmp_path / "notes.md").write_text("hello")
    for source in (tmp_path, tmp_path / f"part-*.{suffix}"):
        assert figures(analyze(source, reading=BOTH), tokens=True) == wanted


def test_other_names_of_columns(tmp_path, wanted):
    names = {"question": "problem_idx", "response": "answer", "gold": "gold_answer", "tokens": "output_tokens",
             "sample": "idx_answer", "benchmark": "competition", "correct": "is_correct"}  # fmt: skip
    ROWS.rename(columns=names).to_parquet(tmp_path / "matharena.parquet")
    assert figures(analyze(tmp_path / "matharena.parquet", reading=BOTH), tokens=True) == wanted
    ROWS.rename(columns={"question": "frage"}).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match=r"no column 'question' \(or question_id.*--rename OLD=NEW"):
        analyze(tmp_path / "t.csv")
    found = analyze(tmp_path / "t.csv", reading=Reading(rename={"frage": "question"}, reference={"method": "grpo"}))
    assert figures(found, tokens=True) == wanted


def test_answers_to_a_question_in_one_row(tmp_path, wanted):
    keys = ["run", "method", "seed", "benchmark", "question"]
    listed = ROWS.groupby(keys, sort=False).agg(
        {"correct": lambda c: list(map(bool, c)), "response": list, "gold": "first"}
    )
    listed.reset_index().to_parquet(tmp_path / "a.parquet")
    without = figures(analyze(ROWS.drop(columns="tokens"), reading=BOTH))
    assert figures(analyze(tmp_path / "a.parquet", reading=BOTH)) == without


def test_an_answer_that_stands_twice_is_refused_and_a_question_that_does_is_said(tmp_path):
    twice = pd.concat([ROWS, ROWS.iloc[[7]]])
    with pytest.raises(
        DataError, match=rf"row {len(ROWS) + 1}: answer 3 to question 1 .*stands in the table: row 8 too"
    ):
        analyze(twice, reading=BOTH)
    notes = analyze(twice.drop(columns="sample"), reading=BOTH)["notes"]
    assert any("1 of 36 rows have other than 4 answers, such as question 1 of run grpo-s0 with 5" in n for n in notes)


def test_a_nuisance_that_varies_is_named_and_kills_no_interval(tmp_path):
    by_seed = ROWS.assign(lr=ROWS["seed"].map({0: "1e-6", 1: "2e-6", 2: "3e-6"}))
    with pytest.raises(DataError, match=r"column 'lr' .*--ignore lr"):
        analyze(by_seed, reading=BOTH)
    found = analyze(by_seed, reading=Reading(ignore=("lr",), reference={"method": "grpo"}))
    assert all(e["low"] is not None for e in found["effects"])
    noisy = ROWS.assign(latency=range(len(ROWS)))
    found = analyze(noisy, reading=BOTH)
    assert "column 'latency' was not read: it differs between answers of one run" in found["notes"]
    wrong = ROWS.assign(method=["dapo" if i == 3 else m for i, m in enumerate(ROWS["method"])])
    with pytest.raises(
        DataError, match=r"row 5: method is 'grpo' for run 'grpo-s0', which has|row 4: method is 'dapo'"
    ):
        analyze(wrong, reading=BOTH)


@pytest.mark.parametrize(("value", "message"), [("1,000", "a decimal comma, or thousands"), ("1.5", "whole number")])
def test_numbers_that_can_be_read_in_two_ways_are_refused(value, message, tmp_path):
    counts = long_form(ANSWERS).astype({"samples": str})
    counts.loc[3, "samples"] = value
    counts.to_csv(tmp_path / "t.csv", sep=";", index=False)
    with pytest.raises(DataError, match=message):
        analyze(tmp_path / "t.csv")


def test_a_share_where_a_count_belongs_gets_a_hint():
    counts = long_form(ANSWERS).assign(correct=0.25)
    with pytest.raises(DataError, match=r"got 0.25, expected a whole number, 0 or above \(a count; of a share, times"):
        analyze(counts)


def test_grading_anew_says_how_often_it_agrees_and_needs_texts(tmp_path):
    lied = ROWS.assign(correct=True)
    found = load_any(lied, outside=Outside(regrade=True))
    right = load_any(ROWS)
    assert [s.correct.tolist() for s in found.benchmarks.values()] == [
        s.correct.tolist() for s in right.benchmarks.values()
    ]
    count = int(ROWS["correct"].sum())
    assert any(f"the stored ones are the same for {count} of {len(ROWS)} answers" in n for n in found.notes)
    with pytest.raises(DataError, match="no gold to grade by"):
        load_any(ROWS.drop(columns="gold"), outside=Outside(regrade=True))
    with pytest.raises(DataError, match="no response to grade by"):
        load_any(ROWS.drop(columns="response"), outside=Outside(regrade=True))
    silent = ROWS.assign(response=[None, *ROWS["response"][1:]])
    assert load_any(silent, outside=Outside(regrade=True)).benchmarks["aime24"].correct[0, 0] <= 3


def test_several_sheets_and_torn_files(tmp_path):
    with pd.ExcelWriter(tmp_path / "t.xlsx") as writer:
        ROWS.to_excel(writer, sheet_name="one", index=False)
        ROWS.to_excel(writer, sheet_name="two", index=False)
    with pytest.raises(DataError, match="expected one sheet with a table, found one, two"):
        analyze(tmp_path / "t.xlsx")
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(bytes(range(256)))[:99])
    with pytest.raises(DataError, match="can't be unpacked"):
        analyze(tmp_path / "t.csv.gz")
    (tmp_path / "t.csv").write_bytes("größe".encode("latin-1"))
    with pytest.raises(DataError, match="not UTF-8 text"):
        analyze(tmp_path / "t.csv")


def test_the_command_line_reads_converts_and_refuses(tmp_path, monkeypatch, wanted):
    monkeypatch.chdir(tmp_path)
    DRESSES["semicolon.csv"](ROWS, tmp_path / "answers.csv")
    run = CliRunner().invoke
    done = run(app, ["convert", "answers.csv", "--out", "long.parquet", "--reference", "method=grpo"])
    assert done.exit_code == 0, done.output
    assert figures(analyze("long.parquet"), tokens=True) == wanted
    done = run(app, ["convert", "answers.csv", "--out", "long.csv", "--reference", "method=grpo"])
    assert done.exit_code == 0, done.output
    assert figures(analyze("long.csv", reading=BOTH), tokens=True) == wanted
    assert run(app, ["tables", "answers.csv"]).exit_code == 0
    assert (tmp_path / "answers-tables" / "cells.csv").exists()
    assert run(app, ["analyze", "answers.csv", "--regrade", "--json"]).exit_code == 0
    for arguments, said in (
        (["analyze", "answers.csv", "--from", "lmeval"], "no format 'lmeval'; did you mean 'lm-eval'?"),
        (["analyze", "answers.csv", "--metric", "corect"], "no score 'corect'; did you mean 'correct'?"),
        (["analyze", "answers.csv", "--missing", "x"], "expected refuse, wrong, drop"),
        (["convert", "answers.csv", "--out", "x.doc"], "expected a .parquet or .csv file"),
        (["analyze", "answer.csv"], "answers.csv"),
    ):
        done = run(app, arguments)
        assert done.exit_code == 2, done.output
        assert said in done.output
        assert len(done.output.splitlines()) == 1


def test_what_a_map_gets_wrong_is_named(tmp_path):
    (tmp_path / "a-s0.csv").write_text("question,correct\n1,1\n2,0\n")
    for text, said in (
        ("runs: []", "runs: got"),
        ("runs: [{file: x}]", r"runs\[0\].file: unknown key; did you mean 'files'"),
        ("runs: [{files: 'a-s{seed}.csv', seed: -1}]", "expected a whole number"),
        ("runs: [{files: 'a-s{seed}.csv', factors: {m: '{methd}'}}]", r"no \{methd\} in the pattern"),
        ("runs: [{files: 'a-s{seed}.csv'}]\nleves: {}", "leves: unknown key; did you mean 'levels'"),
        ("runs: [{files: 'a-s{seed}.csv', format: vrl}]", "did you mean 'verl'"),
        ("runs: [{files: 'b*.csv', seed: 1}]", "no such file"),
        ("runs: [{files: a-s0.csv, seed: 1}, {files: '*.csv', seed: 2}]", "of two entries"),
    ):
        (tmp_path / "m.yaml").write_text(text)
        with pytest.raises((DataError, Exception), match=said):
            analyze(tmp_path / "m.yaml")


def test_the_untrained_model_of_a_map(tmp_path):
    for i, (place, rows) in enumerate(groups(ROWS, "method", "seed")):
        rows[["benchmark", "question", "correct"]].to_csv(tmp_path / f"{place['method']}-{place['seed']}.csv")
        if i == 0:
            rows[["benchmark", "question", "correct"]].to_csv(tmp_path / "start.csv")
    (tmp_path / "m.yaml").write_text(
        "runs:\n- {files: '{method}-{seed}.csv'}\n- {files: start.csv, base: true}\nignore: ['Unnamed: 0']\n"
    )
    found = load_any(tmp_path / "m.yaml")
    assert [r.run for r in found.runs if r.base] == ["untrained model"]
    assert found.factors == {"method": ("dapo", "grpo")}


SPELLED = {
    "Title.csv": lambda f, p: f.rename(columns=str.title).to_csv(p, index=False),
    "UPPER.xlsx": lambda f, p: f.rename(columns=str.upper).to_excel(p, index=False),
    "space.csv": lambda f, p: f.rename(columns=" {} ".format).to_csv(p, index=False, sep=";"),
    "space.parquet": lambda f, p: f.rename(columns=" {}".format).to_parquet(p),
    "index.parquet": lambda f, p: f.set_index(["run", "seed"]).to_parquet(p),
    "one-index.parquet": lambda f, p: f.set_index("run").to_parquet(p),
    "parquet.parquet.gz": lambda f, p: p.write_bytes(gzip.compress(f.to_parquet())),
    "columns.json": lambda f, p: f.to_json(p),
    "split.json": lambda f, p: f.to_json(p, orient="split"),
    "inside.json": lambda f, p: p.write_text(
        json.dumps({"made": "today", "results": json.loads(f.to_json(orient="records"))})
    ),
}


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("name", SPELLED)
def test_names_in_another_case_and_what_pandas_writes_by_default(name, counted, tmp_path, wanted):
    SPELLED[name](long_form(ANSWERS, tokens=True) if counted else ROWS, tmp_path / name)
    factor = {"Title.csv": "Method", "UPPER.xlsx": "METHOD"}.get(name, "method")
    found = analyze(tmp_path / name, reading=Reading(reference={factor: "grpo"}))
    assert json.dumps(figures(found, tokens=True)).replace(factor, "method") == json.dumps(wanted)


def test_two_columns_of_one_name_but_for_case_are_left_as_they_are(tmp_path):
    ROWS.assign(Correct=True).rename(columns={"run": "Run"}).to_csv(tmp_path / "t.csv", index=False)
    found = analyze(tmp_path / "t.csv", reading=Reading(reference={"method": "grpo"}, ignore=("Correct",)))
    assert found["effects"] == analyze(ROWS, reading=BOTH)["effects"]
    ROWS.rename(columns={"correct": "Correct"}).to_csv(tmp_path / "t.csv", index=False)
    named = analyze(tmp_path / "t.csv", reading=BOTH, outside=Outside(Options(metric="Correct")))
    assert named["effects"] == found["effects"]


def renamed(tmp_path):
    names = {"question": "frage", "gold": "loesung", "response": "antwort", "method": "verfahren"}
    frame = ROWS.rename(columns=names).assign(correct=True)
    for place, rows in groups(frame, "run"):
        rows.to_csv(tmp_path / f"{place}.csv", index=False)
    frame.to_parquet(tmp_path / "all.parquet")
    told = {new: old for old, new in names.items()}
    lines = "".join(f"  {new}: {old}\n" for new, old in told.items())
    (tmp_path / "m.yaml").write_text(f"runs:\n- {{files: '*.csv'}}\nrename:\n{lines}")
    return frame, told


@pytest.mark.parametrize("source", ["memory", "all.parquet", "*.csv", "m.yaml"])
def test_columns_of_answers_are_renamed_wherever_they_come_from(source, tmp_path, wanted):
    """All of them, also those that only grading anew looks at."""
    frame, told = renamed(tmp_path)
    reading = Reading(rename={} if source == "m.yaml" else told, reference={"method": "grpo"})
    found = analyze(frame if source == "memory" else tmp_path / source, reading=reading, outside=Outside(regrade=True))
    assert figures(found, tokens=True) == wanted
    with pytest.raises(ConfigError, match="--rename farge=question: no such column"):
        analyze(
            frame if source == "memory" else tmp_path / source,
            reading=Reading(rename={**reading.rename, "farge": "question"}), outside=Outside(regrade=True),
        )  # fmt: skip


READ = {  # what an option of a reader says, and what the table looks like that needs it
    "--metric": (ROWS.rename(columns={"correct": "strict"}).assign(loose=True), ["--metric", "strict"]),
    "--right": (ROWS.assign(correct=ROWS["correct"] * 0.5 + 0.25), ["--right", "0.7"]),
    "--missing": (
        ROWS.assign(correct=[None if not c else 1 for c in ROWS["correct"]]), ["--missing", "wrong"],
    ),
    "--regrade": (ROWS.assign(correct=True), ["--regrade"]),
    "--any-form": (
        ROWS.assign(correct=True, response=ROWS["response"].str.replace(r"\\boxed\{(.*)\}", r"\1", regex=True)),
        ["--regrade", "--any-form"],
    ),
    "--from": (ROWS, ["--from", "rows"]),
}  # fmt: skip


@pytest.mark.parametrize("option", READ)
def test_tables_report_and_python_take_what_analyze_takes(option, tmp_path, monkeypatch, wanted):
    import r3bench

    monkeypatch.chdir(tmp_path)
    frame, told = READ[option]
    frame.to_json("t.jsonl", orient="records", lines=True)
    also = ["--reference", "method=grpo"]
    run = CliRunner().invoke
    printed = run(app, ["analyze", "t.jsonl", *told, *also])
    assert printed.exit_code == 0, printed.output
    done = run(app, ["tables", "t.jsonl", *told, *also, "--json"])
    assert done.exit_code == 0, done.output
    assert figures(json.loads(done.stdout), tokens=True) == wanted
    assert run(app, ["tables", "t.jsonl", *told, *also]).stdout == printed.stdout
    done = run(app, ["report", "t.jsonl", *told, *also, "--no-figures"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "t.html").exists() or (tmp_path / "report.html").exists()
    names = {"--any-form": "require_boxed", "--from": "format"}
    values = {"--regrade": True, "--any-form": False, "--right": 0.7}
    keys = {names.get(t, t[2:]): values.get(t, told[i + 1] if i + 1 < len(told) else None)
            for i, t in enumerate(told) if t.startswith("--")}  # fmt: skip
    study = r3bench.load("t.jsonl", reference={"method": "grpo"}, **keys)
    assert figures({"effects": study.effects.to_dict("records"), "cells": []})[0][0]["estimate"] == pytest.approx(
        wanted[0][0]["estimate"]
    )


def test_options_of_readers_are_refused_for_a_study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s").mkdir()
    (tmp_path / "s/study.json").write_text("{}")
    for command in ("tables", "report"):
        done = CliRunner().invoke(app, [command, "s", "--metric", "x"])
        assert done.exit_code == 2 and "a study of ours; --from, --metric" in done.output


@pytest.mark.parametrize("command", ["analyze", "convert", "tables", "report"])
def test_the_same_options_on_every_command_that_reads_results(command):
    import typer

    options = {o for p in typer.main.get_command(app).commands[command].params for o in p.opts}
    needed = "declared factors ignore rename reference from metric filter right missing step regrade require-boxed"
    assert {f"--{name}" for name in needed.split()} <= options
