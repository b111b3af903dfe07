"""All use of TRL's and transformers' private parts, and the check that they are what we rely on.

`CONTRACT` lists every method of `GRPOTrainer` that is overridden or called, with the parameters we name. The test suite
checks it against the installed TRL, together with the arity and keys below; `check_trl` refuses an unsupported version.
"""

import contextlib
import logging
import os
import sys
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import gather_object, is_peft_model
from packaging.version import Version
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers import TrainerState
from trl.generation import vllm_generation
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer import utils as trl_utils
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import pad, use_adapter

from r3bench.config.trl_versions import CPU_HEAD, SUPPORTED, supported
from r3bench.errors import ConfigError
from r3bench.training.step.lengths import forward_by_length, splitter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

CONTRACT: dict[str, tuple[str, ...]] = {
    "_generate_and_score_completions": ("inputs",),
    "_calculate_rewards": ("inputs", "prompts", "completions", "completion_ids_list"),
    "_generate": ("prompts",),
    "_generate_single_turn": ("prompt_ids", "images", "multimodal_fields", "num_generations", "has_tool_images"),
    "_get_per_token_logps_and_entropies": (
        "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy",
    ),
    "_compute_loss": ("model", "inputs"),
    "_get_train_sampler": ("dataset",),
    "training_step": ("model", "inputs", "num_items_in_batch"),
    "_save_checkpoint": ("model", "trial"),
    "_load_optimizer_and_scheduler": ("checkpoint",),
    "_get_grad_norm": ("model", "grad_norm"),
    "_load_from_checkpoint": ("resume_from_checkpoint",),
    "_set_signature_columns_if_needed": (),
}  # fmt: skip
GENERATE_ARITY = 8  # of the tuple _generate returns
GENERATE_PROMPT_IDS, GENERATE_COMPLETION_IDS, GENERATE_TOOL_MASK = 0, 1, 2  # its places we read or set
OUTPUT_KEYS = (  # of _generate_and_score_completions, in the plainest setup
    "prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages", "num_items_in_batch",
)  # fmt: skip
ATTRIBUTES = (  # of a constructed trainer
    "_step", "_metrics", "_logs", "_buffered_inputs", "_tokenizer", "accelerator", "num_generations", "num_iterations",
    "reward_weights", "reward_func_names", "reward_funcs", "temperature", "loss_type", "beta", "ref_model",
    "scale_rewards", "eos_token_ids", "max_completion_length", "mask_truncated_completions",
    "off_policy_mask_threshold",
    "multi_objective_aggregation",
    "rollout_func", "environment_factories",
    "pad_to_multiple_of", "use_vllm", "use_transformers_continuous_batching",
)  # fmt: skip
SPLIT_KEYS = ("batch_size", "compute_entropy")  # of the scoring method: independent of which rows come together
TYPE_KEYS = ("token_type_ids", "mm_token_type_ids")  # batch columns as wide as prompt and completion together
IMAGE_KEYS = (  # batch entries with what a row's images are
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles",
    "image_sizes", "image_position_ids",
)  # fmt: skip
TILE = "_CHUNKED_LOGPROB_CHUNK_SIZE"  # of trl.trainer.utils: how many logits a tile of the fused head is wide
CLIP_METRICS = {  # loss type -> TRL's metric of the share that its clip or cap binds
    **dict.fromkeys(("grpo", "bnpo", "dr_grpo", "dapo", "luspo"), "clip_ratio/region_mean"),
    "cispo": "cispo_clip_ratio",
}
ROW_MEAN_LOSSES = ("grpo", "sapo", "dr_grpo", "luspo")  # average over rows, so padding rows must be made up for


def check_trl() -> None:
    """Raise `ConfigError` unless the installed TRL is one this module was written for."""
    installed = version("trl")
    if not supported(Version(installed)):
        raise ConfigError(f"trl {installed} is installed; R3Trainer needs trl>={SUPPORTED[0]},<{SUPPORTED[1]}")
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if Version(installed) < Version(CPU_HEAD) and not (torch.cuda.is_available() or interpreted):
        raise ConfigError(
            f"trl {installed} is installed, whose GRPO needs a GPU (its log-probs are a Triton kernel); expected "
            f"trl>={CPU_HEAD} on a CPU"
        )


