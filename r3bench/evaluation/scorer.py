"""A task's own judge of answers: a function with the signature of TRL's reward functions.

The same function can be the reward in training and the judge in evaluation. It is called with `prompts`, `completions`
(chat messages, as in training) and every column of the questions, and gives a number for each answer.
"""

import asyncio
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

from r3bench import source
from r3bench.errors import ConfigError, first_line
from r3bench.grading import Verdict
from r3bench.grading.extract import THOUGHT_END

COLUMN = "scorer"  # of a task's documents: the function's name
THRESHOLD = "threshold"  # of a task's documents: the smallest number that is right, 1 unless given
PREFIX = "function/"  # how the grader's name of such verdicts begins
LONGEST = 500  # characters of an answer that are kept for majority votes


def named_in(docs: Sequence[Mapping[str, Any]], task: str) -> "Scorer | None":
    """The judge that a task's documents name; None: the final answer is compared with the gold one.

    Raises:
        ConfigError: the function can't be found or imported.
    """
    name = docs[0].get(COLUMN) if docs else None
    return Scorer(str(name), float(docs[0].get(THRESHOLD) or 1.0), task) if name else None


class Scorer:
    """Grades answers by a function.

    Args:
        name: `./file.py:function` or `package.module:function`.
        threshold: smallest number that is right.
        task: its file or name, for messages.
    """

    def __init__(self, name: str, threshold: float = 1.0, task: str = "task") -> None:
        self._where = f"{task}: scorer"
        self._function = source.load(name, self._where)
        self._threshold = threshold
        self._short = name.rpartition(":")[2]
        self._hash = source.digest(source.file_of(name, self._where))
        self.timeouts = 0

    @property
    def name(self) -> str:
        """What decides a verdict, e.g. 'function/passes@1f0c22ab9d3e'."""
        at = "" if self._threshold == 1.0 else f">={self._threshold:g}"
        return f"{PREFIX}{self._short}@{self._hash}{at}"

    def grade_docs(self, responses: Sequence[str], docs: Sequence[Mapping[str, Any]]) -> list[Verdict]:
        """One verdict per response, in order.

        Args:
            responses: (N,) texts.
            docs: (N,) the questions' documents.

        Raises:
            ConfigError: the function raises, or gives something else than one number or None per answer.
        """
        if not responses:
            return []
        values = self.values(responses, docs)
        verdicts = []
        for response, value in zip(responses, values, strict=True):
            said = response.rpartition(THOUGHT_END)[2].strip()[:LONGEST] or None
            reason = "function: not judged" if value is None else f"function: {value:g}"
            verdicts.append(Verdict(value is not None and value >= self._threshold, said, reason))
        return verdicts

    def values(self, responses: Sequence[str], docs: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """What the function gives, (N,)."""
        columns = {key: [doc.get(key) for doc in docs] for key in docs[0] if key not in ("prompt", COLUMN, THRESHOLD)}
        prompts = [[{"role": "user", "content": str(doc.get("prompt", doc.get("problem", "")))}] for doc in docs]
        completions = [[{"role": "assistant", "content": response}] for response in responses]
        try:
            given = list(awaited(self._function(prompts=prompts, completions=completions, **columns)))
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"{self._where}: '{self._short}' raised {type(error).__name__}: {first_line(error)} (question "
                f"{docs[0]['id']} or after it)"
            ) from error
        return checked(given, len(responses), f"{self._where}: '{self._short}'")

    def remember(self, extracted: str | None, gold: str, verdict: Verdict) -> None:
        """Nothing: a verdict depends on more than the answer."""

    def close(self) -> None:
        """Nothing to end."""


def awaited(value: Any) -> Any:
    """What an async function's call comes to; anything else as it is."""
    if not inspect.isawaitable(value):
        return value

    async def result() -> Any:
        return await value

    return asyncio.run(result())


def checked(values: Sequence[Any], count: int, where: str) -> list[float | None]:
    """`values` as floats or None, `count` of them.

    Raises:
        ConfigError: another number of values, or one that is no finite number.
    """
    if len(values) != count:
        raise ConfigError(f"{where} gave {len(values)} values for {count} answers, expected one each")
    found: list[float | None] = []
    for value in values:
        try:
            number = None if value is None else float(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where} gave {value!r:.80}, expected a number or None") from error
        if number is not None and not math.isfinite(number):
            raise ConfigError(f"{where} gave {number}, expected a finite number or None")
        found.append(number)
    return found
