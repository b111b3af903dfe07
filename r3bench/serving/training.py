"""The server that a recipe with `vllm_mode: server` trains with, when it names none of its own."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from r3bench.config.precision import autocast, precision
from r3bench.config.sections import Recipe
from r3bench.config.trainer_fields import trainer_value
from r3bench.devices import gpu_ids
from r3bench.errors import ConfigError
from r3bench.serving.server import Server, Serving, free_port

GPUS = "R3BENCH_SERVER_GPUS"  # variable with the GPUs set aside for the server, as in CUDA_VISIBLE_DEVICES
ADDRESS = ("vllm_server_base_url", "vllm_server_host", "vllm_server_port")  # of a server that somebody else runs


def wants_server(trainer: Mapping[str, Any]) -> bool:
    """Whether training needs a server that nobody runs yet. `trainer`: checked GRPOConfig fields."""
    values = dict(trainer)
    server = trainer_value(values, "use_vllm") and trainer_value(values, "vllm_mode") == "server"
    return bool(server) and not any(values.get(key) for key in ADDRESS)


def ranks(trainer: Mapping[str, Any], gpus: int) -> int:
    """How many of a cell's GPUs train: all, or all but the server's.

    Raises:
        ConfigError: none would be left.
    """
    if not wants_server(trainer):
        return gpus
    served = int(trainer_value(dict(trainer), "vllm_tensor_parallel_size"))
    if gpus <= served:
        raise ConfigError(
            f"trainer.vllm_mode: 'server' takes {served} of a cell's GPUs and training at least one, but a cell has "
            f"{gpus}; nearest that works: executor.gpus {served + 1}, or vllm_mode: colocate"
        )
    return gpus - served


def split_devices(trainer: Mapping[str, Any], processes: int) -> dict[str, str]:
    """Environment variables that keep the server's GPUs away from `processes` training processes; {} without GPUs.

    Raises:
        ConfigError: there are too few GPUs.
    """
    found = gpu_ids()
    if not found or not wants_server(trainer):
        return {}
    served = int(trainer_value(dict(trainer), "vllm_tensor_parallel_size"))
    if processes + served > len(found):
        raise ConfigError(
            f"trainer.vllm_mode: 'server' takes {served} GPUs besides the {processes} that train, but this machine "
            f"offers {len(found)}; train on fewer (--gpus), name a server that runs elsewhere "
            "(trainer.vllm_server_base_url), or use vllm_mode: colocate"
        )
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(found[:processes]),
        GPUS: ",".join(found[processes : processes + served]),
    }


@contextlib.contextmanager
def served(
    recipe: Recipe,
    model: Callable[[], str],
    context: Callable[[Recipe], int | None],
    log: Path,
    say: Callable[[str], None],
) -> Iterator[Recipe]:
    """`recipe` with the address of a server that runs as long as the block; as it is where it needs none.

    The address is no part of the run: the recipe that is recorded has none.

    Args:
        recipe: of the run.
        model: gives the folder or hub id of the start model.
        context: gives the tokens of the longest row that the engine must hold.
        log: file for what the server prints.
        say: takes lines for the user.

    Raises:
        ConfigError: vLLM is missing, or no row would fit.
        StateError: the server doesn't start, or ends before the block.
    """
    if not wants_server(recipe.trainer):
        yield recipe
        return
    values = dict(recipe.trainer)
    options = {"--model-impl": str(trainer_value(values, "vllm_model_impl"))}
    length = context(recipe)
    if length is not None:
        options["--max-model-len"] = str(length)
    options["--dtype"] = autocast(recipe) or precision(recipe).weights or "auto"  # as training computes
    if recipe.model.revision is not None:
        options["--revision"] = recipe.model.revision
    devices = os.environ.get(GPUS)
    serving = Serving(
        model=model(),
        training=True,
        devices=devices.split(",") if devices else None,
        tensor_parallel=int(trainer_value(values, "vllm_tensor_parallel_size")),
        options=options,
    )
    say(f"server: starting vLLM with {serving.model}; its log: {log}")
    with Server(serving, log, say) as server:
        say(f"server: answers at {server.url}")
        address = {"vllm_server_base_url": server.url}
        if "vllm_group_port" not in values:
            address["vllm_group_port"] = free_port()  # type: ignore[assignment]
        try:
            yield dataclasses.replace(recipe, trainer={**values, **address})
        except OSError as error:  # the client's, after some tries
            server.check(error)
            raise
