"""What a study's folder may hold besides whole runs of its own: copies, torn or missing answers, uneven benchmarks."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic import Spec, make_study, record_again

from r3bench.analysis import load_study, render_tables
from r3bench.analysis.statistics.cells import cell_rows
from r3bench.analysis.statistics.effects import effects
from r3bench.errors import StateError
from r3bench.files import read_json, write_json
from r3bench.records import RunPaths, read_record, write_record, write_study

RUN = "replay-s0-000000000003"


@pytest.fixture
def root(tmp_path):
    return make_study(tmp_path / "s", Spec(seeds=(0, 1)))


def shards(root, run=RUN):
    return sorted((root / run / "eval" / "embedded").glob("*.parquet"))


def runs_column(root):
    """cell -> what its `runs` column shows."""
    lines = render_tables(root).splitlines()
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    head = next(i for i, c in enumerate(cells) if c[:2] == ["cell", "runs"])
    return {c[0]: c[1] for c in cells[head + 1 : head + 6] if len(c) > 1}


def rewrite(root, change):
    spec = json.loads((root / "study.json").read_text())
    change(spec)
    write_study(spec, root / "study.json")


@pytest.mark.parametrize("listed", [True, False])
def test_a_copied_run_is_not_another_replicate(root, listed):
    if not listed:
        (root / "study.json").unlink()
    before = load_study(root)
    shutil.copytree(root / RUN, root / "backup")
    after = load_study(root)
    assert [r.run for r in after.runs] == [r.run for r in before.runs]
    assert runs_column(root)["replay"] == "2"
    assert any(n.startswith("backup: left out") and RUN in n for n in after.notes)


def test_a_run_overwritten_by_a_copy_is_left_out_and_named(root):
    other = "replay-s1-000000000003"
    shutil.rmtree(root / other)
    shutil.copytree(root / RUN, root / other)
    results = load_study(root)
    assert other not in [r.run for r in results.runs] and runs_column(root)["replay"] == "1"
    assert any(n.startswith(f"{other}: left out, its run.json is of {RUN}") for n in results.notes)


def test_a_run_that_is_not_in_the_grid_is_left_out_but_the_untrained_model_is_not(root):
    base = next(p.name for p in root.iterdir() if p.name.startswith("base-model"))
    rewrite(root, lambda s: s.update(cells=[c for c in s["cells"] if c["run_id"] not in (RUN, base)]))
    (root / "odd").mkdir()
    (root / "odd" / "run.json").write_text("{")
    results = load_study(root)
    names = [r.run for r in results.runs]
    assert RUN not in names and base in names
    assert {f"{RUN}: left out, not a run of this study", "odd: left out, not a run of this study"} <= set(results.notes)


def test_nothing_but_copies_says_what_was_left_out(tmp_path, root):
    shutil.copytree(root / RUN, tmp_path / "t" / "backup")
    with pytest.raises(StateError, match=r"no finished run.*backup: left out"):
        load_study(tmp_path / "t")
    assert len(load_study(tmp_path / "t" / "backup").runs) == 1  # the folder of one run may have any name


def test_a_run_without_answers_is_named_and_not_counted(root):
    shutil.rmtree(root / RUN / "eval")
    results = load_study(root)
    assert f"{RUN}: no answers for embedded" in results.notes
    assert runs_column(root) == {"untrained model": "-", "all off": "2", "ranking": "2", "replay": "1",
                                 "replay + ranking": "2"}  # fmt: skip
    assert RUN in render_tables(root)


def test_a_torn_file_costs_its_run_only(root):
    before = load_study(root).benchmarks["embedded"]
    shards(root)[0].write_bytes(b"torn")
    results = load_study(root)
    row = [r.run for r in results.runs].index(RUN)
    after = results.benchmarks["embedded"]
    assert not after.measured[row] and after.measured.sum() == len(results.runs) - 1
    assert np.delete(after.correct, row, 0).tolist() == np.delete(before.correct, row, 0).tolist()
    note = next(n for n in results.notes if "has other content than run.json says" in n)
    assert note.startswith(RUN) and shards(root)[0].name in note
    assert runs_column(root)["replay"] == "1" and shards(root)[0].name in render_tables(root)


def test_a_study_of_torn_files_names_them(root):
    for shard in root.glob("*/eval/embedded/*.parquet"):
        shard.write_bytes(b"torn")
    with pytest.raises(StateError, match=r"no run has answers.*has other content than run.json says"):
        load_study(root)


def test_one_run_measured_further_does_not_remove_the_others(root):
    before = load_study(root)
    for shard in shards(root):
        table = pq.read_table(shard)
        more = table.set_column(0, "question", pa.array([f"r{q}" for q in table["question"].to_pylist()]))
        pq.write_table(pa.concat_tables([table, more]), shard)
    record = read_record(RunPaths(root / RUN))
    measured = {**record.eval["embedded"], "questions": 80, "pass@4": 1.0}
    write_record(dataclasses.replace(record, eval={"embedded": measured}), RunPaths(root / RUN))
    after = load_study(root)
    for name in ("samples", "correct", "truncated", "tokens"):
        old, new = (getattr(r.benchmarks["embedded"], name) for r in (before, after))
        np.testing.assert_array_equal(old, new)
    assert any(n.startswith("embedded: 40 of 80 questions left out") for n in after.notes)
    assert set(runs_column(root).values()) == {"-", "2"}
    assert all(row.summary["pass@4"] == 0.75 for row in cell_rows(after))  # what was counted over 80 is not mixed in


def test_a_run_measured_on_other_questions_is_left_out(root):
    for shard in shards(root):
        table = pq.read_table(shard)
        other = pa.array([f"r{q}" for q in table["question"].to_pylist()])
        pq.write_table(table.set_column(0, "question", other), shard)
    record_again(root / RUN)
    results = load_study(root)
    assert f"{RUN}: answers to 0 of 40 questions of embedded; left out of this benchmark" in results.notes
    assert results.benchmarks["embedded"].measured.sum() == len(results.runs) - 1
    assert next(r for r in cell_rows(results) if r.label == "replay").runs == ("replay-s1-000000000003",)


LR = Spec(factors={"lr": ["small", "big"], "a": ["on", "off"]}, seeds=(0, 1), effects={"lr": -3.0})


def as_mappings(spec):
    spec["grid"]["factors"] = {f: dict.fromkeys(sorted(v), 1) for f, v in sorted(spec["grid"]["factors"].items())}


def test_the_first_level_is_the_reference_whatever_the_alphabet_says(tmp_path):
    root = make_study(tmp_path / "s", LR)

    def listed(spec):
        spec["factors"] = [{"name": f, "levels": v} for f, v in spec["grid"]["factors"].items()]
        as_mappings(spec)

    rewrite(root, listed)
    results = load_study(root)
    assert results.factors == {"lr": ("small", "big"), "a": ("on", "off")} and list(results.factors) == ["lr", "a"]
    effect = next(e for e in effects(results, draws=0)[0] if e.kind == "main" and "lr" in e.factors)
    assert effect.term == "lr=big" and effect.estimate < -0.2


def test_an_older_study_takes_its_reference_from_the_first_cell(tmp_path):
    root = make_study(tmp_path / "s", LR)

    def older(spec):
        as_mappings(spec)
        spec["grid"]["design"] = "full"

    rewrite(root, older)
    values = read_json(root / "study.json")
    write_json(root / "study.json", {k: v for k, v in values.items() if k not in ("digest", "schema")})
    assert load_study(root).factors == {"a": ("on", "off"), "lr": ("small", "big")}


@pytest.mark.parametrize("name", ["study.json", "run.json"])
def test_files_of_another_version_are_refused_by_name(tmp_path, name):
    root = make_study(tmp_path / "demo", Spec(seeds=(0, 1)))
    file = root / name if name == "study.json" else sorted(root.glob("base-s0-*/run.json"))[0]
    write_json(file, {**read_json(file), "schema": 3})
    said = f"{name}: schema 3, expected 2; .*of another version of r3bench"
    if name == "study.json":
        with pytest.raises(StateError, match=said):
            load_study(root)
    else:
        results = load_study(root)
        assert any(re.search(said, note) for note in results.notes)
        assert file.parent.name not in [run.run for run in results.runs]
