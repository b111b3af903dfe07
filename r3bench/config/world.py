"""Whether a recipe's numbers work on so many processes: arithmetic, so that it fails before any model is loaded."""

import math
from collections.abc import Callable
from typing import Any

from r3bench.config.trainer_fields import generation_batch, trainer_value
from r3bench.errors import ConfigError

REACH = 512  # how far around a number one that works is looked for


def check_world(values: dict[str, Any], gpus: int, nodes: int = 1, where: str = "trainer") -> None:
    """Check the `trainer` section against the number of processes.

    Args:
        values: checked GRPOConfig fields.
        gpus: processes on each node, one per GPU.
        nodes: machines.
        where: named in front of the message.

    Raises:
        ConfigError: the batch can't be split over the processes or cut into groups, or vLLM's tensor-parallel groups
            don't fit; with the nearest numbers that work.
    """
    world = gpus * nodes
    device = int(trainer_value(values, "per_device_train_batch_size"))
    group = int(trainer_value(values, "num_generations"))
    rows = generation_batch(values, world)
    if values.get("generation_batch_size"):
        each = device * world
        fits = lambda n: n % each == 0 and n % group == 0  # noqa: E731
        if not fits(rows):
            raise ConfigError(
                f"{where}.generation_batch_size: got {rows}, expected a multiple of per_device_train_batch_size "
                f"{device} x {world} processes and of num_generations {group}; "
                f"{_any(generation_batch_size=_near(rows, fits, math.lcm(each, group)))}"
            )
    elif rows % group:
        key = "steps_per_generation" if values.get("steps_per_generation") else "gradient_accumulation_steps"
        steps = rows // (device * world)
        raise ConfigError(
            f"{where}: per_device_train_batch_size {device} x {key} {steps} x {world} processes = {rows} rows sampled "
            f"together can't be cut into groups of num_generations {group}; "
            + _any(
                per_device_train_batch_size=_near(device, lambda n: n * steps * world % group == 0),
                **{key: _near(steps, lambda n: n * device * world % group == 0)},
                processes=_near(world, lambda n: n * device * steps % group == 0),
            )
        )
    _check_vllm(values, gpus, where)
    _check_evaluation(values, world, group, where)


def check_whole_groups(values: dict[str, Any], world: int, where: str = "trainer") -> None:
    """Check that no group is spread over processes, as components need that append groups or rows.

    Args:
        values: checked GRPOConfig fields that `check_world` accepts.
        world: processes.
        where: named in front of the message.

    Raises:
        ConfigError: a process holds a part of a group; with the nearest numbers that work.
    """
    device = int(trainer_value(values, "per_device_train_batch_size"))
    group = int(trainer_value(values, "num_generations"))
    local = generation_batch(values, world) // world
    if local % group == 0:
        return
    said = f"{where}: {local} rows a process can't be cut into groups of num_generations {group}"
    if values.get("generation_batch_size"):
        rows = local * world
        near = _any(
            generation_batch_size=_near(
                rows, lambda n: n % math.lcm(device * world, group * world) == 0, math.lcm(device, group) * world
            )
        )
    else:
        key = "steps_per_generation" if values.get("steps_per_generation") else "gradient_accumulation_steps"
        steps = local // device
        near = _any(
            per_device_train_batch_size=_near(device, lambda n: n * steps % group == 0),
            **{key: _near(steps, lambda n: n * device % group == 0)},
        )
    raise ConfigError(f"{said}; {near}")


def least_processes(values: dict[str, Any]) -> int:
    """The number of processes of which any multiple gives whole groups together."""
    rows, group = generation_batch(values), int(trainer_value(values, "num_generations"))
    return group // math.gcd(rows, group)


def _check_vllm(values: dict[str, Any], gpus: int, where: str) -> None:
    tensor = int(trainer_value(values, "vllm_tensor_parallel_size"))
    if not trainer_value(values, "use_vllm") or trainer_value(values, "vllm_mode") != "colocate":
        return
    if gpus % tensor:  # a group of GPUs that share one engine stays on a node
        raise ConfigError(
            f"{where}.vllm_tensor_parallel_size: got {tensor}, expected a divisor of the {gpus} GPUs of a node; "
            f"{_any(vllm_tensor_parallel_size=_near(tensor, lambda n: gpus % n == 0))}"
        )


def _check_evaluation(values: dict[str, Any], world: int, group: int, where: str) -> None:
    if trainer_value(values, "eval_strategy") == "no":
        return
    device = int(trainer_value(values, "per_device_eval_batch_size"))
    group = int(values.get("num_generations_eval") or group)
    if device * world % group:
        raise ConfigError(
            f"{where}: per_device_eval_batch_size {device} x {world} processes can't be cut into groups of {group}; "
            f"{_any(per_device_eval_batch_size=_near(device, lambda n: n * world % group == 0))}"
        )


def _near(value: int, works: Callable[[int], bool], least: int = 0) -> int | None:
    """The number closest to `value`, from 1, that works; the smaller of two equally close. `least`: one that does."""
    for distance in range(1, max(least + 1, REACH * max(1, value))):
        for candidate in (value - distance, value + distance):
            if candidate >= 1 and works(candidate):
                return candidate
    return None


def _any(**choices: int | None) -> str:
    found = [f"{key}={value}" for key, value in choices.items() if value]
    return f"nearest that works: {' or '.join(found)}"
