"""The trajectory history: question id -> bounded list of trajectories, sharded by question over ranks.

Every rank calls the same methods in the same order. One exchange brings the summaries of a batch's questions to all
ranks, a second one the tokens of the trajectories that were picked, so a rank only ever holds its share of the store.
"""

import dataclasses
import hashlib
import math
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from r3bench.training.component import Step, Summary, Trajectory

PEAK_SHARE = 0.2  # tokens behind Summary.entropy_peak

Gather = Callable[[list[Any]], list[Any]]  # one list per rank -> all their items in rank order, on every rank
Key = tuple[str, int]  # (question, serial)


@dataclass(frozen=True)
class HistoryBounds:
    """How much is kept; the oldest goes first."""

    per_question: int = 32  # trajectories per question
    max_tokens: int = 500_000_000  # completion tokens over all ranks, about 8 bytes each
    max_age: int | None = None  # optimiser steps after which a trajectory is dropped; null: never

    def __post_init__(self) -> None:
        if self.per_question < 1:
            raise ValueError(f"per_question: got {self.per_question}, expected at least 1")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens: got {self.max_tokens}, expected at least 1")
        if self.max_age is not None and self.max_age < 1:
            raise ValueError(f"max_age: got {self.max_age}, expected at least 1 step or null")


def owner(question: str, ranks: int) -> int:
    """The rank that stores `question`."""
    return zlib.crc32(question.encode()) % ranks


class TrajectoryHistory:
    """One rank's share of the store, and the collective reads and writes on the whole."""

    def __init__(self, bounds: HistoryBounds, rank: int = 0, ranks: int = 1, gather: Gather | None = None) -> None:
        self.bounds = bounds
        self.rank, self.ranks = rank, ranks
        self._gather: Gather = gather if gather is not None and ranks > 1 else lambda items: items
        self._items: OrderedDict[Key, Trajectory] = OrderedDict()  # oldest first
        self._of: dict[str, list[int]] = {}  # question -> serials, oldest first
        self._next: dict[str, int] = {}  # question -> next serial
        self.tokens = 0  # completion tokens in this share

    def __len__(self) -> int:
        return len(self._items)

    def insert(self, trajectories: Sequence[Trajectory], step: int) -> None:
        """Store those trajectories that this rank owns (every rank passes all of them), then apply the bounds."""
        for trajectory in trajectories:
            question = trajectory.summary.question
            if owner(question, self.ranks) != self.rank:
                continue
            serial = self._next.get(question, 0)
            self._next[question] = serial + 1
            summary = dataclasses.replace(trajectory.summary, serial=serial)
            self._items[question, serial] = dataclasses.replace(trajectory, summary=summary)
            self._of.setdefault(question, []).append(serial)
            self.tokens += summary.length
            if len(self._of[question]) > self.bounds.per_question:
                self._drop((question, self._of[question][0]))
        self._expire(step)

    def _expire(self, step: int) -> None:
        share = self.bounds.max_tokens // self.ranks
        while self._items:
            key, oldest = next(iter(self._items.items()))
            too_old = self.bounds.max_age is not None and step - oldest.summary.step > self.bounds.max_age
            if self.tokens <= share and not too_old:
                return
            self._drop(key)

    def _drop(self, key: Key) -> None:
        self.tokens -= self._items.pop(key).summary.length
        serials = self._of[key[0]]
        serials.remove(key[1])
        if not serials:
            del self._of[key[0]]

    def open(self, questions: Sequence[str]) -> "HistoryView":
        """Summaries of `questions` (the same list on every rank) for one step. Collective."""
        wanted = list(dict.fromkeys(questions))
        local = [(q, [self._items[q, s].summary for s in self._of[q]]) for q in wanted if q in self._of]
        return HistoryView(self, dict(self._gather(local)))

    def fetch(self, keys: Sequence[Key]) -> list[Trajectory]:
        """The trajectories called `keys` (the same list on every rank), in order. Collective unless empty."""
        if not keys:
            return []
        found = dict(self._gather([(key, self._items[key]) for key in dict.fromkeys(keys) if key in self._items]))
        return [found[key] for key in keys]

    def digest(self) -> str:
        """Hex digest of the whole store, whatever the number of ranks. Collective."""
        local = [_trajectory_digest(trajectory) for trajectory in self._items.values()]
        return hashlib.sha256("".join(sorted(self._gather(local))).encode()).hexdigest()

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """This share as flat arrays and JSON-ready metadata."""
        items = list(self._items.values())
        empty_ids, empty_logprobs = [np.zeros(0, np.int32)], [np.zeros(0, np.float32)]
        arrays = {
            "completion_ids": np.concatenate([t.completion_ids for t in items] or empty_ids),
            "logprobs": np.concatenate([t.logprobs for t in items] or empty_logprobs),
        }
        rows = [[*dataclasses.astuple(t.summary), t.prefix] for t in items]
        return arrays, {"rows": _nan_to_none(rows), "next": self._next}

    def load(self, shares: Sequence[tuple[dict[str, np.ndarray], dict[str, Any]]]) -> None:
        """Take over what this rank owns from all saved shares, whatever number of ranks wrote them."""
        self._items.clear()
        self._of.clear()
        self._next.clear()
        self.tokens = 0
        loaded: list[Trajectory] = []
        for arrays, metadata in shares:
            self._next.update({q: n for q, n in metadata["next"].items() if owner(q, self.ranks) == self.rank})
            start = 0
            for *values, prefix in metadata["rows"]:
                fields: list[Any] = [math.nan if value is None else value for value in values]
                summary = Summary(*fields)
                end = start + summary.length
                if owner(summary.question, self.ranks) == self.rank:
                    ids, logprobs = arrays["completion_ids"][start:end].copy(), arrays["logprobs"][start:end].copy()
                    loaded.append(Trajectory(summary, ids, logprobs, prefix))
                start = end
        # Oldest first over all shares, so that a bound drops the same trajectories as before the restart.
        for trajectory in sorted(loaded, key=lambda t: t.summary.step):
            summary = trajectory.summary
            self._items[summary.question, summary.serial] = trajectory
            self._of.setdefault(summary.question, []).append(summary.serial)
            self.tokens += summary.length


