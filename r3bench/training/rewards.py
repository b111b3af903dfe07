"""The task reward: correctness of the final answer, and R3's length bonus (arXiv 2601.19620, section 4.1.3)."""

from collections.abc import Callable, Sequence
from typing import Any

from r3bench import source
from r3bench.config.sections import RewardSection, function_name
from r3bench.grading import Grader
from r3bench.grading.extract import THOUGHT_END
from r3bench.training.questions import gym
from r3bench.training.step import trl_adapter

THOUGHT_START = "<think>"


def text_of(completion: Any) -> str:
    """The text of a completion as TRL passes it: plain, or a list of messages."""
    return completion if isinstance(completion, str) else str(completion[-1].get("content") or "")


def after_thinking(text: str) -> str:
    """What follows the last closed thought, up to one that is begun after it; empty where none was closed.

    As in DeepScaleR's reward (rllm-org/rllm at 874daa4, rllm/rewards/math_reward.py): what stands in a thought isn't
    the answer, however it ends, and an unfinished thought has none.
    """
    _, closed, rest = text.rpartition(THOUGHT_END)
    return rest.partition(THOUGHT_START)[0] if closed else ""


class Correctness:
    """1 for a right answer, 0 for a wrong one, by `Grader`; needs the data set column `answer`.

    A grading time-out counts as wrong and is logged as `grading/timeouts` (share of the batch). With `thinking`, only
    what follows a closed thought counts (`after_thinking`); the share without one is `grading/unfinished_thoughts`.
    """

    __name__ = "correctness"

    def __init__(self, grader: Grader, thinking: bool = False) -> None:
        self._grader = grader
        self._thinking = thinking
        self.verdicts: list[bool] = []  # of the last call, for rewards that depend on it

    def __call__(
        self, completions: Sequence[Any], answer: Sequence[str], log_metric: Callable[..., None] | None = None, **_: Any
    ) -> list[float]:
        texts = [text_of(completion) for completion in completions]
        if self._thinking and log_metric is not None:
            log_metric("grading/unfinished_thoughts", sum(THOUGHT_END not in text for text in texts) / len(texts))
        graded = self._grader.grade([after_thinking(t) for t in texts] if self._thinking else texts, list(answer))
        if log_metric is not None:
            log_metric("grading/timeouts", sum(verdict.timed_out for verdict in graded) / len(graded))
        self.verdicts = [verdict.correct for verdict in graded]
        return [float(correct) for correct in self.verdicts]


class LengthBonus:
    """max(0, 1 - length / L_max) for right answers, 0 for wrong ones. Called after `correctness` on the same batch."""

    __name__ = "length_bonus"

    def __init__(self, correctness: Correctness, length_max: int) -> None:
        self._correctness = correctness
        self._length_max = length_max

    def __call__(self, completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        verdicts = self._correctness.verdicts
        return [
            max(0.0, 1.0 - len(ids) / self._length_max) if correct else 0.0
            for ids, correct in zip(completion_ids, verdicts, strict=True)
        ]


def reward_functions(section: RewardSection, grader: Grader) -> list[Callable[..., Any]]:
    """The reward functions of a recipe in its order, the length bonus last.

    Raises:
        ConfigError: a function that can't be found or imported.
    """
    found: list[Callable[..., Any]] = []
    for number, name in enumerate(section.used):
        if name in ("accuracy", "correctness"):
            found.append(Correctness(grader, section.thinking == "required"))
        elif name == "reasoning_gym":
            found.append(gym.score)
        else:
            found.append(named(source.load(name, f"reward.functions[{number}]"), function_name(name)))
    if section.length_bonus:
        accuracy = next(function for function in found if isinstance(function, Correctness))
        found.append(LengthBonus(accuracy, section.length_max))
    return found


def named(function: Any, name: str) -> Any:
    """`function` under the name that it is logged by: TRL asks for `__name__`, which objects and partials lack."""
    if getattr(function, "__name__", None) == name:
        return function
    if trl_adapter.is_async(function):

        async def later(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs)

        later.__name__, later.__wrapped__ = name, function  # type: ignore[attr-defined]
        return later

    def now(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    now.__name__, now.__wrapped__ = name, function  # type: ignore[attr-defined]
    return now
