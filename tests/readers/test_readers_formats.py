"""Each tool's files give the table that the same answers give in long form."""

import json
import random
from hashlib import sha256
from pathlib import Path

import pandas as pd
import pytest
import written
from written import DATE, TASKS, long_form, truth

from r3bench.analysis import analyze
from r3bench.analysis.output.external import load_any
from r3bench.analysis.reading.columns import Reading
from r3bench.analysis.reading.outside import Outside
from r3bench.errors import DataError
from r3bench.readers.options import Options

ANSWERS = truth()
FIRST = ANSWERS[ANSWERS["sample"] == 0]
NAN = float("nan")
BOTH = Reading(reference={"method": "grpo"})


def figures(found, tokens=False):
    """Effects and cells as numbers; without what only some files know (tokens, names of runs)."""
    effects = list(found["effects"])
    drop = () if tokens else ("tokens",)
    cells = [{k: v for k, v in c.items() if k not in (*drop, "runs", "truncated")} for c in found["cells"]]
    return json.loads(json.dumps([effects, cells]), parse_float=lambda x: float(f"{float(x):.9g}"))


def expected(tmp_path, answers, question="question", tokens=False):
    path = tmp_path / "long.csv"
    table = long_form(answers, question, tokens).sort_values("run", kind="stable")  # resamples follow the runs' order
    table.to_csv(path, index=False)
    return figures(analyze(path, reading=BOTH), tokens)


def with_ids(answers, tool):
    """Ids as they are made for tools that write none: by the prompt's text. The order of ids decides resamples."""
    asked = {
        "verl": lambda r: f"{r.prompt}\0{r.gold}",
        "trl": lambda r: str([{"content": r.prompt, "role": "user"}]),
    }.get(tool)  # fmt: skip
    if asked is None:
        return answers
    return answers.assign(question=[sha256(asked(r).encode()).hexdigest()[:12] for r in answers.itertuples()])


