"""The task reward: correctness of the final answer, and R3's length bonus (arXiv 2601.19620, section 4.1.3)."""

from collections.abc import Callable, Sequence
from typing import Any

from r3bench.config.sections import RewardSection
from r3bench.grading import Grader
from r3bench.grading.extract import THOUGHT_END

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


def reward_functions(section: RewardSection, grader: Grader) -> list[Callable[..., list[float]]]:
    """The reward functions of a recipe, `correctness` first."""
    correctness = Correctness(grader, section.thinking == "required")
    if not section.length_bonus:
        return [correctness]
    return [correctness, LengthBonus(correctness, section.length_max)]