def steps_per_window(trainer: Any) -> int:
    """Micro-steps between two generations."""
    return int(trainer.args.steps_per_generation * trainer.num_iterations)


def scores_samples(trainer: Any) -> bool:
    """Whether TRL runs a scoring forward over the sampled rows; else its loss forward is the behaviour policy."""
    vllm_correction = trainer.use_vllm and trainer.vllm_importance_sampling_correction
    return bool(trainer.args.gradient_accumulation_steps % steps_per_window(trainer) or vllm_correction)


def can_split(trainer: Any, kwargs: "Mapping[str, Any]") -> bool:
    """Whether one forward may be made in several parts: text only, and no loss that looks at the batch as a whole.

    Reentrant checkpointing under DDP reports a parameter's gradient once per forward, of which DDP takes one.
    """
    plain = all(value is None or value is False for key, value in kwargs.items() if key not in SPLIT_KEYS)
    reentrant = trainer.args.gradient_checkpointing and (trainer.args.gradient_checkpointing_kwargs or {}).get(
        "use_reentrant"
    )
    return plain and not (reentrant and trainer.accelerator.num_processes > 1)


def pads_prompts(trainer: Any) -> bool:
    """Whether sampling pads all prompts to the longest one: transformers' plain `generate`."""
    return not trainer.use_vllm and not trainer.use_transformers_continuous_batching


def prompts_may_differ(trainer: Any) -> bool:
    """Whether something besides the data set's row makes the prompt's tokens."""
    return trainer.rollout_func is not None or trainer.environment_factories is not None


def sees_images(trainer: Any) -> bool:
    """Whether the model takes images."""
    return bool(trainer._is_vlm)


def columns_used(trainer: Any) -> set[str] | None:
    """The columns of the training set that reach the model and the rewards; None: all."""
    if not trainer.args.remove_unused_columns:
        return None
    trainer._set_signature_columns_if_needed()
    return set(trainer._signature_columns)


def tokenizer(trainer: Any) -> Any:
    """The text tokenizer, also where the processing class is a processor."""
    return trainer._tokenizer


def micro_step(trainer: Any) -> int:
    """Micro-steps since the start or the last resume."""
    return int(trainer._step)


def buffered(trainer: Any) -> list[dict[str, Any]]:
    """The parts of the sampled batch that the loss goes through."""
    return list(trainer._buffered_inputs or [])


def restore(trainer: Any, folder: str) -> None:
    """Take weights and step counters from a checkpoint without training on."""
    trainer._load_from_checkpoint(folder)
    trainer.state = TrainerState.load_from_json(f"{folder}/trainer_state.json")


def window_is_open(trainer: Any) -> bool:
    """Whether a sampled batch is only partly used; a checkpoint taken now can't be resumed exactly."""
    return bool(trainer._step % steps_per_window(trainer))


def forget_batch(trainer: Any) -> None:
    """Start the next micro-step with a new generation, as after a resume."""
    trainer._step = 0
    trainer._buffered_inputs = None


def gather_list(items: list[Any]) -> list[Any]:
    """The items of all ranks in rank order, on every rank."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return list(items)
    gathered: list[Any] = gather_object(items)
    return gathered


def log_metric(trainer: Any, name: str, value: float) -> None:
    """Add a value to TRL's own training log (averaged between two log lines)."""
    trainer._metrics["train"][name].append(value)


def is_async(function: Any) -> bool:
    """Whether a reward function is to be awaited, by TRL's rule: also partials and callables."""
    return bool(trl_utils.is_async_callable(function))


def reward_name(function: Any) -> str:
    """The name TRL gives the column of a reward function; empty for a model, whose name is known once it is loaded."""
    model = isinstance(function, str | torch.nn.Module)
    return "" if model else str(trl_utils.get_callable_name(function))


def last_metric(trainer: Any, name: str) -> float:
    """The newest value TRL put in its training log, equal on every rank."""
    return float(trainer._metrics["train"][name][-1])


