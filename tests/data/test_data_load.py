"""`load_questions`: known sets, files, hub sets, and what is refused."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from r3bench.config.sections import DataSection
from r3bench.errors import DataError
from r3bench.training.questions.load import load_questions

Jsonl = Callable[..., DataSection]
TWO = [{"id": "a", "problem": "1+1?", "answer": "2"}, {"id": "b", "problem": "1+2?", "answer": "3"}]


def test_embedded_sets() -> None:
    small = load_questions(DataSection(limit=3))
    assert small.column_names == ["question_id", "prompt", "problem", "answer", "solution"]
    assert small["question_id"][:] == [f"embedded-9-train-{n:04d}" for n in range(3)]
    assert small[0]["prompt"][0]["content"].startswith(small[0]["problem"])
    assert len(load_questions(DataSection(name="embedded-20", split="validation"))) == 200


@pytest.mark.parametrize(("name", "count"), [("gsm8k", 7473), ("math", 7470), ("aime", 968)])
def test_real_sets_load_whole(real_data: Path, name: str, count: int) -> None:
    loaded = load_questions(DataSection(name=name))
    assert len(loaded) == count == len(set(loaded["question_id"]))
    assert all(answer.strip() and "####" not in answer for answer in loaded["answer"])
    assert loaded["question_id"][:] == load_questions(DataSection(name=name))["question_id"][:]


def test_math_repeats_problems_under_different_ids(real_data: Path) -> None:
    """Nine problems stand in it twice but for spacing and punctuation; they stay apart."""
    texts = load_questions(DataSection(name="math"))["problem"]
    problems = ["".join(filter(str.isalnum, text.lower())) for text in texts]
    assert len(problems) - len(set(problems)) == 9


def test_local_copy_comes_before_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jsonl: Jsonl) -> None:
    Path(jsonl(TWO).name).rename(tmp_path / "deepscaler.jsonl")
    monkeypatch.setenv("R3BENCH_DATA", str(tmp_path))
    assert load_questions(DataSection(name="deepscaler"))["question_id"][:] == ["a", "b"]


class Hub:
    """Stands in for `datasets.load_dataset`: serves prepared rows and remembers what it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]] | Exception) -> None:
        self.rows, self.asked = rows, []  # type: ignore[var-annotated]
        monkeypatch.setattr(datasets, "load_dataset", self)

    def __call__(self, name: str, config: str | None, *, split: str, revision: str | None) -> datasets.Dataset:
        self.asked.append((name, config, split, revision))
        if isinstance(self.rows, Exception):
            raise self.rows
        return datasets.Dataset.from_list(self.rows)


@pytest.mark.usefixtures("no_local_data")
def test_gsm8k_solutions_are_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = "He has 5*2=<<5*2=10>>10 apples.\n#### 1,010"
    hub = Hub(monkeypatch, [{"question": "How many?", "answer": answer}])
    loaded = load_questions(DataSection(name="gsm8k"))
    assert loaded[0]["answer"] == "1010" and loaded[0]["problem"] == "How many?"
    assert hub.asked == [("openai/gsm8k", "main", "train", "740312add88f781978c0658806c59bc2815b9866")]
    assert loaded[0]["question_id"] == load_questions(DataSection(name="gsm8k", limit=1))[0]["question_id"]


@pytest.mark.usefixtures("no_local_data")
def test_math_joins_subjects_and_takes_the_last_box(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch, [{"problem": "p", "solution": r"So $\boxed{1}$, no: $\boxed{\frac{1}{2}}$."}])
    loaded = load_questions(DataSection(name="math"))
    assert set(loaded["answer"]) == {r"\frac{1}{2}"}
    assert len(hub.asked) == 7 == len(set(loaded["question_id"]))  # the same problem seven times: seven ids
    hub.rows = [{"problem": "p", "solution": "no box"}, {"problem": "q", "solution": r"\boxed{3"}]
    with pytest.raises(DataError, match=r"row 2: column 'solution': no final answer"):
        load_questions(DataSection(name="math"))


@pytest.mark.usefixtures("no_local_data")
def test_deepscaler_leaves_out_its_six_unanswered_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, Any]] = [{"problem": f"p{n}", "answer": "" if n % 2 else "7"} for n in range(13)]
    hub = Hub(monkeypatch, rows)
    assert len(load_questions(DataSection(name="deepscaler"))) == 7
    assert "left out 6 rows" in capsys.readouterr().err
    hub.rows = [*rows, {"problem": "p13", "answer": None}]
    with pytest.raises(DataError, match=r"DeepScaleR-Preview-Dataset row 14: column 'answer': the answer is empty"):
        load_questions(DataSection(name="deepscaler"))


