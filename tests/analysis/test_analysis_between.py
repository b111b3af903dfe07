"""Two studies held against each other: pairing, intervals against a plain reference, and what is said of the rest."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats
from synthetic import Spec, make_study, record_again

from r3bench import load
from r3bench.analysis.comparing.between import EVERY, compare_studies
from r3bench.analysis.reading.study import load_study
from r3bench.analysis.results import Results, Run, Scores
from r3bench.errors import ConfigError, StateError

SMALL = {"embedded": 12}


def made(
    cells: dict[str, np.ndarray], *, factor: str = "replay", seeds: int = 0, questions: list[str] | None = None,
    name: str = "s", **declared: object,
) -> Results:  # fmt: skip
    """A study of one factor whose levels have these right answers (runs, questions) of 8 each."""
    runs, rows = [], []
    for level, counts in cells.items():
        for i, row in enumerate(counts):
            runs.append(Run(f"{name}-{level}-{i}", seeds + i, {factor: level}))
            rows.append(row)
    correct = np.array(rows)
    ids = questions or [f"q{i}" for i in range(correct.shape[1])]
    scores = Scores(tuple(ids), np.full(correct.shape, 8), correct)
    found = Results(name, {factor: tuple(cells)}, tuple(runs), {"t": scores})
    return dataclasses.replace(found, declared=dataclasses.replace(found.declared, **declared)) if declared else found


def drawn(rng: np.random.Generator, runs: int, questions: int, logit: float, easy: np.ndarray) -> np.ndarray:
    """(runs, questions) right answers of 8, with noise of runs, questions by runs, and sampling."""
    z = logit + easy + rng.normal(0, 0.3, (runs, 1)) + rng.normal(0, 0.4, (runs, questions))
    return rng.binomial(8, 1 / (1 + np.exp(-z)))


def test_difference_and_both_variances_equal_a_plain_reference() -> None:
    rng = np.random.default_rng(0)
    easy = rng.normal(0, 1.5, 30)
    a = made({"off": drawn(rng, 3, 30, 0.0, easy), "on": drawn(rng, 4, 30, 1.0, easy)}, name="a")
    b = made({"off": drawn(rng, 2, 30, 0.0, easy), "on": drawn(rng, 5, 30, 0.2, easy)}, name="b", seeds=1)
    found = {pair.cell: pair for pair in compare_studies(a, b).pairs}
    assert list(found) == ["all off", "replay", EVERY]
    for level, cell in (("off", "all off"), ("on", "replay")):
        sides = []
        for study in (a, b):
            rows = [i for i, run in enumerate(study.runs) if run.levels["replay"] == level]
            sides.append(study.benchmarks["t"].correct[rows] / 8)
        run = overlap = 0.0
        for y in sides:  # each side's runs are a sample of its own
            run += y.mean(axis=1).var(ddof=1) / len(y)
            rest = y - y.mean(axis=1, keepdims=True) - y.mean(axis=0) + y.mean()
            overlap += (rest**2).sum() / ((len(y) - 1) * (y.shape[1] - 1)) / y.shape[1] / len(y)
        per_question = sides[0].mean(axis=0) - sides[1].mean(axis=0)  # questions are paired
        question = per_question.var(ddof=1) / 30
        pair = found[cell]
        assert pair.difference == pytest.approx(per_question.mean(), abs=1e-12)
        assert pair.like_these.se == pytest.approx(max(run + question - overlap, run, question) ** 0.5, rel=1e-9)
        assert pair.runs == tuple(len(y) for y in sides) and pair.questions == 30
        half = stats.t.ppf(0.975, pair.like_these.df) * pair.like_these.se
        assert pair.like_these.high == pytest.approx(pair.difference + half, rel=1e-6)
    p = [found[cell].like_these.p for cell in ("all off", "replay")]
    assert found["replay"].p_adjusted == pytest.approx(min(1.0, 2 * p[1]) if p[1] <= p[0] else max(p[1], 2 * p[0]))
    mean = np.mean([found["all off"].difference, found["replay"].difference])
    assert found[EVERY].difference == pytest.approx(mean) and found[EVERY].p_adjusted is None


def test_intervals_hold_what_they_say() -> None:
    """Studies of one recipe, questions of one population: about 95 of 100 intervals hold no difference."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        easy = rng.normal(0, 1.5, 40)
        a, b = (made({"off": drawn(rng, 3, 40, 0.0, easy), "on": drawn(rng, 3, 40, 0.0, easy)}) for _ in range(2))
        pair = compare_studies(a, b).pairs[0]
        held += pair.like_these.low <= 0 <= pair.like_these.high
    assert held >= 180  # 190 expected, standard deviation 3.1


