"""Does a recipe fit in memory? Two updates on the longest prompts with answers of full length."""

import dataclasses
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback
from transformers.utils import logging as transformers_logging

from r3bench.config.sections import Recipe
from r3bench.config.trainer_fields import trainer_value
from r3bench.errors import R3BenchError
from r3bench.grading import Grader
from r3bench.records import RunPaths
from r3bench.training.run import build_trainer

UPDATES = 2  # the optimiser's states exist from the first on, so the second is the larger


def probe(recipe: Recipe) -> dict[str, Any]:
    """Sample and train on rows as long as they can get; nothing is kept.

    The answers are kept from ending early by the sampler itself (`generation_kwargs`), so that it, the scoring and the
    updates all see full length.

    Returns:
        `peak_gb` and `total_gb` of this process's device (on CPU: resident memory, total None), `rows` of a
        micro-batch, `answer` (tokens of the longest answer), and `text`, a line for the user.

    Raises:
        R3BenchError: out of memory.
    """
    transformers_logging.disable_progress_bar()
    trainer = recipe.trainer
    cap = int(trainer_value(trainer, "max_completion_length"))
    least = "min_tokens" if trainer_value(trainer, "use_vllm") else "min_new_tokens"
    forced = {
        **trainer,
        "max_steps": UPDATES,
        "shuffle_dataset": False,
        "save_strategy": "no",
        "logging_steps": 1,
        "eval_strategy": "no",
        "report_to": "none",
        "generation_kwargs": {**(trainer.get("generation_kwargs") or {}), least: cap},
    }
    with tempfile.TemporaryDirectory(prefix="r3bench-probe-") as folder, Grader(workers=1) as grader:
        full = dataclasses.replace(recipe, trainer=forced)
        try:
            built = build_trainer(full, RunPaths(Path(folder)), grader, longest_first)
            built.remove_callback(PrinterCallback)
            built.train()
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
                raise R3BenchError(f"probe: {_too_large(recipe, cap)}") from error
            raise
        rows = built.args.per_device_train_batch_size
        history = [line for line in built.state.log_history if "completions/max_length" in line]
    peak, total = _memory()
    answer = int(max(line["completions/max_length"] for line in history)) if history else cap
    of = f" of {total:.1f}" if total else ""
    return {
        "peak_gb": peak,
        "total_gb": total,
        "rows": rows,
        "answer": answer,
        "text": f"{UPDATES} updates of {rows} rows a process, answers of {answer} tokens: peak {peak:.1f}{of} GB",
    }


def longest_first(questions: Dataset) -> Dataset:
    """The questions by the length of their text, longest first."""
    lengths = [len(problem) for problem in questions["problem"]]
    return questions.select(sorted(range(len(lengths)), key=lambda i: -lengths[i]))


def _memory() -> tuple[float, float | None]:
    """(peak, total) in GB: of the GPU, what was reserved for tensors; on CPU the peak resident size."""
    if torch.cuda.is_available():
        _, total = torch.cuda.mem_get_info()
        return torch.cuda.max_memory_reserved() / 1e9, total / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9, None


def _too_large(recipe: Recipe, cap: int) -> str:
    rows = int(trainer_value(recipe.trainer, "per_device_train_batch_size"))
    return (
        f"out of memory with {rows} rows a process and answers of {cap} tokens; lower "
        "trainer.per_device_train_batch_size (and raise gradient_accumulation_steps as much), "
        "trainer.vllm_gpu_memory_utilization or trainer.max_completion_length, or set model.lora"
    )