def test_generated_questions_bring_their_working() -> None:
    for name in ("embedded", "embedded-20"):
        for row in load_questions(DataSection(name=name, limit=50)):
            *equations, mark, box = row["solution"].split()
            value, *operands = map(int, re.findall(r"\d+", row["problem"]))
            assert (mark, box) == ("Answer:", f"\\boxed{{{row['answer']}}}") and len(equations) == len(operands)
            for equation, verb, operand in zip(equations, re.findall("add|sub", row["problem"]), operands, strict=True):
                result = value + operand if verb == "add" else value - operand
                assert equation == f"{value}{'+' if verb == 'add' else '-'}{operand}={result}"
                value = result


@pytest.mark.usefixtures("no_local_data")
def test_solutions_are_kept_where_the_data_have_them(monkeypatch: pytest.MonkeyPatch, jsonl: Jsonl) -> None:
    worked = "He has 5*2=10 apples.\n#### 10"
    Hub(monkeypatch, [{"question": "How many?", "answer": worked}])
    assert load_questions(DataSection(name="gsm8k"))["solution"][:] == [worked]
    Hub(monkeypatch, [{"problem": "p", "solution": r"First, $2 \cdot 3$. So \boxed{6}."}])
    loaded = load_questions(DataSection(name="math"))
    assert loaded[0]["answer"] == "6" and loaded[0]["solution"] == r"First, $2 \cdot 3$. So \boxed{6}."
    Hub(monkeypatch, [{"prompt": "p", "solution": "34"}])  # a column of that name that holds final answers
    assert "solution" not in load_questions(DataSection(name="dapo")).column_names

    rows = [{"problem": "p", "answer": "1", "solution": "so 1", "how": 3}, {"problem": "q", "answer": "2"}]
    assert load_questions(jsonl(rows))["solution"][:] == ["so 1", None]
    assert "solution" not in load_questions(jsonl(TWO)).column_names
    assert "solution" not in load_questions(dataclasses.replace(jsonl(rows), solution=None)).column_names
    assert load_questions(dataclasses.replace(jsonl(rows), solution="how"))["solution"][:] == ["3", None]
    with pytest.raises(DataError, match=r"data\.solution: no column 'hw'; did you mean 'how'"):
        load_questions(dataclasses.replace(jsonl(rows), solution="hw"))
    odd = [{**rows[0], "solution": ["a", "list"]}]  # nobody asked for it
    assert "solution" not in load_questions(jsonl(odd)).column_names


def test_any_hub_set_with_named_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch, [{"q": "x?", "a": 5}])
    section = DataSection(name="org/maths:hard", problem="q", answer="a", revision="abc", split="dev")
    assert load_questions(section)[0]["answer"] == "5"
    assert hub.asked == [("org/maths", "hard", "dev", "abc")]


@pytest.mark.usefixtures("no_local_data")
@pytest.mark.parametrize("name", ["gsm8k", "org/maths"])
def test_offline_hub_is_a_message(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    Hub(monkeypatch, ConnectionError("Couldn't reach 'org/maths' on the Hub (OfflineModeIsEnabled)"))
    with pytest.raises(DataError, match="the hub can't be reached") as caught:
        load_questions(DataSection(name=name))
    assert ("R3BENCH_DATA" in str(caught.value)) is (name == "gsm8k")


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    datasets.Dataset.from_list(TWO).to_parquet(path)
    assert load_questions(DataSection(name=str(path)))["answer"][:] == ["2", "3"]
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match="not readable as parquet"):
        load_questions(DataSection(name=str(path)))


@pytest.mark.usefixtures("no_local_data")
@pytest.mark.parametrize(
    ("section", "message"),
    [
        (DataSection(name="math500"), "'math500' is an evaluation set"),
        (DataSection(name="gsm8"), "did you mean 'gsm8k'"),
        (DataSection(name="aime"), "set R3BENCH_DATA to a folder with aime_train.jsonl"),
        (DataSection(name="gsm8k", split="test"), "data.split: got 'test', expected 'train'"),
        (DataSection(name="embedded", split="test"), "data.split: got 'test', expected 'train' or 'validation'"),
        (DataSection(name="embedded", revision="main"), "data.revision: got 'main', expected null"),
        (DataSection(name="./none.jsonl"), "none.jsonl: no such file"),
        (DataSection(name="./none.jsonl", revision="x"), "data.revision"),
        (DataSection(name=__file__), "expected a name that ends in .jsonl, .parquet, .csv or .tsv"),
        (DataSection(name="a/b/c"), "expected a known set"),
    ],
)
def test_names_that_cannot_be_used(section: DataSection, message: str) -> None:
    with pytest.raises(DataError, match=message.replace(".", r"\.")):
        load_questions(section)


def test_a_misspelt_file_is_told_its_neighbour(jsonl: Jsonl) -> None:
    section = jsonl(TWO)
    with pytest.raises(DataError, match=r"did you mean 'rows\.jsonl'"):
        load_questions(DataSection(name=section.name.replace("rows", "row")))
