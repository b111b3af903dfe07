"""One set of answers, written as each tool writes its own: by the tool itself where it is installed here."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

METHODS, SEEDS, QUESTIONS, SAMPLES, TASKS = ("grpo", "dapo"), (0, 1, 2), 6, 4, ("aime24", "größe 数学")
DATE = "2026-01-0{}T10-11-12.345678"


def truth() -> pd.DataFrame:
    """One row per answer, with text and gold; right answers are boxed golds."""
    random = np.random.default_rng(3)
    rows = []
    for task in TASKS:
        for method in METHODS:
            for seed in SEEDS:
                for question in range(QUESTIONS):
                    share = (0.3 if method == "grpo" else 0.55) + 0.05 * question
                    for sample in range(SAMPLES):
                        right = bool(random.random() < share)
                        gold = str(10 + question)
                        rows.append({
                            "run": f"{method}-s{seed}", "method": method, "seed": seed, "benchmark": task,
                            "question": str(question), "sample": sample, "correct": right, "gold": gold,
                            "prompt": f"{task}: 問題 {question}?", "tokens": 5 + int(random.integers(9)),
                            "response": f"so \\boxed{{{gold if right else 'none'}}}, «déjà»",
                        })  # fmt: skip
    return pd.DataFrame(rows)


def long_form(answers: pd.DataFrame, question: str = "question", tokens: bool = False) -> pd.DataFrame:
    """Counted by pandas, apart from the library."""
    keys = ["run", "seed", "method", "benchmark", question]
    more = {"tokens": ("tokens", "mean")} if tokens else {}
    found = answers.groupby(keys, sort=False).agg(samples=("correct", "size"), correct=("correct", "sum"), **more)
    return found.reset_index().rename(columns={question: "question"})


def groups(answers: pd.DataFrame, *keys: str):
    for values, rows in answers.groupby(list(keys), sort=False):
        yield dict(zip(keys, values, strict=True)), rows


def lines(path: Path, rows: list, mark: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8-sig" if mark else "utf-8")


def lm_eval(answers: pd.DataFrame, root: Path, again: bool = False) -> None:
    """By lm-eval's own `EvaluationTracker`: `<root>/<method>-s<seed>/<model>/samples_<task>_<date>.jsonl`."""
    from lm_eval.loggers import EvaluationTracker

    for place, rows in groups(answers, "method", "seed"):
        for time in range(2 if again else 1):
            tracker = EvaluationTracker(output_path=str(root / f"{place['method']}-s{place['seed']}"))
            tracker.general_config_tracker.model_name_sanitized = "lab__model"
            tracker.save_results_aggregated({"results": {}, "config": {"random_seed": 0}}, {})
            for task, of_task in rows.groupby("benchmark", sort=False):
                samples = []
                for question, of_question in of_task.groupby("question", sort=False):
                    texts, mean = list(of_question["response"]), float(of_question["correct"].mean())
                    samples.append({
                        "doc_id": int(question), "doc": {"problem": of_question["prompt"].iloc[0]},
                        "target": of_question["gold"].iloc[0], "arguments": [["prompt", {"until": []}]],
                        "resps": [texts], "filtered_resps": texts, "filter": "none", "metrics": ["exact_match"],
                        "doc_hash": f"hash {task} {question}", "prompt_hash": "p", "target_hash": "t",
                        "exact_match": mean if time == again else 0.25,
                    })  # fmt: skip
                tracker.save_results_samples(task, samples)


def verl(answers: pd.DataFrame, root: Path) -> None:
    for place, rows in groups(answers, "benchmark", "method", "seed"):
        folder = root / place["benchmark"] / f"{place['method']}_{place['seed']}"
        for step in (5, 10, 100):
            lines(folder / f"{step}.jsonl", [
                {"input": r.prompt, "output": r.response, "gts": r.gold, "step": step,
                 "score": (1.0 if r.correct else -1.0) if step == 100 else -1.0,
                 "acc": bool(r.correct) and step == 100, "pred": "x"}
                for r in rows.itertuples()
            ])  # fmt: skip