class HistoryView:
    """What components see: the summaries of one batch's questions, and tokens on demand."""

    def __init__(self, store: TrajectoryHistory | None, summaries: dict[str, list[Summary]]) -> None:
        self._store = store
        self._summaries = summaries

    def summaries(self, question: str) -> Sequence[Summary]:
        return self._summaries.get(question, [])

    def fetch(self, wanted: Sequence[Summary]) -> list[Trajectory]:
        if self._store is None:
            return []
        return self._store.fetch([(s.question, s.serial) for s in wanted])


def _trajectory_digest(trajectory: Trajectory) -> str:
    text = repr(dataclasses.astuple(trajectory.summary)).encode()
    tokens = trajectory.completion_ids.astype(np.int32).tobytes()
    return hashlib.sha256(text + tokens + str(trajectory.prefix).encode()).hexdigest()


def _nan_to_none(rows: list[list[Any]]) -> list[list[Any]]:
    return [[None if isinstance(v, float) and math.isnan(v) else v for v in row] for row in rows]


def trajectories_of(step: Step) -> list[Trajectory]:
    """Every row of a batch as a trajectory; the history numbers them on `insert`.

    Appended groups lie at the end of each rank's rows, so the groups' own order depends on the number of ranks; by
    provenance a question's groups come in an order that doesn't.
    """
    rows = []
    for group in sorted(step.groups, key=lambda group: (group.provenance != "fresh", group.provenance)):
        for i in range(len(group.rows)):
            entropies = np.sort(group.entropies[i])[::-1]
            peak = entropies[: max(1, int(PEAK_SHARE * len(entropies)))]
            summary = Summary(
                question=group.question,
                serial=0,
                step=step.step,
                epoch=int(step.epoch),
                provenance=group.provenance,
                correct=bool(group.correct[i]),
                truncated=bool(group.truncated[i]),
                length=int(group.lengths[i]),
                reward=float(group.rewards[i]),
                task_reward=float(group.task_rewards[i]),
                entropy_mean=float(entropies.mean()) if len(entropies) else math.nan,
                entropy_peak=float(peak.mean()) if len(entropies) else math.nan,
            )
            rows.append(Trajectory(summary, group.completion_ids[i], group.logprobs[i], group.prefix))
    return rows
