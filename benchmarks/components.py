"""What the components' bookkeeping costs, beyond the tokens and forwards they add.

    python benchmarks/components.py [--steps 20] [--questions 40000] [--tokens 16]

Part 1: all four components on the embedded model. CPU seconds of this process inside the components' own methods, per
step, as a share of the step (target <= 1 %).
Part 2: the history filled with 16 trajectories per question: seconds per insert and per draw, bytes per trajectory
beyond its tokens.
"""

import argparse
import gc
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections import defaultdict
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np

from r3bench.training.component import Summary, Trajectory
from r3bench.training.history import HistoryBounds, TrajectoryHistory

METHODS = ("plan", "entropy_rows", "score", "keep", "probe", "mix", "rescale", "observe", "take_counts", "take_figures")
COMPONENTS = {
    "ranking": {"scope": "failed"},  # the embedded model hardly ever hits the cap
    "reflection": {"template": "short"},
    "replay": True,
    "retrospective": {"gate_auc": 0.0},
}


def bookkeeping(steps: int) -> dict[str, Any]:
    """CPU milliseconds per step in each component, and their share of the step."""
    from r3bench import R3Config, R3Trainer
    from r3bench.config.load import load_recipe
    from r3bench.grading import Grader
    from r3bench.training.data import load_questions
    from r3bench.training.models import load_model
    from r3bench.training.rewards import Correctness

    recipe = load_recipe("quickstart", ["data.limit=32"])
    model, tokenizer = load_model(recipe.model)
    spent: dict[str, float] = defaultdict(float)
    with Grader(5.0, 1, True) as grader, tempfile.TemporaryDirectory() as folder:
        values = {k: v for k, v in recipe.trainer.items() if k not in ("save_steps", "max_steps")}
        args = R3Config(
            output_dir=folder, max_steps=steps, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True,
            components=COMPONENTS, **values,
        )  # fmt: skip
        trainer = R3Trainer(
            model=model, reward_funcs=Correctness(grader), args=args, train_dataset=load_questions(recipe.data),
            processing_class=tokenizer,
        )  # fmt: skip
        for component in trainer.components:
            for method in METHODS:
                setattr(component, method, _timed(getattr(component, method), component.name, spent))
        before = time.process_time()
        trainer.train()
        total = time.process_time() - before
        acted = {component.name: component.acted(trainer.evidence) for component in trainer.components}
    return {
        "cpu_ms_per_step": round(1000 * total / steps, 1),
        "component_ms_per_step": {name: round(1000 * value / steps, 3) for name, value in sorted(spent.items())},
        "share_percent": round(100 * sum(spent.values()) / total, 3),
        "acted": acted,
    }


def _timed(method: Any, name: str, spent: dict[str, float]) -> Any:
    def call(*args: Any) -> Any:
        start = time.process_time()
        try:
            return method(*args)
        finally:
            spent[name] += time.process_time() - start

    return call


def history(questions: int, tokens: int, per_question: int = 16) -> dict[str, Any]:
    """Cost of a full history on one rank."""
    store = TrajectoryHistory(HistoryBounds(per_question=per_question, max_tokens=10**12))
    names = [f"question-{i}" for i in range(questions)]
    gc.collect()
    memory = _peak_bytes()
    start = time.process_time()
    for visit in range(per_question):
        for at in range(0, questions, 128):
            batch = [_trajectory(name, visit, tokens) for name in names[at : at + 128]]
            store.insert(batch, visit)
    inserted = time.process_time() - start
    memory = _peak_bytes() - memory
    rng = random.Random(0)
    start = time.process_time()
    draws = 200
    for _ in range(draws):
        batch_names = rng.sample(names, min(128, questions))
        view = store.open(batch_names)
        view.fetch([rng.choice(view.summaries(name)) for name in batch_names])
    drawn = time.process_time() - start
    count = questions * per_question
    return {
        "trajectories": len(store),
        "insert_us_each": round(1e6 * inserted / count, 1),
        "draw_ms_per_batch_of_128": round(1000 * drawn / draws, 2),
        "bytes_each_beyond_tokens": round(memory / count - 8 * tokens),
    }


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _trajectory(question: str, step: int, tokens: int) -> Trajectory:
    summary = Summary(
        question=question, serial=0, step=step, epoch=step, provenance="fresh", correct=False, truncated=False,
        length=tokens, reward=0.0, task_reward=0.0, entropy_mean=0.5, entropy_peak=1.0,
    )  # fmt: skip
    return Trajectory(summary, np.zeros(tokens, np.int32), np.zeros(tokens, np.float32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="training steps of part 1; 0 leaves it out")
    parser.add_argument("--questions", type=int, default=40_000, help="questions of part 2; 0 leaves it out")
    parser.add_argument("--tokens", type=int, default=16, help="tokens per trajectory in part 2")
    options = parser.parse_args()
    result = {}
    if options.questions:
        result["history"] = history(options.questions, options.tokens)
    if options.steps:
        result["bookkeeping"] = bookkeeping(options.steps)
    json.dump(result, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
