"""Does a recipe fit in memory? Two updates on the worst batch that can be planned, with answers of full length.

The worst batch has the data's longest prompts, all rows that components may append, and among them the longest prompt
that one may write. What components append late in a run (reflection, replay) is in it from the first step.
"""

import dataclasses
import resource
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback
from transformers.utils import logging as transformers_logging

from r3bench import catalog
from r3bench.component import Component, Facts, PlannedGroup, Step
from r3bench.config.sections import Recipe
from r3bench.config.strict import build
from r3bench.config.trainer_fields import trainer_value
from r3bench.errors import R3BenchError
from r3bench.grading import Grader
from r3bench.out_of_memory import out_of_memory
from r3bench.records import RunPaths
from r3bench.training.context import longest_planned, prompt_lengths, template_arguments
from r3bench.training.run import build_trainer
from r3bench.training.trainer import R3Trainer

UPDATES = 2  # the optimiser's states exist from the first on, so the second is the larger


def probe(recipe: Recipe) -> dict[str, Any]:
    """Sample and train on rows as long as they can get; nothing is kept.

    The answers are kept from ending early by the sampler itself (`generation_kwargs`), so that it, the scoring and the
    updates all see full length.

    Returns:
        `peak_gb` and `total_gb` of this process's device (on CPU: resident memory, total None), `rows` of a
        micro-batch and how many are `appended` to them, tokens of the longest `prompt` and `answer`, and `text`, a
        line for the user.

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
            longest = worst(recipe, built)
            assert built.moments is not None
            built.moments.add(longest)
            built.train()
        except Exception as error:  # whatever kind says that memory ran out; all others are raised again
            if out_of_memory(error):
                raise R3BenchError(f"probe: {_too_large(recipe, cap)}") from error
            raise
        rows = built.args.per_device_train_batch_size
        history = [line for line in built.state.log_history if "completions/max_length" in line]
        parts = int(built.args.steps_per_generation or 1) * built.accelerator.num_processes
        appended = -(-longest.config.groups * int(built.num_generations or 1) // parts)
    peak, total = _memory()
    answer = int(max(line["completions/max_length"] for line in history)) if history else cap
    of = f" of {total:.1f}" if total else ""
    return {
        "peak_gb": peak,
        "total_gb": total,
        "rows": rows,
        "appended": appended,
        "prompt": longest.config.tokens,
        "answer": answer,
        "text": f"{UPDATES} updates of {rows}{f' + {appended} appended' if appended else ''} rows a process, prompts "
        f"of up to {longest.config.tokens} and answers of {answer} tokens: peak {peak:.1f}{of} GB",
    }


@dataclasses.dataclass(frozen=True)
class WorstConfig:
    """Settings of `Worst`."""

    groups: int  # appended to every batch, over all ranks
    tokens: int  # of the prompt of each


class Worst(Component):
    """Plans as many groups as the components of a recipe may append, each with the longest prompt one may write.

    Rows that are mixed in after sampling count as sampled ones: they are as long, and take part in the same updates.
    """

    name = "worst"
    Config = WorstConfig

    config: WorstConfig

    def __init__(self, config: WorstConfig, facts: Facts, render: Callable[[Any], int]) -> None:
        """`render`: tokens of a prompt in the chat template."""
        super().__init__(config, facts)
        self._render = render

    def plan(self, step: Step) -> list[PlannedGroup]:
        group = step.groups[0]
        if not self.config.groups and self._render(group.prompt) >= self.config.tokens:
            return []  # nothing is appended, and no prompt is longer than the data's
        prompt = self._filled(group.prompt)
        slots: Sequence[int | None] = [None] * self.config.groups or [group.index]
        return [PlannedGroup(group.question, "reflection", slot=slot, prompt=prompt) for slot in slots]

    def _filled(self, prompt: Any) -> Any:
        """`prompt` with filler in its last user turn, up to the configured number of tokens."""
        messages = [dict(message) for message in prompt]
        last = max(place for place, message in enumerate(messages) if message["role"] == "user")
        text = messages[last]["content"]
        words = max(0, self.config.tokens - self._render(messages))
        while words > 0:
            messages[last]["content"] = text + " 0" * words
            excess = self._render(messages) - self.config.tokens
            if excess <= 0:
                break
            words -= max(1, excess // 2)  # a word is one token or two
        return messages


def worst(recipe: Recipe, trainer: R3Trainer) -> Worst:
    """The largest plans that the recipe's components can make for this trainer."""
    assert trainer.moments is not None
    facts = trainer.moments.facts()
    tokenizer: Any = trainer.processing_class
    size = facts.num_generations
    rows = 0
    for name, settings in recipe.components.items():
        component = catalog.component(name)
        rows += component.most_appended(build(component.Config, settings, name), facts.groups, size)
    groups = -(-rows // size)
    groups = -(-groups // facts.append_multiple) * facts.append_multiple
    template = template_arguments(recipe.trainer)
    data = max(prompt_lengths(trainer.train_dataset, tokenizer, template))
    longest = longest_planned(
        recipe.components, data, facts.max_completion_length, lambda text: len(facts.encode(text))
    )

    def render(messages: Any) -> int:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **template)
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    return Worst(WorstConfig(groups, longest), facts, render)


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
