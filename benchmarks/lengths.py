"""A training step on answers as long reasoning has them, under a token budget, over stock TRL's; run in turn.

    python benchmarks/lengths.py [--model embedded] [--rounds 6] [--steps 3] [--rows 16] [--cap 512] [--capped 0.15]
        [--tokens 2048] [--scored]

Lengths are log-normal, with a share of `--capped` at the cap. The answers are given, not sampled (`rollout_func`), the
same to all trainers, so a step is what training alone costs: the scoring forward (`--scored`), the loss forward and the
backward pass. `off` is R3Trainer without a budget. Prints the ratio of the CPU seconds and of the wall clock (median,
least and most over rounds in which each ran once, in alternating order), the largest difference of the losses and of
the last gradient relative to its norm, and with `--memory` the peak beyond the loaded model, each in its own process.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from r3bench import R3Config, R3Trainer
from r3bench.config.sections import ModelSection
from r3bench.training.models.load import load_model

KINDS = ("stock", "off", "budget")
SIGMA = 0.6  # of the logarithm of a length
GENERATIONS = 8
PROMPT = 40  # tokens


class Clock(TrainerCallback):
    """CPU and wall seconds of the run's steps."""

    def __init__(self) -> None:
        self.process: list[float] = []
        self.wall: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._started = time.process_time(), time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.process.append(time.process_time() - self._started[0])
        self.wall.append(time.perf_counter() - self._started[1])


def lengths(rows: int, cap: int, capped: float, generator: torch.Generator) -> list[int]:
    """Log-normal lengths of which a share of `capped` is cut off at the cap."""
    above = math.sqrt(2) * float(torch.erfinv(torch.tensor(1 - 2 * capped)))  # standard deviations from median to cap
    drawn = torch.exp(math.log(cap) - SIGMA * above + SIGMA * torch.randn(rows, generator=generator))
    return [max(1, min(cap, int(length))) for length in drawn]


def build(kind: str, options: argparse.Namespace, folder: str) -> tuple[Any, Clock]:
    """A trainer whose answers are the same for either kind."""
    model, tokenizer = load_model(ModelSection(name=options.model))
    generator = torch.Generator().manual_seed(options.seed)

    def answers(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        ids = [
            torch.randint(10, 250, (length,), generator=generator).tolist()
            for length in lengths(len(prompts), options.cap, options.capped, generator)
        ]
        given = [torch.randint(10, 250, (PROMPT,), generator=generator).tolist() for _ in prompts]
        return {"prompt_ids": given, "completion_ids": ids, "logprobs": None}

    values: dict[str, Any] = {
        "output_dir": folder, "use_cpu": True, "bf16": False, "gradient_checkpointing": options.checkpointing,
        "max_steps": options.steps, "per_device_train_batch_size": options.rows, "num_generations": GENERATIONS,
        "max_completion_length": options.cap, "report_to": "none", "save_strategy": "no", "disable_tqdm": True,
        "logging_steps": 1, "learning_rate": 1e-5, "optim": "sgd", "seed": options.seed,
        "gradient_accumulation_steps": options.accumulation,
        **({"num_iterations": 2, "max_steps": 2 * options.steps} if options.scored else {}),
    }  # fmt: skip
    cls: Any = GRPOTrainer if kind == "stock" else R3Trainer
    args: Any = GRPOConfig(**values) if kind == "stock" else R3Config(**values)
    if kind == "budget":
        args.tokens_per_forward = options.tokens
    clock = Clock()
    trainer = cls(
        model=model, args=args, processing_class=tokenizer, rollout_func=answers, callbacks=[clock],
        reward_funcs=lambda completion_ids, **_: [float(sum(ids) % 2) for ids in completion_ids],
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": str(n)}]} for n in range(64)]),
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    return trainer, clock


def run(kind: str, options: argparse.Namespace, folder: str) -> tuple[Clock, list[float], torch.Tensor]:
    """Clock, losses and the gradient of the last update, flattened."""
    trainer, clock = build(kind, options, folder)
    found: list[torch.Tensor] = []
    norm = trainer._get_grad_norm

    def kept(model: Any, grad_norm: Any = None) -> Any:
        found[:] = [p.grad.detach().flatten().clone() for p in trainer.model.parameters() if p.grad is not None]
        return norm(model, grad_norm=grad_norm)

    trainer._get_grad_norm = kept
    trainer.train()
    return clock, [line["loss"] for line in trainer.state.log_history if "loss" in line], torch.cat(found)


def peak(kind: str, options: argparse.Namespace) -> float:
    """MB that a process of its own reached beyond what the loaded model took."""
    command = [sys.executable, __file__, *sys.argv[1:], "--only", kind]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def _highest(reset: bool = False) -> float:
    """The most MB of memory this process has held; with `reset`, from now on. Linux only."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--cap", type=int, default=512)
    parser.add_argument("--capped", type=float, default=0.15)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--scored", action="store_true", help="two updates a batch, with TRL's scoring forward")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--memory", action="store_true", help="also the peak, in processes of their own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    with tempfile.TemporaryDirectory() as folder:
        if options.only:
            trainer, _ = build(options.only, options, folder)
            before = _highest(reset=True)
            trainer.train()
            print(_highest() - before)
            return
        ratios: dict[str, list[float]] = {}
        loss = gradient = 0.0
        for number in range(options.rounds + 1):
            found = {kind: run(kind, options, f"{folder}/{kind}") for kind in (KINDS if number % 2 else KINDS[::-1])}
            stock, losses, grads = found.pop("stock")
            for kind, (clock, other_losses, other_grads) in found.items():
                loss = max([loss, *(abs(a - b) for a, b in zip(losses, other_losses, strict=True))])
                gradient = max(gradient, float((grads - other_grads).norm() / grads.norm()))
                if number:  # the first round warms up
                    ratios.setdefault(f"{kind}, cpu", []).append(sum(stock.process) / sum(clock.process))
                    ratios.setdefault(f"{kind}, wall", []).append(sum(stock.wall) / sum(clock.wall))
        report: dict[str, Any] = {
            f"stock over {key}": [round(f(values), 3) for f in (statistics.median, min, max)]
            for key, values in ratios.items()
        }
        report |= {"loss_difference": loss, "gradient_difference": gradient}
    if options.memory:
        report["peak_mb"] = {kind: round(peak(kind, options), 1) for kind in KINDS}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
