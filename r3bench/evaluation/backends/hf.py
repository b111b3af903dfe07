"""Sampling from a transformers model: own loop over forward passes, so that every answer has its own random stream.

A prompt is read once for all its repeats; prompts of similar length share a batch; rows that are done leave it and
others take their places.
An answer depends on the model, its prompt and its stream. Which rows share its batch enters only through the rounding
of floating-point sums, so it is repeated exactly when its batch is (same shard, same machine).
"""

import contextlib
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import pad

from r3bench.errors import ConfigError, Diverged, first_line
from r3bench.evaluation.backends import fingerprint
from r3bench.evaluation.backends.chat import ChatModel
from r3bench.evaluation.backends.sampling import Answered, Completion, Draw, Sampling, Stream, stretches
from r3bench.out_of_memory import out_of_memory
from r3bench.training.models.names import start_revision

NUCLEUS = 512  # likeliest tokens looked at first for top-p; the whole vocabulary is sorted only if they don't suffice
COMPACT = 0.75  # rows still running, as a share of the batch, at which finished rows are replaced


def choose(logits: torch.Tensor, uniforms: torch.Tensor, temperature: float, top_p: float) -> torch.Tensor:
    """Next tokens (B,) from logits (B, V) by inverting the distribution function at `uniforms` (B,) in [0, 1).

    With top_p < 1 the smallest set of likeliest tokens whose mass reaches top_p is kept.

    Raises:
        Diverged: a logit is not a number.
    """
    if bool(logits.isnan().any()):
        raise Diverged("the model's logits are not numbers: its weights diverged or overflow in this dtype")
    if temperature == 0:
        return logits.argmax(-1)
    exact = torch.float32 if logits.device.type == "mps" else torch.float64
    p = torch.softmax(logits.float() / temperature, -1)
    ids = None
    if top_p < 1:
        p_top, ids = p.topk(min(NUCLEUS, p.shape[-1]), dim=-1)
        if bool((p_top.sum(-1) < top_p).any()):
            p_top, ids = p.sort(dim=-1, descending=True)
        before = p_top.to(exact).cumsum(-1) - p_top
        p = torch.where(before < top_p, p_top, 0)
    mass = p.to(exact).cumsum(-1)
    target = uniforms.to(mass)[:, None] * mass[:, -1:]
    place = torch.searchsorted(mass, target, right=True).clamp(max=mass.shape[-1] - 1)
    chosen = place if ids is None else ids.gather(-1, place)
    return chosen[:, 0]


@dataclass
class Rows:
    """The answers of a batch that are under way. W columns have been read; `tokens` has not."""

    names: list[int]  # which answer each of the B rows belongs to
    cache: Any  # keys and values of W columns
    mask: torch.Tensor  # (B, W), 0 where a row is padded; on the left
    positions: torch.Tensor  # (B, 1), of the last column
    tokens: torch.Tensor = field(default_factory=lambda: torch.empty(0))  # (B,), chosen last
    ended: set[int] = field(default_factory=set)  # names of rows that only wait to be dropped

    @property
    def can_grow(self) -> bool:
        """Whether rows may join: every layer keeps all columns, in the usual layout."""
        from transformers.cache_utils import DynamicLayer

        layers = self.cache.layers
        return bool(layers) and all(type(layer) is DynamicLayer and layer.is_initialized for layer in layers)

    def drop_ended(self) -> None:
        """Keep the rows that go on, and the columns that one of them uses."""
        keep = [i for i, name in enumerate(self.names) if name not in self.ended]
        index = torch.tensor(keep, device=self.mask.device)
        self.cache.batch_select_indices(index)
        self.mask, self.positions, self.tokens = self.mask[index], self.positions[index], self.tokens[index]
        self.names, self.ended = [self.names[i] for i in keep], set()
        unused = int(self.mask.any(0).int().argmax())
        if unused and self.can_grow:
            self.mask = self.mask[:, unused:]
            for layer in self.cache.layers:
                layer.keys, layer.values = layer.keys[..., unused:, :], layer.values[..., unused:, :]

    def joined(self, other: "Rows") -> "Rows":
        """The rows of both, padded to the wider one's columns."""
        width = max(self.mask.shape[1], other.mask.shape[1])
        for rows in (self, other):
            missing = width - rows.mask.shape[1]
            rows.mask = pad(rows.mask, (missing, 0))
            for layer in rows.cache.layers:
                layer.keys, layer.values = (pad(x, (0, 0, missing, 0)) for x in (layer.keys, layer.values))
        for layer, new in zip(self.cache.layers, other.cache.layers, strict=True):
            layer.keys, layer.values = torch.cat([layer.keys, new.keys]), torch.cat([layer.values, new.values])
        return Rows(
            self.names + other.names,
            self.cache,
            torch.cat([self.mask, other.mask]),
            torch.cat([self.positions, other.positions]),
            torch.cat([self.tokens, other.tokens]),
            self.ended | other.ended,
        )


