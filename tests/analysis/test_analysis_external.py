"""Long tables from any trainer: the same numbers as a study, and errors that name the row."""

import json

import numpy as np
import pandas as pd
import pytest
from simulate import CELLS, FACTORS, Setting, grids

from r3bench.analysis import analyze, load_study
from r3bench.analysis.statistics.effects import effects
from r3bench.analysis.statistics.variance import assumptions_from, variance_table
from r3bench.errors import DataError


def long_table(results):
    """A study as a long frame."""
    rows = []
    for i, run in enumerate(results.runs):
        for name, score in results.benchmarks.items():
            for j, question in enumerate(score.questions):
                levels = {f: run.levels.get(f) for f in results.factors}
                rows.append({"run": run.run, "seed": run.seed, "base": "model" if run.base else None, **levels,
                             "benchmark": name, "question": question, "samples": score.samples[i, j],
                             "correct": score.correct[i, j], "tokens": score.tokens[i, j]})  # fmt: skip
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def frame(study):
    return long_table(load_study(study))


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_a_long_table_gives_the_numbers_of_the_study(study, frame, tmp_path, suffix):
    path = tmp_path / f"t.{suffix}"
    if suffix == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if suffix == "tsv" else ",")
    found = analyze(path)
    expected, _ = effects(load_study(study))
    ours = {(e.benchmark, e.kind, e.term): e.record() for e in expected}
    assert len(found["effects"]) == len(ours) == 27
    for effect in found["effects"]:
        want = ours[effect["benchmark"], effect["kind"], effect["term"]]
        for key in ("estimate", "se", "df", "low", "high", "p", "p_adjusted", "bootstrap_low"):
            assert effect[key] == pytest.approx(want[key], abs=1e-12), key
    assert found["variance"].keys() == {"amc", "embedded"}


def test_json_has_the_agreed_shape(frame, tmp_path):
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = json.loads(json.dumps(analyze(tmp_path / "t.csv"), allow_nan=False))
    assert {"effects", "cells", "variance"} <= found.keys()
    keys = {"benchmark", "term", "kind", "estimate", "se", "df", "low", "high", "p", "p_adjusted"}
    assert all(keys <= e.keys() for e in found["effects"])
    assert {e["kind"] for e in found["effects"]} == {"main", "interaction", "shapley", "leave_one_out", "add_one"}
    assert all(-1 <= e["estimate"] <= 1 and e["low"] <= e["estimate"] <= e["high"] for e in found["effects"])
    assert all({"seed", "question", "interaction", "sampling"} <= v.keys() for v in found["variance"].values())


def change(frame, row, **values):
    wrong = frame.astype(object).copy()
    for column, value in values.items():
        wrong.loc[row, column] = value
    return wrong


def broken(frame):
    """(frame, what the message must hold)."""
    return {
        "no column": (frame.drop(columns="correct"), ["no column 'correct'", "needed: run, seed"]),
        "misspelt column": (frame.rename(columns={"samples": "smples"}), ["no column 'samples'", "'smples'"]),
        "empty value": (change(frame, 4, question=None), ["row 5: question: empty"]),
        "empty count": (change(frame, 6, correct=None), ["row 7: correct: empty"]),
        "empty level": (change(frame, 300, replay=""), ["row 301: replay: empty"]),
        "too many right": (change(frame, 9, correct=5), ["row 10: correct: got 5 of 4 samples"]),
        "negative": (change(frame, 9, correct=-1), ["row 10: correct: got", "expected a whole number, 0 or above"]),
        "fraction": (change(frame, 9, correct=0.5), ["row 10: correct: got", "whole number"]),
        "text": (change(frame, 9, samples="many"), ["row 10: samples: got 'many'"]),
        "infinite": (change(frame, 9, samples=float("inf")), ["row 10: samples: got", "whole number"]),
        "no samples": (change(frame, 9, samples=0, correct=0), ["row 10: samples: got 0, expected at least 1"]),
        "tokens": (change(frame, 9, tokens=-3), ["row 10: tokens: got"]),
        "duplicate": (
            pd.concat([frame, frame.iloc[[3]]], ignore_index=True),
            [f"row {len(frame) + 1}:", "earlier row"],
        ),
        "two levels": (change(frame, 305, replay="other"), ["row 306: replay: got 'other' for run", "in row"]),
        "two seeds": (change(frame, 305, seed=9), ["row 306: seed: got '9'"]),
        "no rows": (frame.iloc[:0], ["no rows"]),
    }


@pytest.mark.parametrize("case", list(broken(pd.DataFrame(
    {"run": ["a"] * 400, "benchmark": "amc", "question": "q", "samples": 4, "correct": 1, "seed": 0, "tokens": 1.0,
     "replay": "on"}))))  # fmt: skip