def test_without_a_second_run_the_interval_is_about_these_models_and_says_so() -> None:
    rng = np.random.default_rng(2)
    easy = rng.normal(0, 1, 25)
    a, b = (made({"off": drawn(rng, 1, 25, 0, easy), "on": drawn(rng, 1, 25, 0.5, easy)}, name=n) for n in "ab")
    found = compare_studies(a, b)
    for pair in found.pairs:
        assert pair.like_these.low is None and pair.like_these.p is None and pair.models.low is not None
    assert any(note.startswith("t: ~ ") and "other seeds" in note for note in found.notes)
    more = made({"off": drawn(rng, 3, 25, 0, easy), "on": drawn(rng, 1, 25, 0.5, easy)}, name="b")
    found = compare_studies(a, more)
    assert all(pair.like_these.low is not None for pair in found.pairs)
    assert any("one run only" in note and "replay" in note for note in found.notes)


def test_cells_are_paired_by_levels_not_by_spelling_or_order() -> None:
    rng = np.random.default_rng(3)
    easy = rng.normal(0, 1, 10)

    def some() -> np.ndarray:
        return drawn(rng, 2, 10, 0.0, easy)

    a = made({"0.0001": some(), "1e-3": some(), "0.5": some()}, factor="trainer.learning_rate", name="a")
    b = made({"0.001": some(), "1e-4": some(), "7": some()}, factor="trainer.learning_rate", name="b")
    found = compare_studies(a, b)
    cells = [pair for pair in found.pairs if pair.kind == "cell"]
    assert [pair.cell for pair in cells] == ["trainer.learning_rate=0.0001", "trainer.learning_rate=1e-3"]
    expected = a.benchmarks["t"].correct[:2].mean() / 8 - b.benchmarks["t"].correct[2:4].mean() / 8
    assert cells[0].difference == pytest.approx(expected)
    assert found.alone == (("trainer.learning_rate=0.5",), ("trainer.learning_rate=7",))
    # a factor that one study alone varies is off in the other
    wider = made({"off": some(), "on": some()}, factor="replay", name="a")
    narrow = made({"False": some(), "random": some()}, factor="ranking", name="b")
    found = compare_studies(wider, narrow)
    assert [pair.cell for pair in found.pairs] == ["all off"]
    assert found.alone == (("replay",), ("ranking=random",))
    with pytest.raises(StateError, match="no cell in common"):
        compare_studies(made({"on": some()}, name="a"), made({"random": some()}, name="b"))


def test_questions_are_paired_by_id_and_what_is_left_out_is_counted() -> None:
    rng = np.random.default_rng(4)
    counts = {level: rng.integers(0, 9, (2, 6)) for level in ("off", "on")}
    a = made(counts, name="a")
    turned = {level: c[:, ::-1] for level, c in counts.items()}
    b = made(turned, name="b", questions=[f"q{i}" for i in (5, 4, 3, 2, 1, 0)])
    assert all(pair.difference == 0 for pair in compare_studies(a, b).pairs)
    fewer = made({level: c[:, 2:] for level, c in counts.items()}, name="b", questions=["q2", "q3", "q4", "q5"])
    found = compare_studies(a, fewer)
    assert found.pairs[0].questions == 4 and found.pairs[0].difference == 0
    assert "t: 2 of 6 questions left out, only a has them" in found.notes
    other = made(counts, name="b", questions=[f"x{i}" for i in range(6)])
    with pytest.raises(StateError, match=r"no question in common \(ids such as q0 and x0\)"):
        compare_studies(a, other)
    with pytest.raises(ConfigError, match="no benchmark 'u'"):
        compare_studies(a, b, ["u"])
    elsewhere = dataclasses.replace(b, benchmarks={"u": b.benchmarks["t"]})
    with pytest.raises(StateError, match="no benchmark in common"):
        compare_studies(a, elsewhere)


