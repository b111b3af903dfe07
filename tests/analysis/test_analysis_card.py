"""The card of a testbed: its intervals, its detectable effect, and what it calls calibrated."""

import json
import math

import numpy as np
import pytest
from json_page import documented
from typer.testing import CliRunner

from r3bench.analysis.statistics.calibration import LEVELS, card, detectable_effect, difference, fifths, text
from r3bench.cli import app
from r3bench.records import RunRecord, TrainRecord
from r3bench.sweep.attempts import Failure
from r3bench.sweep.cells import BASE_MODEL
from r3bench.sweep.dispatch.dispatcher import Report

SEEDS = (3, 4, 5, 6)
OFF = (0.40, 0.52, 0.47, 0.61)


def made(gain=0.2, drift=(0.01, -0.02, 0.02, -0.01), logs=None, margin=0.01):
    values = {
        "off": OFF, "positive": [a + gain + 0.01 * i for i, a in enumerate(OFF)],
        "null": [a + d for a, d in zip(OFF, drift, strict=True)],
    }  # fmt: skip
    runs = {
        level: {
            s: {"accuracy": a, "tokens": 1000 + s, "seconds": 9.0} for s, a in zip(SEEDS, values[level], strict=True)
        }
        for level in LEVELS
    }
    return card("bed", "task", 0.1, runs, {level: {seed: logs or [] for seed in SEEDS} for level in LEVELS}, margin)


def test_the_interval_is_students_over_differences_by_seed():
    """With the quantile of Student's table for 3 degrees of freedom, 3.182446."""
    found = difference([0.5, 0.7, 0.4, 0.8], OFF)
    gaps = [0.10, 0.18, -0.07, 0.19]
    mean = sum(gaps) / 4
    sd = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / 3)
    assert found.estimate == pytest.approx(mean)
    assert found.sd == pytest.approx(sd)
    assert found.high - mean == pytest.approx(3.182446 * sd / 2, rel=1e-6)
    assert mean - found.low == pytest.approx(3.182446 * sd / 2, rel=1e-6)


@pytest.mark.parametrize("seeds", [2, 4, 8, 16])
def test_an_effect_of_the_detectable_size_is_found_in_four_studies_of_five(seeds):
    """Simulated: the studies are drawn, and their own intervals looked at."""
    size, rng = detectable_effect(0.07, seeds), np.random.default_rng(seeds)
    quantile = {2: 12.706205, 4: 3.182446, 8: 2.364624, 16: 2.131450}[seeds]
    gaps = rng.normal(size, 0.07, (20_000, seeds))
    half = quantile * gaps.std(axis=1, ddof=1) / math.sqrt(seeds)
    assert np.mean(np.abs(gaps.mean(axis=1)) > half) == pytest.approx(0.8, abs=0.012)


def test_no_spread_finds_anything():
    assert detectable_effect(0.0, 4) == 0.0


def test_calibrated_is_a_found_effect_and_a_null_that_is_not_found():
    assert made().faults == []
    assert "calibrated" in text(made()).splitlines()[-1]
    (missed,) = made(gain=-0.01).faults
    assert missed.startswith("the positive control isn't told from none")
    assert "harm" not in missed
    (harm,) = made(gain=-0.3).faults  # found, but on the wrong side
    assert harm.startswith("the positive control")
    (loud,) = made(drift=(0.1, 0.11, 0.09, 0.1)).faults
    assert loud.startswith("the null control is told from none: +10.0")
    assert len(made(gain=0.0, drift=(0.1, 0.11, 0.09, 0.1)).faults) == 2
    assert text(made(gain=-0.3)).splitlines()[-1].startswith("not calibrated")


def test_a_small_null_that_is_found_is_none_inside_the_margin():
    drift = (0.012, 0.014, 0.013, 0.013)  # found, all of it between 1.1 and 1.5 points
    assert len(made(drift=drift).faults) == 1
    assert made(drift=drift, margin=0.02).faults == []
    assert len(made(drift=[-d for d in drift], margin=0.0142).faults) == 1  # its interval reaches beyond
    assert "(margin 2)" in text(made(drift=drift, margin=0.02))


def test_a_run_is_cut_into_fifths_of_its_tokens():
    log = [{"generated_tokens": 10 * n, "reward": n} for n in range(1, 11)]
    assert fifths(log, "reward") == (1.0, 2.5, 4.5, 6.5, 9.0)  # at 20, 40, ... a part ends and the next begins
    gap = [{"generated_tokens": 10, "reward": 1.0}, {"generated_tokens": 100, "reward": None}]
    assert fifths(gap, "reward")[-1] == 1.0
    assert all(math.isnan(value) for value in fifths([], "reward"))


