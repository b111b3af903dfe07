"""pass@k and maj@k: against every subset written out, through the commands, at the edges, and their coverage."""

import csv
import html
import io
import json
import math
import re
from collections import Counter
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from json_page import documented
from synthetic import Spec, make_study, record_again
from typer.testing import CliRunner

import r3bench
from r3bench.analysis.output.at_k import at_k
from r3bench.analysis.output.choices import Choices
from r3bench.analysis.output.external import analyze, load_any
from r3bench.analysis.output.tables import render_tables
from r3bench.analysis.reading.study import load_study
from r3bench.analysis.report.page import render_report
from r3bench.analysis.statistics.draws import majority_curve, majority_variance, pass_at, pass_variance
from r3bench.cli import app
from r3bench.errors import ConfigError, StateError
from r3bench.evaluation.metrics import majority, pass_at_k

SPEC = Spec(seeds=(0, 1), benchmarks={"embedded": 8, "amc": 5}, samples=6, wrong_values=2)


@pytest.fixture(scope="module")
def voted(tmp_path_factory) -> Path:
    """2 x 2 cells, 2 seeds, the untrained model, wrong answers of two values."""
    return make_study(tmp_path_factory.mktemp("runs") / "voted", SPEC)


def vote(values) -> Fraction:
    """The score of a vote among `values`: True for a right answer, None for none, else what was said."""
    votes = Counter(v for v in values if v is not None)
    first = [v for v, n in votes.items() if n == max(votes.values())]
    return Fraction(1, len(first)) if True in first else Fraction(0)


def by_subsets(values, k: int, score) -> Fraction:
    """The mean of a score over all ways to take k of the values."""
    drawn = list(combinations(values, k))
    return sum((score(d) for d in drawn), Fraction(0)) / len(drawn)


def hit(values) -> Fraction:
    return Fraction(int(True in values))


def written_out(right: int, wrong, silent: int) -> list:
    return [True] * right + [f"w{i}" for i, v in enumerate(wrong) for _ in range(v)] + [None] * silent


def test_both_are_means_over_every_subset():
    rng = np.random.default_rng(0)
    for _ in range(60):
        right, silent = (int(v) for v in rng.integers(0, 4, 2))
        wrong = tuple(int(v) for v in rng.integers(1, 4, rng.integers(0, 4)))[: 8 - right - silent]
        values = written_out(right, wrong, silent)[:9] or [None]
        right, silent = values.count(True), values.count(None)
        wrong = tuple(Counter(v for v in values if v is not None and v is not True).values())
        found = majority_curve(right, wrong, silent)
        n = len(values)
        for k in range(1, n + 1):
            assert found[k - 1] == pytest.approx(float(by_subsets(values, k, vote)), abs=1e-12), (values, k)
            passed = float(pass_at(np.array(n), np.array(right), k))
            assert passed == pytest.approx(float(by_subsets(values, k, hit)), abs=1e-12) == pass_at_k(n, right, k)
        assert found[0] == pytest.approx(right / n)
        said = [("7" if v is True else None if v is None else v, v is True) for v in values]
        assert found[-1] == pytest.approx(majority(said))


def test_large_draws_stay_exact_and_too_large_ones_are_refused():
    assert majority_curve(512, (512,), 0)[[0, 1023]] == pytest.approx([0.5, 0.5])
    assert majority_curve(40, (), 984) == pytest.approx(pass_at(np.array(1024), np.array(40), 1) * 0 + [
        1 - math.comb(984, k) / math.comb(1024, k) for k in range(1, 1025)])  # fmt: skip
    with pytest.raises(ValueError, match="1024"):
        majority_curve(1025, (), 0)
    assert np.isnan(pass_at(np.array([2, 4]), np.array([1, 1]), 3)).tolist() == [True, False]


