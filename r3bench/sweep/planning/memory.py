"""What a recipe needs of one GPU's memory, from its numbers alone. A plan; `train --probe` measures."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from r3bench import catalog, project
from r3bench.config.precision import autocast_of, loaded_dtype, precision
from r3bench.config.sections import LoraSection, Recipe
from r3bench.config.strict import build
from r3bench.config.trainer_fields import generation_batch, trainer_value
from r3bench.sweep.strategy import Strategy

PROMPT = 1024  # tokens of the data's longest prompt, where nothing is known
SPARE = 0.1  # of a card's memory that should be left: fragmentation, and what these formulas don't know
ASLEEP_GB = 1.0  # what a sleeping vLLM keeps: CUDA graphs, its own context; ours
ENGINE_WIDTH = 2  # bytes of the engine's weights, keys and values: bfloat16 for float32 and bfloat16 checkpoints
STATES = {  # optimiser states a trained weight, where that isn't the usual two in the weights' dtype
    "sgd": 0, "adafactor": 0, "lomo": 0, "adalomo": 0, "adagrad": 1, "rmsprop": 1, "schedule_free_sgd": 1,
}  # fmt: skip
OWN_WIDTH = {  # bytes a trained weight of optimisers that keep states in a dtype of their own
    "adamw_torch_4bit": 1, "adamw_torch_8bit": 2, "lion_32bit": 4, "paged_lion_32bit": 4, "rmsprop_bnb": 4,
    "rmsprop_bnb_32bit": 4, "rmsprop_bnb_8bit": 1, "lion_8bit": 1, "paged_lion_8bit": 1, "ademamix": 12,
    "paged_ademamix_32bit": 12, "ademamix_8bit": 3, "paged_ademamix_8bit": 3, "paged_adamw_32bit": 8,
}  # fmt: skip
CONTEXT_GB = 1.0  # CUDA context, library workspaces and fragmentation; ours
CARDS = {f"{size} GB": size * 1.073 for size in (24, 40, 80, 141)}  # sold in GiB; usable GB
TILE = 4096 * 32768  # logits of TRL's fused head at a time: tokens x part of the vocabulary, an upper bound
SPLIT = {  # what a strategy divides by the number of processes
    "ddp": frozenset(),
    "zero2": frozenset({"gradients", "optimiser"}),
    "zero3": frozenset({"weights", "reference", "gradients", "optimiser"}),
    "fsdp2": frozenset({"weights", "reference", "gradients", "optimiser"}),
}  # fmt: skip
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # keys of mixtures, whose sizes aren't known here


@dataclass(frozen=True)
class Shape:
    """The numbers of a decoder that its memory depends on."""

    layers: int  # blocks
    hidden: int  # width of the residual stream
    kv_heads: int  # key/value heads
    head_dim: int  # width of a head
    intermediate: int  # width of the gated MLP
    vocabulary: int  # rows of the embedding
    tied: bool  # the LM head is the embedding
    heads: int  # query heads

    @property
    def parameters(self) -> int:
        """Weights of the embedding, head, attention projections and gated MLP; norms and biases left out."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        block = attention + 3 * self.hidden * self.intermediate
        return self.layers * block + self.vocabulary * self.hidden * (1 if self.tied else 2)


KNOWN = {  # from the config.json of each model; the first pattern that is found in a name counts
    r"R1-Distill-Qwen-1\.5B": Shape(28, 1536, 2, 128, 8960, 151936, False, 12),
    r"R1-Distill-Qwen-7B": Shape(28, 3584, 4, 128, 18944, 152064, False, 28),
    r"Qwen2\.5-(Math-|Coder-)?0\.5B": Shape(24, 896, 2, 64, 4864, 151936, True, 14),
    r"Qwen2\.5-(Math-|Coder-)?1\.5B": Shape(28, 1536, 2, 128, 8960, 151936, True, 12),
    r"Qwen2\.5-(Math-|Coder-)?7B": Shape(28, 3584, 4, 128, 18944, 152064, False, 28),
}


