"""Cells at equal cost on held-out questions, from measured checkpoints; training curves only where they compare."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from json_page import documented
from synthetic import Spec, make_study
from typer.testing import CliRunner

from r3bench.analysis import load_study, write_report
from r3bench.analysis.comparing.heldout import at_budget, held_out
from r3bench.analysis.statistics.curves import cell_curves, comparable
from r3bench.cli import app
from r3bench.seals import sealed

STEPS = (15, 30, 45)


def along(root, steps=STEPS, questions=20, lose=0):
    """Answers of checkpoints, as `r3bench eval --checkpoints` stores them: those of the end, wrong in part."""
    wrong = {}
    for run in sorted(root.glob("*-s*-*")):
        for shard in sorted((run / "eval" / "embedded").glob("*.parquet")) if "base-model" not in run.name else ():
            table = pq.read_table(shard).slice(0, questions)
            for step in steps:
                correct = np.array(table["correct"].to_pylist()) & (np.arange(questions) % 60 < step)
                rows = table.set_column(table.column_names.index("correct"), "correct", [correct.tolist()])
                folder = run / "checkpoint-eval" / str(step) / "embedded"
                folder.mkdir(parents=True, exist_ok=True)
                pq.write_table(rows.slice(lose), folder / shard.name)
                wrong[run.name, step] = correct
    return wrong


def accuracy(run, folder, questions):
    rows = [r for p in sorted((run / folder).glob("*.parquet")) for r in pq.read_table(p).to_pylist()]
    by = {}
    for row in rows:
        by.setdefault(row["question"], []).append(row["correct"])
    return float(np.mean([np.mean(by[q]) for q in questions]))


@pytest.fixture
def measured(tmp_path):
    """A study whose runs took 50, 51 and 52 seconds and, by their logs, 102 thousand tokens."""
    root = make_study(tmp_path / "s", Spec(metrics=True))
    along(root)
    return root


def test_the_table_equals_a_plain_computation_from_the_files(measured):
    """Every run on the straight line between its points; Welch's interval by scipy."""
    stats = pytest.importorskip("scipy.stats")
    results = load_study(measured, metrics=True)
    found = held_out(measured, results)
    assert found is not None and found.benchmark == "embedded" and found.questions == 20 and not found.left_out
    questions = [f"q{i:04d}" for i in range(20)]
    base = accuracy(next(measured.glob("base-model*")), "eval/embedded", questions)
    for cost, budget, log in (("tokens", 102_000.0, "generated_tokens"), ("seconds", 50.0, "seconds")):
        rows, at = at_budget(found, cost, 0.9)
        assert at == budget
        cells = {}
        for run in results.runs:
            if run.base:
                continue
            lines = [json.loads(line) for line in (measured / run.run / "metrics.jsonl").read_text().splitlines()]
            spent = {line["step"]: line[log] for line in lines}
            total = {"tokens": run.record.train.generated_tokens, "seconds": run.record.train.train_seconds}[cost]
            if cost == "seconds":  # the log has no `elapsed`: shared out evenly
                spent = {s: total * s / 60 for s in spent}
            x = [0, *(spent[s] for s in STEPS), total]
            x = np.maximum(x, [0] * 4 + [102_000 if cost == "tokens" else 0])  # the log ends above the total
            y = [base, *(accuracy(measured / run.run, f"checkpoint-eval/{s}/embedded", questions) for s in STEPS),
                 accuracy(measured / run.run, "eval/embedded", questions)]  # fmt: skip
            cells.setdefault(tuple(run.levels.values()), []).append(np.interp(budget, x, y))
        values = [np.array(v) for _, v in sorted(cells.items())]
        for row, own in zip(rows, values, strict=True):
            assert row.accuracy == pytest.approx(own.mean(), abs=1e-12)
        if cost == "seconds":
            test = stats.ttest_ind(values[2], values[0], equal_var=False).confidence_interval(0.9)
            assert (rows[2].gain_low, rows[2].gain_high) == pytest.approx((test.low, test.high))
            alone = stats.t.interval(0.9, 2, values[0].mean(), stats.sem(values[0]))
            assert (rows[0].low, rows[0].high) == pytest.approx((max(alone[0], 0), min(alone[1], 1)))
            assert rows[0].gain is None


def test_the_report_has_it_with_the_declared_confidence(tmp_path):
    root = make_study(tmp_path / "s", Spec(metrics=True, analysis={"confidence": 0.9}))
    page = write_report(root, tmp_path / "r.html", figures=False).read_text()
    assert "Held-out accuracy at equal" not in page and "r3bench eval STUDY --checkpoints N" in page
    assert "At matched generated tokens" not in page and "is not compared" in page  # components change the batch
    along(root)
    page = write_report(root, tmp_path / "r.html", figures=False).read_text()
    assert "Held-out accuracy at equal generated tokens" in page and "Held-out accuracy at equal device seconds" in page
    assert "90 % intervals over seeds, on exactly these questions" in page
    assert "r3bench eval STUDY --checkpoints N" not in page
    (next(root.glob("replay-s1-*")) / "checkpoint-eval").rename(tmp_path / "gone")
    page = write_report(root, tmp_path / "r.html", figures=False).read_text()
    assert "left out, no checkpoint of theirs was measured: replay-s1-" in page


