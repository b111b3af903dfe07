"""Regrading, explaining, comparing and the overlap check, on stored answers."""

import json
from dataclasses import asdict, replace

import pytest

from r3bench.config.sections import DataSection
from r3bench.errors import ConfigError, StateError
from r3bench.evaluation import shards
from r3bench.evaluation.compare import compare_runs
from r3bench.evaluation.explain import explain
from r3bench.evaluation.overlap import overlap, training_overlap
from r3bench.evaluation.regrade import agreement, regrade
from r3bench.evaluation.summary import summarise
from r3bench.grading.grader import RULES
from r3bench.lock import exclusive
from r3bench.records import RunPaths, RunRecord, TrainRecord, read_record, write_record

RESPONSES = {  # question -> (gold, responses)
    "q1": (r"\frac{1}{2}", [r"\boxed{0.5}", r"\boxed{\dfrac12}", "so 1/2"]),
    "q2": ("7", [r"\boxed{7}", r"\boxed{8}", "seven"]),
}


def store(run, responses=RESPONSES, task="math", settings=None):
    rows = [
        {"question": q, "repeat": r, "seed": r, "response": text, "tokens": 5, "gold": gold, "extracted": None,
         "reason": "", "correct": False, "truncated": False, "timed_out": False, "grader": "none"}
        for q, (gold, texts) in responses.items() for r, text in enumerate(texts)
    ]  # fmt: skip
    shards.write(run / "eval" / task, "r0000-0002.q00000-00001", rows, settings or {"task": task, "seed": 0})
    return run


@pytest.fixture
def stored(tmp_path):
    return store(tmp_path / "run")


def verdicts(run, task="math"):
    return {(r["question"], r["repeat"]): r["correct"] for r in shards.read(run / "eval" / task)}


def test_regrading_changes_verdicts_and_nothing_else(stored):
    before = shards.read(stored / "eval" / "math")
    report = regrade(stored)["math"]
    after = shards.read(stored / "eval" / "math")
    right = {key for key, correct in verdicts(stored).items() if correct}
    assert right == {("q1", 0), ("q1", 1), ("q2", 0)}
    assert (report["answers"], report["to_right"], report["to_wrong"]) == (6, 3, 0)
    assert report["summary"]["avg@3"] == pytest.approx(0.5)
    for old, new in zip(before, after, strict=True):
        for column in ("question", "repeat", "seed", "response", "tokens", "gold", "truncated"):
            assert old[column] == new[column]
    _, settings = shards.read_shard(shards.files(stored / "eval" / "math")[0])
    assert settings == {"task": "math", "seed": 0}

    exact = regrade(stored, grader="exact")["math"]
    assert (exact["to_right"], exact["to_wrong"]) == (0, 1)  # 0.5 is not spelt like 1/2
    lenient = regrade(stored, require_boxed=False)["math"]
    assert lenient["to_right"] == 2 and verdicts(stored)["q1", 2]
    assert {row["grader"] for row in shards.read(stored / "eval" / "math")} == {lenient["grader"]}


def test_regrading_a_run_updates_its_record(stored):
    record = RunRecord(run_id="r", name="n", config_hash="h", seed=0, factors={},
                       train=TrainRecord("finished", None, 1, 1, 1.0, "cpu", 1),
                       eval={"math": {"old": 1}, "other": {"x": 2}}, commit=None, started="a", ended="b")  # fmt: skip
    write_record(record, RunPaths(stored))
    regrade(stored)
    new = read_record(RunPaths(stored))
    assert new.eval["math"] == json.loads(json.dumps(summarise(shards.read(stored / "eval" / "math"))))
    assert new.eval["other"] == {"x": 2}
    told = {"math": {"settings": {"temperature": 0.6, "require_boxed": True}}}
    write_record(replace(record, eval=told), RunPaths(stored))
    regrade(stored, require_boxed=False)
    new_settings = read_record(RunPaths(stored)).eval["math"]["settings"]
    assert new_settings == {"temperature": 0.6, "require_boxed": False}  # as it was graded now
    assert {k: v for k, v in asdict(new).items() if k not in ("eval", "files")} == {
        k: v for k, v in asdict(record).items() if k not in ("eval", "files")
    }


def test_agreement_of_the_second_grader(stored):
    regrade(stored)
    report = agreement(stored)["math"]
    assert report["agreement"] == pytest.approx(5 / 6)
    assert report["differ"] == [
        {"question": "q1", "repeat": 0, "gold": r"\frac{1}{2}", "extracted": "0.5", "reason": "boxed: fraction: equal",
         "stored": True, "exact": False}
    ]  # fmt: skip


