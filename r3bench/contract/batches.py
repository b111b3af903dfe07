"""Made-up batches: questions from hopeless to solved, answers with texts, tokens and entropies, a history that fills.

All of it follows from the place of a row, so that two runs see the same answers where they decide the same.
"""

import random
import zlib
from collections.abc import Sequence

import numpy as np

from r3bench.component import Facts, Group, History, PlannedGroup, Step, Summary, Trajectory
from r3bench.training.step.history import trajectories_of

BATCHES = 24  # batches of a run: six epochs
QUESTIONS, GROUPS, ANSWERS = 16, 4, 8  # questions in the data, groups per batch, answers per group
CAP = 64  # tokens an answer may have; a token is a byte
HIDDEN = 16  # size of a made-up hidden state
RATES = (0.0, 0.05, 0.15, 0.3, 0.5, 0.8, 0.95, 1.0)  # shares of right answers, by question
WORDS = ("so", "then", "add", "wait", "thus", "check", "seven", "twelve")
UNJUDGED = 11  # one answer in so many gets no verdict from any reward function


def facts() -> Facts:
    """What a component is told of the trainer that there isn't."""
    return Facts(
        seed=7,
        num_generations=ANSWERS,
        groups=GROUPS,
        questions=QUESTIONS,
        max_completion_length=CAP,
        temperature=1.0,
        scale_rewards="group",
        decode=lambda ids: bytes(ids).decode(errors="ignore"),
        encode=lambda text: list(text.encode()),
    )


class Stored:
    """A history in memory."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Trajectory]] = {}

    def summaries(self, question: str) -> Sequence[Summary]:
        """See `History`."""
        return [row.summary for row in self._rows.get(question, [])]

    def fetch(self, wanted: Sequence[Summary]) -> list[Trajectory]:
        """See `History`."""
        return [self._rows[row.question][row.serial] for row in wanted]

    def insert(self, step: Step) -> None:
        """Keep the batch's answers."""
        for row in trajectories_of(step):
            kept = self._rows.setdefault(row.summary.question, [])
            kept.append(row._replace(summary=row.summary._replace(serial=len(kept))))


def opened(number: int, history: History) -> Step:
    """Batch `number` before anything is sampled: four questions of an epoch in its own order."""
    per_epoch = QUESTIONS // GROUPS
    order = random.Random(f"epoch-{number // per_epoch}").sample(range(QUESTIONS), QUESTIONS)
    chosen = order[number % per_epoch * GROUPS :][:GROUPS]
    return Step(number, number / per_epoch, [_group(i, f"q{q}") for i, q in enumerate(chosen)], history)


def placed(step: Step, plans: Sequence[PlannedGroup]) -> list[Group]:
    """The groups of the batch with the planned ones in their slots and behind the slots."""
    slots = {plan.slot: plan for plan in reversed(plans) if plan.slot is not None}
    behind = [plan for plan in plans if plan.slot is None]
    planned = [slots.get(group.index) for group in step.groups] + list(behind)
    return [
        step.groups[i]
        if plan is None
        else _group(i, plan.question, plan.provenance, plan.prefix_ids)
        for i, plan in enumerate(planned)
    ]  # fmt: skip


def sampled(group: Group, number: int) -> None:
    """Fill in verdicts, lengths and task rewards; what is behind them comes when a moment may see it."""
    drawn = [_answer(group, place, number) for place in range(ANSWERS)]
    group.correct = np.array([right for right, _, _ in drawn])
    group.truncated = np.array([cut for _, cut, _ in drawn])
    group.lengths = np.array([len(text) for _, _, text in drawn])
    group.judged = np.array([(number * 31 + row) % UNJUDGED > 0 for row in group.rows])
    group.correct &= group.judged
    group.task_rewards = np.where(group.judged, group.correct.astype(float), np.nan)
    group.rewards = group.task_rewards.copy()


def tokens(group: Group, number: int) -> list[np.ndarray]:
    """G arrays (T,) int32, a given prefix first."""
    return [np.frombuffer(_answer(group, p, number)[2], np.uint8).astype(np.int32) for p in range(ANSWERS)]


def figures(group: Group, number: int) -> list[np.ndarray]:
    """G arrays (T,) float32: entropies; the same at the same tokens so far, as a model's are."""
    rows = []
    for place in range(ANSWERS):
        said = zlib.crc32(group.question.encode())
        sums = [said := zlib.crc32(bytes([token]), said) for token in _answer(group, place, number)[2]]
        rows.append((3 * (np.array(sums) / 2**32) ** 3).astype(np.float32))
    return rows


def hidden(positions: Sequence[int], row: int, number: int) -> np.ndarray:
    """(n, H) float32."""
    rng = random.Random(f"{number}-{row}-hidden")
    return np.array([[rng.gauss(0, 1) for _ in range(HIDDEN)] for _ in positions], np.float32).reshape(-1, HIDDEN)


def _group(index: int, question: str, provenance: str = "fresh", prefix: Sequence[int] = ()) -> Group:
    number = question.removeprefix("q")
    group = Group(
        index=index,
        question=question,
        prompt=[{"role": "user", "content": f"Start with {number}, add seven. Answer within \\boxed{{}}."}],
        provenance=provenance,  # type: ignore[arg-type]
        rows=range(index * ANSWERS, (index + 1) * ANSWERS),
        prefix=len(prefix),
        columns={
            "question_id": question, "answer": str(int(number) + 7), "level": int(number) % 5,
            "solution": f"Start with {number}. Then add seven: {number} + 7. Thus \\boxed{{{int(number) + 7}}}.",
        },
    )  # fmt: skip
    group.columns = {**group.columns, "given": bytes(prefix)}
    return group


def _answer(group: Group, place: int, number: int) -> tuple[bool, bool, bytes]:
    """Whether it is right, whether it was cut off, and its bytes."""
    rng = random.Random(f"{number}-{group.index}-{group.question}-{group.provenance}-{place}")
    rate = RATES[int(group.question.removeprefix("q")) % len(RATES)]
    right, cut = rng.random() < rate, rng.random() < 0.3
    given = bytes(group.columns["given"])[: CAP - 1]
    said = " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 6))).encode()
    if cut and not right:
        return False, True, (given + b" ".join([said] * 9))[:CAP]
    gold = group.columns["answer"] if right else str(rng.randint(100, 999))
    return right, False, (given + said + b" \\boxed{" + gold.encode() + b"}")[:CAP]
