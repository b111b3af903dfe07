"""From responses and gold answers to verdicts."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from types import TracebackType

from r3bench.grading.decide import decide
from r3bench.grading.extract import final_answer
from r3bench.grading.pool import Pool
from r3bench.grading.spelling.normalise import MAX_LENGTH, same_spelling

RULES = 6  # raise when extraction or comparison changes a verdict; part of `Grader.name`
REMEMBERED = 100_000  # pairs whose verdict is kept, so that equal answers are graded once


@dataclass(frozen=True)
class Verdict:
    """The outcome for one response."""

    correct: bool  # right or wrong; a time-out is wrong
    extracted: str | None  # the answer found in the response, None when there is none
    reason: str  # why, in a few words
    timed_out: bool = False  # grading was ended after its time-out


class Grader:
    r"""Grades responses by the mathematical equality of the final answer and the gold answer.

    What spelling settles is settled here; the rest goes to math-verify in killable processes, started on first need.
    Equal (answer, gold) pairs are graded once. Use as a context manager, or call `close`.
    """

    def __init__(self, timeout: float = 5.0, workers: int = 2, require_boxed: bool = True) -> None:
        """Args:
        timeout: seconds of CPU time one answer may take; a hang costs this, counts as wrong and in `timeouts`.
        workers: processes at most.
        require_boxed: only a `\\boxed{}` answer counts; otherwise "the answer is ..." and the last number do as well.
        """
        self.require_boxed = require_boxed
        self.timeouts = 0  # answers whose grading timed out so far
        self._pool = Pool(timeout, workers)
        self._known: dict[tuple[str, str], tuple[bool, str, bool]] = {}

    @property
    def name(self) -> str:
        """Rules and versions that decide a verdict, e.g. 'r3bench-4/math-verify-0.9.0/boxed'."""
        rule = "boxed" if self.require_boxed else "last"
        return f"r3bench-{RULES}/math-verify-{version('math-verify')}/{rule}"

    def grade(self, responses: Sequence[str], golds: Sequence[str]) -> list[Verdict]:
        """One verdict per response, in order.

        Raises:
            ValueError: the two sequences differ in length.
            StateError: a grading process can't be started.
        """
        if len(responses) != len(golds):
            raise ValueError(f"{len(responses)} responses but {len(golds)} gold answers")
        if len(self._known) > REMEMBERED:
            self._known.clear()
        answers = [final_answer(response, self.require_boxed) for response in responses]
        # of an answer that is too long no more is kept than shows it
        texts = [
            None if answer.text is None else answer.text[: _kept(gold)]
            for answer, gold in zip(answers, golds, strict=True)
        ]
        pairs = list(zip(texts, golds, strict=True))
        found = {(text, gold): None for text, gold in pairs if text is not None}
        self._decide([pair for pair in found if pair not in self._known])
        verdicts = []
        for answer, (text, gold) in zip(answers, pairs, strict=True):
            if text is None:
                missing = r"no \boxed{} answer" if self.require_boxed else "no answer"
                verdicts.append(Verdict(False, None, missing))
                continue
            correct, reason, timed_out = self._known[text, gold]
            self.timeouts += timed_out
            verdicts.append(Verdict(correct, answer.text, f"{answer.form}: {reason}", timed_out))
        return verdicts

    def _decide(self, pairs: Sequence[tuple[str, str]]) -> None:
        hard = []
        for answer, gold in pairs:
            settled = decide(answer, gold)
            if settled is None:
                hard.append((answer, gold))
            else:
                self._known[answer, gold] = (*settled, False)
        self._known.update(zip(hard, self._pool.run(hard) if hard else [], strict=True))

    def remember(self, extracted: str | None, gold: str, verdict: Verdict) -> None:
        """Take over a verdict of the same grader from earlier, so that the pair is not graded again."""
        if extracted is not None:
            reason = verdict.reason.partition(": ")[2]
            self._known[extracted[: _kept(gold)], gold] = (verdict.correct, reason, verdict.timed_out)

    def close(self) -> None:
        """End the grading processes; the next `grade` starts them again."""
        self._pool.close()

    def __enter__(self) -> "Grader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _kept(gold: str) -> int:
    """Characters of an answer that are kept: one more than may be right."""
    return max(MAX_LENGTH, len(gold)) + 1


class ExactGrader:
    """The second opinion: equal after normalising the spelling, nothing more. Needs no process."""

    def __init__(self, require_boxed: bool = True) -> None:
        self.require_boxed = require_boxed
        self.timeouts = 0

    @property
    def name(self) -> str:
        return f"r3bench-{RULES}/exact/{'boxed' if self.require_boxed else 'last'}"

    def grade(self, responses: Sequence[str], golds: Sequence[str]) -> list[Verdict]:
        """As `Grader.grade`."""
        verdicts = []
        for response, gold in zip(responses, golds, strict=True):
            answer = final_answer(response, self.require_boxed)
            same = answer.text is not None and same_spelling(answer.text, gold)
            reason = "no answer" if answer.text is None else "same text" if same else "another text"
            verdicts.append(Verdict(same, answer.text, f"{answer.form}: {reason}"))
        return verdicts

    def close(self) -> None:
        """Nothing to end."""
