"""The embedded model: a 0.23M-parameter Llama warmed up on generated arithmetic.

The warm-up leaves a policy that knows how to work a question out but usually blurts an answer: first it sees worked
answers only, then mostly direct ones. Reinforcement learning has something to find: that working pays.

Its weights are shipped in `start_weights/`: on another processor the same warm-up ends elsewhere, as rounding differs
and a thousand steps amplify it. `python -m r3bench.training.models.embedded FOLDER` makes them anew.
"""

import hashlib
import inspect
import itertools
import json
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from r3bench import prompts
from r3bench.config.sections import WarmupSection
from r3bench.errors import StateError
from r3bench.training.models import embedded_tokenizer
from r3bench.training.models.embedded_tokenizer import ANSWER, END, build_tokenizer
from r3bench.training.questions import embedded
from r3bench.training.questions.embedded import Chain, chains


@dataclass(frozen=True)
class Warmup:
    """The supervised steps before reinforcement learning."""

    worked: int  # optimiser steps on worked answers only, at the full learning rate
    mixed: int  # steps after these on mostly direct answers, the learning rate falling to zero
    direct: float = 0.8  # share of direct answers in the second stage
    batch: int = 16  # answers per step
    learning_rate: float = 3e-3  # AdamW's
    seed: int = 0  # of the initial weights and of the questions drawn


WARMUPS = {  # by cap: a larger one has more sums to learn
    9: Warmup(worked=350, mixed=200),
    20: Warmup(worked=1200, mixed=250, direct=0.65, learning_rate=2e-3),
}
SHIPPED = Path(__file__).with_name("start_weights")  # a safetensors file for each model
DIGESTS = {  # SHA-256 of the shipped file by the model's name
    "embedded": "97657673a8e8d659aa021ea6f42565e5da3ceaf54bba384034af6458133e59e4",
    "embedded-20": "5bff74c1f07b8d8be5abee7130456b743acebd03fd571cf3ced134199037773b",
    "embedded-sparse": "3c37a141616ad20d1f4cc6228191be1ad83a72def9ae0ce7219ca59f6c98f1f6",
}
FURTHER = {  # further supervised steps whose outcome is shipped: (model, dials) -> name of the file
    ("embedded", WarmupSection(steps=60, direct=0.995)): "embedded-sparse",
}
RISE = 20  # steps over which the learning rate rises from zero
CONTEXT = 512  # tokens
STYLES: tuple[prompts.Style, ...] = ("boxed",) * 6 + ("r1", "plain")  # instructions met in the warm-up, by frequency
ARCHITECTURE: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
    "initializer_range": 0.08,  # at 0.02 the sums take twice the steps
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},  # sequences are about 60 tokens long
}


def fingerprint(name: str, further: WarmupSection | None = None) -> str:
    """12 hex digits over all that makes the model's folder: weights, code, major versions of torch and transformers."""
    modules = (prompts, embedded, embedded_tokenizer, sys.modules[__name__])
    parts = {
        "weights": DIGESTS[name],
        **({"further": repr(further), "shipped": FURTHER.get((name, further))} if further is not None else {}),
        "code": [inspect.getsource(module) for module in modules],
        "versions": [module.__version__.split(".")[0] for module in (torch, transformers)],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def unpack(folder: Path, name: str) -> None:
    """Save the model `name` with its tokenizer into `folder`, with the weights that are shipped.

    Raises:
        StateError: the shipped weights are missing or damaged.
    """
    file = SHIPPED / f"{name}.safetensors"
    try:
        content = file.read_bytes()
    except OSError as error:
        raise StateError(
            f"{file}: the start weights can't be read ({error.strerror}); install r3bench again"
        ) from error
    if hashlib.sha256(content).hexdigest() != DIGESTS[name]:
        raise StateError(f"{file}: has other content than was shipped (SHA-256); install r3bench again")
    with _isolated(0):
        model, tokenizer = _untrained()
        missing, unexpected = model.load_state_dict(safetensors.torch.load(content), strict=False)
        if set(missing) - {"lm_head.weight"} or unexpected:  # the head is tied to the embedding
            raise StateError(f"{file}: holds other weights than the embedded model has: {[*missing, *unexpected][:3]}")
        model.tie_weights()
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def make(folder: Path, name: str, further: WarmupSection | None = None) -> None:
    """Save the model `name` into `folder`, after the supervised steps `further` if there are any.

    What comes of the dials in `FURTHER` is shipped. Other dials are trained here: the same weights on one processor,
    others of their kind on another one.

    Raises:
        StateError: the shipped weights are missing or damaged.
    """
    shipped = name if further is None else FURTHER.get((name, further))
    if shipped is not None:
        unpack(folder, shipped)
    elif further is not None:
        go_on(folder, name, further)


def go_on(folder: Path, name: str, further: WarmupSection) -> None:
    """Take the supervised steps `further` from the model `name` and save what comes of it into `folder`."""
    unpack(folder, name)
    with _isolated(further.seed):
        model = LlamaForCausalLM.from_pretrained(folder)
        tokenizer = build_tokenizer(CONTEXT)
        steps = Warmup(0, further.steps, further.direct, learning_rate=further.learning_rate, seed=further.seed)
        warm_up(model, tokenizer, embedded.CAPS[name], steps)
        model.save_pretrained(folder)


def build(folder: Path, cap: int) -> None:
    """Warm the model for `cap` up and save it with its tokenizer into `folder`; the same weights on one machine."""
    with _isolated(WARMUPS[cap].seed):
        model, tokenizer = _untrained()
        warm_up(model, tokenizer, cap, WARMUPS[cap])
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _untrained() -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    tokenizer = build_tokenizer(CONTEXT)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **ARCHITECTURE,
    )
    return LlamaForCausalLM(config), tokenizer