@dataclass(frozen=True)
class Memory:
    """Gigabytes (1e9 bytes) on one GPU at the longest row. The parts are in the order they appear in `total`."""

    weights: float  # of the policy
    gathered: float  # whole layers that a sharded strategy puts together for a forward, or autocast's copies of weights
    reference: float  # of the frozen copy that beta > 0 needs without adapters
    gradients: float  # of what is trained
    optimiser: float  # its states, such as Adam's two moments, and what it keeps besides
    activations: float  # of one micro-batch in training
    head: float  # gradients at the LM head before they are added up
    generation: float  # keys and values while transformers samples (not at the same time as the two above)
    vllm: float  # what a colocated engine reserves
    context: float = CONTEXT_GB  # CUDA context and workspaces
    sleeps: bool = False  # the engine gives its memory back while weights are updated

    @property
    def total(self) -> float:
        """The peak: sampling and training take turns, the rest stays."""
        stays = self.weights + self.reference + self.gradients + self.optimiser + self.context
        asleep = min(self.vllm, ASLEEP_GB) if self.sleeps else self.vllm
        return stays + max(self.gathered + self.activations + self.head + asleep, self.generation + self.vllm)

    @property
    def parts(self) -> dict[str, float]:
        """The parts that are not nothing."""
        return {f.name: value for f in fields(self) if f.name != "sleeps" and (value := getattr(self, f.name)) >= 0.005}


def memory(
    shape: Shape,
    trainer: Mapping[str, Any],
    *,
    dtype: str = "bfloat16",
    lora: LoraSection | None = None,
    compensated: bool = False,
    prompt: int = PROMPT,
    processes: int = 1,
    strategy: Strategy = "ddp",
    device_gb: float | None = None,
    growth: int = 0,
    planned: int | None = None,
) -> Memory:
    """Memory of one of `processes` GPUs.

    With N parameters, T trained ones, b rows a micro-batch, s tokens of the longest row, h hidden size, L layers, V
    vocabulary, w bytes a weight (2 in bfloat16, 4 in float32 and for FSDP2 under mixed precision, which keeps what is
    trained in float32; 2 for DeepSpeed under mixed precision, which casts the model), c = 2 bytes a value in autocast
    or bfloat16:

    - weights w N; reference w N if beta > 0 without adapters; gradients w T
    - optimiser 2 w T: torch's AdamW keeps two moments in the dtype of the weights (Kingma & Ba 2015, algorithm 1); 2 T
      for an 8-bit one (arXiv 2110.02861); others by `STATES` and `OWN_WIDTH`; 2 T more where it keeps what rounding
      drops from bfloat16 weights (Kahan). DeepSpeed: 12 T with AdamW, a float32 copy and two float32 moments (ZeRO,
      arXiv 1910.02054, section 3.1)
    - the parts named in `SPLIT` divided by the processes (ZeRO, arXiv 1910.02054, section 5)
    - activations with gradient checkpointing c s b h L for the inputs of the blocks, and one block's 17 c s b h while
      it is recomputed; without, 17 c s b h L (arXiv 2205.05198, section 4.1, "34 s b h" at two bytes, without the term
      in s^2 that fused attention does not store)
    - head: TRL's fused head holds one tile of logits, and in the backward pass float32 gradients of the hidden states,
      4 s b h, and, where the head is trained, of its weights, 4 V h, before they become w V h
    - generation: 2 c L (kv heads x head size) tokens for the rows sampled together, prompts and answers in full length
    - vllm: its share of `device_gb` (weights, keys and values, workspaces), where it is known. With sleep mode it has
      that share while it samples and `ASLEEP_GB` while the weights are trained, else always
    - gathered: with FSDP2 and ZeRO 3 two blocks (one at work, one fetched ahead) and the embedding and head, 2 bytes a
      weight; else, where float32 weights compute in bfloat16 (autocast), the copies of 2 N bytes that autocast keeps

    T = N, or with adapters of rank r the sum of r (in + out) over the linear layers of the blocks ("all-linear", arXiv
    2106.09685, section 4).

    Args:
        shape: the model.
        trainer: GRPOConfig fields.
        dtype: of the weights.
        lora: adapters.
        compensated: the optimiser keeps what rounding drops from low-precision weights.
        prompt: tokens of the longest prompt.
        processes: GPUs.
        strategy: how the model is spread over them.
        device_gb: memory of a GPU, for vLLM's share.
        growth: rows that components may append to a micro-batch.
        planned: tokens of the longest prompt that components may write; None: `prompt`.
    """

    def value(key: str) -> Any:
        return trainer_value(dict(trainer), key)

    mixed = autocast_of(trainer) is not None
    if strategy in ("zero2", "zero3") and mixed:
        width = 2
    else:
        width = 4 if dtype == "float32" or (strategy == "fsdp2" and mixed) else 2
    compute = 2 if mixed or dtype != "float32" else 4
    trained = shape.parameters if lora is None else adapter_parameters(shape, lora.rank)
    trained_width = width if lora is None or strategy == "zero2" else 4
    length = max(prompt, planned or 0) + int(value("max_completion_length"))
    rows = int(value("per_device_train_batch_size")) + growth
    sampled = rows * int(trainer.get("steps_per_generation") or value("gradient_accumulation_steps"))
    split = SPLIT[strategy]

    def share(name: str, size: float) -> float:
        return size / (processes if name in split else 1) / 1e9

    optim = str(value("optim"))
    if strategy in ("zero2", "zero3"):
        states = 4.0 + state_bytes(optim, 4)
    else:
        states = state_bytes(optim, trained_width) + (2 if compensated and trained_width == 2 else 0)
    per_block = 17 * compute * length * rows * shape.hidden
    if value("gradient_checkpointing"):
        activations = compute * length * rows * shape.hidden * shape.layers + per_block
    else:
        activations = per_block * shape.layers
    hidden_gradient = 4 * length * rows * shape.hidden
    head_gradient = (4 + width) * shape.vocabulary * shape.hidden if lora is None else 0
    vllm = bool(value("use_vllm"))
    colocated = vllm and value("vllm_mode") == "colocate"
    keys = 2 * compute * shape.layers * shape.kv_heads * shape.head_dim * length * sampled
    table = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    if strategy in ("fsdp2", "zero3"):
        gathered = 2 * (2 * (shape.parameters - table) / shape.layers + table)
    else:
        gathered = 2 * shape.parameters if mixed and width == 4 and strategy == "ddp" else 0
    return Memory(
        weights=share("weights", width * shape.parameters),
        gathered=gathered / 1e9,
        reference=share("reference", width * shape.parameters) if value("beta") and lora is None else 0.0,
        gradients=share("gradients", trained_width * trained),
        optimiser=share("optimiser", states * trained),
        activations=activations / 1e9,
        head=(hidden_gradient + head_gradient + TILE * compute) / 1e9,
        generation=0.0 if vllm else keys / 1e9,
        vllm=float(value("vllm_gpu_memory_utilization")) * (device_gb or 0.0) if colocated else 0.0,
        sleeps=bool(colocated and value("vllm_enable_sleep_mode")),
    )


