"""Entropies at two temperatures from one forward: the head is applied twice to the same hidden states."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from accelerate.utils import is_peft_model

from r3bench.component import Component
from r3bench.training.step.host import Host
from r3bench.training.step.trl_adapter import bare_model, head_temperature


def reads_entropies(components: Sequence[Component]) -> bool:
    """Whether one of them may ask for entropies before the loss."""
    return any(type(component).entropy_rows is not Component.entropy_rows for component in components)


def wanted_temperature(components: Sequence[Component], sampling: float) -> float | None:
    """A temperature besides that of sampling at which one of them reads entropies; None: there is none."""
    wanted = (component.entropy_temperature for component in components if reads_entropies([component]))
    return next((temperature for temperature in wanted if temperature not in (None, sampling)), None)


@contextlib.contextmanager
def second_temperature(trainer: Host, temperature: float | None) -> Iterator[None]:
    """While it lasts, scoring forwards of the policy give entropies (B, T, 2): as sampled, and at `temperature`.

    None: (B, T), as they are. Without gradient only.
    """
    if temperature is None:
        yield
        return
    model = bare_model(trainer)
    model = model.get_base_model() if is_peft_model(model) else model
    first = model.forward
    with head_temperature(trainer, temperature):
        second = model.forward

    @functools.wraps(first)
    def both(*args: Any, **kwargs: Any) -> Any:
        backbone = model.base_model
        kept: list[Any] = []
        hook = backbone.register_forward_hook(lambda _module, _inputs, outputs: kept.append(outputs))
        try:
            found = first(*args, **kwargs)
        finally:
            hook.remove()
        forward = backbone.forward
        backbone.forward = lambda *_, **__: kept[0]  # the hidden states are there already
        try:
            other = second(*args, **kwargs)
        finally:
            backbone.forward = forward
        found.entropy = torch.stack([found.entropy, other.entropy], dim=-1)
        return found

    model.forward = both
    try:
        yield
    finally:
        model.forward = first