def relog_advantages(trainer: Any, rows: int, advantages: dict[int, float]) -> None:
    """Replace entries among the last `rows` advantages of the completions log."""
    log = trainer._logs["advantages"]
    first = len(log) - rows
    for row, value in advantages.items():
        if 0 <= first + row < len(log):
            log[first + row] = value


def split_images(batch: dict[str, Any]) -> dict[str, Any]:
    """The batch with its image tensors as lists of one per row, where they aren't one per row already."""
    return dict(trl_utils.split_pixel_values_by_grid(batch))


def join_images(batch: dict[str, Any]) -> dict[str, Any]:
    """Inverse of `split_images`."""
    return dict(trl_utils.unsplit_pixel_values_by_grid(batch))


def images_of(batch: "Mapping[str, Any]", rows: "Sequence[int]") -> dict[str, Any]:
    """What the model needs beside the tokens of the batch's `rows`, for `score_tokens`; empty without images."""
    if "num_images" not in batch:
        return {}
    split = split_images(dict(batch))
    found: dict[str, Any] = {}
    for key in IMAGE_KEYS:
        value = split.get(key)
        if value is not None:
            found[key] = [value[row] for row in rows] if isinstance(value, list) else value[list(rows)]
    for key in TYPE_KEYS:
        if key in batch:
            found[key] = [batch[key][row, : batch["prompt_ids"].size(1)] for row in rows]
    return join_images(found)


def bare_model(trainer: Any) -> Any:
    """The trained model without what DDP, FSDP or DeepSpeed wrap around it; with its adapters."""
    return trainer.accelerator.unwrap_model(trainer.model)


@contextlib.contextmanager
def reference_revision(arguments: Any, revision: str | None) -> "Iterator[None]":
    """Let TRL load the reference of the KL term, by the policy's name, from the policy's revision.

    Its `model_init_kwargs` are for that model too, though it says of a loaded policy that they are ignored.
    """
    if revision is None:
        yield
        return

    def other(record: logging.LogRecord) -> bool:
        return "`model_init_kwargs` will be ignored" not in record.getMessage()

    logger = logging.getLogger(GRPOTrainer.__module__)
    arguments.model_init_kwargs = {"revision": revision}
    logger.addFilter(other)
    try:
        yield
    finally:
        logger.removeFilter(other)
        arguments.model_init_kwargs = None


@contextlib.contextmanager
def engine_arguments(**arguments: Any) -> "Iterator[None]":
    """Hand arguments to the vLLM engine that TRL starts in a trainer's process, which it has no setting for.

    Without vLLM, or where the trainer starts no engine, it does nothing.
    """
    engine = getattr(vllm_generation, "LLM", None)
    if engine is None:
        yield
        return
    vllm_generation.LLM = partial(engine, **arguments)
    try:
        yield
    finally:
        vllm_generation.LLM = engine


def server_model_config(trainer: Any) -> "Mapping[str, Any]":
    """What the vLLM server that trains with the main process says of its model."""
    client = trainer.vllm_generation.vllm_client
    if hasattr(client, "get_server_info"):
        told = client.get_server_info()
    else:  # before TRL 1.16
        told = client._get(f"{client.base_url}/server_info", params={"config_format": "json"})
    found: Mapping[str, Any] = told["model_config"]
    return found


def whole_size(parameter: Any) -> int:
    """Elements of a parameter over all ranks, however it is split."""
    found = getattr(parameter, "ds_numel", None)  # ZeRO 3
    return int(found if found is not None else parameter.numel())  # FSDP2's DTensor gives the whole number


