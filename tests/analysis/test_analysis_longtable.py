"""The counts behind a study as one file: analysed again it gives the same numbers, the recorded ones too."""

import csv
import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from synthetic import Spec, make_study
from typer.testing import CliRunner

from r3bench.analysis import analyze
from r3bench.analysis.reading.longtable import long_table
from r3bench.analysis.reading.study import load_study
from r3bench.cli import app

RESULTS = Path(__file__).parents[2] / "results"
NUMBERS = ("estimate", "se", "df", "low", "high", "p", "p_adjusted", "low_these_questions", "high_these_questions")


def by_term(found):
    return {(e["benchmark"], e["kind"], ":".join(sorted(e["term"].split(":")))): e for e in found}


def test_a_study_and_its_long_table_are_the_same_to_the_analysis(tmp_path):
    study = make_study(tmp_path / "demo", Spec(benchmarks={"a": 25, "b": 10}, samples=3))
    assert CliRunner().invoke(app, ["tables", "demo", "--runs", str(tmp_path)]).exit_code == 0
    file = study / "tables" / "questions.parquet"
    first, again = analyze(study), analyze(file)
    assert len(first["effects"]) == len(again["effects"]) > 10
    for key, effect in by_term(first["effects"]).items():
        other = by_term(again["effects"])[key]
        assert {k: other[k] for k in NUMBERS} == pytest.approx({k: effect[k] for k in NUMBERS}), key
    figures = ("accuracy", "accuracy_low", "accuracy_high", "gain_base", "gain_off_low", "tokens", "truncated")
    for row, other in zip(first["cells"], again["cells"], strict=True):
        assert row["cell"] == other["cell"]
        assert [other[k] for k in figures] == pytest.approx([row[k] for k in figures], nan_ok=True)
    assert first["variance"]["a"]["seed"] == pytest.approx(again["variance"]["a"]["seed"])


def test_runs_without_answers_have_rows_that_say_so(tmp_path):
    results = load_study(make_study(tmp_path / "demo", Spec(diverged=[(1, 0)], gave_up=[(2, 1)], base_model=False)))
    table = long_table(results)
    assert isinstance(table, pa.Table) and table.num_rows == 12 * 40 and "base" not in table.column_names
    outcomes = dict(zip(table["run"].to_pylist(), table["outcome"].to_pylist(), strict=True))
    assert {run: o for run, o in outcomes.items() if o != "finished"} == {
        "ranking-s0-000000000002": "diverged", "replay-s1-000000000003": "missing"
    }  # fmt: skip
    frame = table.to_pandas()
    assert not frame[frame["outcome"] != "finished"][["samples", "correct", "tokens"]].any(axis=None)
    whole = long_table(load_study(make_study(tmp_path / "whole", Spec(base_model=False))))
    assert "outcome" not in whole.column_names


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*/questions.parquet")), ids=lambda path: path.parent.name)
def test_recorded_effects_come_out_of_the_recorded_counts(file):
    result = CliRunner().invoke(app, ["analyze", str(file), "--json"])
    assert result.exit_code == 0, result.output
    found = by_term(json.loads(result.stdout)["effects"])
    recorded = list(csv.DictReader((file.parent / "effects.csv").open()))
    assert len(recorded) == len(found) > 0
    for row in recorded:
        made = found[row["benchmark"], row["kind"], ":".join(sorted(row["term"].split(":")))]
        for key in NUMBERS:
            wanted = float(row[key]) if row[key] else None  # a restatement has no adjusted p
            assert made[key] == pytest.approx(wanted, abs=1e-9), (row["term"], row["kind"], key)


def test_what_is_written_of_recorded_components_stands_in_their_table():
    """Every interval and every adjusted p of the text, and the deviation of every arm in its table by seed."""
    folder = RESULTS / "embedded_components"
    words, shown = (" ".join((folder / name).read_text().split()) for name in ("README.md", "tables.md"))
    told = re.findall(r"[+-]\d+\.\d \([+-][\d.]+ to [+-][\d.]+\)", words)
    assert len(told) > 10 and not [t for t in told if t not in shown]
    assert all(f"| {p} |" in shown for p in re.findall(r"\b0\.\d{3}\b", words.partition("**How sure.**")[0]))
    deviations = re.findall(
        r"^\| (?!untrained)[^|]+\| 8 \| [^|]+\| ([\d.]+) \|", (folder / "tables.md").read_text(), re.M
    )
    by_seed = re.findall(r"^\| [^|]+\|(?: [\d.]+ \|){8} ([\d.]+) \|", (folder / "README.md").read_text(), re.M)
    assert len(by_seed) == 13 and sorted(by_seed) == sorted(deviations)