def test_sampling_variance_is_that_of_leaving_answers_out_one_by_one():
    for right, wrong, silent in ((2, (2, 1), 1), (0, (3,), 2), (5, (), 0), (1, (1, 1, 1), 2)):
        values = written_out(right, wrong, silent)
        n = len(values)
        for k in range(1, n):
            for score, found in (
                (vote, majority_variance((right, wrong, silent), k)),
                (hit, float(pass_variance(np.array(n), np.array(right), k))),
            ):
                left = [by_subsets(values[:i] + values[i + 1 :], k, score) for i in range(n)]
                mean = sum(left) / n
                assert found == pytest.approx(float((n - 1) * sum((v - mean) ** 2 for v in left) / n), abs=1e-14)
        assert float(pass_variance(np.array(n), np.array(right), 1)) == pytest.approx(
            right * (n - right) / n**2 / (n - 1)
        )
        assert np.isnan(majority_variance((right, wrong, silent), n))


def same(mine: float | None, other: float | None) -> bool:
    return mine == other if mine is None or other is None else mine == pytest.approx(other, rel=1e-6)


def answers_of(study: Path) -> pd.DataFrame:
    """(run, benchmark, question) -> its values, read from the stored answers by another library."""
    frame = r3bench.load(study).answers
    frame["value"] = [
        True if c else None if pd.isna(e) else e for c, e in zip(frame["correct"], frame["extracted"], strict=True)
    ]
    return frame.groupby(["run", "benchmark", "question"])["value"].agg(list)


@pytest.mark.parametrize(("layout", "score"), [("pass@k", hit), ("maj@k", vote)])
def test_estimates_and_intervals_are_those_of_accuracy_with_these_numbers(voted, layout, score, tmp_path):
    """Shares of subsets as right answers of so many: as a table of counts, `analyze` has to find the same."""
    values = answers_of(voted)
    done = CliRunner().invoke(app, ["analyze", str(voted), "--layout", layout, "--k", "1,3,6", "--json"])
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    rows = document.pop("at_k")
    documented(json.dumps(document), "analyze")
    study = r3bench.load(voted)
    for k in (1, 3, 6):
        whole = math.comb(6, k) * 12  # of every share a whole number of answers, whatever ties
        table = study.questions.copy()
        asked = zip(table["run"], table["benchmark"], table["question"], strict=True)
        table["correct"] = [int(by_subsets(values[one], k, score) * whole) for one in asked]
        table["samples"] = whole
        table.drop(columns=["tokens", "truncated"]).to_csv(tmp_path / "counts.csv", index=False)
        expected = {(c["benchmark"], c["cell"]): c for c in analyze(tmp_path / "counts.csv")["cells"]}
        mine = [r for r in rows if r["k"] == k]
        assert {(r["benchmark"], r["cell"]) for r in mine} == set(expected)
        for row in mine:
            other = expected[row["benchmark"], row["cell"]]
            assert row["value"] == pytest.approx(other["accuracy"])
            if row["base_model"]:
                continue  # of an untrained model the sampling of its answers counts, which the table misstates
            assert row["run_means"] == pytest.approx(other["run_means"])
            for part in ("se", "df", "low", "high", "low_these_questions", "high_these_questions"):
                if part.endswith("_these_questions") and (row["value_se_these_questions"] or 0) < 1e-9:
                    continue  # where runs don't differ, the number of answers decides, which the table misstates
                assert same(row[f"value_{part}"], other[f"accuracy_{part}"]), (part, row)
                if row["gain_off"] is not None:
                    assert same(row[f"gain_off_{part}"], other[f"gain_off_{part}"]), (part, row)


def test_at_one_answer_they_are_the_accuracy_with_its_intervals(voted):
    accuracy = {(c["benchmark"], c["cell"]): c for c in analyze(voted)["cells"]}
    for score in ("pass", "maj"):
        for row in (r.record() for r in at_k(load_study(voted), score, (1,))):
            other = accuracy[row["benchmark"], row["cell"]]
            for part in ("se", "low", "high", "low_these_questions", "high_these_questions"):
                assert same(row[f"value_{part}"], other[f"accuracy_{part}"]), (score, part, row["cell"])


