"""The components together where right answers are hardly ever sampled, and whether ranking spoils the others.

    python benchmarks/sparse.py run [--arms three all ...] [--seeds 0 1 2 3 4] [--out results/sparse_together]
    python benchmarks/sparse.py table [--out results/sparse_together]

The embedded model, with 60 more supervised steps in which 99.5 % of the answers are direct ones; an answer is right if
its working is, too. So nothing can be guessed, and at first all groups are all wrong. 64 questions, 8 answers each, 8
groups a step, answers of up to 40 tokens, 80 steps of learning rate 2e-4, loss `grpo`; replay and reflection start at
once. Measured on 150 test questions, 4 answers each at T = 1. `run` appends a line per run to `runs.jsonl` and leaves
out those it finds there; `table` prints what README.md of that folder holds.

Hardly any answer to a bare question runs into the cap here, so `ranking` as it comes has nothing to rank. With
`scope: failed` it compares all answers of an all-wrong group, and with the literal `into_provenance` the groups of
reflection prompts, too, whose answers do run into the cap.
"""

import argparse
import json
import math
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from datasets import Dataset
from scipy import stats
from transformers import AutoModelForCausalLM, AutoTokenizer

from r3bench import R3Config, R3Trainer, prompts
from r3bench.training.models.embedded import Warmup, warm_up
from r3bench.training.models.embedded_tokenizer import ANSWER
from r3bench.training.models.load import model_folder
from r3bench.training.questions.embedded import Chain, chains

CAP = 9
MORE = Warmup(worked=0, mixed=60, direct=0.995, learning_rate=1e-3)
QUESTIONS, TEST, SAMPLES, ROOM = 64, 150, 4, 40

NOW = {"warmup": 0.0}
THREE = {"replay": NOW, "reflection": NOW, "retrospective": {}}
ARMS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "replay": {"replay": NOW},
    "reflection": {"reflection": NOW},
    "ranking": {"ranking": {}},
    "replay+reflection": {"replay": NOW, "reflection": NOW},
    "three": THREE,
    "all": {**THREE, "ranking": {}},
    "all, failed": {**THREE, "ranking": {"scope": "failed"}},
    "all, literal": {**THREE, "ranking": {"into_provenance": ["fresh", "reflection", "continuation"]}},
}


def distinct(split: Any, count: int) -> list[Chain]:
    """The first `count` different chains of a split."""
    found: dict[str, Chain] = {}
    stream = chains(split, CAP)
    while len(found) < count:
        chain = next(stream)
        found.setdefault(chain.problem, chain)
    return list(found.values())


def right(text: str, working: str, answer: str) -> bool:
    """Whether an answer's working and its final answer are those of the question."""
    steps, _, rest = text.partition(ANSWER)
    return "".join(steps.split()) == "".join(working.split()) and f"\\boxed{{{answer}}}" in rest


