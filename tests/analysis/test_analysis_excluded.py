"""Runs that someone has left out: every form of the tables says so, with reason and score, and it can be undone."""

import json
from pathlib import Path

import pytest
from synthetic import Spec, make_study
from typer.testing import CliRunner

from r3bench.analysis import load_study, render_tables, write_report, write_tables
from r3bench.analysis.output.external import analysis, load_any
from r3bench.analysis.statistics.cells import cell_rows
from r3bench.cli import app
from r3bench.errors import ConfigError, StateError
from r3bench.exclusions import FILE, exclude, exclusions, include

REASON = "trained on the wrong <b>split</b> & 50 % of it"
ESCAPED = {"latex": "wrong", "html": "&lt;b&gt;split"}  # a format's own spelling, in part
MOST = "wrong"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """2 x 2 cells with three seeds, below `runs`."""
    return make_study(tmp_path / "runs" / "s", Spec(diverged=[(2, 1)]))


def run_of(root: Path, name: str, seed: int) -> str:
    """The id of a run."""
    (found,) = [path.name for path in root.glob(f"{name}-s{seed}-*")]
    return found


@pytest.mark.parametrize("format", ["markdown", "latex", "html"])
def test_every_printed_table_says_who_is_left_out_and_why(root: Path, format: str) -> None:
    run = run_of(root, "ranking", 1)
    before = render_tables(root, format)
    exclude(root, run, REASON)
    shown = render_tables(root, format)
    assert "2 finished, 1 excluded" in shown
    assert "excluded by hand on" in shown
    assert ESCAPED.get(format, "wrong") in shown
    assert run in shown.replace(r"\allowbreak{}", "").replace("\\_", "_")
    include(root, run)
    assert render_tables(root, format) == before


def test_frames_counts_report_and_analysis_carry_it(root: Path, tmp_path: Path) -> None:
    run = run_of(root, "ranking", 1)
    exclude(root, run, REASON)
    files = {path.name: path for path in write_tables(root, tmp_path / "t")}
    (head, *rows) = files["cells.csv"].read_text().splitlines()
    assert "excluded" in head.split(",")
    assert sum(run in row for row in rows) == 1
    again = load_any(files["questions.parquet"])
    assert [r.run for r in again.excluded] == [run]
    assert any(REASON in note for note in again.notes)
    assert [r.record() for r in cell_rows(again)][1]["excluded"] == [r.record() for r in cell_rows(load_study(root))][
        1
    ]["excluded"]
    assert any(run in note and REASON in note for note in analysis(load_any(root))["notes"])
    page = write_report(root, tmp_path, figures=False).read_text()
    assert "excluded by hand" in page
    assert "<b>split" not in page


def test_an_excluded_run_changes_no_other_number_than_if_it_had_never_been(root: Path, tmp_path: Path) -> None:
    run = run_of(root, "base", 2)
    exclude(root, run, "no reason worth telling")
    left = [(r.label, r.run_means) for r in cell_rows(load_study(root))]
    study = json.loads((root / "study.json").read_text())
    assert study
    for path in (root / run).rglob("run.json"):
        path.unlink()
    (root / FILE).unlink()
    assert [(r.label, r.run_means) for r in cell_rows(load_study(root))] == left


def test_a_diverged_run_is_excluded_with_its_outcome_told(root: Path) -> None:
    run = run_of(root, "replay", 1)
    exclude(root, run, "a power cut")
    results = load_study(root)
    assert not results.diverged
    assert any("a power cut" in note and "diverged" in note for note in results.notes)


def test_all_runs_excluded_is_one_plain_error(root: Path) -> None:
    for path in root.glob("*/run.json"):
        exclude(root, path.parent.name, "all of them")
    with pytest.raises(StateError, match="every finished run is excluded"):
        load_study(root)


def test_a_damaged_line_is_never_taken_for_no_exclusion(root: Path) -> None:
    exclude(root, run_of(root, "base", 0), "one")
    text = (root / FILE).read_text()
    (root / FILE).write_text(text.replace("one", "two"))
    with pytest.raises(StateError, match=r"exclusions\.jsonl: line 1"):
        load_study(root)
    with pytest.raises(StateError, match="line 1"):
        exclude(root, run_of(root, "base", 1), "three")


@pytest.mark.parametrize("reason", ["", "  ", "\x1b]0;owned\x07", "x" * 1001, "\u202eabc"])
def test_a_reason_can_be_printed(root: Path, reason: str) -> None:
    with pytest.raises(ConfigError, match="--reason"):
        exclude(root, run_of(root, "base", 0), reason)


def test_the_command(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def call(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["exclude", *words])
        assert result.exit_code == code, result.stderr
        return result.stdout + result.stderr

    run = run_of(root, "base", 0)
    assert "is excluded" in call("s")
    assert "--reason: missing" in call(run, code=2)
    assert run in call(run, "--reason", "first")
    assert json.loads(call(f"s/{run}", "--reason", "second", "--json"))["excluded"][0]["reason"] == "second"
    assert "second" in call("s")
    assert "did you mean" in call(run[:-1], "--reason", "x", code=3)
    assert "is a study" in call("s", "--undo", code=2)
    assert "no run is excluded" in call(run, "--undo")
    assert "nothing to undo" in call(run, "--undo", code=2)
    assert exclusions(root) == {}
    assert len((root / FILE).read_text().splitlines()) == 3  # the history stays
