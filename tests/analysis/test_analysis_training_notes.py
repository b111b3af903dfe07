"""Tables say when runs were trained differently, hardly moved, or lost their answers' weight."""

from dataclasses import replace
from typing import Any

import pytest
from synthetic import make_study

from r3bench.analysis.output.paper_layouts import paper_table
from r3bench.analysis.output.tables import cell_frame, study_tables
from r3bench.analysis.reading.study import load_study
from r3bench.analysis.statistics.cells import cell_rows
from r3bench.errors import StateError
from r3bench.files import read_json, write_json
from r3bench.records import RunPaths, read_record, write_record
from r3bench.seals import sealed

MADE = {
    "strategy": "ddp", "processes": 2, "weights_dtype": "float32", "compute_dtype": "bfloat16",
    "engine": "vllm colocate", "engine_dtype": "bfloat16", "weights_changed": 0.999,
}  # fmt: skip


def study_with(folder: Any, change: Any = None, prefix: str = "replay-s1") -> Any:
    """A study whose runs were all made alike, but for the changes of one of them."""
    study = make_study(folder / "demo")
    for run in sorted(study.iterdir()):
        if (run / "run.json").exists():
            record = read_record(RunPaths(run))
            values = MADE | (change or {} if run.name.startswith(prefix) else {})
            write_record(replace(record, train=replace(record.train, **values)), RunPaths(run))
    return study


def notes_of(study: Any) -> list[str]:
    return list(study_tables(load_study(study))[0].notes)


def test_runs_made_alike_are_put_together_without_a_word(tmp_path: Any) -> None:
    assert not [n for n in notes_of(study_with(tmp_path)) if "pooled" in n or "ever changed" in n]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"strategy": "fsdp2"}, "different strategies"),
        ({"processes": 8}, "different numbers of processes"),
        ({"weights_dtype": "bfloat16"}, "weights of different dtypes"),
        ({"compute_dtype": "float16"}, "different dtypes to compute in"),
        ({"engine": "transformers"}, "different sampling engines"),
        ({"engine_dtype": "float16"}, "engines of different dtypes"),
    ],
)
def test_runs_that_differ_are_told(tmp_path: Any, change: dict[str, Any], said: str) -> None:
    study = study_with(tmp_path, change)
    (note,) = [n for n in notes_of(study) if "are pooled" in n]
    assert note.startswith(f"runs trained with {said} are pooled; ")
    value, (odd,) = next(iter(change.values())), [p.name for p in study.iterdir() if p.name.startswith("replay-s1")]
    assert f"{value}: 1 runs ({odd})" in note


def test_one_process_and_ddp_are_the_same_strategy(tmp_path: Any) -> None:
    pooled = [n for n in notes_of(study_with(tmp_path, {"strategy": "single", "processes": 1})) if "are pooled" in n]
    assert len(pooled) == 1 and "numbers of processes" in pooled[0]


def test_what_older_records_do_not_say_is_no_difference(tmp_path: Any) -> None:
    unknown: dict[str, Any] = dict.fromkeys(MADE.keys() - {"processes"})
    assert not [n for n in notes_of(study_with(tmp_path, unknown)) if "are pooled" in n or "ever changed" in n]


def test_a_run_that_hardly_moved_is_named_in_every_table(tmp_path: Any) -> None:
    study = study_with(tmp_path, {"weights_changed": 0.0038, "weights_dtype": "bfloat16"})
    results = load_study(study)
    (odd,) = [p.name for p in study.iterdir() if p.name.startswith("replay-s1")]
    said = f"{odd}: only 0.38 % of its trained weights ever changed (bfloat16)"
    tables = [t for t in study_tables(results) if t.key.startswith(("cells", "effects", "by-benchmark"))]
    for table in [*tables, paper_table(results, "r3-table1")]:
        assert [n for n in table.notes if n.startswith(said)], table.title
    (column,) = [i for i, c in enumerate(tables[0].columns) if c.name == "weights changed"]
    shown = {row[0].text: row[column].text for row in tables[0].rows}
    assert shown["all off"] == "99.9 %" and shown["replay"] != "99.9 %" and shown["untrained model"] == "-"
    assert "weights_changed" in [c.name for c in cell_frame(cell_rows(results)).columns]


@pytest.mark.parametrize(("weight", "named"), [(0.2, True), (0.49, True), (0.51, False)])
def test_a_cell_whose_answers_lost_more_than_half_their_weight(tmp_path: Any, weight: float, named: bool) -> None:
    bins = {"1-512": {"rows": 10, "weight": 0.98, "below_half": 0.0}, "2049-8192": {"rows": 5, "weight": weight}}
    told = [n for n in notes_of(study_with(tmp_path, {"correction": bins}, prefix="replay-s")) if "correction" in n]
    assert len(told) == named
    if named:
        assert told[0].startswith(
            f"cell replay: the sampler correction left answers of 2049-8192 tokens {weight:.2f} of"
        )


@pytest.mark.parametrize(
    ("key", "value"),
    [("weights_changed", "much"), ("weights_changed", 3), ("correction", {"1-512": 7}), ("correction", {"a": {}}),
     ("strategy", 4)],
)  # fmt: skip
def test_a_damaged_record_is_refused_by_name(tmp_path: Any, key: str, value: Any) -> None:
    study = study_with(tmp_path)
    run = next(p for p in sorted(study.iterdir()) if p.name.startswith("replay-s1"))
    values = read_json(run / "run.json")
    values["train"][key] = value
    write_json(run / "run.json", sealed(values))
    with pytest.raises(StateError, match=rf"train: {key}: got"):
        read_record(RunPaths(run))