def test_training_compares_only_where_the_batch_is_alike(tmp_path):
    """Of fresh groups, or with no component on in any run."""
    from dataclasses import replace

    results = load_study(make_study(tmp_path / "s", Spec(metrics=True)), metrics=True)
    assert not comparable(results, cell_curves(results))
    fresh = {run: [{**line, "fresh/correct": 0.5} for line in log] for run, log in results.metrics.items()}
    told = replace(results, metrics=fresh)
    assert comparable(told, cell_curves(told))
    runs = tuple(replace(r, record=replace(r.record, train=replace(r.record.train, acted={}))) for r in results.runs)
    plain = replace(results, runs=runs)
    assert comparable(plain, cell_curves(plain)) and not comparable(plain, {})


def test_a_point_beyond_the_budget_is_no_measurement_at_it(tmp_path):
    """Without a measured start, a run that was first measured later than the budget has no accuracy there."""
    root = make_study(tmp_path / "s", Spec(metrics=True, base_model=False))
    along(root, steps=(45,))
    slow = next(root.glob("replay-s1-*"))
    record = json.loads((slow / "run.json").read_text())
    record["train"]["train_seconds"] = 5000.0
    (slow / "run.json").write_text(json.dumps(sealed(record)))
    results = load_study(root, metrics=True)
    found = held_out(root, results)
    rows, budget = at_budget(found, "seconds")
    assert budget == 50 and {r.label: r.runs for r in rows}["replay"] == 2
    page = write_report(root, tmp_path / "r.html", figures=False).read_text()
    assert f"their first measured point lies beyond the budget: {slow.name}" in page


def test_kept_checkpoints_of_a_real_study_are_measured(tmp_path, monkeypatch):
    """Two runs trained for six steps: two checkpoints each, within the budget that was asked for, once only."""
    from r3bench.sweep.dispatch.ablate import ablate
    from r3bench.sweep.grid import parse_grid

    monkeypatch.chdir(tmp_path)
    values = {
        "name": "along", "recipe": "quickstart", "factors": {"replay": ["off", "on"]}, "seeds": [0], "base_model": True,
        "set": {"trainer.max_steps": 6, "trainer.max_completion_length": 8, "trainer.per_device_train_batch_size": 16,
                "trainer.save_steps": 1, "trainer.save_total_limit": 10, "data.limit": 8},
        "eval": {"samples": 1, "limit": 10}, "executor": {"kind": "inline"}, "keep": "all", "disk_floor_gb": 0.1,
    }  # fmt: skip
    ablate(parse_grid(values, "along.yaml"), Path("runs"))
    done = CliRunner().invoke(app, ["eval", "along", "--checkpoints", "2", "--json", "limit=5"])
    assert done.exit_code == 0, done.output
    found = documented(done.stdout, "eval-checkpoints")
    assert len(found) == 2 and {tuple(steps) for steps in found.values()} == {("2", "4")}
    assert {s["questions"] for steps in found.values() for step in steps.values() for s in step.values()} == {5}
    shards = sorted(Path("runs").glob("*/*/checkpoint-eval/*/*/*.parquet"))
    before = [p.stat().st_mtime_ns for p in shards]
    assert CliRunner().invoke(app, ["eval", "along", "--checkpoints", "2", "limit=5"]).exit_code == 0
    assert len(shards) == 4 and [p.stat().st_mtime_ns for p in shards] == before
    page = write_report(Path("runs/along"), tmp_path / "r.html", figures=False).read_text()
    assert "5 questions of embedded" in page and "Held-out accuracy at equal device seconds" in page
    one = next(Path("runs/along").glob("replay-s0-*"))
    assert CliRunner().invoke(app, ["eval", one.name, "--checkpoints", "1", "limit=5"]).exit_code == 0
    for words in (["along", "--checkpoints", "0"], ["along", "--checkpoints", "1", "--out", "x"]):
        assert CliRunner().invoke(app, ["eval", *words]).exit_code == 2
    for folder in Path("runs/along").glob("*/checkpoints"):
        folder.rename(tmp_path / f"kept-{folder.parent.name}")
    done = CliRunner().invoke(app, ["eval", "along", "--checkpoints", "2"])
    assert done.exit_code == 3 and "keep: all" in str(done.exception) + done.output
