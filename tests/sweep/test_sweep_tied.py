"""A record is tied to the bytes behind it: what is not as it was recorded is left out by name, and made again."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from toy import TOY, run_toy
from typer.testing import CliRunner

from r3bench.analysis import load_study
from r3bench.cli import app
from r3bench.config.load import load_recipe
from r3bench.errors import StateError
from r3bench.evaluation import shards
from r3bench.evaluation.regrade import regrade
from r3bench.evaluation.tied import corrupt_shards, note_rewrite
from r3bench.files import append_jsonl, read_json, read_jsonl, write_json
from r3bench.records import RunPaths, read_record, read_train, write_record
from r3bench.seals import sealed
from r3bench.sweep.cell_run import finished, run_cell
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.executors.inline import InlineExecutor
from r3bench.sweep.grid import parse_grid


@pytest.fixture
def grid(grid_values):
    grid_values["factors"].pop("bonus")
    return parse_grid({**grid_values, "keep": "all"}, "toy.yaml")


@pytest.fixture
def study(home, grid):
    assert ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=lambda line: None).complete
    return home / "runs" / "toy"


def tables(study):
    result = CliRunner().invoke(app, ["tables", str(study)])
    assert result.exit_code == 0, (result.stderr, result.exception)
    return result.stdout


def run_of(study, start):
    return next(path for path in study.glob(f"{start}-*") if path.is_dir())


def edit_shard(path, change):
    """Rewrite a shard as a tool for parquet would, with `change` of its rows."""
    table = pq.read_table(path)
    pq.write_table(pa.Table.from_pylist(change(table.to_pylist()), schema=table.schema), path)


def flip(path, place, bit=0):
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


@pytest.mark.parametrize("field", ["correct", "repeat", "tokens", "question"])
def test_edited_answers_leave_their_run_out(study, field):
    run = run_of(study, "replay-s0")
    new = {"correct": lambda v: not v, "repeat": lambda v: v + 1, "tokens": lambda v: v + 1, "question": "x".__add__}

    def change(rows):
        return [{**rows[0], field: new[field](rows[0][field])}, *rows[1:]]

    shard = run / "eval" / "embedded" / "repeat-0.parquet"
    edit_shard(shard, change)
    shown = tables(study)
    assert f"{run.name}: " in shown and "repeat-0.parquet: has other content than run.json says" in shown


def test_answers_that_are_fewer_than_recorded_are_counted_one_by_one(study):
    """Consistent with the digests: the record was made anew of what is left."""
    run = run_of(study, "replay-s0")
    for start in ("replay-s0", "replay-s1"):
        one = run_of(study, start)
        (one / "eval" / "embedded" / "repeat-1.parquet").unlink()
        write_record(read_record(RunPaths(one)), RunPaths(one))
    shown = tables(study)
    assert f"{run.name}: 6 of 12 answers of embedded are stored" in shown
    assert "| replay | - |" in shown or "| replay | 0 |" in shown or "replay yes" not in shown


def test_a_score_that_the_answers_do_not_give(study):
    run = run_of(study, "replay-s0")
    values = read_json(run / "run.json")
    score = values["eval"]["embedded"]["avg@2"]
    values["eval"]["embedded"]["avg@2"] = 0.99
    write_json(run / "run.json", sealed(values))
    assert f"run.json says avg@2 = 0.99 for embedded, its answers give {score:.6g}" in tables(study)


EDITS = {
    "factors": {"factors": {"replay": "off"}},
    "seed": {"seed": 7},
    "config_hash": {"config_hash": "0" * 12},
    "outcome": "finishe",
    "tokens": -3,
    "processes": "1",
}


@pytest.mark.parametrize("case", EDITS)
@pytest.mark.parametrize("seal", [sealed, dict], ids=["resealed", "edited"])
def test_an_edited_record_leaves_its_run_out(study, case, seal):
    run = run_of(study, "replay-s0")
    values = read_json(run / "run.json")
    key = {"tokens": "generated_tokens"}.get(case, case)
    if key in values["train"]:
        values["train"][key] = EDITS[case]
    else:
        values |= EDITS[case]
    write_json(run / "run.json", seal(values))
    shown = tables(study)
    assert f"{run.name}: left out, " in shown and "run.json: " in shown


@pytest.mark.parametrize("what", ["folders", "eval", "run.json", "config.json", "one shard"])
def test_swapped_parts_of_two_runs_are_named(study, what):
    one, other = run_of(study, "replay-s0"), run_of(study, "base-s0")
    name = {"folders": ".", "one shard": "eval/embedded/repeat-0.parquet"}.get(what, what)
    a, b = one / name, other / name
    spare = study / "spare"
    shutil.move(a, spare)
    shutil.move(b, a)
    shutil.move(spare, b)
    shown = tables_or_refusal(study)
    assert one.name in shown and other.name in shown
    assert any(word in shown for word in ("is of", "has other content", "left out"))


def tables_or_refusal(study):
    result = CliRunner().invoke(app, ["tables", str(study)])
    assert "Traceback" not in result.stderr and result.exit_code in (0, 3)
    return result.stdout + result.stderr


def test_files_that_no_record_knows_change_no_number(study):
    before = tables(study)
    run = run_of(study, "replay-s0")
    (run / "eval" / "other").mkdir()
    shutil.copy(run / "eval" / "embedded" / "repeat-0.parquet", run / "eval" / "other" / "a.parquet")
    edit_shard_copy = run / "eval" / "embedded" / "zzz.parquet"
    shutil.copy(run / "eval" / "embedded" / "repeat-0.parquet", edit_shard_copy)
    edit_shard(edit_shard_copy, lambda rows: [{**row, "repeat": 5, "correct": True} for row in rows])
    after = tables(study)
    rows = [line for line in before.splitlines() if line.startswith("|")]
    assert rows == [line for line in after.splitlines() if line.startswith("|")]
    assert f"{run.name}: 1 files of answers in eval/embedded are left out" in after
    assert f"{run.name}: 1 files of answers in eval/other are left out" in after


def test_a_study_file_that_was_edited_is_refused_and_made_again(study, home, grid):
    file = study / "study.json"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'"failed_score"', b'"failed_scorE"').replace(b'"seed": 1', b'"seed": 3', 1))
    result = CliRunner().invoke(app, ["tables", "toy"])
    assert (result.exit_code, result.stdout) == (3, "")
    assert "study.json: its content and its digest don't agree" in result.stderr
    assert ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=lambda line: None).complete
    assert file.read_bytes() == whole


def test_older_files_without_checksums_are_read_and_said_to_be(study):
    before = tables(study)
    for file in [study / "study.json", *study.glob("*/run.json"), *study.glob("*/train.json")]:
        values = {k: v for k, v in read_json(file).items() if k not in ("digest", "files")}
        if "train" in values:
            del values["train"]["files"]
        write_json(file, {**values, "schema": 1} if "schema" in values else values, sort_keys=False)
    after = tables(study)
    assert [line for line in after.splitlines() if line.startswith("|")] == [
        line for line in before.splitlines() if line.startswith("|")
    ]
    assert "runs were recorded by an older version of r3bench, without checksums" in after
    assert "study.json: written by an older version of r3bench" in after


def test_damage_is_mended_by_the_same_command(study, home, grid):
    before = tables(study)
    kept = {path: path.read_bytes() for path in study.glob("*/eval/*/*.parquet")}
    shard, record = run_of(study, "replay-s0") / "eval/embedded/repeat-1.parquet", run_of(study, "base-s1") / "run.json"
    flip(shard, 600)
    flip(record, record.read_bytes().index(b'"steps": ') + 9, 1)
    assert tables(study) != before
    assert ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=lambda line: None).complete
    assert {path: path.read_bytes() for path in study.glob("*/eval/*/*.parquet")} == kept
    strip = [line for line in tables(study).splitlines() if "train s" not in line]
    assert strip == [line for line in before.splitlines() if "train s" not in line]
    assert len(read_jsonl(study / "executions.jsonl")) == 4  # nothing was trained again


@pytest.mark.parametrize("harm", ["flipped", "cut", "gone", "added"])
def test_weights_that_were_not_trained_are_not_measured(home, harm):
    recipe = load_recipe("quickstart", ["eval.samples=1"])
    run_cell(recipe, home / "run", steps=TOY)
    weights = home / "run" / "model" / "weights"
    if harm == "flipped":
        flip(weights, 3)
    elif harm == "cut":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif harm == "gone":
        weights.rename(home / "elsewhere")
        (home / "run" / "model" / "README.md").write_text("a card may change")
    else:
        (home / "run" / "model" / "adapter_config.json").write_text("{}")
    more = load_recipe("quickstart", ["eval.samples=2"])
    name = "adapter_config.json" if harm == "added" else "weights"
    with pytest.raises(StateError, match=f"model/{name}: .*not the weights that were trained"):
        run_cell(more, home / "run", steps=TOY)
    result = CliRunner().invoke(app, ["eval", str(home / "run"), "--samples", "2"])
    assert result.exit_code == 3 and f"model/{name}: " in result.stderr and "Traceback" not in result.stderr
    assert finished(recipe, RunPaths(home / "run")) is not None  # what was measured stays


def test_a_regrading_that_was_cut_short_is_not_taken_for_damage(tmp_path):
    paths = RunPaths(tmp_path / "run")
    rows = [
        {"question": f"q{i}", "repeat": 0, "seed": 1, "response": r"\boxed{7}", "tokens": 3, "gold": "7",
         "extracted": "7", "reason": "", "correct": False, "truncated": False, "timed_out": False, "grader": "old"}
        for i in range(3)
    ]  # fmt: skip
    shards.write(paths.evaluation / "t", "a", rows, {})
    run_cell(load_recipe("quickstart"), tmp_path / "other", steps=TOY)
    record = read_record(RunPaths(tmp_path / "other"))
    write_record(record, paths)
    shards.write(paths.evaluation / "t", "a", [{**row, "correct": True} for row in rows], {}, note_rewrite)
    assert corrupt_shards(paths) == {}
    assert regrade(paths.root, grader="exact")["t"]["answers"] == 3
    assert not (paths.evaluation / ".rewritten.jsonl").exists()
    shards.write(paths.evaluation / "t", "a", [{**row, "correct": False} for row in rows], {})
    with pytest.raises(StateError, match=r"t/a.parquet: has other content than run.json says"):
        regrade(paths.root, grader="exact")


def test_a_flipped_bit_in_a_shard_without_a_record_is_found(tmp_path):
    rows = [
        {"question": f"q{i}", "repeat": 0, "seed": 1, "response": "so it is 7 " * 9, "tokens": 3, "gold": "7",
         "extracted": "7", "reason": "", "correct": i % 2 == 0, "truncated": False, "timed_out": False, "grader": "g"}
        for i in range(8)
    ]  # fmt: skip
    shards.write(tmp_path, "a", rows, {"model": "m"})
    path = tmp_path / "a.parquet"
    whole, same = path.read_bytes(), shards.read_shard(path)
    for place in np.random.default_rng(0).integers(4, len(whole), 150):
        flip(path, int(place), int(place) % 8)
        try:
            found = shards.read_shard(path)
        except StateError as error:
            assert str(path) in str(error)
        else:
            assert found[0] == same[0] or path.stat().st_size == 0
        path.write_bytes(whole)


def test_lines_carry_a_checksum_and_damaged_ones_are_told(tmp_path):
    file = tmp_path / "a.jsonl"
    for number in range(3):
        append_jsonl(file, {"event": "start", "n": number})
    assert [line["n"] for line in read_jsonl(file)] == [0, 1, 2]
    whole = file.read_bytes()
    for place in range(len(whole)):
        flip(file, place, place % 7)
        bad: list[int] = []
        found = read_jsonl(file, bad)
        assert all((line.get("event", "start"), line.get("n", 0)) in {("start", n) for n in range(3)} for line in found)
        assert len(found) == 3 or bad
        file.write_bytes(whole)
    file.write_text('{"event": "start", "n": 0}\n')  # of an older version
    assert read_jsonl(file) == [{"event": "start", "n": 0}]


def test_the_log_of_a_run_is_tied_to_its_training(study):
    run = run_of(study, "replay-s0")
    assert set(read_train(RunPaths(run)).files) == {"metrics.jsonl", "model/weights"}
    flip(run / "metrics.jsonl", 12)
    results = load_study(study, metrics=True)
    assert results.metrics[run.name] == []
    assert any("metrics.jsonl: has other content" in note for note in results.notes)


def test_damaged_attempts_of_a_lost_run_are_told(study):
    run = run_of(study, "replay-s0")
    (run / "run.json").unlink()
    append_jsonl(run / "attempts.jsonl", {"event": "failure", "kind": "bug", "message": "boom"})
    append_jsonl(run / "attempts.jsonl", {"event": "gave_up"})
    flip(run / "attempts.jsonl", (run / "attempts.jsonl").read_bytes().index(b"gave_up"), 1)
    assert "attempts.jsonl: 1 lines left out" in tables(study)


def test_every_key_of_a_record_has_a_type(study):
    run = run_of(study, "replay-s0")
    whole = json.loads((run / "run.json").read_text())
    wrong = [None, True, -1, 1.5, "x", [], {}, [[]], {"a": []}, 10**400, float("nan")]
    for where in ((), ("train",), ("eval", "embedded")):
        part = whole
        for key in where:
            part = part[key]
        for key in part.keys() - {"digest"}:
            for value in wrong:
                copy = json.loads(json.dumps(whole))
                spot = copy
                for step in where:
                    spot = spot[step]
                spot[key] = value
                del copy["digest"]
                (run / "run.json").write_text(json.dumps(copy | {"schema": 1}))
                assert load_study(study)  # neither a traceback nor a refusal of the others
