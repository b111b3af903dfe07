"""Commands that read results: each on a made-up study, its JSON and its text against what was put in."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from json_page import documented
from synthetic import Spec, make_study, record_again
from typer.testing import Result


@pytest.fixture
def study(folder: Path) -> Path:
    """runs/demo: replay off and on, two seeds, 20 questions x 4 answers; every response boxes the right answer."""
    spec = Spec(factors={"replay": ["off", "on"]}, seeds=(0, 1), benchmarks={"embedded": 20}, effects={"replay": 3.0})
    return make_study(folder / "runs" / "demo", spec)


def run_id(study: Path, start: str) -> str:
    """The one run whose id begins so."""
    (found,) = [path.name for path in study.iterdir() if path.name.startswith(start)]
    return found


def test_tables_are_printed_and_written(r3bench: Callable[..., Result], study: Path) -> None:
    for name in ("demo", "runs/demo"):
        result = r3bench("tables", name)
        assert result.exit_code == 0, result.stderr
        assert "replay" in result.stdout
        assert "| cell |" in result.stdout
    written = {Path(line).name for line in result.stderr.splitlines()}
    assert {"tables.md", "tables.tex", "tables.html", "cells.csv", "effects.csv"} <= written
    assert written == {path.name for path in (study / "tables").iterdir()}
    rows = list(csv.DictReader((study / "tables" / "cells.csv").open()))
    assert len(rows) == 3  # the untrained model and two cells


def test_tables_go_where_they_are_told_and_print_what_they_are_told(
    r3bench: Callable[..., Result], study: Path, folder: Path
) -> None:
    result = r3bench("tables", "demo", "--format", "latex", "--out", "elsewhere")
    assert "\\toprule" in result.stdout
    assert (folder / "elsewhere" / "cells.csv").exists()
    assert not (study / "tables").exists()
    assert "reported" in r3bench("tables", "demo", "--layout", "r3-table1").stdout
    wrong = r3bench("tables", "demo", "--format", "latx")
    assert (wrong.exit_code, wrong.stderr) == (2, "r3bench: format: got 'latx'; did you mean 'latex'?\n")


def test_studies_and_runs_are_analysed_by_name(r3bench: Callable[..., Result], study: Path, folder: Path) -> None:
    study.rename(folder / "runs" / "other")
    (folder / "runs").rename(folder / "elsewhere")
    run = run_id(folder / "elsewhere" / "other", "replay-s0")
    for name, path in (("other", "elsewhere/other"), (run, f"elsewhere/other/{run}")):
        named = r3bench("analyze", name, "--runs", "elsewhere")
        assert named.exit_code == 0 and named.stdout == r3bench("analyze", path).stdout, named.stderr
    assert r3bench("convert", "other", "--out", "long.csv", "--runs", "elsewhere").exit_code == 0
    wrong = r3bench("analyze", "othre", "--runs", "elsewhere")
    assert wrong.stderr == (
        "r3bench: othre: no such file or folder, nor a study below elsewhere; did you mean 'other'?\n"
    )
    assert "long.csv" in r3bench("analyze", "lng.csv").stderr  # a file's name is held against files


def test_trace_names_the_runs_of_a_cell(r3bench: Callable[..., Result], study: Path) -> None:
    found = json.loads(r3bench("trace", "demo", "replay=on", "--json").stdout)
    assert {run["run"] for run in found["runs"]} == {run_id(study, "replay-s0"), run_id(study, "replay-s1")}
    assert {run["commit"] for run in found["runs"]} == {"0123456789abcdef"}
    assert run_id(study, "replay-s0") in r3bench("trace", "demo", "replay").stdout
    wrong = r3bench("trace", "demo", "replay=onn")
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (2, 1)
    assert "did you mean 'on'?" in wrong.stderr


def test_trace_prints_facts_in_lines_and_the_command_that_repeats_them(
    r3bench: Callable[..., Result], study: Path
) -> None:
    run = study / run_id(study, "replay-s1")
    config = {"model": {"name": "embedded"}, "eval": {"limit": 20}, "trainer": {"max_completion_length": 48}}
    for path in study.glob("*/config.json"):
        path.write_text(json.dumps(config))
    environment = json.loads((run / "environment.json").read_text())
    environment |= {"threads": 3, "gpus": [], "diff": "+a\n+b\n+c\n", "device": "a\x1b[2Jb", "cuda": None}
    (run / "environment.json").write_text(json.dumps(environment))
    for path in study.glob("*/config.json"):
        record_again(path.parent)
    shown = r3bench("trace", "demo", run.name).stdout
    lines = shown.splitlines()
    assert not {"{", "}", "[", "'", "None"} & set(shown.replace("[2Jb", "")) and "None" not in shown
    assert f"  again: OMP_NUM_THREADS=3 r3bench train runs/demo/{run.name}/config.json --runs again" in lines
    assert "  answers: embedded 80" in lines and "    acted: replay yes" in lines
    assert "    packages: trl 1.16.0" in lines and "    diff: +a (and 2 more lines)" in lines
    assert "    device: a\\x1b[2Jb" in lines and not any("cuda" in line for line in lines)
    (base,) = json.loads(r3bench("trace", "demo", "untrained model", "--json").stdout)["runs"]
    assert base["again"] == "r3bench eval embedded limit=20 max_tokens=48 --out again"
    (run / "config.json").write_text("[]")
    record_again(run)
    assert json.loads(r3bench("trace", "demo", "replay", "--json").stdout)["runs"][-1]["again"] is None


def test_report_is_one_file(r3bench: Callable[..., Result], study: Path, folder: Path) -> None:
    result = r3bench("report", "demo", "--no-figures")
    assert (result.exit_code, result.stdout) == (0, "runs/demo/report.html\n"), result.stderr
    page = (study / "report.html").read_text()
    assert "<html" in page
    assert "replay" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert r3bench("report", "demo", "--out", "elsewhere.html", "--no-figures").stdout == "elsewhere.html\n"
    assert not (folder / "figures").exists()


def test_status_tells_where_a_study_stands(r3bench: Callable[..., Result], study: Path) -> None:
    (study / run_id(study, "replay-s1") / "run.json").unlink()
    found = json.loads(r3bench("status", "demo", "--json").stdout)
    states = {cell["run_id"]: cell["state"] for cell in found["cells"]}
    assert states[run_id(study, "replay-s1")] == "to do"
    assert len(states) == 5
    assert run_id(study, "base-s0") in states
    assert "to do" in r3bench("status", "demo").stdout
    assert r3bench("status").stdout.split()[0] == "demo"
    assert found.pop("schema") == "r3bench.status/1"
    assert json.loads(r3bench("status", "--json").stdout)["studies"] == [found]
    assert r3bench("status", "dmo").exit_code == 3


def test_plan_says_what_a_grid_costs_and_sees(r3bench: Callable[..., Result], folder: Path) -> None:
    found = json.loads(r3bench("plan", "quickstart", "--effect", "0.0001", "--json").stdout)
    grid = json.loads(r3bench("validate", "quickstart", "--json").stdout)["grid"]
    assert [run["run_id"] for run in found["runs"]] == grid["runs"]
    assert found["training_tokens"] > 0
    assert any("can't resolve" in line for line in found["warnings"])
    assert f"quickstart: {len(grid['runs'])} runs" in r3bench("plan", "quickstart").stdout
    louder = json.loads(r3bench("plan", "quickstart", "--assume", "run_sd=5", "--json").stdout)
    assert louder["benchmarks"][0]["effects"]["main"] > found["benchmarks"][0]["effects"]["main"]
    assert r3bench("plan", "quickstart", "--assume", "run_s=5").exit_code == 2
    assert r3bench("plan", "quickstart", "--assume", "run_sd").stderr == (
        "r3bench: --assume 'run_sd': expected name=number\n"
    )
    assert not list(folder.iterdir()), "a plan wrote something"


def test_another_folder_of_runs(r3bench: Callable[..., Result], study: Path, folder: Path) -> None:
    (folder / "runs").rename(folder / "archive")
    assert r3bench("tables", "demo").exit_code == 3
    assert r3bench("tables", "demo", "--runs", "archive").exit_code == 0


def test_analyze_reads_a_long_table(r3bench: Callable[..., Result], folder: Path) -> None:
    lines = ["run,seed,benchmark,question,samples,correct,idea"]
    for run, (idea, seed, right) in enumerate([("off", 0, 1), ("off", 1, 1), ("on", 0, 3), ("on", 1, 3)]):
        lines += [f"r{run},{seed},amc,q{q},4,{right + q % 2},{idea}" for q in range(4)]
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    found = json.loads(r3bench("analyze", "table.csv", "--json").stdout)
    (main,) = [e for e in found["effects"] if e["kind"] == "main"]
    assert main["estimate"] == pytest.approx(0.5)
    assert "idea" in r3bench("analyze", "table.csv").stdout
    (folder / "fixed.yaml").write_text("margin: 0.3\n")
    assert "+-30.0 points" in r3bench("analyze", "table.csv", "--declared", "fixed.yaml").stdout
    (folder / "fixed.yaml").write_text("margn: 0.3\n")
    wrong = r3bench("analyze", "table.csv", "--declared", "fixed.yaml")
    assert wrong.exit_code == 2
    assert "margn" in wrong.stderr
    assert "margin" in wrong.stderr
    (folder / "table.csv").write_text("\n".join([*lines, "r0,0,amc,q9,4,5,off"]))
    wrong = r3bench("analyze", "table.csv")
    assert wrong.exit_code == 2
    assert wrong.stderr.startswith("r3bench: table.csv: row 17")
    assert wrong.stderr.count("\n") == 1


def test_compare_two_runs(r3bench: Callable[..., Result], study: Path) -> None:
    a, b = run_id(study, "replay-s0"), run_id(study, "base-s0")
    (row,) = documented(r3bench("compare", a, b, "--json").stdout, "compare")["tasks"]
    assert (row["task"], row["questions"]) == ("embedded", 20)
    assert row["difference"] > 0.2
    assert row["p"] < 0.05
    (same,) = json.loads(r3bench("compare", a, a, "--json").stdout)["tasks"]
    assert (same["difference"], same["p"]) == (0, 1)
    assert f"{row['difference']:+.3f}" in r3bench("compare", a, b).stdout
    assert "embeded" in r3bench("compare", a, b, "--tasks", "embeded").stderr


def test_grade_a_file(r3bench: Callable[..., Result], folder: Path) -> None:
    rows = [
        {"id": "a", "answer": "7", "response": "so \\boxed{7}"},
        {"id": "b", "answer": "\\frac{1}{2}", "response": "so \\boxed{0.5}"},
        {"answer": "7", "response": "no idea"},
    ]
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [json.loads(line) for line in r3bench("grade", "mine.jsonl", "--json").stdout.splitlines()]
    assert [(v["id"], v["correct"]) for v in lines] == [("a", True), ("b", True), ("3", False)]
    assert set(lines[0]) == {"id", "correct", "extracted", "reason", "timed_out"}
    assert r3bench("grade", "mine.jsonl").stdout.endswith("2 of 3 right\n")
    (folder / "mine.jsonl").write_text('{"answer": "7"}\n')
    wrong = r3bench("grade", "mine.jsonl")
    assert (wrong.exit_code, wrong.stderr) == (2, "r3bench: mine.jsonl: line 1: response: got None, expected a text\n")


def test_hostile_answers_do_not_reach_the_terminal(r3bench: Callable[..., Result], folder: Path) -> None:
    row = {"answer": "7", "response": "\\boxed{\x1b]0;owned\x07\u202e7}"}
    (folder / "hostile.jsonl").write_text(json.dumps(row) + "\n")
    shown = r3bench("grade", "hostile.jsonl").stdout
    assert "\\x1b]0;owned" in shown
    assert not set("\x1b\x07\u202e") & set(shown)


def test_grade_explains_one_case_and_regrades_a_run(r3bench: Callable[..., Result], study: Path) -> None:
    run = run_id(study, "base-s0")
    cases = documented(r3bench("grade", "--explain", run, "q0003", "--json").stdout, "explain")["answers"]
    assert [case["repeat"] for case in cases] == [0, 1, 2, 3]
    assert all(case["exact"] for case in cases)
    assert "response: " in r3bench("grade", "--explain", run, "q0003").stdout
    assert r3bench("grade", "--explain", run, "q9").exit_code == 2
    assert r3bench("grade", "--explain", run).exit_code == 2
    before = documented(r3bench("grade", run, "--json").stdout, "agreement")["embedded"]
    assert 0 < len(before["differ"]) < 80  # the made-up verdicts say wrong although the right answer is boxed
    assert r3bench("grade", run, "--regrade", "--grader", "exat").exit_code == 2
    found = documented(r3bench("grade", run, "--regrade", "--any-form", "--json").stdout, "regrade")["embedded"]
    assert (found["to_right"], found["to_wrong"]) == (len(before["differ"]), 0)
    assert json.loads(r3bench("grade", run, "--json").stdout)["embedded"]["differ"] == []
    assert json.loads((study / run / "run.json").read_text())["eval"]["embedded"]["avg@4"] == 1