def state_bytes(optim: str, width: int) -> float:
    """Bytes that an optimiser (by TRL's name) keeps for each trained weight of `width` bytes.

    Optimisers of low rank (GaLore, APOLLO) count as full ones, Adafactor's rows and columns as nothing.
    """
    if optim in OWN_WIDTH:
        return OWN_WIDTH[optim]
    return 2.0 if "8bit" in optim else float(STATES.get(optim, 2) * width)


def adapter_parameters(shape: Shape, rank: int) -> int:
    """Weights of rank-`rank` adapters on the seven linear layers of every block."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sides = [
        (shape.hidden, queries), (shape.hidden, keys), (shape.hidden, keys), (queries, shape.hidden),
        (shape.hidden, shape.intermediate), (shape.hidden, shape.intermediate), (shape.intermediate, shape.hidden),
    ]  # fmt: skip
    return shape.layers * rank * sum(a + b for a, b in sides)


def shape_of(name: str) -> Shape | None:
    """The shape of a model: of a local folder from its config.json, of a known hub model, else None."""
    file = project.located(name) / "config.json"
    if file.is_file():
        return _from_config(file)
    return next((shape for pattern, shape in KNOWN.items() if re.search(pattern, name)), None)


def _from_config(file: Path) -> Shape | None:
    try:
        found = json.loads(file.read_text())
        if any(found.get(key) for key in EXPERTS):
            return None
        hidden, heads = found["hidden_size"], found["num_attention_heads"]
        return Shape(
            layers=found["num_hidden_layers"],
            hidden=hidden,
            kv_heads=found.get("num_key_value_heads") or heads,
            head_dim=found.get("head_dim") or hidden // heads,
            intermediate=found["intermediate_size"],
            vocabulary=found["vocab_size"],
            tied=bool(found.get("tie_word_embeddings", False)),
            heads=heads,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def recipe_memory(
    recipe: Recipe, *, processes: int = 1, strategy: Strategy = "ddp", device_gb: float | None = None
) -> Memory | None:
    """`memory` of a recipe; None for a model whose shape isn't known."""
    shape = shape_of(recipe.model.name)
    if shape is None:
        return None
    return memory(
        shape,
        recipe.trainer,
        dtype=loaded_dtype(recipe.model) or "bfloat16",
        lora=recipe.model.lora,
        compensated=precision(recipe).compensated,
        processes=processes,
        strategy=strategy,
        device_gb=device_gb,
        growth=micro_batch_growth(recipe, processes),
        planned=longest_prompt(recipe),
    )


def longest_prompt(recipe: Recipe) -> int:
    """Tokens of the longest prompt that its components may write, from above: a template's bytes count as tokens."""
    cap = int(trainer_value(recipe.trainer, "max_completion_length"))
    longest = PROMPT
    for name, settings in recipe.components.items():
        component = catalog.component(name)
        config: Any = build(component.Config, settings, name)
        longest = max(longest, component.longest_prompt(config, PROMPT, cap, lambda text: len(text.encode())))
    return longest