def start_model(folder: Path) -> Path:
    """The policy at step 0, made once."""
    if not (folder / "config.json").exists():
        source = model_folder("embedded")
        tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left")
        model = AutoModelForCausalLM.from_pretrained(source)
        torch.manual_seed(0)
        warm_up(model, tokenizer, CAP, MORE)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def accuracy(model: Any, tokenizer: Any, seed: int) -> float:
    """Share of right answers to the test questions."""
    tests = distinct("test", TEST)
    torch.manual_seed(1000 + seed)
    model.eval()
    hits = 0
    for first in range(0, TEST, 50):
        some = tests[first : first + 50]
        texts = [
            tokenizer.apply_chat_template(prompts.render(chain.problem), add_generation_prompt=True, tokenize=False)
            for chain in some
        ]
        inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        inputs.pop("token_type_ids", None)
        with torch.no_grad():
            found = model.generate(
                **inputs, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=ROOM, num_return_sequences=SAMPLES
            )
        answers = tokenizer.batch_decode(found[:, inputs["input_ids"].size(1) :], skip_special_tokens=True)
        hits += sum(
            right(text, some[i // SAMPLES].working, some[i // SAMPLES].answer) for i, text in enumerate(answers)
        )
    return hits / (TEST * SAMPLES)


def correctness(completions: list[Any], working: list[str], answer: list[str], **_: Any) -> list[float]:
    """1 for a right answer with the right working."""
    texts = [completion[0]["content"] for completion in completions]
    return [float(right(*row)) for row in zip(texts, working, answer, strict=True)]


def one(arm: str, seed: int, start: Path, made_by: str) -> dict[str, Any]:
    """Train and measure one run."""
    rows = [
        {
            "question_id": f"q{i}", "prompt": prompts.render(chain.problem), "answer": chain.answer,
            "working": chain.working,
        }
        for i, chain in enumerate(distinct("train", QUESTIONS))
    ]  # fmt: skip
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        arguments = R3Config(
            output_dir=folder, components=ARMS[arm], seed=seed, max_steps=80, learning_rate=2e-4, loss_type="grpo",
            lr_scheduler_type="constant", per_device_train_batch_size=64, num_generations=8, beta=0.0, use_cpu=True,
            max_completion_length=ROOM, bf16=False, gradient_checkpointing=False, report_to="none",
            save_strategy="no", logging_steps=20, disable_tqdm=True,
        )  # fmt: skip
        tokenizer = AutoTokenizer.from_pretrained(start, padding_side="left")
        trainer = R3Trainer(
            model=AutoModelForCausalLM.from_pretrained(start), reward_funcs=correctness, args=arguments,
            train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
        )  # fmt: skip
        trainer.train()
    return {
        "arm": arm, "seed": seed, "accuracy": accuracy(trainer.model, tokenizer, seed),
        "tokens": trainer.generated_tokens, "cpu_seconds": round(time.process_time() - begun, 1),
        "acted": {c.name: c.acted(trainer.evidence) for c in trainer.components}, "evidence": trainer.evidence,
        "commit": made_by,
    }  # fmt: skip


def commit() -> str:
    """The code that ran."""
    git = ["git", "-C", str(Path(__file__).parent)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    changed = subprocess.run(
        [*git, "diff", "HEAD", "--stat", "--", "../r3bench", "../components"], check=True, capture_output=True
    )
    return head.strip() + ("+" if changed.stdout else "")


def table(path: Path) -> str:
    """Accuracies by seed, and all four against the three without ranking."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    by_arm = {arm: {r["seed"]: r for r in records if r["arm"] == arm} for arm in ARMS}
    seeds = sorted({r["seed"] for r in records})
    lines = ["| arm | " + " | ".join(f"seed {s}" for s in seeds) + " | mean | sd | tokens | acted |"]
    lines.append("|:---|" + "---:|" * (len(seeds) + 3) + ":---|")
    for arm, found in by_arm.items():
        if not found:
            continue
        values = [r["accuracy"] for r in found.values()]
        deviation = f"{np.std(values, ddof=1):.3f}" if len(values) > 1 else "-"
        tokens = np.mean([r["tokens"] for r in found.values()])
        acted = ", ".join(
            f"{name} {sum(r['acted'][name] for r in found.values())}/{len(found)}" for name in sorted(ARMS[arm])
        )
        cells = [f"{found[s]['accuracy']:.3f}" if s in found else "-" for s in seeds]
        lines.append(
            f"| {arm} | {' | '.join(cells)} | {np.mean(values):.3f} | {deviation} | {tokens:,.0f} | {acted or '-'} |"
        )
    for arm in (arm for arm in ARMS if arm.startswith("all")):
        shared = [s for s in seeds if s in by_arm[arm] and s in by_arm["three"]]
        if len(shared) > 1:
            gaps = [by_arm[arm][s]["accuracy"] - by_arm["three"][s]["accuracy"] for s in shared]
            half = stats.t.ppf(0.975, len(gaps) - 1) * np.std(gaps, ddof=1) / math.sqrt(len(gaps))
            lines.append(
                f"\n{arm} - three, paired by seed: {np.mean(gaps):+.3f}, 95 % interval {np.mean(gaps) - half:+.3f} to "
                f"{np.mean(gaps) + half:+.3f} (n = {len(gaps)})"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table", "start"])
    parser.add_argument(
        "--arms", nargs="+", default=["grpo", "three", "all", "all, failed", "all, literal"], choices=list(ARMS)
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, default=Path("results/sparse_together"))
    options = parser.parse_args()
    path = options.out / "runs.jsonl"
    if options.what == "table":
        print(table(path))
        return
    with tempfile.TemporaryDirectory() as folder:
        start = start_model(Path(folder) / "start")
        if options.what == "start":
            print(accuracy(AutoModelForCausalLM.from_pretrained(start), AutoTokenizer.from_pretrained(start), 0))
            return
        made_by = commit()
        options.out.mkdir(parents=True, exist_ok=True)
        done = (
            {(r["arm"], r["seed"]) for r in map(json.loads, path.read_text().splitlines())} if path.exists() else set()
        )
        for seed in options.seeds:
            for arm in options.arms:
                if (arm, seed) not in done:
                    record = one(arm, seed, start, made_by)
                    with open(path, "a", encoding="utf-8") as file:
                        file.write(json.dumps(record) + "\n")
                    print(arm, seed, record["accuracy"], record["cpu_seconds"], flush=True)


if __name__ == "__main__":
    main()