@contextmanager
def _isolated(seed: int) -> Iterator[None]:
    """One thread, CPU, float32 and a seeded CPU generator inside; the caller's settings and random state afterwards."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.enable_grad():
        try:
            torch.set_num_threads(1)  # sums in one order, and no waiting for cores that other processes use
            torch.set_default_dtype(torch.float32)
            torch.default_generator.manual_seed(seed)
            yield
        finally:
            torch.set_num_threads(threads)
            torch.set_default_dtype(dtype)


def answers(chain: Chain) -> tuple[str, str]:
    """The direct and the worked answer to a question."""
    direct = f"{ANSWER} \\boxed{{{chain.answer}}}"
    return direct, f"{chain.working} {direct}"


def warm_up(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, cap: int, warmup: Warmup) -> None:
    """Supervised steps on the answers' tokens, in place."""
    rng = random.Random(f"r3bench-warmup-{warmup.seed}-{cap}")
    stream = chains("train", cap)
    optimiser = torch.optim.AdamW(model.parameters(), lr=warmup.learning_rate)
    total = warmup.worked + warmup.mixed
    model.train()
    for step in range(total):
        direct = warmup.direct if step >= warmup.worked else 0.0
        rate = warmup.learning_rate * min(1.0, (step + 1) / RISE, (total - step) / warmup.mixed)
        for group in optimiser.param_groups:
            group["lr"] = rate
        rows = [_row(chain, rng, direct, tokenizer) for chain in itertools.islice(stream, warmup.batch)]
        width = max(len(ids) for ids, _ in rows)
        padded = torch.full((len(rows), width), tokenizer.pad_token_id)
        labels = torch.full((len(rows), width), -100)
        for row, (ids, prompt_length) in enumerate(rows):
            padded[row, : len(ids)] = torch.tensor(ids)
            labels[row, prompt_length : len(ids)] = torch.tensor(ids[prompt_length:])
        loss = model(input_ids=padded, attention_mask=(padded != tokenizer.pad_token_id).long(), labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
    model.eval()


def _row(chain: Chain, rng: random.Random, direct: float, tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], int]:
    """Token ids of prompt and answer, and the prompt's length."""
    style = STYLES[int(rng.random() * len(STYLES))]
    messages = prompts.render(chain.problem, style)
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    answer = answers(chain)[0 if rng.random() < direct else 1]
    prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)
    return prompt_ids + tokenizer.encode(answer + END, add_special_tokens=False), len(prompt_ids)


if __name__ == "__main__":
    for name, cap in embedded.CAPS.items():
        build(Path(sys.argv[1]) / name, cap)
        weights = (Path(sys.argv[1]) / name / "model.safetensors").read_bytes()
        print(name, hashlib.sha256(weights).hexdigest())
    for (name, dials), file in FURTHER.items():
        go_on(Path(sys.argv[1]) / file, name, dials)
        weights = (Path(sys.argv[1]) / file / "model.safetensors").read_bytes()
        print(file, hashlib.sha256(weights).hexdigest())
