"""Weights that ran away: training that is over although every number in it is still finite.

A step that is far too large throws the weights so far out that every logit saturates: answers carry no entropy, all
of a group are alike, and loss and gradient are exactly 0 from then on. Nothing non-finite ever shows, so the weights
are looked at themselves.
"""

from typing import Any

import torch
from transformers import TrainerCallback

from r3bench.errors import Diverged

GROWTH = 1000.0  # times the largest weight of the start; useful training moves weights by less than their own size


class StopAtRunawayWeights(TrainerCallback):
    """After each update: `Diverged` if a trained weight is non-finite or above `GROWTH` x max(1, largest at the start).

    The start is the model as the trainer is built with it, also when training then resumes from a checkpoint.

    Args:
        trainer: built, not yet training.
    """

    def __init__(self, trainer: Any) -> None:
        self._accelerator = trainer.accelerator
        self._limit = GROWTH * max(1.0, self._largest(trainer.model))

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        found = self._largest(model)
        if not found <= self._limit:  # also when it isn't a number
            raise Diverged(
                f"step {state.global_step}: a weight is {found:.3g} in size, above the limit of {self._limit:.3g} "
                f"({GROWTH:g} times the largest at the start, at least 1)"
            )

    def _largest(self, model: Any) -> float:
        """Largest magnitude of a trained weight over all ranks, each looking at what it holds; NaN if one is."""
        parts = [_held(p) for p in model.parameters() if p.requires_grad]
        parts = [part for part in parts if part.numel() and part.device.type != "meta"]
        sizes = [size.float() for size in torch._foreach_norm(parts, float("inf"))] if parts else [torch.zeros(1)]
        device = self._accelerator.device
        largest = torch.stack([size.to(device).reshape(()) for size in sizes]).max().reshape(1)
        return float(self._accelerator.gather(largest).max())


def _held(parameter: torch.Tensor) -> torch.Tensor:
    """This rank's share of a parameter, however it is split (FSDP2: a DTensor, ZeRO 3: `ds_tensor`)."""
    share: Any = getattr(parameter, "ds_tensor", None)
    if share is not None:  # shares are equally long, and what the last are filled up with was never written
        whole: Any = parameter
        first = torch.distributed.get_rank(whole.ds_process_group) * share.numel()
        return share.detach()[: max(0, whole.ds_numel - first)]  # type: ignore[no-any-return]
    local = getattr(parameter, "to_local", None)
    return (local() if local is not None else parameter).detach()