def micro_batch_growth(recipe: Recipe, processes: int = 1) -> int:
    """Rows by which the components that are on may make a micro-batch grow: TRL cuts a batch into equal parts."""
    size = int(trainer_value(recipe.trainer, "num_generations"))
    rows = generation_batch(recipe.trainer, processes) // processes
    parts = rows // int(trainer_value(recipe.trainer, "per_device_train_batch_size"))
    most = 0
    for name, settings in recipe.components.items():
        component = catalog.component(name)
        most += component.most_appended(build(component.Config, settings, name), rows // size, size)
    return -(-most // max(1, parts))


def memory_text(recipe: Recipe, *, processes: int = 1, strategy: Strategy = "ddp") -> str:
    """Lines for the user: the parts, and the sizes of GPUs on which the recipe fits; empty for an unknown shape."""
    needed = recipe_memory(recipe, processes=processes, strategy=strategy)
    if needed is None:
        return ""
    parts = ", ".join(f"{name} {gb:,.2f}" for name, gb in needed.parts.items())
    cap = int(trainer_value(recipe.trainer, "max_completion_length"))
    growth = micro_batch_growth(recipe, processes)
    on = f"{strategy} on {processes} GPUs" if processes > 1 else "one GPU"
    lines = [
        f"Memory of each GPU in GB, prompts of {longest_prompt(recipe):,} and answers of {cap:,} tokens, {on}",
        f"  {needed.total:,.1f} = {parts}",
    ]
    if growth:
        own = int(trainer_value(recipe.trainer, "per_device_train_batch_size"))
        added = f"{growth} row" if growth == 1 else f"{growth} rows"
        lines.append(f"  with up to {added} that components append to the {own} of a micro-batch")
    if trainer_value(recipe.trainer, "use_vllm") and trainer_value(recipe.trainer, "vllm_mode") == "colocate":
        share = float(trainer_value(recipe.trainer, "vllm_gpu_memory_utilization"))
        asleep = ", while it samples and not while the weights are trained (sleep mode)" if needed.sleeps else ""
        lines.append(
            f"  and the {100 * share:.0f} % of the GPU that vLLM reserves{asleep}: weights in bfloat16, and keys and "
            f"values, {row_gb(recipe):.2f} of an answer in full length"
        )
    verdicts, tight, held = [], [], {}
    for size, usable in CARDS.items():
        found = recipe_memory(recipe, processes=processes, strategy=strategy, device_gb=usable)
        assert found is not None
        held[size] = engine_rows(recipe, usable)
        fits = found.total <= usable and held[size] != 0
        spare = 1 - found.total / usable
        verdicts.append(f"{size} {f'fits, {100 * spare:.0f} % spare' if fits else 'does not'} ({found.total:,.1f})")
        if fits and spare < SPARE:
            tight.append(size)
    lines.append(f"  on a GPU with {', '.join(verdicts)}")
    if tight:
        lines.append(
            f"  warning: less than {100 * SPARE:.0f} % spare on {' and '.join(tight)}, which fragmentation takes "
            "easily; try `r3bench train NAME --probe` there first"
        )
    if None not in held.values():
        rows = ", ".join(f"{count} on {size}" for size, count in held.items())
        lines.append(f"  answers in full length that vLLM can have at work: {rows}; more wait")
    return "\n".join(lines)


def row_gb(recipe: Recipe) -> float:
    """Keys and values of the longest row in GB: 2 c L (kv heads x head size) a token, over the engine's GPUs."""
    shape = shape_of(recipe.model.name)
    if shape is None:
        return 0.0
    length = longest_prompt(recipe) + int(trainer_value(recipe.trainer, "max_completion_length"))
    engine = int(trainer_value(recipe.trainer, "vllm_tensor_parallel_size"))
    return 2 * ENGINE_WIDTH * shape.layers * shape.kv_heads * shape.head_dim * length / engine / 1e9


def engine_rows(recipe: Recipe, device_gb: float) -> int | None:
    """Rows in full length whose keys and values fit beside the weights in a colocated vLLM's share; None without it."""
    shape = shape_of(recipe.model.name)
    trainer = recipe.trainer
    if shape is None or not trainer_value(trainer, "use_vllm") or trainer_value(trainer, "vllm_mode") != "colocate":
        return None
    engine = int(trainer_value(trainer, "vllm_tensor_parallel_size"))
    room = float(trainer_value(trainer, "vllm_gpu_memory_utilization")) * device_gb
    return max(0, int((room - ENGINE_WIDTH * shape.parameters / engine / 1e9) / row_gb(recipe)))
