"""The task reward: correctness of the final answer, and R3's length bonus (arXiv 2601.19620, section 4.1.3)."""

from collections.abc import Callable, Sequence
from typing import Any

from r3bench.config.sections import RewardSection
from r3bench.grading import Grader


def text_of(completion: Any) -> str:
    """The text of a completion as TRL passes it: plain, or a list of messages."""
    return completion if isinstance(completion, str) else str(completion[-1].get("content") or "")


class Correctness:
    """1 for a right answer, 0 for a wrong one, by `Grader`; needs the data set column `answer`.

    A grading time-out counts as wrong and is logged as `grading/timeouts` (share of the batch).
    """

    __name__ = "correctness"

    def __init__(self, grader: Grader) -> None:
        self._grader = grader
        self.verdicts: list[bool] = []  # of the last call, for rewards that depend on it

    def __call__(
        self, completions: Sequence[Any], answer: Sequence[str], log_metric: Callable[..., None] | None = None, **_: Any
    ) -> list[float]:
        graded = self._grader.grade([text_of(completion) for completion in completions], list(answer))
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
    correctness = Correctness(grader)
    if not section.length_bonus:
        return [correctness]
    return [correctness, LengthBonus(correctness, section.length_max)]