def _check_cache(config: Any) -> None:
    from transformers import DynamicCache

    fixed = [layer for layer in DynamicCache(config=config).layers if not hasattr(layer, "batch_select_indices")]
    if fixed:
        raise ConfigError(
            f"model.name: a model of type '{config.model_type}' keeps a state in which rows can't be rearranged, "
            "expected attention in every layer; 'vllm' may be able to sample it"
        )


class HFBackend(ChatModel):
    """Samples from a causal language model and its tokenizer.

    Args:
        model: a transformers model; its training flags are restored after every call.
        tokenizer: its tokenizer, with or without a chat template.
        batch_size: rows that are sampled together; halved on the spot when the device's memory doesn't suffice.

    Raises:
        ConfigError: the model keeps a state (of linear attention, say) in which rows can't be rearranged.
    """

    name = "hf"

    def __init__(self, model: Any, tokenizer: Any, batch_size: int) -> None:
        _check_cache(model.config)
        self.model, self.tokenizer, self.batch_size = model, tokenizer, batch_size
        self.ends = list(dict.fromkeys(end_tokens(model, tokenizer) + self.turn_ends()))
        self.fingerprint = fingerprint.of_model(model)
        self.details = {"dtype": str(model.dtype).removeprefix("torch.")}
        base = model.get_base_model() if hasattr(model, "get_base_model") else model  # adapters hide the signature
        known = inspect.signature(base.forward).parameters
        self._cache_name = "cache" if "cache" in known else "past_key_values"  # transformers is renaming it
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in known else {}
        config = model.config.get_text_config()
        self.context = getattr(config, "max_position_embeddings", None)

    @classmethod
    def load(cls, name: str | Path, batch_size: int) -> "HFBackend":
        """From a folder or hub id; on a GPU in the saved dtype, on a CPU in float32."""
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM, AutoTokenizer

        device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(str(name))
            model: Any = AutoModelForCausalLM.from_pretrained(
                str(name), dtype=torch.float32 if device == "cpu" else "auto", revision=start_revision(Path(name))
            )
        except (OSError, ValueError, SafetensorError) as error:
            raise ConfigError(f"model '{name}': can't be loaded: {first_line(error)}") from error
        return cls(model.to(device), tokenizer, batch_size)

    def generate(
        self,
        draws: Sequence[Draw],
        sampling: Sampling,
        progress: Callable[[int], None],
        answered: Answered | None = None,
    ) -> list[Completion]:
        """See `Backend.generate`; `answered` is not called, since an answer's rounding depends on its batch."""
        prompts = {prompt: self.encode(prompt) or [self.ends[0]] for prompt in dict.fromkeys(d.prompt for d in draws)}
        self.check_length(max(map(len, prompts.values()), default=0), sampling)
        done: dict[int, Completion] = {}
        with evaluating(self.model):
            for stretch in stretches([len(prompts[draw.prompt]) for draw in draws], draws, self.batch_size):
                size = self.batch_size
                while left := {i: (prompts[draws[i].prompt], draws[i].seed) for i in stretch if i not in done}:
                    try:
                        for i, ids in self._decode(left, sampling, size):
                            text = self.tokenizer.decode(ids, skip_special_tokens=True)
                            done[i] = Completion(text, len(ids), ids[-1] not in self.ends)
                            progress(1)
                    except RuntimeError as error:
                        if size == 1 or not out_of_memory(error):
                            raise
                        size //= 2  # answers that were under way begin again, with the same numbers
                    if size < self.batch_size:
                        torch.cuda.empty_cache()
        return [done[i] for i in range(len(draws))]

    def _decode(
        self, wanted: Mapping[int, tuple[list[int], int]], sampling: Sampling, size: int
    ) -> Iterator[tuple[int, list[int]]]:
        """Answers as they end.

        Args:
            wanted: (prompt ids, seed of the stream) under the name of each answer, in the order in which they begin.
            sampling: how tokens are chosen.
            size: rows of the batch.

        Yields:
            Name and token ids.
        """
        waiting = deque(wanted)
        answers: dict[int, list[int]] = {name: [] for name in wanted}
        streams = {name: Stream(seed) for name, (_, seed) in wanted.items()}
        batch: Rows | None = None
        while waiting or batch is not None:
            if waiting and (batch is None or (batch.can_grow and len(batch.names) <= COMPACT * size)):
                begun = [waiting.popleft() for _ in range(min(len(waiting), size - (len(batch.names) if batch else 0)))]
                fresh, logits = self._read(begun, [wanted[name][0] for name in begun])
                yield from self._extend(fresh, logits, answers, streams, sampling)
                batch = fresh if batch is None else batch.joined(fresh)
            assert batch is not None
            running = len(batch.names) - len(batch.ended)
            if running == 0:
                batch = None
                continue
            if running <= COMPACT * len(batch.names):
                batch.drop_ended()
                if waiting and batch.can_grow and running <= COMPACT * size:
                    continue
            batch.mask = torch.cat([batch.mask, batch.mask.new_ones((len(batch.names), 1))], dim=-1)
            batch.positions = batch.positions + 1
            logits = self._forward(batch.tokens[:, None], batch.mask, batch.positions, batch.cache)
            yield from self._extend(batch, logits, answers, streams, sampling)

    def _read(self, names: list[int], prompts: Sequence[list[int]]) -> tuple["Rows", torch.Tensor]:
        """New rows after their prompts, equal ones read once; with the logits (B, V) of their first tokens."""
        from transformers import DynamicCache

        device = self.model.device
        different = {tuple(prompt): None for prompt in prompts}
        place = {prompt: i for i, prompt in enumerate(different)}
        width = max(map(len, different))
        ids = torch.full((len(different), width), self.ends[0])
        mask = torch.zeros((len(different), width), dtype=torch.long)
        for i, prompt in enumerate(different):  # padded on the left, so that all answers start in one column
            ids[i, width - len(prompt) :] = torch.tensor(prompt)
            mask[i, width - len(prompt) :] = 1
        ids, mask = ids.to(device), mask.to(device)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        cache = DynamicCache(config=self.model.config)
        logits = self._forward(ids, mask, positions, cache)
        owner = torch.tensor([place[tuple(prompt)] for prompt in prompts], device=device)
        cache.batch_select_indices(owner)
        return Rows(list(names), cache, mask[owner], positions[owner, -1:]), logits[owner]

    def _extend(
        self,
        rows: "Rows",
        logits: torch.Tensor,
        answers: dict[int, list[int]],
        streams: dict[int, Stream],
        sampling: Sampling,
    ) -> Iterator[tuple[int, list[int]]]:
        """One token for every row that hasn't ended; those that end with it."""
        uniforms = torch.tensor([streams[name].next() for name in rows.names], dtype=torch.float64)
        if rows.mask.device.type != "mps":
            uniforms = uniforms.to(rows.mask.device)
        rows.tokens = choose(logits, uniforms, sampling.temperature, sampling.top_p)
        for name, token in zip(rows.names, rows.tokens.tolist(), strict=True):
            if name in rows.ended:
                continue
            answers[name].append(token)
            if token in self.ends or len(answers[name]) == sampling.max_tokens:
                rows.ended.add(name)
                yield name, answers[name]

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Any) -> torch.Tensor:
        out = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            **{self._cache_name: cache},
            **self._last_only,
        )
        logits: torch.Tensor = out.logits[:, -1]
        return logits


def end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """The ids that end an answer: the model's generation settings' and the tokenizer's."""
    ids: list[int] = []
    for found in (getattr(model.generation_config, "eos_token_id", None), tokenizer.eos_token_id):
        ids += found if isinstance(found, list) else [] if found is None else [found]
    if not ids:
        raise ConfigError("the model has no end token: neither its generation config nor its tokenizer names one")
    return list(dict.fromkeys(ids))


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """No gradients, every module in eval mode; afterwards each module's own flag is back."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in flags:
            module.training = training
