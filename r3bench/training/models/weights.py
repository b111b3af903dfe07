"""Did the weights move? Looks at a fixed random sample of them, so that a large model costs no more than a small one.

Two shares, each against the start of the run:

- of the *trained* weights (with adapters: the adapters' own), in the precision that the optimiser changes them in;
- of the weights that *sampling* uses, rounded to the dtype it computes in: an update of float32 weights reaches a
  bfloat16 engine once enough of them have added up. With adapters these are the base weights with the update merged in.

Every rank looks at what it holds of a weight, however the strategy splits it, and the counts are added up.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from r3bench.training.step import trl_adapter

SAMPLE = 65_536  # weights looked at; a share's standard error is below 0.2 points
SEED = 20_260_119  # of the choice of weights: the same ones in every run of a model
COMPENSATION = "kahan_comp"  # key of torch-optimi's optimiser state
WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


@dataclass
class Watched:
    """The sampled weights of one tensor, n of its elements."""

    index: np.ndarray  # (n,) places in the whole tensor, flattened
    size: int  # elements of the whole tensor
    start: torch.Tensor  # (n,) float32 on the CPU, as the run began; NaN where this rank didn't hold it


@dataclass(frozen=True)
class Shares:
    """Shares of weights that differ from the start; NaN where none could be looked at."""

    trained: float  # in the precision they are trained in
    sampled: float  # as the engine's dtype shows them


class WeightsWatch(TrainerCallback):
    """Measures `Shares` whenever the trainer logs, as `weights_changed` and `weights_changed_sampled`.

    Args:
        trainer: built, not yet training: its weights are the start, also when it then resumes from a checkpoint.
        engine_dtype: torch dtype that answers are sampled in; None: not known, the second share is left out.
        sample: how many weights are looked at.
    """

    def __init__(self, trainer: Any, engine_dtype: torch.dtype | None, sample: int = SAMPLE) -> None:
        self._trainer = trainer
        self._engine = engine_dtype
        model = trl_adapter.bare_model(trainer)
        trained = {name: p for name, p in _named(model) if p.requires_grad}
        self.trained_weights = sum(trl_adapter.whole_size(p) for p in trained.values())
        self._trained = _watched(trained, sample)
        self._adapted = _adapted_layers(model)  # base weights under adapters, by name
        bases = {name: layer.weight for name, (layer, _) in self._adapted.items()}
        self._sampled = _watched(bases, sample) if self._adapted else self._trained
        self.last: Shares | None = None

    @property
    def start_magnitudes(self) -> np.ndarray:
        """(n,) magnitudes of the sampled trained weights at the start, those this rank holds."""
        parts = [w.start.abs().numpy() for w in self._trained.values()]
        found = np.concatenate(parts) if parts else np.zeros(0)
        return np.asarray(found[~np.isnan(found)])

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not control.should_log:
            return
        shares = self.measure()
        trl_adapter.log_metric(self._trainer, "weights_changed", shares.trained)
        if self._engine is not None:
            trl_adapter.log_metric(self._trainer, "weights_changed_sampled", shares.sampled)

    def measure(self) -> Shares:
        """The shares now. Collective."""
        model = trl_adapter.bare_model(self._trainer)
        now = dict(_named(model))
        trained = _count(self._trained, now, self._as_trained, None)
        if self._adapted:
            layers = _adapted_layers(model)
            sampled = _count(self._sampled, layers, _merged, self._engine)
        else:
            sampled = _count(self._sampled, now, _as_sampled, self._engine)
        device = self._trainer.accelerator.device
        counts = torch.tensor([[*trained, *sampled]], dtype=torch.float64 if device.type != "mps" else torch.float32)
        changed, seen, changed_sampled, seen_sampled = (
            self._trainer.accelerator.gather(counts.to(device)).sum(0).tolist()
        )
        nan = float("nan")
        self.last = Shares(changed / seen if seen else nan, changed_sampled / seen_sampled if seen_sampled else nan)
        return self.last

    def _as_trained(self, parameter: Any, index: np.ndarray) -> torch.Tensor:
        """Elements with what a compensated optimiser keeps for them: it is added once there is enough of it."""
        found = trl_adapter.held_elements(parameter, index)
        optimizer = self._trainer.optimizer
        kept = optimizer.state.get(parameter, {}).get(COMPENSATION) if optimizer is not None else None
        return found if kept is None else found + trl_adapter.held_elements(kept, index)


def _named(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Parameters by the name they have in the plain model, tied ones once."""
    for name, parameter in model.named_parameters():
        yield WRAPPERS.sub("", name), parameter


