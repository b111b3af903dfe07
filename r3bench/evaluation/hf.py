"""Sampling from a transformers model: own loop over forward passes, so that every answer has its own random stream.

A prompt is read once for all its repeats; prompts of similar length share a batch; rows that are done leave it.
An answer depends on the model, its prompt and its stream. Which rows share its batch enters only through the rounding
of floating-point sums, so it is repeated exactly when its batch is (same shard, same machine).
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from r3bench.errors import ConfigError, Diverged
from r3bench.evaluation import fingerprint
from r3bench.evaluation.chat import ChatModel
from r3bench.evaluation.sampling import Completion, Draw, Sampling, Stream, batches

NUCLEUS = 512  # likeliest tokens looked at first for top-p; the whole vocabulary is sorted only if they don't suffice
COMPACT = 0.75  # rows still running, as a share of the batch, at which finished rows are taken out


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


class HFBackend(ChatModel):
    """Samples from a causal language model and its tokenizer.

    Args:
        model: a transformers model; its training flags are restored after every call.
        tokenizer: its tokenizer, with or without a chat template.
        batch_size: rows that are sampled together; halved on the spot when the device's memory doesn't suffice.
    """

    name = "hf"

    def __init__(self, model: Any, tokenizer: Any, batch_size: int) -> None:
        self.model, self.tokenizer, self.batch_size = model, tokenizer, batch_size
        self.ends = list(dict.fromkeys(end_tokens(model, tokenizer) + self.turn_ends()))
        self.fingerprint = fingerprint.of_model(model)
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
                str(name), dtype=torch.float32 if device == "cpu" else "auto"
            )
        except (OSError, ValueError, SafetensorError) as error:
            raise ConfigError(f"model '{name}': can't be loaded: {str(error).splitlines()[0]}") from error
        return cls(model.to(device), tokenizer, batch_size)

    def generate(self, draws: Sequence[Draw], sampling: Sampling, progress: Callable[[int], None]) -> list[Completion]:
        """See `Backend.generate`."""
        prompts = {draw.prompt: self.encode(draw.prompt) or [self.ends[0]] for draw in draws}
        self.check_length(max(map(len, prompts.values()), default=0), sampling)
        done: dict[int, Completion] = {}
        with evaluating(self.model):
            for rows in batches([len(prompts[draw.prompt]) for draw in draws], draws, self.batch_size):
                batch = self._sample([draws[i] for i in rows], prompts, sampling)
                done.update(zip(rows, batch, strict=True))
                progress(len(rows))
        return [done[i] for i in range(len(draws))]

    def _sample(self, draws: Sequence[Draw], prompts: dict[str, list[int]], sampling: Sampling) -> list[Completion]:
        try:
            ids = self._decode([prompts[draw.prompt] for draw in draws], [draw.seed for draw in draws], sampling)
        except torch.OutOfMemoryError:
            if len(draws) == 1:
                raise
            ids = None
        if ids is None:
            torch.cuda.empty_cache()
            half = len(draws) // 2
            return self._sample(draws[:half], prompts, sampling) + self._sample(draws[half:], prompts, sampling)
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [
            Completion(text, len(row), not row or row[-1] not in self.ends)
            for text, row in zip(texts, ids, strict=True)
        ]

    def _decode(self, prompts: Sequence[list[int]], seeds: Sequence[int], sampling: Sampling) -> list[list[int]]:
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
        logits, mask, positions = logits[owner], mask[owner], positions[owner, -1:]

        streams = [Stream(seed) for seed in seeds]
        answers: list[list[int]] = [[] for _ in prompts]
        ends = torch.tensor(self.ends, device=device)
        rows = list(range(len(prompts)))  # which answer each row of the batch belongs to
        running = [True] * len(rows)
        for step in range(sampling.max_tokens):
            uniforms = torch.tensor([streams[row].next() for row in rows], dtype=torch.float64)
            if device.type != "mps":
                uniforms = uniforms.to(device)
            tokens = choose(logits, uniforms, sampling.temperature, sampling.top_p)
            ended = torch.isin(tokens, ends).tolist()
            for place_, (row, token) in enumerate(zip(rows, tokens.tolist(), strict=True)):
                if running[place_]:
                    answers[row].append(token)
                    running[place_] = not ended[place_]
            left = sum(running)
            if left == 0 or step + 1 == sampling.max_tokens:
                break
            if left <= COMPACT * len(rows):
                keep = [i for i, runs in enumerate(running) if runs]
                index = torch.tensor(keep, device=device)
                cache.batch_select_indices(index)
                tokens, mask, positions = tokens[index], mask[index], positions[index]
                rows, running = [rows[i] for i in keep], [True] * left
            mask = torch.cat([mask, mask.new_ones((len(rows), 1))], dim=-1)
            positions = positions + 1
            logits = self._forward(tokens[:, None], mask, positions, cache)
        return answers

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