def test_the_summary_tells_the_agreement(stored):
    assert regrade(stored)["math"]["summary"]["agreement"] == pytest.approx(5 / 6)
    lenient = regrade(stored, require_boxed=False)["math"]["summary"]  # "so 1/2" and "seven" are looked at as graded
    assert lenient["agreement"] == pytest.approx(4 / 6) == agreement(stored)["math"]["agreement"]


def test_regrading_waits_for_no_evaluation(stored):
    with exclusive(stored / "eval" / ".lock"), pytest.raises(StateError, match="an evaluation is writing there"):
        regrade(stored)
    regrade(stored)


def test_one_case_explained(stored):
    regrade(stored)
    (case,) = explain(stored, "q1", repeat=1)
    assert case["task"] == "math" and case["form"] == "boxed" and case["correct"] and case["exact"]
    assert case["canonical"] == case["canonical_gold"] == r"\frac{1}{2}"
    assert [c["repeat"] for c in explain(stored / "eval", "q2", task="math")] == [0, 1, 2]
    with pytest.raises(ConfigError, match="no stored answer to question 'q3'; valid: q1, q2"):
        explain(stored, "q3")
    with pytest.raises(ConfigError, match="question 'q1' has no repeat 9"):
        explain(stored, "q1", repeat=9)
    with pytest.raises(ConfigError, match="task 'maths'; did you mean 'math'"):
        explain(stored, "q1", task="maths")
    with pytest.raises(StateError, match="no stored answers"):
        explain(stored / "eval" / "math", "q1")


def test_two_runs_compared(tmp_path):
    a = store(tmp_path / "a")
    better = {q: (gold, [rf"\boxed{{{gold}}}"] * 3) for q, (gold, _) in RESPONSES.items()}
    b = store(tmp_path / "b", {**better, "q3": ("1", [r"\boxed{1}"] * 3)})
    for run in (a, b):
        regrade(run)
    (row,) = compare_runs(b, a)
    assert (row["task"], row["questions"], row["unmatched"], row["samples"]) == ("math", 2, 1, [3, 3])
    assert row["difference"] == pytest.approx(1 - 0.5)
    assert (row["better"], row["worse"], row["equal"], row["notes"]) == (2, 0, 0, [])
    assert row["p"] == pytest.approx(0.5)  # two questions moved one way: 2 of 4 sign patterns
    regrade(a, grader="exact")
    assert compare_runs(b, a)[0]["notes"] == [
        f"grader: r3bench-{RULES}/math-verify-0.9.0/boxed and r3bench-{RULES}/exact/boxed"
    ]
    warmer = store(tmp_path / "warmer", settings={"task": "math", "seed": 1, "temperature": 0.6})
    regrade(warmer)
    assert compare_runs(b, warmer)[0]["notes"] == ["temperature: None and 0.6"]
    store(tmp_path / "c", task="elsewhere")
    with pytest.raises(StateError, match="no task in common"):
        compare_runs(a, tmp_path / "c")


TEXT = "Find the number of ordered pairs of positive integers $(a,b)$ with $a+b=1000$ and no zero digit in either"


def test_overlap_finds_the_same_text_and_near_copies():
    train = [{"id": "t1", "problem": TEXT + "."}, {"id": "t2", "problem": "Compute $1+1$."}]
    test = [
        {"id": "same", "problem": "  " + TEXT.replace("$", "") + "."},
        {"id": "near", "problem": TEXT + " digit sum, then add 3."},
        {"id": "short", "problem": r"Compute $1 + 1$."},
        {
            "id": "other",
            "problem": "What is the area of a circle of radius three that touches both of the given lines?",
        },
        {
            "id": "half",
            "problem": TEXT[:45] + " that have a rather different ending altogether, which is not shared at all.",
        },
    ]
    report = overlap(train, test)
    assert (report["questions"], report["exact"], report["near"]) == (5, 2, 1)
    pairs = {pair["test"]: pair for pair in report["pairs"]}
    assert pairs["same"] == {"test": "same", "train": "t1", "share": 1.0, "exact": True}
    assert pairs["short"]["train"] == "t2"
    assert 0.5 <= pairs["near"]["share"] < 1
    assert overlap([], test)["pairs"] == []
    assert overlap(train, test, near=0.01)["near"] == 2


def test_the_embedded_sets_do_not_overlap():
    report = training_overlap(DataSection(limit=300), ["embedded", "embedded-validation"])
    assert [(r["questions"], r["exact"]) for r in report.values()] == [(400, 0), (200, 0)]


def test_a_training_file_that_holds_test_questions(tmp_path):
    from r3bench.training.questions.embedded import questions

    path = tmp_path / "leak.jsonl"
    rows = questions("train", limit=5) + questions("test", limit=3)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = training_overlap(DataSection(name=str(path)), ["embedded"])["embedded"]
    assert report["exact"] == 3
    assert {pair["test"] for pair in report["pairs"] if pair["exact"]} == {
        row["id"] for row in questions("test", limit=3)
    }
