"""Generated multi-step arithmetic: questions that need no download. Importing this loads no torch.

A question reads "Start with 7, subtract 1, add 5."; one to four operations keep a running value within 0..cap. Whether
a question belongs to training, validation or test follows from a hash of its text, so the splits can't overlap whatever
is drawn, and the warm-up of the embedded model (`embedded_model`) never sees a validation or test question.
"""

import functools
import hashlib
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "validation", "test"]

CAPS = {"embedded": 9, "embedded-20": 20}  # name in a recipe -> largest running value
SIZES: dict[Split, int] = {"train": 1024, "validation": 200, "test": 400}
MAX_OPERATIONS = 4
MAX_OPERAND = 9
SEED = 0  # of the drawn questions; another number is another data set


@dataclass(frozen=True)
class Chain:
    """One question as numbers."""

    start: int  # first running value, 0..cap
    changes: tuple[int, ...]  # signed operands in order; never 0

    @property
    def problem(self) -> str:
        """The question's text, without instructions."""
        steps = (f"{'add' if change > 0 else 'subtract'} {abs(change)}" for change in self.changes)
        return f"Start with {self.start}, {', '.join(steps)}."

    @property
    def answer(self) -> str:
        """The gold answer."""
        return str(self.start + sum(self.changes))

    @property
    def working(self) -> str:
        """One equation a step, such as `7-1=6 6+5=11`."""
        value, equations = self.start, []
        for change in self.changes:
            equations.append(f"{value}{'+' if change > 0 else '-'}{abs(change)}={value + change}")
            value += change
        return " ".join(equations)

    @property
    def split(self) -> Split:
        """Eight in ten questions are training questions, one validation, one test."""
        bucket = int.from_bytes(hashlib.sha256(self.problem.encode()).digest()[:4], "big") % 10
        return "test" if bucket == 0 else "validation" if bucket == 1 else "train"


def draw(rng: random.Random, cap: int) -> Chain:
    """A random chain: length 1-4, start 0..cap, each new value uniform over those an operand of 1-9 can reach."""

    def below(count: int) -> int:
        return int(rng.random() * count)  # random() is the one method whose stream Python keeps between versions

    length = 1 + below(MAX_OPERATIONS)
    start = value = below(cap + 1)
    changes = []
    for _ in range(length):
        low, high = max(0, value - MAX_OPERAND), min(cap, value + MAX_OPERAND)
        new = low + below(high - low)
        new += new >= value
        changes.append(new - value)
        value = new
    return Chain(start, tuple(changes))


def chains(split: Split, cap: int) -> Iterator[Chain]:
    """The endless stream of chains of one split, repeats included."""
    rng = random.Random(f"r3bench-embedded-{SEED}-{cap}-{split}")
    while True:
        chain = draw(rng, cap)
        if chain.split == split:
            yield chain


@functools.cache
def available(split: Split, cap: int, operations: tuple[int, int]) -> int | None:
    """How many different questions a split has; None where they are too many to count (and far more than its size)."""
    if operations[1] == MAX_OPERATIONS:
        return None
    count = 0
    for length in range(operations[0], operations[1] + 1):
        for values in itertools.product(range(cap + 1), repeat=length + 1):
            changes = tuple(after - before for before, after in itertools.pairwise(values))
            count += (
                all(0 < abs(change) <= MAX_OPERAND for change in changes) and Chain(values[0], changes).split == split
            )
    return count


def questions(
    split: Split, cap: int = 9, limit: int | None = None, operations: tuple[int, int] = (1, MAX_OPERATIONS)
) -> list[dict[str, str]]:
    """The questions of a split: dicts with `id`, `problem` and `answer`; the same on every machine.

    Args:
        split: 'train' (1,024 questions), 'validation' (200) or 'test' (400).
        cap: largest running value; 9 is the default set, 20 the harder one.
        limit: keep the first `limit` questions.
        operations: fewest and most operations of a question, within 1..4. A range that leaves a split fewer questions
            gives all of them.

    Raises:
        ValueError: for another split, a cap below 9 (too few different questions), or another range of operations.
    """
    if split not in SIZES:
        raise ValueError(f"split: got {split!r}, expected one of {', '.join(SIZES)}")
    if cap < 9:
        raise ValueError(f"cap: got {cap}, expected at least 9")
    least, most = operations
    if not 1 <= least <= most <= MAX_OPERATIONS:
        raise ValueError(f"operations: got {list(operations)}, expected [fewest, most] within 1..{MAX_OPERATIONS}")
    size = SIZES[split] if limit is None else min(limit, SIZES[split])
    every = (least, most) == (1, MAX_OPERATIONS)
    if not every:
        size = min(size, available(split, cap, (least, most)) or size)
    rows: dict[str, dict[str, str]] = {}
    stream = chains(split, cap)
    while len(rows) < size:
        chain = next(stream)
        if not least <= len(chain.changes) <= most:
            continue
        name = f"embedded-{cap}-{'' if every else f'{least}to{most}-'}{split}-{len(rows):04d}"
        rows.setdefault(chain.problem, {"id": name, "problem": chain.problem, "answer": chain.answer})
    return list(rows.values())
