"""The reward columns of a batch by their places: the task's own, and those that components fill.

TRL names a column after its function, and names repeat: partials of one function, a function called like a component.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from r3bench.training.step import trl_adapter


def placeholder(name: str) -> Callable[..., list[None]]:
    """A reward function that gives nothing: it makes TRL name, weigh and log the column a component fills."""

    def nothing(prompts: list[Any], **_: Any) -> list[None]:
        return [None] * len(prompts)

    nothing.__name__ = name
    return nothing


def as_list(value: Any) -> list[Any]:
    """What TRL takes as one thing or a list of them (`reward_funcs`, `reward_processing_classes`), as a list."""
    return list(value) if isinstance(value, list) else [] if value is None else [value]


def check_counts(functions: int, weights: Sequence[float] | None, processing_classes: Any) -> None:
    """Raise `ValueError`, as TRL does, unless there is one weight and one processing class per reward function.

    Asked before placeholders are added, which would be in TRL's counts.
    """
    if weights is not None and len(weights) != functions:
        raise ValueError(f"reward_weights: got {len(weights)} numbers for {functions} reward functions")
    if processing_classes is not None and len(as_list(processing_classes)) != functions:
        raise ValueError(
            f"reward_processing_classes: got {len(as_list(processing_classes))} for {functions} reward functions"
        )


def distinct(names: Sequence[str], filled: Sequence[int]) -> list[str]:
    """`names` (F,) with those at the places `filled` by components made different from all others.

    TRL logs a column by its name, so two of one name would be averaged in the log.
    """
    result = list(names)
    for place in filled:
        while result.count(result[place]) > 1:
            result[place] += "_component"
    return result


def watched(function: Any) -> Any:
    """`function` with NaN that it gives as a number turned into infinity: TRL turns None into NaN as well."""
    if isinstance(function, torch.nn.Module):
        return function  # never abstains, so a NaN in its column is a number
    if trl_adapter.is_async(function):

        async def later(*args: Any, **kwargs: Any) -> Any:
            return _marked(await function(*args, **kwargs))

        return later

    def now(*args: Any, **kwargs: Any) -> Any:
        return _marked(function(*args, **kwargs))

    return now


def _marked(rewards: Any) -> Any:
    return None if rewards is None else [math.inf if _is_nan(reward) else reward for reward in rewards]


def _is_nan(reward: Any) -> bool:
    try:
        return reward is not None and math.isnan(reward)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # no single number: TRL says so
        return False


def non_finite(rewards: torch.Tensor, functions: Sequence[Any], filled: Sequence[int]) -> list[int]:
    """Places of the task's columns that hold a number that isn't finite.

    Args:
        rewards: (N, F) as TRL gathered them from functions that were `watched`.
        functions: the F reward functions.
        filled: places that components fill.
    """
    bad = torch.isinf(rewards).any(dim=0)
    for place, function in enumerate(functions):
        if isinstance(function, torch.nn.Module):
            bad[place] |= torch.isnan(rewards[:, place]).any()
    return [place for place in bad.nonzero().flatten().tolist() if place not in filled]
