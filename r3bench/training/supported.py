"""What of TRL's world a component can work in; the rest is refused before training, with the reason.

A tool, an environment, a `rollout_func` or an image stands between a data set row and the policy's tokens. Masks and
turns are kept (`rollout.py`); what is refused here would give wrong numbers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from datasets import IterableDataset

from r3bench.component import Component
from r3bench.errors import ConfigError
from r3bench.training.step import trl_adapter

IMAGES = ("image", "images")  # TRL's columns


def check_supported(trainer: Any, components: Sequence[Component], has_data: bool) -> None:
    """Refuse components that can't work with the trainer's data, tools, environments or `rollout_func`.

    Args:
        trainer: built.
        components: those that are on.
        has_data: whether a `train_dataset` was given; without one, TRL makes one of empty prompts for environments.

    Raises:
        ConfigError: naming the first component and the reason.
    """
    data = trainer.train_dataset
    images = bool(components) and has_images(trainer)
    for component in components:
        reason = _reason(trainer, component, data, has_data, images)
        if reason:
            raise ConfigError(f"R3Config.components.{component.name}: {reason}")


def _reason(trainer: Any, component: Component, data: Any, has_data: bool, images: bool) -> str | None:
    kind = type(component)
    plans = kind.plan is not Component.plan
    by_question = plans or component.resamples or component.uses_history
    prefixes = component.gives_prefixes
    if isinstance(data, IterableDataset) and (plans or component.resamples):
        return "plans groups by question and needs a map-style train_dataset, got an IterableDataset"
    if trainer.rollout_func is not None and prefixes:
        return "starts answers from given tokens, which a rollout_func, sampling by itself, would not continue"
    if trainer.environment_factories is not None:
        if by_question and not (has_data and _tells_questions_apart(data)):
            return (
                "goes by question, but the environment makes the questions, so one can't be told from another; give a "
                "train_dataset whose columns reset() turns into the prompt"
            )
        if component.rewrites_prompts:
            return "rewrites prompts, and what the environment's reset() adds to them would be lost"
    if trl_adapter.sees_images(trainer) and trainer.tools and (by_question or _reads(component)):
        return "scores answers without the images that tools may return; use a text model, or no tools"
    if images:
        if component.rewrites_prompts:
            return "rewrites prompts, and the images in them would be lost"
        if prefixes:
            return "starts answers from given tokens, which image models' inputs leave no room for"
        if component.resamples:
            return "samples slots again, and batches with images can't be joined by rows"
        if _reads(component):
            return "reads the policy's entropies or hidden states, which would be computed without the images"
    return None


def _reads(component: Component) -> bool:
    """Whether it asks for forward passes of its own before there is a batch."""
    return component.probes_hidden or type(component).entropy_rows is not Component.entropy_rows


def _tells_questions_apart(data: Any) -> bool:
    names = getattr(data, "column_names", None)
    return names is None or bool(set(names) - {"environment"})


def has_images(trainer: Any) -> bool:
    """Whether the training set has images, by its columns and the prompt of its first row."""
    data = trainer.train_dataset
    names = getattr(data, "column_names", None) or []
    if any(name in names for name in IMAGES):
        return True
    if not trl_adapter.sees_images(trainer):
        return False
    row = next(iter(data.take(1)), {}) if isinstance(data, IterableDataset) else data[0] if len(data) else {}
    return any(name in row for name in IMAGES) or prompt_has_images(row.get("prompt"))


def prompt_has_images(prompt: Any) -> bool:
    """Whether a prompt (text or messages) has an image among its content blocks."""
    if isinstance(prompt, str) or prompt is None:
        return False
    blocks = [block for message in prompt if isinstance(message["content"], list) for block in message["content"]]
    return any(isinstance(block, Mapping) and block.get("type") == "image" for block in blocks)
