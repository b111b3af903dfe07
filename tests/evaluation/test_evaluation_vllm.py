"""vLLM, and several sampling processes, against a stand-in for the library in real processes (no GPU needed)."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from r3bench.analysis.reading.counts import _differences, count_answers
from r3bench.cli import app
from r3bench.config.sections import EvalSection
from r3bench.errors import ConfigError, StateError
from r3bench.evaluation import shards
from r3bench.evaluation.backends.pool import device_groups
from r3bench.evaluation.backends.sampling import Completion, Draw
from r3bench.evaluation.choose_backend import resolve
from r3bench.evaluation.driver import evaluate
from r3bench.evaluation.journal import Journal
from r3bench.evaluation.settings import measured, settings

SECTION = EvalSection(tasks=("embedded",), samples=3, limit=70, temperature=0.6, top_p=0.95)


def asked(log: Path) -> list[dict]:
    """The complete lines of the stand-in's log, which may still be written to."""
    return [json.loads(line) for line in log.read_text().rpartition("\n")[0].splitlines()]


def records(out: Path) -> list[dict]:
    return sorted(shards.read(out / "embedded"), key=lambda row: (row["question"], row["repeat"]))


def test_requests_and_answers(standin, model_path, loaded, tmp_path):
    summary = evaluate(f"vllm:{model_path}", SECTION, tmp_path / "out", default_max_tokens=40, quiet=True)["embedded"]
    requests = asked(standin)
    assert len(requests) == 210 and {r["pid"] for r in requests} != {os.getpid()}
    for request in requests:
        text = loaded[1].decode(request["prompt"])
        assert "Start with" in text and text.count("boxed") == 1
        parameters = request["parameters"]
        assert (parameters["temperature"], parameters["top_p"], parameters["max_tokens"]) == (0.6, 0.95, 40)
    assert len({request["seed"] for request in requests}) == 210
    for row in records(tmp_path / "out"):
        assert row["extracted"] == str(row["seed"] % 10) and row["tokens"] == row["seed"] % 5 + 1
        assert row["truncated"] == (row["seed"] % 5 == 0)
    assert summary["samples"] == 3 and summary["backend"] == "vllm"
    assert summary["settings"] == settings(SECTION, 40) and summary["settings"]["max_tokens"] == 40
    (stored, *_) = shards.files(tmp_path / "out" / "embedded")
    assert shards.stored_settings(stored)["dtype"] == "bfloat16"  # vLLM's choice, not the saved model's