def held_elements(parameter: Any, index: Any, *, masters: bool = True) -> torch.Tensor:
    """Elements of a parameter as float32 on the CPU, shape (n,); NaN where another rank holds them.

    Args:
        parameter: whole, or split over ranks (FSDP2: a DTensor; ZeRO 3: `ds_tensor`).
        index: (n,) places in the whole parameter, flattened.
        masters: with DeepSpeed, what its optimiser changes instead of the model's rounded copies (collective there).
    """
    found = torch.full((len(index),), float("nan"))
    places = torch.as_tensor(index, dtype=torch.long)
    tensor = parameter.detach()
    share = getattr(parameter, "ds_tensor", None)
    if (masters and hasattr(parameter, "_hp_mapping")) or (masters and share is not None):
        whole = _deepspeed_master(parameter)
        if whole is not None:
            return whole.reshape(-1)[places].float().cpu()
    if share is not None:
        first = torch.distributed.get_rank(parameter.ds_process_group) * share.numel()
        inside = (places >= first) & (places < first + share.numel())
        found[inside] = share.detach().reshape(-1)[(places[inside] - first).to(share.device)].float().cpu()
        return found
    if tensor.device.type == "meta":
        return found
    if isinstance(tensor, DTensor):
        shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
        local = tensor.to_local()
        at = [torch.from_numpy(axis) for axis in np.unravel_index(places.numpy(), tensor.shape)]
        inside = torch.ones(len(places), dtype=torch.bool)
        for axis, length, first in zip(at, shape, offset, strict=True):
            inside &= (axis >= first) & (axis < first + length)
        if inside.any():
            here = tuple((axis[inside] - first).to(local.device) for axis, first in zip(at, offset, strict=True))
            found[inside] = local[here].float().cpu()
        return found
    return tensor.reshape(-1)[places.to(tensor.device)].float().cpu()


def _deepspeed_master(parameter: Any) -> torch.Tensor | None:
    """The float32 weights that DeepSpeed's optimiser changes, gathered; None outside DeepSpeed's training."""
    loaded: Any = sys.modules.get("deepspeed")  # whoever trains with it has it loaded
    if loaded is None:
        return None
    found: torch.Tensor | None = loaded.utils.safe_get_full_fp32_param(parameter)
    return found


def pad_left(rows: "Sequence[torch.Tensor]", value: int) -> torch.Tensor:
    """Stack 1-d tensors, padded on the left."""
    return pad(list(rows), padding_value=value, padding_side="left")


def pad_right(rows: "Sequence[torch.Tensor]", value: int) -> torch.Tensor:
    """Stack 1-d tensors, padded on the right."""
    return pad(list(rows), padding_value=value, padding_side="right")


@contextlib.contextmanager
def narrow_tiles(model: Any) -> "Iterator[None]":
    """Let TRL's fused head work on tiles no wider than a small vocabulary; on the CPU only.

    Its tile is 32,768 logits wide whatever the vocabulary. A few hundred of them then lie on a page of their own per
    token, and half the head's time goes into fetching pages. The products are the same, bit for bit: one tile holds
    the whole vocabulary either way.
    """
    width = getattr(trl_utils, TILE, None)
    vocabulary = model.config.get_text_config().vocab_size
    narrow = max(512, vocabulary + 256)  # room for an embedding with more rows than the configuration says
    if width is None or narrow >= width or model.device.type != "cpu":
        yield
        return
    setattr(trl_utils, TILE, narrow)
    try:
        yield
    finally:
        setattr(trl_utils, TILE, width)


@contextlib.contextmanager
def head_temperature(trainer: Any, temperature: float | None) -> "Iterator[None]":
    """Let the policy's fused head divide the logits by `temperature`; None: by the sampling temperature, as built.

    TRL's head keeps its temperature in a closure, so for as long a second head stands in front of the first.
    """
    if temperature is None or temperature == trainer.temperature:
        yield
        return
    model = trainer.accelerator.unwrap_model(trainer.model)
    model = model.get_base_model() if is_peft_model(model) else model
    forward = model.forward
    trl_utils.add_fused_lm_head(
        model,
        temperature=temperature,
        cast_lm_head_to_fp32=trainer.args.cast_lm_head_to_fp32,
        outputs=("log_probs", "entropy"),
    )
    try:
        yield
    finally:
        model.forward = forward


