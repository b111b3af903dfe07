"""The task pack: counts, prompts, and use by lm-eval alone."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from r3bench import catalog
from r3bench.errors import DataError
from r3bench.evaluation.tasks import load_task
from r3bench.prompts import instruct

SIZES = {"aime24": 30, "aime25": 30, "aime26": 30, "amc23": 40, "amc_2022_2023": 83, "math500": 500, "minerva": 272,
         "olympiadbench": 675, "gsm8k": 1319, "embedded": 400, "embedded-20": 400,
         "embedded-validation": 200, "embedded-20-validation": 200}  # fmt: skip
EVALS = Path(str(catalog.shipped("evals")))


def utils():
    spec = importlib.util.spec_from_file_location("evals_utils", EVALS / "utils.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pack_is_what_is_listed():
    assert {entry.name for entry in catalog.entries("tasks")} >= set(SIZES)
    assert all(entry.about for entry in catalog.entries("tasks"))


@pytest.mark.parametrize("name", SIZES)
def test_every_task_loads_with_its_items(name, request):
    if not name.startswith("embedded"):
        request.getfixturevalue("real_data")
    task = load_task(name, "r1")
    docs = list(task.test_docs())
    assert len(docs) == SIZES[name]
    assert len({doc["id"] for doc in docs}) == len(docs)
    assert task.doc_to_text(docs[0]) == instruct(docs[0]["problem"], "r1")
    assert task.doc_to_target(docs[0]) == docs[0]["answer"]
    assert task.VERSION == 1.0


@pytest.mark.parametrize("name", [name for name in SIZES if not name.startswith("embedded")])
def test_every_hub_task_names_a_commit(name):
    text = (EVALS / f"{name}.yaml").read_text()
    assert re.fullmatch(r"[0-9a-f]{40}", yaml.safe_load(text.replace("!function", ""))["dataset_kwargs"]["revision"])


@pytest.mark.parametrize(
    ("value", "gold"),
    [
        (27.0, "27"), (0.5, "0.5"), ("  27 ", "27"), (["27"], "27"), (["1", "2"], "1, 2"),
        ("Add up: 3+4=7\n#### 1,007", "1007"), (r"So \boxed{\frac{1}{2}}.", r"\frac{1}{2}"), ("$x+1$", "x+1"),
        (204, "204"), ("$1$ or $2$", "$1$ or $2$"),
    ],
)  # fmt: skip
def test_answers_of_any_column_become_plain_golds(value, gold):
    assert utils().gold(value) == gold


def test_a_hub_data_set_is_read_by_its_columns(tmp_path, monkeypatch):
    import datasets

    seen = []

    def fake(hub, subset, split, revision):
        seen.append((hub, subset, split, revision))
        return datasets.Dataset.from_list([{"question": f"p{i}", "final_answer": [f"${i}$"]} for i in range(3)])

    monkeypatch.delenv("R3BENCH_DATA", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", fake)
    arguments = {"name": "x", "hub": "o/x", "revision": "abc", "problem": "question", "answer": "final_answer"}
    found = utils().load(items={"file": 9, "hub": 3}, **arguments)["test"]
    assert seen == [("o/x", None, "test", "abc")]
    assert found["answer"] == ["0", "1", "2"] and len(set(found["id"])) == 3
    with pytest.raises(Exception, match="3 questions, expected 4"):
        utils().load(items=4, **arguments)
    with pytest.raises(Exception, match=r"no column \['solution'\]"):
        utils().load(items=3, **{**arguments, "answer": "solution"})


def test_the_hub_is_not_asked_for_whatever_is_newest(monkeypatch):
    import datasets

    monkeypatch.delenv("R3BENCH_DATA", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("asked the hub"))
    with pytest.raises(
        DataError, match=r"task x: R3BENCH_DATA is not set, and its file pins no commit of hub data set o/x"
    ):
        utils().load(name="x", hub="o/x", items=3)


@pytest.mark.slow
@pytest.mark.parametrize("style", ["boxed", "r1"])
def test_the_command_line_of_lm_eval_runs_the_pack_alone(model_path, tmp_path, style):
    """Every task (those without files only where $R3BENCH_DATA is set), all repeats scored, prompts in the style."""
    import json

    names = [name for name in SIZES if name.startswith("embedded") or os.environ.get("R3BENCH_DATA")]
    command = [
        sys.executable, "-m", "lm_eval", "--model", "hf", "--model_args", f"pretrained={model_path},dtype=float32",
        "--include_path", str(EVALS), "--tasks", ",".join(names), "--limit", "2", "--apply_chat_template", "--device",
        "cpu", "--batch_size", "8", "--gen_kwargs", "max_gen_toks=24", "--output_path", str(tmp_path), "--log_samples",
        "--metadata", json.dumps({"style": style}),
    ]  # fmt: skip
    subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True)
    (path,) = tmp_path.rglob("results_*.json")
    result = json.loads(path.read_text())
    assert set(result["results"]) == set(names)
    for name in names:
        scores = result["results"][name]
        assert result["versions"][name] == 1.0 and result["n-samples"][name] == {
            "original": SIZES[name],
            "effective": 2,
        }
        (samples,) = tmp_path.rglob(f"samples_{name}_2*.jsonl")
        rows = [json.loads(line) for line in samples.read_text().splitlines()]
        assert [len(row["filtered_resps"][0]) for row in rows] == [4] * 2  # all repeats were scored
        assert scores["avg@k,all"] == pytest.approx(sum(row["avg@k"] for row in rows) / 2)
        for row in rows:
            assert instruct(row["doc"]["problem"], style) in row["arguments"]["gen_args_0"]["arg_0"]