@pytest.mark.slow
def test_processes_change_no_answer(standin, model_path, tmp_path, monkeypatch):
    """Three processes on six GPUs, two each; ranks of a training are nothing to them."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,1,2,3,5,4")
    one = evaluate(f"vllm:{model_path}", SECTION, tmp_path / "one", default_max_tokens=40, quiet=True)
    standin.unlink()
    three = evaluate(
        f"vllm:{model_path}", SECTION, tmp_path / "three", default_max_tokens=40, quiet=True, gpus=6, tensor_parallel=2
    )
    requests = asked(standin)
    assert one == three and records(tmp_path / "one") == records(tmp_path / "three")
    assert {r["devices"] for r in requests} == {"7,1", "2,3", "5,4"} and len({r["pid"] for r in requests}) == 3
    assert {r["tensor_parallel"] for r in requests} == {2} and {r["rank"] for r in requests} == {None}
    names = [[path.name for path in shards.files(tmp_path / n / "embedded")] for n in ("one", "three")]
    assert names[0] == names[1]


@pytest.mark.slow
def test_transformers_in_three_processes_give_the_answers_of_one(model_path, tmp_path):
    section = EvalSection(samples=2, limit=70, batch_size=16)
    one = evaluate(str(model_path), section, tmp_path / "one", default_max_tokens=32, quiet=True)
    three = evaluate(str(model_path), section, tmp_path / "three", default_max_tokens=32, quiet=True, gpus=3)
    assert one == three and one["embedded"]["backend"] == "hf"
    assert records(tmp_path / "one") == records(tmp_path / "three")
    assert 0 < one["embedded"]["avg@2"] < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus": 4}, "--gpus: got 4, but this machine offers 3; nearest that works: --gpus 3"),
        ({"gpus": 3, "tensor_parallel": 2}, "--tensor-parallel: got 2, expected a divisor of the 3 GPUs"),
    ],
)
def test_gpus_that_are_not_there(standin, model_path, tmp_path, monkeypatch, options, message):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    with pytest.raises(ConfigError, match=message):
        evaluate(f"vllm:{model_path}", SECTION, tmp_path, default_max_tokens=8, quiet=True, **options)


def test_a_long_answer_keeps_no_other_waiting_at_the_end_of_its_shard(standin, model_path, tmp_path, monkeypatch):
    monkeypatch.setenv("STANDIN_FIRST", "1000000000")  # never ends by itself
    out, full = tmp_path / "out", EvalSection(tasks=("embedded",), samples=3, limit=70)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            evaluate(f"vllm:{model_path}", full, out, default_max_tokens=40, quiet=True)
        except StateError as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    # the other shard is written and all answers of its own are kept, while it is still sampled
    assert eventually(lambda: len(shards.files(out / "embedded")) == 1)
    assert eventually(lambda: len(shards.read(out / "embedded")) + len(kept(out)) == 209)
    requests = asked(standin)
    assert len(requests) == 210 and all(r["first_runs"] for r in requests[1:])
    assert max(r["under_way"] for r in requests) < 8  # as many again as it works on, no more
    os.kill(requests[0]["pid"], signal.SIGKILL)
    thread.join(60)
    assert failed and len(shards.read(out / "embedded")) + len(kept(out)) == 209
    monkeypatch.setenv("STANDIN_FIRST", "0")
    standin.unlink()
    found = evaluate(f"vllm:{model_path}", full, out, default_max_tokens=40, quiet=True)
    assert len(asked(standin)) == 1 and not kept(out)
    assert found == evaluate(f"vllm:{model_path}", full, tmp_path / "whole", default_max_tokens=40, quiet=True)
    assert records(out) == records(tmp_path / "whole")


def kept(out: Path) -> list[str]:
    """Lines of answers that finished and stand in no shard."""
    lines = []
    for path in (out / "embedded").glob(".*.jsonl"):
        with contextlib.suppress(FileNotFoundError):  # its shard has just been written
            lines += path.read_text().splitlines()[1:]
    return lines


def eventually(condition) -> bool:
    for _ in range(1200):
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_groups_of_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,6,8")
    assert device_groups(2, 2) == [["3", "5"], ["6", "8"]] and device_groups(2, 1) == [["3"], ["5"]]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert device_groups(3, 1) == [None] * 3


def test_what_only_one_backend_takes(model_path, tmp_path, loaded):
    for model, options, message in (
        (str(model_path), {"tensor_parallel": 2, "gpus": 2}, "only vLLM spreads a model"),
        (loaded, {"gpus": 2}, "a model in memory is sampled in this process"),
        ("http://127.0.0.1:9/v1", {"gpus": 2}, "a server's GPUs are its own"),
    ):
        with pytest.raises(ConfigError, match=message):
            evaluate(model, SECTION, tmp_path, default_max_tokens=8, quiet=True, **options)


def test_a_context_that_is_too_short(standin, model_path, tmp_path):
    with pytest.raises(ConfigError, match=r"600 tokens after a prompt of \d+ exceed the model's context of 512"):
        evaluate(f"vllm:{model_path}", EvalSection(limit=1), tmp_path, default_max_tokens=600, quiet=True)


def test_an_engine_that_does_not_start(standin, model_path, tmp_path, monkeypatch):
    monkeypatch.setenv("STANDIN_FAIL", "no kernel for this device")
    with pytest.raises(ConfigError, match="can't be loaded: no kernel for this device"):
        evaluate(f"vllm:{model_path}", EvalSection(limit=1), tmp_path, default_max_tokens=8, quiet=True)
    monkeypatch.delenv("STANDIN_FAIL")
    monkeypatch.setenv("STANDIN_CRASH", "12 GiB for keys and values, 3 GiB are free")
    with pytest.raises(
        StateError, match=r"ended with exit code 1: ValueError: 12 GiB for keys .* 3 GiB are free; the end"
    ):
        evaluate(f"vllm:{model_path}", EvalSection(limit=1), tmp_path, default_max_tokens=8, quiet=True)
    monkeypatch.delenv("STANDIN_CRASH")
    with pytest.raises(ConfigError, match="unexpected keyword argument 'max_model_length'"):
        section = EvalSection(limit=1, engine={"max_model_length": 5})
        evaluate(f"vllm:{model_path}", section, tmp_path, default_max_tokens=8, quiet=True)


def test_without_vllm(model_path, tmp_path, monkeypatch):
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "vllm.py").write_text("raise ImportError('no vllm')")
    monkeypatch.syspath_prepend(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"vLLM is not installed; pip install 'vllm<0\.31,>=0\.27'"):
        evaluate(f"vllm:{model_path}", EvalSection(), tmp_path / "out", default_max_tokens=8, quiet=True)


def test_a_killed_evaluation_loses_no_answer_that_finished(standin, model_path, tmp_path, monkeypatch):
    out = tmp_path / "out"
    command = [
        sys.executable, "-m", "r3bench.cli", "eval", f"vllm:{model_path}", "limit=70", "max_tokens=40",
        "--samples", "3", "--quiet", "--out", str(out),
    ]  # fmt: skip
    monkeypatch.setenv("STANDIN_SLOW", "0.2")
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    assert eventually(lambda: len(kept(out)) >= 5 or process.poll() is not None)
    process.kill()
    process.wait()
    before = kept(out)
    assert 5 <= len(before) < 210 and not shards.files(out / "embedded")
    (path,) = (out / "embedded").glob(".*.jsonl")
    path.write_text(path.read_text() + '{"question": "torn')  # a line that the kill cut
    monkeypatch.setenv("STANDIN_SLOW", "0")
    standin.unlink()
    section = EvalSection(tasks=("embedded",), samples=3, limit=70)
    evaluate(f"vllm:{model_path}", section, out, default_max_tokens=40, quiet=True)
    assert len(asked(standin)) == 210 - len(before)
    evaluate(f"vllm:{model_path}", section, tmp_path / "whole", default_max_tokens=40, quiet=True)
    assert records(out) == records(tmp_path / "whole") and not kept(out)


def test_answers_kept_under_other_settings_are_not_used(tmp_path):
    now, draw, answer = {"temperature": 0.5, "model": "a"}, Draw("q", 1, 0, ""), Completion("so 5", 3, False)
    Journal(tmp_path, now | {"temperature": 1.0}, set()).add("s", draw, answer)
    journal = Journal(tmp_path, now, set())
    assert not journal.answers
    journal.add("s", draw, answer)  # not below the lines of before
    assert Journal(tmp_path, now, set()).answers == {("q", 1): answer}
    path = tmp_path / ".s.jsonl"
    path.write_text(
        path.read_text() + '{"question": "r", "repeat": 1, "text": 5}\n{"question": "to'
    )  # not ours, and torn
    journal = Journal(tmp_path, now, set())
    journal.add("s", Draw("r", 0, 0, ""), answer)
    assert set(Journal(tmp_path, now, set()).answers) == {("q", 1), ("r", 0)}
    assert set(Journal(tmp_path, now, {("q", 1)}).answers) == {("r", 0)} and path.exists()
    assert not Journal(tmp_path, now, {("q", 1), ("r", 0)}).answers and not path.exists()


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_evaluation_and_what_finished_is_kept(
    standin, model_path, tmp_path, monkeypatch, capfd
):
    monkeypatch.setenv("STANDIN_SLOW", "0.1")

    def kill() -> None:
        while not standin.is_file() or len(asked(standin)) < 20:
            time.sleep(0.05)
        os.kill(asked(standin)[-1]["pid"], signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    with pytest.raises(StateError, match=r"a sampling process was killed by SIGKILL .* answered shards are kept"):
        evaluate(f"vllm:{model_path}", SECTION, tmp_path / "out", default_max_tokens=40, quiet=True)
    assert "the engine talks" in capfd.readouterr().err and kept(tmp_path / "out")
    monkeypatch.setenv("STANDIN_SLOW", "0")
    evaluate(f"vllm:{model_path}", SECTION, tmp_path / "out", default_max_tokens=40, quiet=True)
    evaluate(f"vllm:{model_path}", SECTION, tmp_path / "whole", default_max_tokens=40, quiet=True)
    assert records(tmp_path / "out") == records(tmp_path / "whole")


@pytest.mark.slow
def test_nothing_is_left_running_by_an_evaluation_that_is_killed(standin, model_path, tmp_path, monkeypatch):
    command = [
        sys.executable, "-m", "r3bench.cli", "eval", f"vllm:{model_path}", "limit=70", "max_tokens=40", "--quiet",
        "--gpus", "2", "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    monkeypatch.setenv("STANDIN_SLOW", "60")
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    while len(children := _children(process.pid)) < 2 and process.poll() is None:
        time.sleep(0.05)
    process.kill()
    process.wait()
    for _ in range(600):
        if not any(Path(f"/proc/{pid}").exists() for pid in children):
            break
        time.sleep(0.05)
    else:
        pytest.fail("a sampling process outlived the evaluation")


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in found.read_text().split()] if found.is_file() else []


def test_the_command_line_prints_json_alone(standin, model_path, tmp_path):
    words = ["eval", f"vllm:{model_path}", "limit=2", "max_tokens=40", "--samples", "1", "--json", "--runs", tmp_path]
    result = CliRunner().invoke(app, [*map(str, words)])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["embedded"]["backend"] == "vllm"
    assert len(asked(standin)) == 2
    words[1:2] = [str(model_path), "backend=vllm"]
    result = CliRunner().invoke(app, [*map(str, words), "--out", str(tmp_path / "other")])
    assert json.loads(result.stdout)["embedded"]["backend"] == "vllm"


def test_auto_is_what_training_used_and_never_mixes(standin, model_path, tmp_path, monkeypatch):
    from r3bench.evaluation import choose_backend as backends

    section = EvalSection(limit=4, samples=1)
    assert resolve(section, tmp_path, use_vllm=True).backend == "hf"  # no GPU
    monkeypatch.setattr(backends, "_gpu", lambda: True)
    assert resolve(section, tmp_path, use_vllm=True).backend == "vllm"
    assert resolve(section, tmp_path, use_vllm=False).backend == "hf"
    evaluate(str(model_path), section, tmp_path, default_max_tokens=16, quiet=True)
    more = EvalSection(limit=4, samples=2)
    assert resolve(more, tmp_path, use_vllm=True).backend == "hf"  # what is stored is extended
    explicit = EvalSection(limit=4, samples=2, backend="vllm")
    assert resolve(explicit, tmp_path, use_vllm=True) == explicit
    with pytest.raises(StateError, match=r"sampled with .*backend 'hf' \(now 'vllm'\)"):
        evaluate(str(model_path), explicit, tmp_path, default_max_tokens=16, quiet=True)
    evaluate(str(model_path), explicit, tmp_path / "other", default_max_tokens=16, quiet=True)
    notes = _differences("embedded", [count_answers(folder / "embedded") for folder in (tmp_path, tmp_path / "other")])
    assert any('measured with different backend ("hf", "vllm")' in note for note in notes)  # and tables say so


def test_scores_of_another_backend_do_not_count_as_measured():
    for backend, counts in (("auto", True), ("hf", True), ("vllm", False)):
        section = EvalSection(backend=backend)
        told = {"samples": 4, "settings": settings(section, 8), "backend": "hf"}
        assert measured({"embedded": told}, section, 8) is counts
        told.pop("backend")  # a record from before it was noted: transformers
        assert measured({"embedded": told}, section, 8) is counts
