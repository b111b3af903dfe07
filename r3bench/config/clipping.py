"""Whether the clip of a policy ratio can ever act: only where the policy changes while a sampled batch is in use."""

from dataclasses import asdict
from typing import Any

from r3bench import catalog
from r3bench.config.sections import Recipe
from r3bench.config.strict import build
from r3bench.config.trainer_fields import generation_batch, trainer_value

CLIP_FIELDS = ("epsilon", "epsilon_high", "delta")  # fields of a clip
RATIO_LOSSES = ("cispo", "sapo", "vespo")  # losses that differ from the others by what they do to the ratio


def updates_per_rollout(recipe: Recipe, processes: int = 1) -> float:
    """Optimiser steps for each sampled batch: micro-steps it is used for over those of an update."""
    return _window(recipe, processes) / int(trainer_value(recipe.trainer, "gradient_accumulation_steps"))


def ratio_moves(recipe: Recipe, processes: int = 1) -> bool:
    """Whether an update falls inside a sampled batch's use, so that current and sampling policy ever differ.

    Otherwise the ratio of the two is 1 in every loss: its gradient is the policy gradient, and no clip acts.
    """
    return bool(int(trainer_value(recipe.trainer, "gradient_accumulation_steps")) % _window(recipe, processes))


def replays_with_ratios(recipe: Recipe) -> bool:
    """Whether a component mixes in stored answers against the log-probs they were sampled with, as PPO's old policy."""
    return any(settings.get("weight") == "ppo" for settings in _with_defaults(recipe))


def clip_warning(recipe: Recipe, processes: int = 1) -> str | None:
    """What to say of a recipe that states a clip, or a loss that lives off the ratio, where the ratio is always 1."""
    if ratio_moves(recipe, processes):
        return None
    values = recipe.trainer
    stated = [f"{key}: {values[key]:g}" for key in CLIP_FIELDS if values.get(key) is not None]
    if values.get("importance_sampling_level") == "sequence":
        stated.append("importance_sampling_level: sequence")
    if values.get("loss_type") in RATIO_LOSSES:
        stated.append(f"loss_type: {values['loss_type']}")
    if not stated:
        return None
    steps = int(trainer_value(values, "gradient_accumulation_steps"))
    acts, ratio = ("can't act", "always 1")
    if replays_with_ratios(recipe):
        acts, ratio = ("can't act but on stored answers (weight: ppo)", "1 for all others")
    return (
        f"trainer: {', '.join(stated)} {acts}: each sampled batch is used up in one update, so the ratio to the policy "
        f"that sampled it is {ratio}; set steps_per_generation above gradient_accumulation_steps ({steps}), such as a "
        "multiple of it, or num_iterations above 1"
    )


def _with_defaults(recipe: Recipe) -> list[dict[str, Any]]:
    """Settings of the components that are on, defaults filled in."""
    found = []
    for name, settings in recipe.components.items():
        found.append(asdict(build(catalog.component(name).Config, settings, name)))
    return found


def _window(recipe: Recipe, processes: int) -> int:
    values = recipe.trainer
    each = int(trainer_value(values, "per_device_train_batch_size")) * processes
    steps = max(1, generation_batch(values, processes) // each)
    return steps * int(trainer_value(values, "num_iterations"))
