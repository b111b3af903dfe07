"""`answers`: what a run answered, filtered, sampled, with the question; hostile text does not reach the terminal."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic import Spec, make_study
from typer.testing import Result

HOSTILE = "so \x1b]0;owned\x07 the \u202eanswer\nis \\boxed{7}"


@pytest.fixture
def study(folder: Path) -> Path:
    return make_study(
        folder / "runs" / "s", Spec(factors={"replay": ["off", "on"]}, seeds=(0,), response=HOSTILE), seed=1
    )


def test_filters_samples_and_names(r3bench: Callable[..., Result], study: Path) -> None:
    def found(*words: str) -> list[dict]:
        result = r3bench("answers", *words, "--json")
        assert result.exit_code == 0, result.stderr
        document = json.loads(result.stdout)
        assert document["schema"] == "r3bench.answers/1"
        assert document["fitting"] >= len(document["answers"])
        return document["answers"]

    run = next(path.parent.name for path in study.glob("replay-s0*/run.json"))
    every = found("s")
    assert len(every) == 3 * 40 * 4
    wrong, right = found(run, "--wrong"), found(run, "--right")
    assert len(wrong) + len(right) == 160
    assert not any(row["correct"] for row in wrong)
    assert all(row["correct"] for row in right)
    drawn = found(run, "--wrong", "--sample", "5")
    assert len(drawn) == 5
    assert all(row in wrong for row in drawn)
    assert found(run, "--wrong", "--sample", "5") == drawn
    assert found(run, "--wrong", "--sample", "5", "--seed", "1") != drawn
    assert {row["question"] for row in found(run, "--question", "q0003")} == {"q0003"}
    assert {row["run"] for row in found("s", "replay")} == {run}
    assert {row["run"] for row in found("s", "replay=on")} == {run}
    for name, start in (("all off", "base-s0"), ("untrained model", "base-model")):  # as tables name cells
        assert len(rows := found("s", name)) == 160 and all(row["run"].startswith(start) for row in rows)
    assert {row["task"] for row in found("s", "--task", "embedded")} == {"embedded"}


def test_hostile_answers_are_spelled_out(r3bench: Callable[..., Result], study: Path) -> None:
    shown = r3bench("answers", "s", "replay", "--sample", "2").stdout
    assert not set("\x1b\x07\u202e") & set(shown)
    assert "\\x1b]0;owned" in shown
    assert shown.endswith("2 of 160 answers\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("s", "replya"), "did you mean 'replay'"),
        (("s", "--task", "embeded"), "did you mean 'embedded'"),
        (("s", "--question", "q003"), "no stored answer to 'q003'"),
        (("s", "--wrong", "--right"), "expected one of them"),
        (("s", "--sample", "0"), "at least 1"),
        (("nowhere",), "no such folder"),
    ],
)
def test_mistakes_are_one_line(r3bench: Callable[..., Result], study: Path, words: tuple[str, ...], said: str) -> None:
    result = r3bench("answers", *words)
    assert result.exit_code in (2, 3)
    assert result.stderr.count("\n") == 1
    assert said in result.stderr
