"""Step time of R3Trainer over stock GRPOTrainer, in one process, run in turn on the embedded model.

    python benchmarks/overhead.py [--rounds 8] [--steps 10]

Prints the ratio of median step times with every component off (target <= 1.01), and with replay on. The order within a
round alternates, so that a machine that slows down hits both alike. `process` counts CPU seconds of this process only,
the figure to trust on a shared machine.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from r3bench import R3Config, R3Trainer
from r3bench.config.load import load_recipe
from r3bench.grading import Grader
from r3bench.training.models.load import load_model
from r3bench.training.questions.load import load_questions
from r3bench.training.rewards import Correctness


class Clock(TrainerCallback):
    """Seconds of every optimiser step, generation included."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.process: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._wall, self._process = time.perf_counter(), time.process_time()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.wall.append(time.perf_counter() - self._wall)
        self.process.append(time.process_time() - self._process)


def build(kind: str, steps: int, folder: str, grader: Grader) -> tuple[GRPOTrainer, Clock]:
    """A trainer of the quickstart recipe; sampling and grading happen inside its steps."""
    recipe = load_recipe("quickstart")
    values = {
        **recipe.trainer, "output_dir": f"{folder}/{kind}", "use_cpu": True, "max_steps": steps, "report_to": "none",
        "save_strategy": "no", "disable_tqdm": True, "logging_steps": steps, "seed": 1,
    }  # fmt: skip
    model, tokenizer = load_model(recipe.model)
    cls, args = GRPOTrainer, None
    if kind == "stock":
        args = GRPOConfig(**values)
    else:
        cls = R3Trainer
        args = R3Config(**values, components={"replay": {"warmup": 0}} if kind == "replay" else {})
    clock = Clock()
    trainer = cls(
        model=model, reward_funcs=Correctness(grader), args=args, train_dataset=load_questions(recipe.data),
        processing_class=tokenizer, callbacks=[clock],
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    return trainer, clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    kinds = ("stock", "off", "replay")
    times: dict[str, dict[str, list[float]]] = {kind: {"wall": [], "process": []} for kind in kinds}
    with tempfile.TemporaryDirectory() as folder, Grader() as grader:
        for number in range(options.rounds + 1):
            for kind in kinds if number % 2 else kinds[::-1]:
                trainer, clock = build(kind, options.steps, folder, grader)
                trainer.train()
                if number:  # the first round warms up
                    times[kind]["wall"] += clock.wall
                    times[kind]["process"] += clock.process
    report = {}
    for measure in ("wall", "process"):
        medians = {kind: statistics.median(times[kind][measure]) for kind in kinds}
        report[measure] = {
            "stock_seconds_per_step": round(medians["stock"], 5),
            "off_over_stock": round(medians["off"] / medians["stock"], 4),
            "replay_over_stock": round(medians["replay"] / medians["stock"], 4),
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