def matharena(answers: pd.DataFrame, root: Path, packed: bool = False) -> None:
    for place, rows in groups(answers, "benchmark", "method", "seed", "question"):
        folder = root / "outputs" / place["benchmark"] / f"{place['method']}-{place['seed']}"
        folder.mkdir(parents=True, exist_ok=True)
        count = len(rows)
        text = json.dumps({
            "idx": int(place["question"]), "problem": rows["prompt"].iloc[0], "gold_answer": rows["gold"].iloc[0],
            "source": "", "types": [], "N": count, "cost": {}, "pass_at_1": float(rows["correct"].mean()),
            "answers": ["x"] * count, "correct": [bool(c) for c in rows["correct"]], "warnings": [0] * count,
            "messages": [[{"role": "user", "content": "?"}, {"role": "assistant", "content": t}]
                         for t in rows["response"]],
            "history": [None] * count, "detailed_costs": [{"cost": 0, "output_tokens": int(n)} for n in rows["tokens"]],
        }, ensure_ascii=False)  # fmt: skip
        path = folder / f"{place['question']}.json"
        if packed:
            import pyarrow as pa

            with pa.CompressedOutputStream(str(path) + ".zst", "zstd") as stream:
                stream.write(text.encode())
        else:
            path.write_text(text)


def opencompass(answers: pd.DataFrame, root: Path, listed: bool = False, sharded: bool = False) -> None:
    """`results` with details and `predictions`; the first as a mapping (one answer each) or a list (several)."""
    for place, rows in groups(answers, "benchmark", "method", "seed"):
        top = root / "20260101_101112"
        model = f"{place['method']}-s{place['seed']}"
        by_question = list(rows.groupby("question", sort=False))
        if listed:
            details = [{"example_abbr": f"test_{q}", "correct": [bool(c) for c in r["correct"]],
                        "pred": list(r["response"]), "answer": list(r["gold"])} for q, r in by_question]  # fmt: skip
        else:
            details = {"type": "GEN"} | {
                q: {"prompt": "", "origin_prediction": r["response"].iloc[0], "predictions": "x",
                    "references": r["gold"].iloc[0], "correct": bool(r["correct"].iloc[0])} for q, r in by_question
            }  # fmt: skip
        path = top / "results" / model / f"{place['benchmark']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"accuracy": 1.0, "details": details}))
        predictions = [{"origin_prompt": "?", "prediction": r["response"].iloc[0], "gold": r["gold"].iloc[0]}
                       for _, r in by_question]  # fmt: skip
        parts = [predictions[:4], predictions[4:]] if sharded else [predictions]
        for number, part in enumerate(parts):
            name = f"{place['benchmark']}_{number}.json" if sharded else f"{place['benchmark']}.json"
            path = top / "predictions" / model / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({str(i): one for i, one in enumerate(part)}, ensure_ascii=False))
        (top / "summary").mkdir(exist_ok=True)
        (top / "summary" / "summary.csv").write_text("dataset,version,metric\nx,1,accuracy\n")


def openai_evals(answers: pd.DataFrame, root: Path) -> None:
    for place, rows in groups(answers, "benchmark", "method", "seed"):
        events = [
            {"spec": {"eval_name": place["benchmark"], "base_eval": "x", "run_id": "r", "run_config": {"seed": 1}}}
        ]
        for r in rows.itertuples():
            common = {"run_id": "r", "sample_id": f"x.{r.question}", "created_by": "", "created_at": "2026"}
            events.append({**common, "event_id": len(events), "type": "sampling",
                           "data": {"prompt": "?", "sampled": [r.response]}})  # fmt: skip
            events.append({**common, "event_id": len(events), "type": "match",
                           "data": {"correct": bool(r.correct), "expected": [r.gold], "picked": None}})  # fmt: skip
        events.append({"final_report": {"accuracy": 0.5}})
        lines(root / f"{place['method']}-s{place['seed']}" / f"{place['benchmark']}.jsonl", events)


def trl(answers: pd.DataFrame, root: Path) -> None:
    for place, rows in groups(answers, "benchmark", "method", "seed"):
        folder = root / place["benchmark"] / f"{place['method']}-s{place['seed']}" / "completions"
        folder.mkdir(parents=True)
        for step in range(2):
            half = rows[rows["sample"] % 2 == step]
            pd.DataFrame({
                "step": step, "prompt": [[{"role": "user", "content": p}] for p in half["prompt"]],
                "completion": [[{"role": "assistant", "content": t}] for t in half["response"]],
                "accuracy_reward": half["correct"].astype(float).to_numpy(), "solution": half["gold"].to_numpy(),
                "advantage": 0.1,
            }).to_parquet(folder / f"completions_{step:05d}.parquet")  # fmt: skip