def test_layouts_hold_the_ks_that_were_asked_for(voted, tmp_path):
    run = CliRunner()
    text = run.invoke(app, ["tables", str(voted), "--layout", "maj@k", "--out", str(tmp_path / "t")]).stdout
    assert "| cell | maj@1 | maj@2 | maj@4 | maj@6 | gain over all off, maj@6 |" in text
    assert text.count("### voted: maj@k") == 3 and "most frequent of k" in text
    assert "the chance that k answers to a question hold" not in text and "too few for" not in text
    assert text.count("each by itself") == 3
    assert (tmp_path / "t" / "chosen.csv").read_text().startswith("score,benchmark,cell,base_model,k,")
    one = run.invoke(app, ["analyze", str(voted), "--layout", "pass@k", "--k", "5", "--only", "pass@k-amc", "--format",
                           "csv"]).stdout  # fmt: skip
    (first, *_) = csv.DictReader(io.StringIO(one))
    assert list(first)[:5] == ["cell", "pass@5", "pass@5 sd", "pass@5 low", "pass@5 high"]
    found = {(r.label, r.k): r.value.value for r in at_k(load_study(voted), "pass", (5,)) if r.benchmark == "amc"}
    assert float(first["pass@5"]) == pytest.approx(found["untrained model", 5])
    tidy = list(csv.DictReader(io.StringIO(render_tables(voted, "csv", "pass@k", Choices(k=(2, 5))))))
    assert {(r["k"], r["benchmark"]) for r in tidy} == {(k, b) for k in "25" for b in ("macro", "amc", "embedded")}
    for wrong, said in (
        (["--layout", "pass@k", "--k", "7"], "--k 7: expected 1 to 6"),
        (["--layout", "pass@k", "--k", "0"], "--k: got 0"),
        (["--layout", "pass@k", "--k", "two"], "--k: got 'two'"),
        (["--layout", "pas@k"], "did you mean 'pass@k'?"),
        (["--layout", "long", "--k", "2"], "--layout pass@k or maj@k"),
    ):
        done = run.invoke(app, ["analyze", str(voted), *wrong])
        assert done.exit_code == 2 and said in done.stderr and done.stderr.count("\n") == 1, (wrong, done.stderr)


def test_unequal_numbers_of_answers_and_one_answer(tmp_path):
    rng = np.random.default_rng(1)
    rows = [
        {"run": f"{m}{s}", "seed": s, "method": m, "benchmark": b, "question": f"q{q}", "samples": n, "correct": c}
        for m in "ab" for s in (0, 1) for b, least in (("long", 3), ("short", 1)) for q in range(6)
        for n in (least + (q + s) % 3 if b == "long" else 1,) for c in (int(rng.integers(0, n + 1)),)
    ]  # fmt: skip
    results = load_any(pd.DataFrame(rows))
    found = at_k(results, "pass")
    assert {(r.benchmark, r.k) for r in found} == {("macro", 1), ("long", 1), ("long", 2), ("long", 3), ("short", 1)}
    mine = [r for r in rows if r["benchmark"] == "long" and r["method"] == "a"]
    expected = np.mean([pass_at_k(r["samples"], r["correct"], 3) for r in mine])
    assert next(r.value.value for r in found if (r.benchmark, r.label[-1], r.k) == ("long", "a", 3)) == pytest.approx(
        expected
    )
    text = render_tables(results, "markdown", "pass@k", Choices(k=(3,)))
    assert "short: 1 answer to a question, too few for k = 3" in text and text.count("###") == 1
    assert "the chance that k answers to a question hold" in text and "most frequent" not in text
    with pytest.raises(ConfigError, match="expected 1 to 3, the fewest answers that a run has to a question of long"):
        at_k(results, "pass", (4,))
    with pytest.raises(StateError, match="needs what every answer says"):
        at_k(results, "maj")
    alone = load_any(pd.DataFrame([r for r in rows if r["benchmark"] == "short"]))
    for score in ("pass", "maj"):
        with pytest.raises(StateError, match="several answers to a question, every run has one"):
            at_k(alone, score)


def test_diverged_runs_score_as_declared_and_damaged_answers_are_left_out(tmp_path):
    study = make_study(tmp_path / "odd", Spec(seeds=(0, 1), samples=4, wrong_values=2, diverged=[(1, 0)]))
    results = load_study(study)
    rows = {(r.label, r.k): r for r in at_k(results, "maj")}
    base, cell = rows["untrained model", 4], rows["ranking", 4]
    assert min(cell.runs) == pytest.approx(base.value.value) or base.value.value in cell.runs
    shard = next(study.glob("replay-s0*/eval/embedded/*.parquet"))
    shard.write_bytes(shard.read_bytes()[:-40])
    after = {(r.label, r.k): r for r in at_k(load_study(study), "maj")}
    assert len(after["replay", 4].runs) == 1 and after["replay", 4].runs[0] in rows["replay", 4].runs