def test_one_run_in_both_is_not_taken_for_two() -> None:
    rng = np.random.default_rng(5)
    counts = {level: rng.integers(0, 9, (3, 12)) for level in ("off", "on")}
    a = made(counts)
    found = compare_studies(a, made(counts))
    assert all(p.difference == 0 and p.like_these.low is None and p.models.low is None for p in found.pairs)
    assert any(note.startswith("6 runs are in both with the same answers") for note in found.notes)
    counts["on"] = rng.integers(0, 9, (3, 12))
    both = compare_studies(a, made(counts))
    found = {pair.cell: pair for pair in both.pairs}
    assert found["replay"].like_these.low is not None and found["replay"].same_runs == 0
    assert found["all off"].like_these.low is None and found[EVERY].like_these.low is None
    assert any("3 runs have one id in both studies" in note for note in both.notes)


def test_what_a_declared_holds_for_both() -> None:
    rng = np.random.default_rng(6)
    easy = rng.normal(0, 1, 15)
    counts = [{"off": drawn(rng, 3, 15, 0, easy), "on": drawn(rng, 3, 15, 0, easy)} for _ in range(2)]
    wide = compare_studies(made(counts[0], name="a", confidence=0.99), made(counts[1], name="b"))
    narrow = compare_studies(made(counts[0], name="a"), made(counts[1], name="b", confidence=0.99))
    assert wide.confidence == 0.99 and narrow.confidence == 0.95
    assert wide.pairs[0].like_these.low < narrow.pairs[0].like_these.low


def test_the_command_on_studies_and_tables(r3bench, folder: Path) -> None:
    spec = Spec(benchmarks={"embedded": 12, "amc": 8}, seeds=(0, 1))
    make_study(folder / "runs" / "one", spec)
    two = make_study(folder / "two", dataclasses.replace(spec, diverged=[(1, 0)]), seed=1)
    for config in two.glob("*/config.json"):
        config.write_text(json.dumps({**json.loads(config.read_text()), "trainer": {"max_steps": 40}}))
    for shard in two.glob("*/eval/amc/*.parquet"):
        table = pq.read_table(shard)
        gold = ["8" if question == "q0000" else "7" for question in table["question"].to_pylist()]
        pq.write_table(table.set_column(table.column_names.index("gold"), "gold", [gold]), shard)
    for config in two.glob("*/config.json"):
        record_again(config.parent)
    shown = r3bench("compare", "one", "two")
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert lines[0] == "a: runs/one, 4 cells, 9 runs" and lines[1] == "b: two, 4 cells, 9 runs"
    assert lines[2].split("  ")[0] == "benchmark" and sum(line.startswith("macro ") for line in lines) == 6
    notes = [line.removeprefix("note: ") for line in lines if line.startswith("note: ")]
    assert "setting trainer.max_steps: None and 40" in notes
    assert any(
        note.startswith("amc: 1 of 8 questions have another gold answer in b (q0000: 7 and 8)") for note in notes
    )
    assert any("questions are paired by their ids; runs are not" in note for note in notes)
    found = json.loads(r3bench("compare", "one", "two", "--tasks", "amc", "--json").stdout)
    assert found["schema"] == "r3bench.compare-studies/1"
    assert {row["benchmark"] for row in found["cells"]} == {"amc"} and found["cells"][0]["kind"] == "untrained"
    mine, theirs = load_study(folder / "runs" / "one"), load_study(two)
    off = found["cells"][1]
    assert off["cell"] == "all off" and off["runs_a"] == 2
    assert off["a"] == pytest.approx(mine.benchmarks["amc"].accuracy[1:3].mean())
    frame = load("runs/one").compare(load(two), ["amc"])
    assert list(frame["difference"]) == [row["difference"] for row in found["cells"]]
    assert frame.attrs["notes"] == found["notes"]
    assert r3bench("convert", "runs/one", "--out", "one.csv").exit_code == 0
    again = json.loads(r3bench("compare", "one.csv", "two", "--tasks", "amc", "--json").stdout)
    assert [row["difference"] for row in again["cells"]] == pytest.approx([row["difference"] for row in found["cells"]])
    for arguments, said in (
        (("one", next(iter(theirs.runs)).run), "expected two of a kind"),
        (("two", "onne"), "study 'onne': no such folder with a study.json, nor below runs; did you mean 'one'"),
        (("one.csv", "nowhere"), "or another table or study"),
        (("one", "two", "--factors", "x"), "a study's factors are its grid's"),
    ):
        refused = r3bench("compare", *arguments, "--runs", "runs")
        assert refused.exit_code != 0 and said in refused.output, (arguments, refused.output)