def _watched(parameters: dict[str, Any], sample: int) -> dict[str, Watched]:
    """Up to `sample` elements of all of them together, all alike likely; the same on every rank."""
    sizes = {name: trl_adapter.whole_size(p) for name, p in parameters.items()}
    total = sum(sizes.values())
    chosen = np.random.default_rng(SEED).integers(0, max(total, 1), sample)
    places = np.arange(total) if total <= sample else np.unique(chosen)
    found, first = {}, 0
    for name, size in sizes.items():
        here = places[(places >= first) & (places < first + size)] - first
        first += size
        if len(here):
            found[name] = Watched(here, size, trl_adapter.held_elements(parameters[name], here, masters=False))
    return found


def _count(
    watched: dict[str, Watched],
    tensors: Mapping[str, Any],
    elements: Callable[[Any, np.ndarray], torch.Tensor],
    dtype: torch.dtype | None,
) -> tuple[int, int]:
    """How many of the sampled weights differ from their start once rounded to `dtype`, and how many were compared.

    A tensor that was cut up in a way that isn't known here (FSDP1) is left out.
    """
    changed = seen = 0
    for name, one in watched.items():
        found = tensors.get(name)
        weight = found[0].weight if isinstance(found, tuple) else found
        if weight is None or trl_adapter.whole_size(weight) != one.size:
            continue
        now, start = elements(found, one.index), one.start
        known = ~(torch.isnan(start) | torch.isnan(now))
        if dtype is not None:
            now, start = now.to(dtype), start.to(dtype)
        changed += int(((now != start) & known).sum())
        seen += int(known.sum())
    return changed, seen


def _as_sampled(parameter: Any, index: np.ndarray) -> torch.Tensor:
    """What the engine is handed: the model's own parameters, which with DeepSpeed are rounded copies of its masters."""
    return trl_adapter.held_elements(parameter, index, masters=False)


def _adapted_layers(model: torch.nn.Module) -> dict[str, tuple[Any, Any]]:
    """Name -> (base layer, adapter layer) of every linear layer with low-rank adapters; empty without any."""
    found = {}
    for name, module in model.named_modules():
        base = getattr(module, "base_layer", None)
        plain = isinstance(base, torch.nn.Linear) and base.weight.is_floating_point()
        if plain and getattr(module, "lora_A", None):
            found[WRAPPERS.sub("", name)] = (base, module)
    return found


def _merged(layer: tuple[Any, Any], index: np.ndarray) -> torch.Tensor:
    """(n,) elements of the base weight with its adapters' update added, in the base weight's dtype as merging does."""
    base, adapter = layer
    weight = trl_adapter.held_elements(base.weight, index)
    columns = base.weight.shape[1]
    rows, columns_at = torch.from_numpy(index // columns), torch.from_numpy(index % columns)
    update = torch.zeros(len(index))
    for name in adapter.active_adapters:
        if name in adapter.lora_A:
            down = adapter.lora_A[name].weight.detach().float().cpu()  # (r, in)
            up = adapter.lora_B[name].weight.detach().float().cpu()  # (out, r)
            update += float(adapter.scaling[name]) * (up[rows] * down[:, columns_at].T).sum(dim=1)
    return (weight + update).to(base.weight.dtype).float()