def test_a_report_says_why_it_has_no_vote(tmp_path):
    study = make_study(tmp_path / "bare", Spec(seeds=(0,), benchmarks={"embedded": 5}, samples=2))
    shard = next(study.glob("replay-s0*/eval/embedded/*.parquet"))
    pq.write_table(pq.read_table(shard).drop_columns(["extracted"]), shard)
    record_again(shard.parents[2])
    page, pictures = render_report(load_study(study, metrics=True), study)
    (note,) = re.findall(r"<li>(no maj@k: .*)</li>", html.unescape(page))
    assert shard.name in note and "no column 'extracted'" in note
    names = [p.name for p in pictures]
    assert "pass-at-k" in names and "maj-at-k" not in names


def simulated(rng, questions: int, gain: float, samples: int, difficulty=None):
    """Votes of one run on questions of which each has a wrong answer that is more tempting than the other three."""
    difficulty = rng.normal(0, 1.5, questions) if difficulty is None else difficulty
    noise = rng.normal(0, 0.15) + rng.normal(0, 0.4, questions)
    p = 1 / (1 + np.exp(difficulty - gain - noise))
    said = rng.random((questions, samples))
    right = (said < p[:, None]).sum(axis=1)
    values = rng.choice(5, size=(questions, samples), p=(0.1, 0.5, 0.2, 0.1, 0.1))  # 0: no value
    counts = np.stack([((values == v) & (said >= p[:, None])).sum(axis=1) for v in range(5)], axis=1)
    return [(int(r), tuple(int(v) for v in sorted(c[1:], reverse=True) if v), int(c[0]))
            for r, c in zip(right, counts, strict=True)]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("score", "k"), [("pass", 4), ("pass", 16), ("maj", 4), ("maj", 16)])
def test_intervals_hold_the_truth_as_often_as_they_say(score, k, monkeypatch):
    """300 studies of 2 cells x 3 seeds, 40 questions x 16 answers: how often 95 % intervals hold the truth.

    The truth is the score of k fresh answers by other seeds to a large number of other questions.
    """
    rng = np.random.default_rng(5)
    place = {"pass": lambda v: float(v[0] > 0), "maj": lambda v: float(majority_curve(*v)[-1])}[score]
    truth = {}
    for label, gain in (("all off", 0.0), ("idea", 0.5)):
        draws = [place(v) for _ in range(200) for v in simulated(rng, 300, gain, k)]
        truth[label] = float(np.mean(draws))
    held, asked = {"value": 0, "gain": 0}, 0
    for _ in range(300):
        difficulty = rng.normal(0, 1.5, 40)
        votes, rows = [], []
        for level, gain in (("off", 0.0), ("on", 0.5)):
            for seed in range(3):
                votes.append(simulated(rng, 40, gain, 16, difficulty))
                run = {"run": f"{level}{seed}", "seed": seed, "idea": level, "benchmark": "b", "samples": 16}
                rows += [{**run, "question": f"q{q:02d}", "correct": v[0]} for q, v in enumerate(votes[-1])]
        table = np.empty((6, 40), object)
        for i, mine in enumerate(votes):
            for q, v in enumerate(mine):
                table[i, q] = v
        results = load_any(pd.DataFrame(rows))
        assert [r.run for r in results.runs] == ["off0", "off1", "off2", "on0", "on1", "on2"]
        monkeypatch.setattr("r3bench.analysis.output.at_k.votes_of", lambda results, table=table: {"b": table})
        for row in at_k(results, score, (k,)):
            part = row.value.like_these
            held["value"] += part.low <= truth[row.label] <= part.high
            if row.gain_off is not None and row.gain_off.like_these.low is not None:  # some question tells them apart
                part, asked = row.gain_off.like_these, asked + 1
                held["gain"] += part.low <= truth["idea"] - truth["all off"] <= part.high
    shares = held["value"] / 600, held["gain"] / asked
    print(f"{score}@{k}: value {shares[0]:.3f}, gain {shares[1]:.3f}")
    assert asked > 280
    assert min(shares) > 0.95 - 3 * (0.95 * 0.05 / 300) ** 0.5, shares
