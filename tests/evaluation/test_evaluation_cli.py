"""`r3bench eval`, `grade` and `compare` on a model folder and on a server."""

import errno
import json
import os

import pytest
from typer.testing import CliRunner

from r3bench.cli import app


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments, code=0, input=None):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=input)
        assert result.exit_code == code, result.output + result.stderr
        return result

    return run


def test_a_model_folder_is_measured_graded_explained_and_compared(call, model_path, tmp_path):
    out = tmp_path / "answers"
    arguments = ["eval", model_path, "--tasks", "embedded", "--samples", "2", "limit=12", "max_tokens=32", "--out", out]
    first = json.loads(call(*arguments, "--json").stdout)["embedded"]
    assert (first["questions"], first["samples"]) == (12, 2)
    assert json.loads(call(*arguments, "--json").stdout)["embedded"] == first
    regraded = json.loads(call("grade", out, "--regrade", "--grader", "exact", "--json").stdout)["embedded"]
    assert regraded["answers"] == 24 and regraded["grader"].split("/")[1] == "exact"
    cases = json.loads(call("grade", out, "embedded-9-test-0000", "--explain", "--json").stdout)["answers"]
    assert [case["repeat"] for case in cases] == [0, 1]
    shown = json.loads(call("answers", out, "--question", "embedded-9-test-0000", "--json").stdout)
    assert shown["fitting"] == 2 and len(shown["answers"][0]["problem"]) > 5
    assert shown["answers"][0]["problem"] in call("answers", out, "--question", "embedded-9-test-0000").stdout
    (row,) = json.loads(call("compare", out, out, "--json").stdout)["tasks"]
    assert (row["difference"], row["p"], row["equal"]) == (0.0, 1.0, 12)


def test_a_full_disk_is_said_and_costs_one_shard(call, model_path, tmp_path, monkeypatch):
    def measure(out, code=0):
        return call(
            "eval", model_path, "--samples", "1", "limit=70", "max_tokens=16", "--out", out, "--json", code=code
        )

    whole = json.loads(measure(tmp_path / "whole").stdout)["embedded"]
    sync = os.fsync

    def full(descriptor):
        if "q00064" in os.readlink(f"/proc/self/fd/{descriptor}"):  # the second shard's file
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        failed = measure(tmp_path / "full", code=3)
    said = failed.stderr.strip().splitlines()[-1]
    assert said.startswith("r3bench: ") and said.endswith("q00064-00069.parquet: No space left on device")
    assert [path.suffix for path in (tmp_path / "full" / "embedded").iterdir()] == [".parquet"]
    assert json.loads(measure(tmp_path / "full").stdout)["embedded"] == whole


def test_a_hub_id_that_cannot_be_reached_is_one_line(call, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for more in ([], ["max_tokens=8"]):
        result = call("eval", "some-org/no-such-model", "--samples", "1", *more, code=2)
        (line,) = result.stderr.strip().splitlines()
        assert line.startswith("r3bench: model 'some-org/no-such-model': can't be loaded: ")


def test_a_server_needs_a_cap(call):
    result = call("eval", "http://127.0.0.1:9/v1", "--tasks", "embedded", code=2)
    assert "eval.max_tokens: missing" in result.stderr


def test_answers_from_a_pipe(call):
    lines = [{"answer": "27", "response": r"\boxed{27}"}, {"id": "b", "answer": "27", "response": "so 28"}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    out = call("grade", "-", "--json", input=text).stdout.splitlines()
    assert [(row["id"], row["correct"]) for row in map(json.loads, out)] == [("1", True), ("b", False)]
    failed = call("grade", "-", "--json", input=text + "{\n", code=2)
    assert len(failed.stdout.splitlines()) == 2 and "stdin: line 3: not valid JSON" in failed.stderr


def test_answers_from_anywhere(call, tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps({"id": "a", "problem": "p", "answer": "27", "response": r"\boxed{27}"}) + "\n")
    (line,) = call("grade", path, "--json").stdout.splitlines()
    assert json.loads(line) == {
        "id": "a", "correct": True, "extracted": "27", "reason": "boxed: number: equal", "timed_out": False
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["answers.jsonl", "--grader", "exact"], "about a run's stored answers"),
        (["answers.jsonl", "--regrade"], "about a run's stored answers"),
        (["run", "q1"], "'q1': a question's id is for --explain"),
        (["run", "q1", "--explain", "--regrade"], "expected one of them"),
    ],
)
def test_options_that_would_be_passed_over(call, tmp_path, words, said):
    (tmp_path / "answers.jsonl").write_text(json.dumps({"answer": "27", "response": "27"}) + "\n")
    assert said in call("grade", *words, code=2).stderr
