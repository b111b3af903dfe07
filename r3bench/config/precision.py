"""What dtype, optimiser and learning rate do to an update: which weights it moves, and which it leaves as they are.

A weight w of a dtype with p bits of significand lies on a grid of spacing 2^(e + 1 - p), where 2^e <= |w| < 2^(e + 1).
An update that is no more than half of that rounds back to w, however often it is repeated: it is lost, not delayed.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from r3bench import project
from r3bench.config.sections import ModelSection, Recipe
from r3bench.config.trainer_fields import trainer_value
from r3bench.errors import ConfigError

Dtype = Literal["float32", "bfloat16", "float16"]
SIGNIFICAND = {"float32": 24, "bfloat16": 8, "float16": 11}  # bits, the implicit leading one counted
TYPICAL_SCALE = 0.02  # standard deviation of a language model's weights where nothing is known: their usual start
ENOUGH = 0.9  # share of weights that an update must be able to move for nothing to be said
BY_GRADIENT = {"sgd", "lomo", "schedule_free_sgd"}  # optimisers whose step is the rate times the gradient
MANY = 1e8  # weights of a small language model: the norm of their gradient is sqrt(MANY) times one's root mean square
TORCHAO = ("adamw_torch_4bit", "adamw_torch_8bit")  # optimisers that can round at random
TRUE = ("y", "yes", "t", "true", "on", "1")  # in transformers' optim_args
KAHAN_FOR = ("adamw_torch", "adamw_torch_fused")  # optimisers that the compensated AdamW stands in for


def movable_below(dtype: str, update: float) -> float:
    """The magnitude below which a weight of `dtype` is changed by adding `update` to it (round to nearest)."""
    if update <= 0:
        return 0.0
    return 2.0 ** math.ceil(SIGNIFICAND[dtype] + math.log2(update))


def update_size(optim: str, learning_rate: float, max_grad_norm: float = 1.0, weights: float = MANY) -> float:
    """The change that an update makes to most of `weights` weights at most, about.

    Adaptive optimisers divide the gradient by its own size, so a step is about the learning rate. The others' is the
    rate times the gradient. Of that clipping leaves at most a norm of `max_grad_norm` over all weights; twice the root
    mean square of one weight's, which at most a quarter of them exceed (Chebyshev), is counted. Without clipping (0) a
    norm of 1 is.
    """
    if optim not in BY_GRADIENT:
        return learning_rate
    return 2 * learning_rate * (max_grad_norm or 1.0) / math.sqrt(weights)


def movable_share(
    dtype: str, optim: str, learning_rate: float, *, scale: float = TYPICAL_SCALE, max_grad_norm: float = 1.0
) -> float:
    """The share of weights that updates can move, of Gaussian weights with standard deviation `scale`; 0 to 1."""
    update = update_size(optim, learning_rate, max_grad_norm)
    return math.erf(movable_below(dtype, update) / (scale * math.sqrt(2)))


@dataclass(frozen=True)
class Precision:
    """In what a recipe trains and computes."""

    weights: str | None  # dtype of the weights that the optimiser changes; None: known once the model is loaded
    compute: str | None  # dtype of forward and backward where autocast sets another; None: as the weights
    compensated: bool  # the optimiser keeps what rounding drops
    stochastic: bool  # the optimiser rounds up or down at random
    optim: str  # TRL's name of it
    learning_rate: float  # the schedule's peak
    max_grad_norm: float  # where gradients are clipped; 0: nowhere

    def share(self, scale: float = TYPICAL_SCALE) -> float | None:
        """`movable_share` of the weights; None where their dtype isn't known yet."""
        if self.weights is None:
            return None
        if self.compensated:
            return 1.0
        return movable_share(
            self.weights, self.optim, self.learning_rate, scale=scale, max_grad_norm=self.max_grad_norm
        )

    def warning(self, share: float, about: str) -> str | None:
        """What to tell the user when updates can move only `share` of the weights; None when that is enough.

        Args:
            share: of all trained weights.
            about: where the share is from, such as 'expected at weights of size 0.02'.
        """
        if share >= ENOUGH or self.compensated:
            return None
        told = f"{self.weights} weights under {self.optim} at a learning rate of {self.learning_rate:g}: "
        if self.weights == "float32":
            return (
                f"trainer.learning_rate: {told}only about {_percent(share)} of them can move ({about}), every smaller "
                "update is rounded away; use a higher rate"
            )
        wide = "model.dtype: float32 (trainer.bf16: true still computes in bfloat16)"
        if self.stochastic:
            return (
                f"model.dtype: {told}only about {_percent(share)} of them are moved by each update ({about}), the "
                f"others at random by far more than it: right on average, and noisy; use {wide}"
            )
        kahan = ", or model.compensation: kahan" if self.weights == "bfloat16" and self.optim in KAHAN_FOR else ""
        return (
            f"model.dtype: {told}only about {_percent(share)} of them can move ({about}), every smaller update is "
            f"rounded away; use {wide}{kahan}"
        )