def test_the_card_says_what_was_logged():
    log = [
        {"generated_tokens": 100, "reward": 0.0, "exploration/dead": 1.0, "exploration/solved": 0.0},
        {"generated_tokens": 200, "reward": 0.5, "exploration/dead": 0.25, "exploration/solved": 0.75},
    ]
    arm = made(logs=log).arms["off"]
    assert (arm.dead_at_start, arm.solved, arm.dead[-1], arm.reward[-1]) == (1.0, 0.75, 0.25, 0.5)
    assert arm.tokens == 1004.5
    assert math.isnan(arm.dead[0])
    assert "before training" in text(made(logs=log))
    assert "75.0 %" in text(made(logs=log))


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["testbed_sparse", "--seeds", "1"], "--seeds: got 1, expected at least 2"),
        (["quickstart"], "expected one, 'control', with off, positive, null"),
        (["testbed_spars"], "testbed_sparse"),
    ],
)
def test_mistakes_are_one_line(arguments, said, tmp_path):
    result = CliRunner().invoke(app, ["calibrate", *arguments, "--runs", str(tmp_path)])
    assert result.exit_code == 2
    assert said in result.stderr and len(result.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def planted(folder, accuracies, outcome="finished", failed=()):
    """What a dispatcher leaves behind: runs with these accuracies by level, and their logs."""
    report = Report(folder / "study", failed={name: Failure("bug", "planted") for name in failed})
    for level, values in {"base": [0.125], **accuracies}.items():
        for seed, accuracy in enumerate(values):
            name = f"{level}-s{seed}"
            (report.study / name).mkdir(parents=True)
            line = {"generated_tokens": 900, "reward": 0.5, "exploration/dead": 0.75, "exploration/solved": 0.25}
            (report.study / name / "metrics.jsonl").write_text(json.dumps(line) + "\n")
            factors = dict(BASE_MODEL) if level == "base" else {"control": level}
            how = outcome if name == "null-s1" else "finished"
            train = TrainRecord(how, None, 9, 900 + seed, 8.0, "cpu", 1)
            own = seed + (1000 if level == "null" else 0)  # null has seeds of its own
            report.finished[name] = RunRecord(
                name, level, "hash", own, factors, train, {"bed": {"avg@4": accuracy}}, None, "", ""
            )
    return report


@pytest.mark.parametrize(
    "positive, null, code, faults",
    [
        ([0.75, 0.60, 0.86], [0.51, 0.37, 0.62], 0, []),
        ([0.51, 0.37, 0.62], [0.75, 0.60, 0.86], 1, ["the positive", "the null"]),
        ([0.75, 0.60, 0.86], [0.75, 0.60, 0.86], 1, ["the null"]),
        ([0.25, 0.10, 0.36], [0.51, 0.37, 0.62], 1, ["the positive"]),
    ],
)
def test_the_command_says_and_returns_what_the_records_say(monkeypatch, tmp_path, positive, null, code, faults):
    off = [0.5, 0.375, 0.625]
    report = planted(tmp_path, {"off": off, "positive": positive, "null": null})
    monkeypatch.setattr("r3bench.sweep.dispatch.ablate.ablate", lambda *_, **__: report)
    command = ["calibrate", "testbed_sparse", "--seeds", "3", "--runs", str(tmp_path)]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == code, shown.output
    assert shown.stdout.splitlines()[-1].startswith("not calibrated" if faults else "calibrated")
    page = CliRunner().invoke(app, [*command, "--json"])
    assert page.exit_code == code
    values = documented(page.stdout, "calibrate")
    assert (values["calibrated"], values["start"], values["seeds"]) == (not faults, 0.125, [0, 1, 2])
    assert [said.partition(" control ")[0] for said in values["faults"]] == faults
    gaps = [p - o for p, o in zip(positive, off, strict=True)]
    mean = sum(gaps) / 3
    half = 4.302653 * math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / 2) / math.sqrt(3)  # Student's, 2 degrees
    assert values["positive"]["low"] == pytest.approx(mean - half, rel=1e-6)
    assert values["arms"]["off"]["tokens"] == 901
    assert values["arms"]["off"]["dead_at_start"] == 0.75


def test_no_card_from_runs_that_are_missing_or_diverged(monkeypatch, tmp_path):
    levels = {level: [0.5, 0.6] for level in LEVELS}
    command = ["calibrate", "testbed_sparse", "--seeds", "2", "--runs", str(tmp_path)]
    for name, changes, said in (
        ("gone", {"failed": ["null-s2"]}, "1 failed"),
        ("off", {"outcome": "diverged"}, "null-s1: diverged"),
    ):
        report = planted(tmp_path / name, levels, **changes)
        monkeypatch.setattr("r3bench.sweep.dispatch.ablate.ablate", lambda *_, report=report, **__: report)
        result = CliRunner().invoke(app, command)
        assert result.exit_code not in (0, 2), result.output
        assert said in result.stderr
        assert "calibrated" not in result.stdout


@pytest.mark.slow
def test_calibrate_through_the_front_door(tmp_path):
    """`pytest -m slow tests/analysis/test_analysis_card.py`: real runs, too short to tell anything."""
    command = ["calibrate", "testbed_sparse", "trainer.max_steps=2", "eval.limit=4", "--seeds", "2", "--first", "7"]
    result = CliRunner().invoke(app, [*command, "--runs", str(tmp_path)])
    assert result.exit_code == 1, result.output
    assert "testbed_sparse, measured on testbed-worked, 2 seeds a level" in result.stdout
    assert "not calibrated: the positive control isn't told from none" in result.stdout
    assert len(list((tmp_path / "calibrate-testbed_sparse").glob("*/run.json"))) == 5
    null = (tmp_path / "calibrate-testbed_sparse-null").glob("*/run.json")
    assert sorted(json.loads(path.read_text())["seed"] for path in null) == [1007, 1008]
