"""Batches in whole numbers: enough questions for one, and checkpoints where a sampled batch ends. Loads no torch.

`arguments` is a GRPOConfig, or anything with its fields of that name.
"""

import math
from typing import Any

from r3bench.errors import ConfigError


def check_questions(count: int, arguments: Any) -> None:
    """Refuse data with fewer questions than one batch asks.

    Raises:
        ConfigError: saying how many it needs.
    """
    need = int(arguments.generation_batch_size or 1) // int(arguments.num_generations or 1)
    if count < need:
        raise ConfigError(
            f"data: {count} questions, expected at least {need}: a batch of {arguments.generation_batch_size} rows has "
            f"{need} groups of {arguments.num_generations}, and TRL trains on whole batches only"
        )


def check_ends(count: int, arguments: Any) -> None:
    """Refuse `save_steps` with which an epoch's end would cut a sampled batch in two.

    Raises:
        ConfigError: with the nearest number that works.
    """
    save = arguments.save_steps
    if arguments.save_strategy == "steps" and save >= 1 and not closed_at(int(save), count, arguments):
        limit = int(save) + _updates(count, arguments)[1] * steps_per_batch(arguments)
        fitting = [n for n in range(1, limit + 1) if n % steps_per_batch(arguments) == 0]
        nearest = min((n for n in fitting if closed_at(n, count, arguments)), key=lambda n: (abs(n - save), n))
        raise ConfigError(
            f"trainer.save_steps: got {save:g}, but epochs of {count} questions end within an update, so some "
            f"checkpoints would cut a sampled batch in two and couldn't be resumed exactly; nearest: {nearest}"
        )


def _updates(questions: int, arguments: Any) -> tuple[int, int]:
    """Micro-steps and updates of an epoch; its last update takes what is left."""
    groups = int(arguments.generation_batch_size or 1) // int(arguments.num_generations or 1)
    micro_steps = questions // groups * int(arguments.steps_per_generation or 1) * arguments.num_iterations
    return micro_steps, math.ceil(micro_steps / arguments.gradient_accumulation_steps)


def closed_at(save: int, questions: int, arguments: Any) -> bool:
    """Whether a sampled batch ends with every `save`-th update."""
    window = int(arguments.steps_per_generation or 1) * arguments.num_iterations
    micro_steps, updates = _updates(questions, arguments)
    ends = (min(u * arguments.gradient_accumulation_steps, micro_steps) for u in range(1, updates + 1))
    closed = [end % window == 0 for end in ends]
    meets = math.gcd(save, updates)  # the updates of an epoch that are a multiple of `save` in some epoch
    return all(closed[meets - 1 :: meets])


def steps_per_batch(arguments: Any) -> int:
    """Updates until one ends together with a sampled batch, within an epoch."""
    window = int(arguments.steps_per_generation or 1) * arguments.num_iterations
    return window // math.gcd(window, arguments.gradient_accumulation_steps)


def check_save_steps(arguments: Any) -> None:
    """Refuse `save_steps` that would cut a sampled batch in two.

    Raises:
        ConfigError: with the nearest number that works.
    """
    steps = steps_per_batch(arguments)
    save = arguments.save_steps  # below 1: a share of the run, which ends anywhere
    if arguments.save_strategy == "steps" and (save % steps if save >= 1 else steps > 1):
        close = max(1, round(save / steps)) * steps
        raise ConfigError(
            f"trainer.save_steps: got {save:g}, expected a multiple of {steps}: a sampled batch ends with "
            f"every {steps}th update, and a checkpoint inside one can't be resumed exactly; nearest: {close}"
        )
