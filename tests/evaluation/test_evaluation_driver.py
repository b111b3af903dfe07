"""`evaluate` through its front door: what it stores, keeps, extends and refuses."""

import dataclasses
import random
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from r3bench.config.sections import EvalSection
from r3bench.errors import ConfigError, DataError, StateError
from r3bench.evaluation import driver, shards
from r3bench.evaluation.backends.hf import HFBackend
from r3bench.evaluation.driver import evaluate
from r3bench.evaluation.regrade import regrade
from r3bench.lock import exclusive
from r3bench.records import ANSWER_COLUMNS

SECTION = EvalSection(tasks=("embedded",), samples=2, limit=70)


def run(model, out, **changes):
    return evaluate(model, dataclasses.replace(SECTION, **changes), out, default_max_tokens=32, quiet=True)


def records(out: Path, task="embedded"):
    return {(row["question"], row["repeat"]): row for row in shards.read(out / task)}


@pytest.fixture(scope="module")
def first(loaded, tmp_path_factory):
    out = tmp_path_factory.mktemp("first")
    return out, run(loaded, out)


@pytest.fixture
def copied(first, tmp_path):
    out = tmp_path / "eval"
    shutil.copytree(first[0], out)
    return out


def test_what_is_stored(first):
    out, summaries = first
    files = shards.files(out / "embedded")
    assert len(files) == 2
    table = pq.read_table(files[0])
    assert table.column_names == list(ANSWER_COLUMNS)
    rows = records(out)
    assert len(rows) == 140
    summary = summaries["embedded"]
    assert (summary["questions"], summary["samples"]) == (70, 2)
    right = sum(row["correct"] for row in rows.values())
    assert summary["avg@2"] == pytest.approx(right / 140)
    assert 0 < right < 140  # the model is neither perfect nor useless, so verdicts mean something
    for row in rows.values():
        assert row["tokens"] > 0 and row["truncated"] == (row["tokens"] == 32 and not row["response"].endswith("}"))
        assert row["grader"].startswith("r3bench-")
        if row["correct"]:
            assert row["response"].endswith(rf"\boxed{{{row['gold']}}}")
    assert len({row["seed"] for row in rows.values()}) == 140


def test_lm_evals_own_scores_agree(loaded, copied, monkeypatch):
    import lm_eval

    seen = {}
    original = lm_eval.evaluate

    def spy(**arguments):
        result = original(**arguments)
        seen.update(result["results"]["embedded"])
        return result

    monkeypatch.setattr(lm_eval, "evaluate", spy)
    summary = run(loaded, copied)["embedded"]
    for name in ("avg", "pass", "maj"):
        assert seen[f"{name}@k,all"] == pytest.approx(summary[f"{name}@2"])
    assert seen["no_answer,all"] == pytest.approx(summary["no_answer"])


def test_a_second_call_samples_nothing_and_says_the_same(loaded, first, copied, monkeypatch):
    monkeypatch.setattr(HFBackend, "generate", lambda *_: pytest.fail("sampled again"))
    before = {path: path.stat().st_mtime_ns for path in shards.files(copied / "embedded")}
    assert run(loaded, copied) == first[1]
    assert before == {path: path.stat().st_mtime_ns for path in shards.files(copied / "embedded")}


def test_more_samples_and_questions_keep_what_is_there(loaded, first, copied, tmp_path):
    old = records(first[0])
    run(loaded, copied, samples=3)
    summary = run(loaded, copied, samples=3, limit=75)["embedded"]
    assert (summary["questions"], summary["samples"]) == (75, 3)
    new = records(copied)
    assert {key: new[key] for key in old} == old and len(new) == 225
    at_once = tmp_path / "at_once"
    assert run(loaded, at_once, samples=3, limit=75)["embedded"] == summary
    assert records(at_once) == new
    fewer = run(loaded, copied)["embedded"]  # asking for less again
    assert fewer == first[1]["embedded"]


def test_a_lost_shard_is_sampled_again_and_equal(loaded, first, copied):
    path = shards.files(copied / "embedded")[1]
    path.unlink()
    (copied / "embedded" / f".{path.name}.abc.tmp").write_bytes(b"half")
    run(loaded, copied)
    assert records(copied) == records(first[0])
    assert not list((copied / "embedded").glob(".*.tmp"))


def test_answers_graded_otherwise_get_new_verdicts_not_new_text(loaded, first, copied, monkeypatch):
    regrade(copied, grader="exact", require_boxed=False)
    assert records(copied) != records(first[0])
    monkeypatch.setattr(HFBackend, "generate", lambda *_: pytest.fail("sampled again"))
    assert run(loaded, copied) == first[1]
    assert records(copied) == records(first[0])
    lenient = run(loaded, copied, require_boxed=False)["embedded"]
    assert lenient["no_answer"] <= first[1]["embedded"]["no_answer"] and lenient["grader"].endswith("/last")


