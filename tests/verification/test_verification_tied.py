"""What ties verdicts, answers, weights and measured checkpoints to their run; links and folders in place of files."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spoil import faults, rescore, reseal, rows_of, run_of
from typer.testing import Result

from r3bench.analysis.comparing.heldout import held_out
from r3bench.analysis.reading.study import load_study
from r3bench.errors import StateError
from r3bench.evaluation import shards
from r3bench.evaluation.tied import check_weights
from r3bench.files import write_json
from r3bench.grading import Grader, Verdict
from r3bench.measured import NAME, set_aside_changed, write_measured
from r3bench.records import RunPaths, read_record, write_record
from r3bench.verification.answers import Regrader
from r3bench.verification.findings import Findings

Run = Callable[..., Result]
ROOT = Path(__file__).parents[2]


def test_a_flag_does_not_hide_a_falsified_verdict(r3bench: Run, study: Path) -> None:
    """Right to wrong and wrong to right, said to be a time-out; scores and digests made anew."""
    run = run_of(study, "replay")
    rows = rows_of(run)
    found = [row for stored in rows.values() for row in stored]
    right = next(row for row in found if row["correct"])
    wrong = next(row for row in found if not row["correct"])
    harmless = next(row for row in found if not row["correct"] and row is not wrong)
    right.update(correct=False, timed_out=True)
    wrong.update(correct=True, timed_out=True)
    harmless.update(timed_out=True)
    rescore(run, rows)
    r3bench("tables", "honest")
    told = faults(r3bench, "honest")
    assert [check for check, _, _ in told] == ["grading"] * 2, told
    for row, text in ((right, "in time (stored as timed out)"), (wrong, "a time-out is wrong")):
        spot = f"question {row['question']}, repeat {row['repeat']}: "
        assert any(spot in what and text in what for _, _, what in told)
    assert "graded in time here" in r3bench("verify", "honest").stdout


def test_a_verdict_that_nobody_can_reach_in_time_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Grader):
        def grade(self, responses: Any, golds: Any) -> list[Verdict]:
            return [Verdict(False, "1", "boxed: ", True)] * len(responses)

    monkeypatch.setattr("r3bench.verification.answers.Grader", Slow)
    found = Findings()
    row = {"question": "q", "repeat": 0, "response": "", "gold": "1", "extracted": "1", "grader": Slow().name}
    with Regrader(None, found) as regrader:
        regrader.check([(folder / "a", row | {"correct": c, "timed_out": t}) for c, t in ((1, 0), (0, 0), (0, 1))])
    assert ["hits the time-out here" in what for _, _, what in found.faults] == [True]
    assert len(found.notes) == 1


@pytest.mark.parametrize("partner", ["base", "base-model"])
def test_answers_swapped_with_their_scores_are_named_by_their_weights(r3bench: Run, study: Path, partner: str) -> None:
    """Two runs trade their answers and scores, and every digest is made anew: tables and verify say it."""
    one, other = run_of(study, "replay"), run_of(study, partner)
    first, second = read_record(RunPaths(one)), read_record(RunPaths(other))
    for a, b in ((one / "eval", study / "spare"), (other / "eval", one / "eval"), (study / "spare", other / "eval")):
        shutil.move(a, b)
    write_record(dataclasses.replace(first, eval=second.eval), RunPaths(one))
    write_record(dataclasses.replace(second, eval=first.eval), RunPaths(other))
    result = r3bench("tables", "honest")
    named = {Path(where).parents[2].name for _, where, what in faults(r3bench, "honest") if "other weights" in what}
    if partner == "base":
        assert named == {one.name, other.name}
    else:  # the untrained model's answers can't name weights that were trained
        assert named == {other.name}
    for name in named:
        assert f"{name}: the answers of embedded are of other weights" in result.stdout


def test_answers_of_checkpoints_are_tied_to_what_was_measured(r3bench: Run, study: Path) -> None:
    """A flipped bit, a lost, added or moved file, a score: named by `verify`; the report leaves the point out."""
    run = run_of(study, "replay")
    record = read_record(RunPaths(run))
    folder = run / "checkpoint-eval" / "1"
    shutil.copytree(run / "eval" / "embedded", folder / "embedded")
    assert "measured without a record" in r3bench("verify", "honest", "--sample", "0").stdout
    write_measured(folder, 1, record.eval)
    assert faults(r3bench, "honest", "--sample", "0") == []
    results = load_study(study, metrics=True)
    whole = held_out(study, results)
    assert whole is not None and whole.cells and not whole.damaged
    shard, other = sorted(folder.glob("*/*.parquet"))
    content = {path: path.read_bytes() for path in (shard, other, folder / NAME)}

    def score(value: float) -> None:
        reseal(folder / NAME, lambda v: v["eval"]["embedded"].update({"avg@2": value}))

    def verdicts() -> None:
        rows, settings = shards.read_shard(shard)
        for row in rows:
            row["correct"] = not row["correct"]
        shards.write(shard.parent, shard.stem, rows, settings)

    changes: dict[str, Callable[[], object]] = {
        "lost": shard.unlink,
        "swapped": lambda: shard.write_bytes(content[other]),
        "verdicts": verdicts,
        "record": lambda: (folder / NAME).write_text("[" * 100_000),
        "retyped": lambda: reseal(folder / NAME, lambda v: v.update(files=[1])),
        "step": lambda: reseal(folder / NAME, lambda v: v.update(step=2)),
        "unsealed": lambda: write_json(folder / NAME, {"step": 1, "eval": {}, "files": {}}),
        "score": lambda: score(0.99),
        "figure": lambda: reseal(folder / NAME, lambda v: v["eval"]["embedded"].update(mean_tokens=3.0)),
        "keys": lambda: reseal(folder / NAME, lambda v: v["eval"].update(embedded={"a": None})),
        "summary": lambda: reseal(folder / NAME, lambda v: v["eval"].update(embedded=[[]])),
        "added": lambda: shutil.copy(shard, shard.with_name("r0009-0009.q00000-00001.parquet")),
    }
    for name, change in changes.items():
        change()
        told = faults(r3bench, "honest", "--sample", "0")
        assert told and {check for check, _, _ in told} == {"checkpoints"}, (name, told)
        if name not in ("score", "figure", "keys", "summary", "added"):
            found = held_out(study, results)
            assert found is None or (found.damaged and run.name not in [m.run for c in found.cells.values() for m in c])
        for path, before in content.items():
            path.write_bytes(before)
    shard.with_name("r0009-0009.q00000-00001.parquet").unlink()
    verdicts()
    assert [path.name for path in set_aside_changed(folder)] == [f"{shard.name}.torn"]


def test_weights_are_compared_also_without_the_record_of_training(r3bench: Run, study: Path) -> None:
    run = run_of(study, "replay")
    (run / "model" / "weights").write_text("others")
    (run / "train.json").unlink()
    named = {(check, Path(where).name) for check, where, _ in faults(r3bench, "honest", "--sample", "0")}
    assert named == {("records", "train.json"), ("files", "weights")}
    with pytest.raises(StateError, match="not the weights that were trained"):
        check_weights(RunPaths(run))


@pytest.mark.parametrize("what", ["shard", "run", "log"])
def test_links_are_told_when_an_archive_is_made(r3bench: Run, study: Path, folder: Path, what: str) -> None:
    run = run_of(study, "replay")
    path = {"shard": RunPaths(run).shards()[0], "run": run, "log": run / "metrics.jsonl"}[what]
    shutil.move(path, folder / "elsewhere")
    path.symlink_to(folder / "elsewhere")
    assert f"left out: {path}: is a link" in r3bench("export", str(study), "out.tar.gz").stderr


@pytest.mark.parametrize("kind", ["folder", "link", "loop"])
def test_what_is_no_file_is_named(r3bench: Run, study: Path, kind: str) -> None:
    run = run_of(study, "replay")
    places = [RunPaths(run).shards()[0], study / "tables" / "tables.md"]
    places += [
        run / name for name in ("run.json", "config.json", "environment.json", "metrics.jsonl", "attempts.jsonl")
    ]
    for path in places:
        content = path.read_bytes()
        path.unlink()
        if kind == "folder":
            path.mkdir()
        else:
            path.symlink_to("nowhere" if kind == "link" else path.name)
        result = r3bench("verify", "honest", "--sample", "0")
        assert (result.exit_code, result.stderr) in ((3, ""), (0, "")), (path, result.stderr)
        if kind == "folder":
            assert result.exit_code == 3 and path.name in result.stdout
        assert r3bench("status", "honest").exit_code == 0
        path.rmdir() if kind == "folder" else path.unlink()
        path.write_bytes(content)