def precision(recipe: Recipe, loaded: str | None = None) -> Precision:
    """In what `recipe` trains; `loaded`: dtype of its weights once the model is there."""
    values, model = recipe.trainer, recipe.model
    optim = str(trainer_value(values, "optim"))
    told = _optim_args(str(trainer_value(values, "optim_args") or ""))
    compensated = model.compensation == "kahan"
    if optim == "stable_adamw":  # torch-optimi's, which does it for low precision; transformers takes any text for true
        compensated |= told.get("kahan_sum", "true") != ""
    elif optim == "adamw_anyprecision":
        compensated |= told.get("use_kahan_summation", "").lower() in TRUE
    return Precision(
        weights=_trained_dtype(model) if loaded is None else loaded,
        compute=autocast(recipe),
        compensated=compensated,
        stochastic=optim in TORCHAO and told.get("bf16_stochastic_round", "").lower() in TRUE,
        optim="compensated AdamW" if model.compensation == "kahan" else optim,
        learning_rate=float(trainer_value(values, "learning_rate")),
        max_grad_norm=float(trainer_value(values, "max_grad_norm")),
    )


def autocast(recipe: Recipe) -> str | None:
    """The dtype that matrix products are made in where a GPU trains; None: that of the weights."""
    return autocast_of(recipe.trainer)


def autocast_of(trainer: Mapping[str, Any]) -> str | None:
    """`autocast` of a `trainer` section."""
    if trainer.get("fp16"):
        return "float16"
    return "bfloat16" if trainer.get("bf16", True) in (True, None) else None  # TRL's default is bf16


def precision_warnings(recipe: Recipe) -> list[str]:
    """What there is to say of a recipe's precision before its model is loaded."""
    found = precision(recipe)
    share = found.share()
    if share is None:
        return [
            f"model.dtype: auto takes the dtype that '{recipe.model.name}' was saved in, mostly bfloat16, and then an "
            "update as small as the learning rate is rounded away; float32 is what the rest of the harness trains in"
        ]
    if found.optim in BY_GRADIENT and found.weights == "float32":
        return []  # it depends on the number of weights: told once they are loaded
    warning = found.warning(share, f"expected of weights of size {TYPICAL_SCALE:g}")
    return [warning] if warning else []


def check_precision(recipe: Recipe, where: str) -> None:
    """Refuse what can't be trained, or would be trained in another precision than the recipe says.

    Raises:
        ConfigError: naming the fields.
    """
    values, model = recipe.trainer, recipe.model
    half = trainer_value(values, "fp16")
    if model.dtype == "float16" and not half:
        raise ConfigError(
            f"{where}: model.dtype: got 'float16', expected it together with trainer.fp16: true: without its loss "
            "scaling small gradients become 0"
        )
    if trainer_value(values, "use_transformers_continuous_batching") and autocast(recipe):
        raise ConfigError(
            f"{where}: trainer.use_transformers_continuous_batching: got True, but TRL then rounds the trained weights "
            f"themselves to {autocast(recipe)} before each sampling; use vllm, or trainer.bf16: false"
        )
    if model.compensation is None:
        return
    optim = str(trainer_value(values, "optim"))
    wrong = {
        f"model.dtype: got '{model.dtype}', expected 'bfloat16'": model.dtype != "bfloat16",
        "model.lora: expected null": model.lora is not None,
        f"trainer.optim: got '{optim}', expected one of {', '.join(KAHAN_FOR)}": optim not in KAHAN_FOR,
        "trainer.optim_args: expected null": bool(trainer_value(values, "optim_args")),
    }
    for message, holds in wrong.items():
        if holds:
            raise ConfigError(
                f"{where}: {message} with model.compensation: kahan, which is a bfloat16 AdamW of its own"
            )


def check_strategy_precision(recipe: Recipe, strategy: str, where: str, loaded: str | None = None) -> None:
    """Refuse a strategy that would train the same recipe in another precision than one process does.

    Args:
        recipe: checked.
        strategy: single, ddp, fsdp2, zero2, ...
        where: named in front of the message.
        loaded: dtype of the weights once they are loaded.

    Raises:
        ConfigError: FSDP2 and DeepSpeed keep float32 masters of low-precision weights, DDP doesn't.
    """
    weights = _trained_dtype(recipe.model) if loaded is None else loaded
    if strategy in ("single", "ddp") or weights == "float32" or recipe.model.lora is not None:
        return
    what = weights or "the checkpoint's"
    raise ConfigError(
        f"{where}: --strategy {strategy} keeps float32 copies of the weights that the optimiser changes, and the "
        f"recipe trains {what} weights: it would be another experiment; use model.dtype: float32 (as much "
        "memory there), or --strategy ddp"
    )


def loaded_dtype(model: ModelSection) -> str | None:
    """Dtype that the model's weights are loaded in, those of the base under adapters; None where only its files say."""
    if model.dtype == "float16" and model.lora is None:
        return "float32"
    return model.dtype if model.dtype != "auto" else _saved_dtype(model.name)


def _trained_dtype(model: ModelSection) -> str | None:
    """Dtype of the weights that change: adapters are float32 whatever they adapt, as is what a loss scaler works on."""
    if model.lora is not None or model.dtype == "float16":
        return "float32"
    return model.dtype if model.dtype != "auto" else _saved_dtype(model.name)


def _saved_dtype(name: str) -> str | None:
    """What a local folder's `config.json` says its weights are; None for a hub model."""
    try:
        values = json.loads((project.located(name) / "config.json").read_text())
    except (OSError, ValueError):
        return "float32" if name.startswith("embedded") else None
    found = values.get("dtype") or values.get("torch_dtype") if isinstance(values, dict) else None
    return found if found in SIGNIFICAND else None


def _optim_args(text: str) -> dict[str, str]:
    """transformers' `optim_args`, such as 'a=1, b=2'."""
    parts = (part.partition("=") for part in text.replace(" ", "").split(","))
    return {key: value for key, equals, value in parts if equals}


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