def score_tokens(
    trainer: Any,
    prompts: "Sequence[Sequence[int]]",
    completions: "Sequence[Sequence[int]]",
    *,
    reference: bool = False,
    temperature: float | None = None,
    images: "Mapping[str, Any] | None" = None,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Log-probs and entropies (0 for the reference) of the completion tokens, under the policy or the reference.

    Both are those of the policy's distribution at `temperature` (None: the sampling temperature). `images`: what
    `images_of` found for the rows.
    Collective: every rank must call it with the same number of rows. Returns two lists of CPU float32 tensors (T,).
    """
    device = trainer.accelerator.device
    prompt_rows = [torch.tensor(ids, dtype=torch.long) for ids in prompts]
    completion_rows = [torch.tensor(ids, dtype=torch.long) for ids in completions]
    token = trainer._tokenizer.pad_token_id
    input_ids = torch.cat([pad_left(prompt_rows, token), pad_right(completion_rows, token)], dim=1).to(device)
    prompt_mask = pad_left([torch.ones_like(row) for row in prompt_rows], 0)
    completion_mask = pad_right([torch.ones_like(row) for row in completion_rows], 0)
    attention_mask = torch.cat([prompt_mask, completion_mask], dim=1).to(device)
    keep = completion_mask.size(1)
    more = dict(images or {})
    for key in TYPE_KEYS:
        if key in more:
            parts = [value[-len(ids) :].cpu() for value, ids in zip(more[key], prompt_rows, strict=True)]
            more[key] = torch.nn.functional.pad(pad_left(parts, 0), (0, keep)).to(device)
    with head_temperature(trainer, temperature):
        logps, entropies = _forward(trainer, input_ids, attention_mask, keep, reference, more)
    lengths = [len(row) for row in completion_rows]
    return (
        [row[:n].float().cpu() for row, n in zip(logps, lengths, strict=True)],
        [row[:n].float().cpu() for row, n in zip(entropies, lengths, strict=True)],
    )


def hidden_states(
    trainer: Any,
    prompts: "Sequence[Sequence[int]]",
    completions: "Sequence[Sequence[int]]",
    positions: "Sequence[Sequence[int]]",
) -> list[Any]:
    """Hidden states that enter the LM head at the given completion tokens, as float32 arrays (n, H), without gradient.

    Collective: every rank must call it with the same number of rows.
    """
    device = trainer.accelerator.device
    token = trainer._tokenizer.pad_token_id
    rows = [torch.tensor([*p, *c], dtype=torch.long) for p, c in zip(prompts, completions, strict=True)]
    found: dict[int, Any] = {}
    size = trainer.args.per_device_train_batch_size
    with torch.no_grad(), disable_gradient_checkpointing(trainer.model, trainer.args.gradient_checkpointing_kwargs):
        for alike in splitter(trainer, size)([len(row) for row in rows]):
            part = [rows[row] for row in alike]
            ids = pad_right(part, token).to(device)
            mask = pad_right([torch.ones_like(row) for row in part], 0).to(device)
            with trainer.accelerator.autocast():
                output = trainer.model(
                    input_ids=ids, attention_mask=mask, output_hidden_states=True, logits_to_keep=1, use_cache=False
                )
            for number, row in enumerate(alike):
                places = torch.tensor([len(prompts[row]) + t for t in positions[row]], device=device)
                found[row] = output.hidden_states[-1][number, places].float().cpu().numpy()
    return [found[row] for row in range(len(rows))]


def _forward(
    trainer: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    keep: int,
    reference: bool,
    images: dict[str, Any],
) -> tuple[torch.Tensor, torch.Tensor]:
    def call(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
        forward = partial(GRPOTrainer._get_per_token_logps_and_entropies, trainer, model)
        size = trainer.args.per_device_train_batch_size
        if images:  # not row by row, so the rows can't be sorted by length
            found = forward(input_ids, attention_mask, keep, batch_size=size, compute_entropy=not reference, **images)
        else:
            split = splitter(trainer, size)
            found = forward_by_length(forward, input_ids, attention_mask, keep, split, compute_entropy=not reference)
        logps, entropies = found[:2]
        return logps, torch.zeros_like(logps) if entropies is None else entropies  # a reference's head gives none

    with torch.no_grad(), disable_gradient_checkpointing(trainer.model, trainer.args.gradient_checkpointing_kwargs):
        if not reference:
            return call(trainer.model)
        if trainer.ref_model is not None:
            return call(trainer.ref_model)
        adapter = trainer.accelerator.unwrap_model(trainer.model)
        with use_adapter(adapter, adapter_name="ref" if "ref" in adapter.peft_config else None):
            return call(trainer.model)
