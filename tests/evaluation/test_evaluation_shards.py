"""Which answers are missing, and what stored ones are refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r3bench.errors import StateError
from r3bench.evaluation import shards


def row(question, repeat, response="x", **extra):
    return {"question": question, "repeat": repeat, "seed": 1, "response": response, "tokens": 3, "gold": "1",
            "extracted": None, "reason": "r", "correct": False, "truncated": False, "timed_out": False, "grader": "g",
            **extra}  # fmt: skip


@given(
    st.integers(1, 150), st.integers(1, 20), st.sets(st.tuples(st.integers(0, 149), st.integers(0, 19)), max_size=40)
)
@settings(max_examples=80, deadline=None)
def test_blocks_hold_each_missing_answer_once_and_no_other(count, samples, have):
    questions = [f"q{i}" for i in range(count)]
    stored = {(f"q{i}", r) for i, r in have}
    found = shards.blocks(questions, samples, stored)
    pairs = [(q, r) for block in found for q in block.questions for r in block.repeats]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == {(q, r) for q in questions for r in range(samples)} - stored
    assert len({block.name for block in found}) == len(found)
    assert all(len(b.questions) <= shards.QUESTIONS and len(b.repeats) <= shards.REPEATS for b in found)


def test_more_samples_reuse_the_blocks_of_fewer():
    questions = [f"q{i}" for i in range(70)]
    assert shards.blocks(questions, 32, set()) == shards.blocks(questions, 64, set())[:8]


def test_a_shard_comes_back_as_written(tmp_path):
    rows = [row("q\u00e9", 0, "text \x00 \ud7ff \n"), row("q2", 0, extracted="1", correct=True)]
    shards.write(tmp_path, "s", rows, {"seed": 0})
    got, settings_ = shards.read_shard(tmp_path / "s.parquet")
    assert got == rows and settings_ == {"seed": 0}


def test_equal_answers_in_two_shards_are_one(tmp_path):
    shards.write(tmp_path, "a", [row("q1", 0), row("q1", 1)], {})
    shards.write(tmp_path, "b", [row("q1", 1), row("q2", 0)], {})
    assert [(r["question"], r["repeat"]) for r in shards.read(tmp_path)] == [("q1", 0), ("q2", 0), ("q1", 1)]


def test_contradicting_shards_are_refused(tmp_path):
    shards.write(tmp_path, "a", [row("q1", 0)], {})
    shards.write(tmp_path, "b", [row("q1", 0, "y")], {})
    with pytest.raises(StateError, match="question q1, repeat 0 has another response"):
        shards.read(tmp_path)


def test_other_settings_are_refused_and_named(tmp_path):
    shards.write(tmp_path, "a", [row("q1", 0)], {"temperature": 0.6, "seed": 0})
    assert shards.read(tmp_path, {"seed": 0})
    with pytest.raises(StateError, match=r"temperature 0\.6 \(now 1\.0\)"):
        shards.read(tmp_path, {"temperature": 1.0, "seed": 0})


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\0" * 500, json.dumps({}).encode()])
def test_a_torn_file_is_named(tmp_path, content):
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(StateError, match=r"a\.parquet: not readable"):
        shards.read(tmp_path)


def test_a_foreign_table_is_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"question": ["q"]}), tmp_path / "a.parquet")
    with pytest.raises(StateError, match="no column correct"):
        shards.read(tmp_path)


def foreign(tmp_path, table, metadata=None):
    import pyarrow.parquet as pq

    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "a.parquet")


def test_other_types_of_our_columns(tmp_path):
    import pyarrow as pa

    rows = [row("q1", 0), row("q2", 0)]
    foreign(tmp_path, pa.Table.from_pylist(rows))  # a column of nulls only has no type of its own
    assert shards.read(tmp_path) == rows
    foreign(tmp_path, pa.Table.from_pylist([{**r, "correct": "perhaps"} for r in rows]))
    with pytest.raises(StateError, match=r"a\.parquet: columns are not ours"):
        shards.read(tmp_path)


@pytest.mark.parametrize(("settings_", "said"), [(b"{", "not readable as JSON"), (b"[1]", "expected a mapping")])
def test_settings_that_were_edited(tmp_path, settings_, said):
    import pyarrow as pa

    foreign(tmp_path, pa.Table.from_pylist([row("q1", 0)]), {shards.KEY: settings_})
    with pytest.raises(StateError, match=rf"a\.parquet: .*{said}"):
        shards.read(tmp_path)


def test_a_temporary_file_is_not_a_shard(tmp_path):
    shards.write(tmp_path, "a", [row("q1", 0)], {})
    (tmp_path / ".b.parquet.x.tmp").write_bytes(b"half")
    assert len(shards.read(tmp_path)) == 1
