"""What is drawn: one answer per (question, repeat), each from a random stream of its own. No torch here."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass
from typing import Protocol

import numpy as np

BLOCK = 64  # uniforms drawn at a time
STRETCH = 4  # batches whose answers follow each other in one


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen and when an answer ends."""

    temperature: float  # 0: the likeliest token
    top_p: float  # nucleus mass, 1: all tokens
    max_tokens: int  # cap; an answer that reaches it without an end token is truncated


@dataclass(frozen=True)
class Draw:
    """An answer to be sampled."""

    question: str  # question id
    repeat: int  # 0..k-1
    seed: int  # of its random stream
    prompt: str  # what the model reads, chat template applied


@dataclass(frozen=True)
class Completion:
    """A sampled answer."""

    text: str  # special tokens left out
    tokens: int  # sampled tokens, the end token included
    truncated: bool  # no end token within the cap


Answered = Callable[[int, Completion], None]  # told an answer and the place of its draw as soon as it has finished


class Backend(Protocol):
    """Something that samples answers."""

    name: str  # for the record, e.g. 'hf'
    fingerprint: str  # changes with the weights
    context: int | None  # tokens of prompt and answer together; None: not known
    details: dict[str, str]  # what else of the backend the answers depend on, for the record

    def chat(self, messages: Sequence[dict[str, str]]) -> str:
        """The prompt text of a chat, ready for the answer; the last message's text if there is no template."""
        ...

    def generate(
        self,
        draws: Sequence[Draw],
        sampling: Sampling,
        progress: Callable[[int], None],
        answered: Answered | None = None,
    ) -> list[Completion]:
        """One completion per draw, in order.

        Args:
            draws: what is to be answered.
            sampling: how.
            progress: called with the number of answers that finished.
            answered: called with every answer that finished, by backends whose answers stand by themselves, also when
                the call itself is interrupted or fails.

        Raises:
            ConfigError: prompt and cap don't fit the model's context.
        """
        ...

    def check(self, prompts: Iterable[str], sampling: Sampling) -> None:
        """Called with all prompts before the first is answered, so that nothing is sampled in vain.

        Raises:
            ConfigError: a prompt and the cap don't fit the model's context.
        """
        ...

    def plan(self, shards: int) -> int:
        """So many shards are to be sampled; how many of them at a time, from as many threads."""
        ...

    def close(self) -> None:
        """Free what it holds; nothing is sampled afterwards."""
        ...


def stretches(lengths: Sequence[int], draws: Sequence[Draw], size: int) -> list[list[int]]:
    """Which draws are sampled together: indices in lists of up to `STRETCH` batches, prompts of similar length in one.

    Within a stretch answers that end make room for others, so a batch is full until the last ones; stretches don't
    depend on each other.

    Args:
        lengths: of the prompts, in tokens.
        draws: the answers to be sampled.
        size: rows of a batch.
    """
    order = sorted(range(len(draws)), key=lambda i: (lengths[i], draws[i].question, i))
    return [order[start : start + STRETCH * size] for start in range(0, len(order), STRETCH * size)]


def draw_seed(seed: int, question: str, repeat: int) -> int:
    """The seed of one answer's stream; 63 bits of a hash, so that more repeats or questions change no other stream."""
    digest = hashlib.sha256(f"{seed}\0{question}\0{repeat}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def collect(
    futures: Sequence[Future[Completion]], progress: Callable[[int], None], answered: Answered | None
) -> list[Completion]:
    """The answers of `futures`, in order, told as they finish; what has finished is told even if others fail."""
    place = {future: i for i, future in enumerate(futures)}
    untold = dict(place)

    def tell(future: Future[Completion]) -> None:
        del untold[future]
        if answered is not None:
            answered(place[future], future.result())
        progress(1)

    try:
        for future in as_completed(futures):
            future.result()
            tell(future)
    except BaseException:  # Ctrl-C too
        for future in list(untold):
            if future.done() and not future.cancelled() and future.exception() is None:
                tell(future)
        raise
    return [future.result() for future in futures]


class Stream:
    """Uniform numbers in [0, 1) of one answer, one per token; equal on every machine and device."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(seed))
        self._block = np.zeros(0)
        self._next = 0

    def next(self) -> float:
        """The number for the next token."""
        if self._next == len(self._block):
            self._block, self._next = self._generator.random(BLOCK), 0
        self._next += 1
        return float(self._block[self._next - 1])
