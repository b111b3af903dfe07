"""How a run computes: strategy, dtypes, and the engine that samples. What a record must say besides the recipe."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from r3bench.training.step import trl_adapter


@dataclass(frozen=True)
class Numerics:
    """Fields of `TrainRecord`; dtypes by their torch name."""

    strategy: str  # single (one process), ddp, fsdp1, fsdp2, zero1, zero2, zero3
    weights_dtype: str  # of most of the weights that the optimiser changes
    compute_dtype: str  # of the matrix products in training
    engine: str  # transformers, vllm colocate, vllm server
    engine_dtype: str | None  # that answers are sampled in; None: a server that doesn't tell


def numerics(trainer: Any) -> Numerics:
    """Of a trainer that is built. Collective with a vLLM server."""
    weights = weights_dtype(trainer)
    compute = compute_dtype(trainer.args, weights)
    engine, engine_dtype = "transformers", compute
    if trainer.use_vllm:
        engine = f"vllm {trainer.args.vllm_mode}"
        if trainer.args.vllm_mode == "server":
            told = served_dtype(trainer) if trainer.accelerator.is_main_process else None
            engine_dtype = trl_adapter.gather_list([told])[0]
    return Numerics(strategy(trainer), weights, compute, engine, engine_dtype)


def compute_dtype(arguments: Any, weights: str) -> str:
    """Dtype of the matrix products under these arguments, for weights of the dtype `weights`."""
    return "bfloat16" if arguments.bf16 else "float16" if arguments.fp16 else weights


def strategy(trainer: Any) -> str:
    """How the model is spread over processes."""
    if trainer.is_deepspeed_enabled:
        return f"zero{trainer.accelerator.state.deepspeed_plugin.zero_stage}"
    if trainer.is_fsdp_enabled:
        return "fsdp2" if trainer.accelerator.is_fsdp2 else "fsdp1"
    return "ddp" if trainer.accelerator.num_processes > 1 else "single"


def weights_dtype(trainer: Any) -> str:
    """Dtype of most of the trained weights, as the optimiser changes them."""
    counts: Counter[torch.dtype] = Counter()
    for parameter in trl_adapter.bare_model(trainer).parameters():
        if parameter.requires_grad:
            counts[parameter.dtype] += trl_adapter.whole_size(parameter)
    if not counts:
        return "float32"
    found = counts.most_common(1)[0][0]
    low = found in (torch.bfloat16, torch.float16)
    mixed = trainer.args.bf16 or trainer.args.fp16
    if low and (trainer.is_deepspeed_enabled or (trainer.is_fsdp_enabled and mixed)):
        return "float32"  # both keep masters of low-precision weights
    return str(found).removeprefix("torch.")


def served_dtype(trainer: Any) -> str | None:
    """What a vLLM server says it computes in; None where it doesn't."""
    try:
        found = str(trl_adapter.server_model_config(trainer).get("dtype", "")).removeprefix("torch.")
    except (OSError, RuntimeError, ValueError, KeyError, AttributeError):  # a server that isn't in its development mode
        return None
    return found if isinstance(getattr(torch, found, None), torch.dtype) else None