def test_bad_tables_are_errors_that_name_the_row(frame, tmp_path, case):
    wrong, expected = broken(frame)[case]
    path = tmp_path / "t.csv"
    wrong.to_csv(path, index=False)
    with pytest.raises(DataError) as error:
        analyze(path)
    for part in (str(path), *expected):
        assert part in str(error.value), error.value
    assert "\n" not in str(error.value)


def test_unreadable_files(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        analyze(tmp_path / "none.csv")
    (tmp_path / "t.parquet").write_bytes(b"no")
    with pytest.raises(DataError, match="can't be read"):
        analyze(tmp_path / "t.parquet")
    (tmp_path / "t.xlsx").write_bytes(b"no")
    with pytest.raises(DataError, match="can't be read"):
        analyze(tmp_path / "t.xlsx")
    (tmp_path / "t.doc").write_bytes(b"no")
    with pytest.raises(DataError, match=r"expected a .csv, .tsv, .txt, .parquet, .xlsx, .jsonl"):
        analyze(tmp_path / "t.doc")
    (tmp_path / "t.csv").write_text('run,seed\n"a,1\n')
    with pytest.raises(DataError):
        analyze(tmp_path / "t.csv")


def test_numeric_and_boolean_levels(frame, tmp_path):
    trained = frame[frame["base"].isna()].drop(columns="base")
    for values in ({"off": 0, "on": 1}, {"off": False, "on": True}, {"off": "no", "on": "yes"}):
        trained.assign(replay=trained["replay"].map(values)).to_csv(tmp_path / "t.csv", index=False)
        terms = {e["term"] for e in analyze(tmp_path / "t.csv")["effects"] if e["kind"] == "main"}
        assert terms == {"replay", "ranking"}, values
    trained.assign(replay=trained["replay"].map({"off": 0.1, "on": 0.5})).to_csv(tmp_path / "t.csv", index=False)
    terms = {e["term"] for e in analyze(tmp_path / "t.csv")["effects"] if e["kind"] == "main"}
    assert terms == {"replay=0.5", "ranking"}


def test_variance_components_are_recovered():
    """Mean of the estimates over simulated grids against the simulation's own spread on the accuracy scale."""
    from r3bench.analysis.declared import Declared
    from r3bench.analysis.results import Results, Run, Scores

    setting = Setting(200, 8, 3, run_sd=0.3, run_question_sd=0.4, factor_question_sd=0.5, difficulty_sd=1.5)
    found, assumed = [], []
    for grid in grids(setting, 12, seed=4):
        runs = tuple(Run(f"r{i}", i % 3, dict(zip(FACTORS, CELLS[c], strict=True))) for i, c in enumerate(grid.cell_of))
        scores = Scores(tuple(map(str, range(200))), np.full((48, 200), 8), grid.correct)
        results = Results("s", FACTORS, runs, {"b": scores}, Declared())
        found.append(variance_table(results)["b"])
        assumed.append(assumptions_from(results, "b"))
    rng = np.random.default_rng(0)
    count = 400_000
    difficulty = rng.normal(0, 1.5, count)
    slope = [1 / (4 * np.cosh(d / 2) ** 2) for d in difficulty[:20_000]]

    def accuracy(*parts):
        return 1 / (1 + np.exp(-(sum(parts) - difficulty)))

    run, mixed = rng.normal(0, 0.3, count), rng.normal(0, 0.4, count)
    p = accuracy(run, mixed)
    # a run moves all questions by its mean slope; what is left of it is question by run
    seed = (0.3 * np.mean(slope)) ** 2
    within = float((p * (1 - p)).mean())
    assert np.mean([f["seed"] for f in found]) == pytest.approx(seed, rel=0.25)
    assert np.mean([f["sampling"] for f in found]) == pytest.approx(within, rel=0.05)
    beyond = float(np.var(p - accuracy(0.0))) - seed
    assert np.mean([f["run_question"] for f in found]) == pytest.approx(beyond, rel=0.3)
    effect = accuracy(rng.normal(0, 0.5, count) / 2 * np.ones(count)) - accuracy(0.0)
    assert np.mean([f["question_effect"] for f in found]) == pytest.approx(4 * np.var(effect), rel=0.35)
    assert np.mean([a.run_sd**2 for a in assumed]) == pytest.approx(seed, rel=0.25)
    for one in found:
        shares = one["allocation"]["shares"]
        assert sum(shares.values()) == pytest.approx(1)
        assert "seed" in max(shares, key=shares.get) and "more seeds" in one["allocation"]["advice"]