CASES = {
    "lm-eval": (written.lm_eval, "{method}-s{seed}", ANSWERS, None),
    "lm-eval with stars": (written.lm_eval, "{method}-s{seed}/**/samples_*.jsonl", ANSWERS, None),
    "lm-eval measured again": (lambda a, r: written.lm_eval(a, r, again=True), "{method}-s{seed}", ANSWERS, None),
    "verl": (written.verl, "{benchmark}/{method}_{seed}", ANSWERS, None),
    "matharena": (written.matharena, "outputs/{benchmark}/{method}-{seed}", ANSWERS, None),
    "matharena packed": (lambda a, r: written.matharena(a, r, packed=True), "outputs/*/{method}-{seed}", ANSWERS, None),
    "opencompass": (written.opencompass, "**/{method}-s{seed}", FIRST, None),
    "opencompass from above": (written.opencompass, "*/results/{method}-s{seed}/*", FIRST, None),
    "opencompass repeats": (lambda a, r: written.opencompass(a, r, listed=True), "*/results/{method}-s{seed}", ANSWERS,
                            None),
    "opencompass predictions": (lambda a, r: written.opencompass(a, r, sharded=True), "*/*/{method}-s{seed}", FIRST,
                                Outside(regrade=True)),
    "openai-evals": (written.openai_evals, "{method}-s{seed}/*.jsonl", ANSWERS, None),
    "trl": (written.trl, "{benchmark}/{method}-s{seed}", ANSWERS, None),
    "verl graded anew": (written.verl, "{benchmark}/{method}_{seed}", ANSWERS, Outside(regrade=True)),
    "lm-eval graded anew": (written.lm_eval, "{method}-s{seed}", ANSWERS, Outside(regrade=True)),
    "trl graded anew": (written.trl, "{benchmark}/{method}-s{seed}", ANSWERS, Outside(regrade=True)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_tools_files_give_the_table_of_the_long_form(case, tmp_path):
    write, pattern, answers, outside = CASES[case]
    root = tmp_path / "out"
    write(answers, root)
    found = analyze(f"{root}/{pattern}", reading=BOTH, outside=outside)
    assert figures(found) == expected(tmp_path, with_ids(answers, case.split()[0]))
    assert {e["benchmark"] for e in found["effects"]} >= set(TASKS)
    assert not any("other files not read" in n for n in found["notes"] if case.startswith("lm-eval"))
    if "again" in case or case.startswith("verl"):
        assert any("not read, measured again later, or earlier in training" in n for n in found["notes"])


def test_lightevals_own_files(tmp_path):
    """Written by lighteval 0.13.0, see make_lighteval.py; its files carry the tokens as well."""
    part = ANSWERS[(ANSWERS["benchmark"] == "aime24") & (ANSWERS["seed"] < 2)]
    for source in ("{method}-s{seed}", "{method}-s{seed}/details/lab/*/*/*.parquet"):
        found = analyze(Path(__file__).parent / "lighteval" / source, reading=BOTH)
        assert figures(found, tokens=True) == expected(tmp_path, part, tokens=True)
    again = analyze(Path(__file__).parent / "lighteval/{method}-s{seed}", reading=BOTH, outside=Outside(regrade=True))
    assert figures(again, tokens=True) == expected(tmp_path, part, tokens=True)
    with pytest.raises(DataError, match=r"no score 'avg'.*avg@n:n=4"):
        analyze(Path(__file__).parent / "lighteval/{method}-s{seed}", outside=Outside(Options(metric="avg")))


@pytest.mark.slow
def test_trls_own_files(tmp_path, monkeypatch):
    """Two trainings by TRL's trainer with log_completions; its table of answers is counted apart."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "trainer"))
    from datasets import Dataset
    from trainer_tools import build_tiny_model
    from trl import GRPOConfig, GRPOTrainer

    model = build_tiny_model(tmp_path / "model")

    def right(completions, **_):
        return [float(len(c) % 2) for c in completions]

    data = Dataset.from_dict({"prompt": [f"{i}+{i}=" for i in range(4)]})
    for name in ("a-s0", "b-s0"):
        arguments = GRPOConfig(
            output_dir=str(tmp_path / name), max_steps=2, logging_steps=1, log_completions=True, num_generations=4,
            per_device_train_batch_size=8, max_completion_length=8, report_to=[], use_cpu=True, seed=len(name),
        )  # fmt: skip
        GRPOTrainer(model, right, args=arguments, train_dataset=data).train()
    found = load_any(tmp_path / "{m}-s{seed}")
    stored = pd.concat(pd.read_parquet(p) for p in sorted((tmp_path / "a-s0").rglob("completions_*.parquet")))
    (scores,) = found.benchmarks.values()
    assert scores.samples[0].sum() == len(stored)
    assert scores.correct[0].sum() == stored["right"].sum()


@pytest.mark.parametrize("seed", range(3))
def test_a_map_says_the_same_as_a_pattern(tmp_path, seed):
    written.lm_eval(ANSWERS, tmp_path / "out")
    entries = [
        {"files": f"out/{m}-s{s}", "seed": s, "run": f"{m} {s}", "factors": {"method": m}}
        for m in ("grpo", "dapo")
        for s in range(3)
    ]
    random.Random(seed).shuffle(entries)
    text = json.dumps({"runs": entries, "levels": {"method": ["grpo", "dapo"]}, "analysis": {"margin": 0.02}})
    (tmp_path / "map.yaml").write_text(text)
    found = analyze(tmp_path / "map.yaml")
    pattern = analyze(tmp_path / "out" / "{method}-s{seed}", reading=BOTH)
    for one, other in zip(found["effects"], pattern["effects"], strict=True):
        assert (one["term"], one["estimate"]) == (other["term"], pytest.approx(other["estimate"]))
    assert not any("since none was named" in n for n in found["notes"])


def test_two_measurements_can_both_count(tmp_path):
    written.lm_eval(ANSWERS, tmp_path / "out", again=True)
    found = analyze(tmp_path / "out/{method}-s{seed}", outside=Outside(Options(measured_again="all")))
    one = analyze(tmp_path / "out/{method}-s{seed}")
    assert found["cells"][0]["accuracy"] != one["cells"][0]["accuracy"]


def test_lm_evals_filters_and_scores_are_named_where_there_are_several(tmp_path):
    rows = [
        {"doc_id": i, "target": "1", "resps": [["1"]], "filtered_resps": ["1"], "filter": f, "doc_hash": str(i),
         "metrics": ["exact_match", "other"], "exact_match": float(f == "strict"), "other": 0.0}
        for i in range(4) for f in ("strict", "flexible")
    ]  # fmt: skip
    for m in "ab":
        written.lines(tmp_path / f"{m}-s0" / f"samples_gsm8k_cot_{DATE.format(1)}.jsonl", rows)
        written.lines(tmp_path / f"{m}-s1" / f"samples_gsm8k_cot_{DATE.format(1)}.jsonl", rows, mark=True)
    source = tmp_path / "{m}-s{seed}"
    with pytest.raises(DataError, match="filters flexible, strict: which one counts"):
        analyze(source)
    with pytest.raises(DataError, match=r"scores exact_match, other: which one decides.*--metric"):
        analyze(source, outside=Outside(Options(filter="strict")))
    found = analyze(source, outside=Outside(Options(filter="strict", metric="exact_match")))
    assert {c["benchmark"] for c in found["cells"]} == {"gsm8k_cot"}
    assert all(c["accuracy"] == 1.0 for c in found["cells"])
    with pytest.raises(DataError, match=r"no filter 'strikt'; did you mean 'strict'"):
        analyze(source, outside=Outside(Options(filter="strikt")))


def test_verdicts_that_are_missing_or_between(tmp_path):
    for m in "ab":
        for s in range(2):
            written.lines(tmp_path / f"{m}-s{s}/20.jsonl", [
                {"input": f"q{i}", "output": "x", "gts": "1", "score": NAN if i == 2 else float(i % 2), "step": 20}
                for i in range(5)
            ])  # fmt: skip
    source = tmp_path / "{m}-s{seed}"
    with pytest.raises(DataError, match=r"no verdict on an answer to question \w+ \(3 more like it\).*--missing wrong"):
        analyze(source)
    wrong = analyze(source, outside=Outside(Options(missing="wrong")))
    dropped = analyze(source, outside=Outside(Options(missing="drop")))
    assert wrong["cells"][0]["accuracy"] == pytest.approx(2 / 5)
    assert dropped["cells"][0]["accuracy"] == pytest.approx(2 / 4)
    for path in tmp_path.rglob("20.jsonl"):
        path.write_text(path.read_text().replace("NaN", "0.5"))
    with pytest.raises(DataError, match=r"line 3: score: got 0.5, which is neither right \(1\) nor wrong"):
        analyze(source)
    found = analyze(source, outside=Outside(Options(right=0.5)))
    assert found["cells"][0]["accuracy"] == pytest.approx(3 / 5)


def test_one_id_for_two_texts_is_refused(tmp_path):
    written.lm_eval(ANSWERS, tmp_path)
    path = next((tmp_path / "dapo-s1").rglob("samples_aime24*"))
    path.write_text(path.read_text().replace("hash aime24 3", "hash other"))
    with pytest.raises(
        DataError, match=r"question 3 of aime24 is another text than in .*their ids don't mean the same"
    ):
        analyze(tmp_path / "{method}-s{seed}")


REFUSED = {
    "nothing says the seed": ("lm_eval", "", r"nothing says which seed .*such as '.*/\{cell\}-s\{seed\}/\*\*'"),
    "no such folder": ("lm_eval", "otu", "did you mean 'out'"),
    "a seed that is no number": ("lm_eval", "out/{method}-{seed}x", "no such file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_says_what_to_do(case, tmp_path, monkeypatch):
    tool, source, message = REFUSED[case]
    monkeypatch.chdir(tmp_path)
    getattr(written, tool)(ANSWERS, tmp_path / "out")
    with pytest.raises(DataError, match=message):
        analyze(source if source else "out")


def test_a_file_of_no_known_layout_is_held_against_the_nearest(tmp_path):
    written.lines(tmp_path / "a-s0.jsonl", [{"doc_id": 1, "resps": [["x"]], "note": 1}])
    with pytest.raises(
        DataError, match=r"nearest is lm-eval \(lm_eval --log_samples\), which has filtered_resps as well"
    ):
        analyze(tmp_path / "{m}-s{seed}.jsonl")
    (tmp_path / "b-s0.json").write_text('{"answers": [1], "correct": [true], "messages": []}')
    with pytest.raises(DataError, match=r"nearest is matharena .*which has gold_answer as well"):
        analyze(tmp_path / "{m}-s{seed}.json")
    with pytest.raises(DataError, match=r"no doc_id, filtered_resps, resps, which lm_eval"):
        analyze(tmp_path / "a-s0.jsonl", outside=Outside(Options(format="lm-eval"))) if not written.lines(
            tmp_path / "a-s0.jsonl", [{"x": 1}]
        ) else None