def test_greedy_is_its_own_evaluation(loaded, tmp_path):
    summary = run(loaded, tmp_path, samples=1, temperature=0.0, limit=10)["embedded"]
    assert summary["avg@1"] == summary["pass@1"] == summary["maj@1"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"temperature": 0.5}, "temperature 1.0 (now 0.5)"),
        ({"max_tokens": 16}, "max_tokens 32 (now 16)"),
        ({"seed": 1}, "seed 0 (now 1)"),
        ({"style": "plain"}, "style 'boxed' (now 'plain')"),
    ],
)
def test_answers_sampled_otherwise_are_not_mixed_in(loaded, copied, change, said):
    with pytest.raises(StateError) as error:
        run(loaded, copied, **change)
    assert said in str(error.value) and str(copied / "embedded") in str(error.value)


def test_another_model_is_not_mixed_in(loaded, copied):
    model, tokenizer = loaded
    other = type(model)(model.config)
    with pytest.raises(StateError, match="model '"):
        run((other, tokenizer), copied)


def test_a_torn_shard_is_named(loaded, copied):
    path = shards.files(copied / "embedded")[0]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(StateError, match=path.name):
        run(loaded, copied)


def test_two_evaluations_of_one_folder(loaded, copied):
    with exclusive(copied / ".lock"), pytest.raises(StateError, match="another evaluation"):
        run(loaded, copied)


def test_unknown_tasks_and_models_are_named_before_anything_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "open_backend", lambda *_: pytest.fail("loaded a model"))
    with pytest.raises(ConfigError, match=r"no task 'embeded'.*did you mean 'embedded'"):
        run("x", tmp_path, tasks=("embeded",))
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"model '.*nowhere': can't be loaded"):
        run(tmp_path / "nowhere", tmp_path)


def test_missing_questions_are_said(loaded, tmp_path, monkeypatch):
    monkeypatch.setenv("R3BENCH_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match=r"task aime24: .*aime24\.jsonl does not exist, and hub data set"):
        run(loaded, tmp_path, tasks=("aime24",))
    (tmp_path / "aime24.jsonl").write_text('{"id": "1", "problem": "p", "answer": "2"}\n')
    with pytest.raises(DataError, match="1 questions, expected 30"):
        run(loaded, tmp_path, tasks=("aime24",))


def test_the_callers_random_state_and_model_stay_as_they_were(loaded, tmp_path):
    model, tokenizer = loaded
    model.train()
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    try:
        run((model, tokenizer), tmp_path, limit=5, samples=1)
        assert model.training
        assert random.getstate() == states[0] and np.random.get_state()[1].tolist() == states[1]
        assert torch.equal(torch.get_rng_state(), states[2])
    finally:
        model.eval()


def test_a_users_task_is_found_before_the_shipped_one(loaded, tmp_path, monkeypatch):
    evals = tmp_path / "evals"
    evals.mkdir()
    (evals / "utils.py").write_text(
        "import datasets\n"
        "from r3bench.evaluation.grading import current\n"
        "def load(**_):\n"
        "    rows = [dict(id=f'own-{i}', problem=f'Start with {i}, add 1.', answer=str(i + 1)) for i in range(6)]\n"
        "    return {'test': datasets.Dataset.from_list(rows)}\n"
        "def process_results(doc, results):\n"
        "    verdicts = current().grade(results[0], [doc['answer']] * len(results[0]))\n"
        "    return {'avg@k': sum(v.correct for v in verdicts) / len(verdicts)}\n"
        "def keep_all(responses, docs):\n"
        "    return responses\n"
    )
    text = (
        "task: embedded\noutput_type: generate_until\ncustom_dataset: !function utils.load\ntest_split: test\n"
        "doc_to_text: problem\ndoc_to_target: answer\nprocess_results: !function utils.process_results\n"
        "filter_list: [{name: all, filter: [{function: custom, filter_fn: !function utils.keep_all}]}]\n"
        "metric_list: [{metric: avg@k, aggregation: mean, higher_is_better: true}]\n"
        "generation_kwargs: {until: [], do_sample: true}\nmetadata: {version: 7}\n"
    )
    (evals / "embedded.yaml").write_text(text)
    (evals / "misnamed.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    assert run(loaded, out)["embedded"]["questions"] == 6
    assert {key[0] for key in records(out)} == {f"own-{i}" for i in range(6)}
    assert shards.read_shard(shards.files(out / "embedded")[0])[1]["version"] == "7"
    with pytest.raises(ConfigError, match=r"misnamed\.yaml: expected a task called 'misnamed'"):
        run(loaded, out, tasks=("misnamed",))
