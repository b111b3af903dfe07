"""The trajectory history: question id -> bounded lists of trajectories, sharded by question over ranks.

Answers to the bare question, to a reflection prompt and after a given prefix are bounded each on their own, so what a
component remembers is the same alone and in company. Of the answers to the bare question the newest right and the
newest wrong one stay, finished and cut off apart, however many others come after them.

Every rank calls the same methods in the same order. One exchange brings the summaries of a batch's questions to all
ranks, a second one the tokens of the trajectories that were picked, so a rank only ever holds its share of the store.
Every rank knows the name, length and step of all that is stored (`history_index.py`), so that the bounds drop the same
trajectories whatever the number of ranks.
"""

import hashlib
import math
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from r3bench.component import Group, Provenance, Step, Summary, Trajectory
from r3bench.config.sections import HistoryBounds
from r3bench.training.step.history_index import HistoryIndex

__all__ = ["HistoryBounds", "HistoryView", "TrajectoryHistory", "owner", "trajectories_of"]

PEAK_SHARE = 0.2  # tokens behind Summary.entropy_peak

Gather = Callable[[list[Any]], list[Any]]  # one list per rank -> all their items in rank order, on every rank
Key = tuple[str, int]  # (question, serial)
KINDS: tuple[Provenance, ...] = ("fresh", "reflection", "continuation")  # bounded each on their own


def owner(question: str, ranks: int) -> int:
    """The rank that stores `question`."""
    return zlib.crc32(question.encode()) % ranks


class TrajectoryHistory:
    """One rank's share of the store, and the collective reads and writes on the whole."""

    def __init__(self, bounds: HistoryBounds, rank: int = 0, ranks: int = 1, gather: Gather | None = None) -> None:
        self.bounds = bounds
        self.rank, self.ranks = rank, ranks
        self._gather: Gather = gather if gather is not None and ranks > 1 else lambda items: items
        self._items: dict[Key, Trajectory] = {}  # what this rank owns
        self._full = False  # `max_tokens` was met
        self._next: dict[str, int] = {}  # question -> serial number of its next trajectory
        self._of_kind = _new_index()  # of all ranks' trajectories, the same on every rank

    @property
    def tokens(self) -> int:
        """Completion tokens over all ranks."""
        return sum(index.tokens for index in self._of_kind.values())

    def __len__(self) -> int:
        return len(self._items)

    def insert(self, trajectories: Sequence[Trajectory], step: int) -> None:
        """Store those trajectories that this rank owns (every rank passes all of them), then apply the bounds."""
        for trajectory in trajectories:
            question = sys.intern(trajectory.summary.question)  # one text for all its rows
            serial = self._next.get(question, 0)
            self._next[question] = serial + 1
            self._add(trajectory._replace(summary=trajectory.summary._replace(question=question, serial=serial)))
            index = self._of_kind[trajectory.summary.provenance]
            for old in index.surplus(question, self.bounds.per_question):
                self._drop(index, question, old)
        for index in self._of_kind.values():
            self._expire(index, step)

    def _add(self, trajectory: Trajectory, aside: bool = False) -> None:
        summary = trajectory.summary
        verdict = int(summary.correct) + 2 * int(summary.truncated)
        index, size = self._of_kind[summary.provenance], summary.tokens or summary.length
        index.add(summary.question, summary.serial, size, summary.step, verdict, aside=aside)
        if owner(summary.question, self.ranks) == self.rank:
            self._items[summary.question, summary.serial] = trajectory

    def _expire(self, index: HistoryIndex, step: int) -> None:
        if self.bounds.max_age is not None:
            while (oldest := index.oldest()) is not None and step - oldest[2] > self.bounds.max_age:
                self._drop(index, *oldest[:2])
        while index.tokens > self.bounds.max_tokens and (name := index.first_to_go()) is not None:
            if not self._full:
                self._full = True
                warnings.warn(
                    f"history.max_tokens: {self.bounds.max_tokens} tokens are reached at step {step}; from now on the "
                    "oldest answers go. Where that is before the first questions come up again, little is left to "
                    "replay or to reflect on",
                    stacklevel=2,
                )
            self._drop(index, *name)

    def _drop(self, index: HistoryIndex, question: str, serial: int) -> None:
        index.drop(question, serial)
        self._items.pop((question, serial), None)

    def _serials(self, question: str) -> list[int]:
        """Serial numbers of all of a question's trajectories, oldest first."""
        return sorted(serial for index in self._of_kind.values() for serial in index.serials(question))

    def open(self, questions: Sequence[str]) -> "HistoryView":
        """Summaries of `questions` (the same list on every rank) for one step. Collective."""
        wanted = list(dict.fromkeys(questions))
        mine = [q for q in wanted if owner(q, self.ranks) == self.rank]
        local = [(q, [self._items[q, s].summary for s in self._serials(q)]) for q in mine]
        return HistoryView(self, dict(self._gather(local)))

    def fetch(self, keys: Sequence[Key]) -> list[Trajectory]:
        """The trajectories called `keys` (the same list on every rank), in order. Collective unless empty."""
        if not keys:
            return []
        found = dict(self._gather([(key, self._items[key]) for key in dict.fromkeys(keys) if key in self._items]))
        return [found[key] for key in keys]

    def digest(self) -> str:
        """Hex digest of the whole store, whatever the number of ranks: names, tokens, verdicts, rewards. Collective.

        Log-probs and entropies are left out: their last bits depend on how rows were batched.
        """
        local = [_trajectory_digest(trajectory) for trajectory in self._items.values()]
        return hashlib.sha256("".join(sorted(self._gather(local))).encode()).hexdigest()

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """This share as flat arrays and JSON-ready metadata."""
        every = [(key, index.is_aside(*key)) for index in self._of_kind.values() for key in index]
        places = [(p, aside, self._items[key]) for p, (key, aside) in enumerate(every) if key in self._items]
        items = [trajectory for *_, trajectory in places]
        empty_ids, empty_logprobs = [np.zeros(0, np.int32)], [np.zeros(0, np.float32)]
        arrays = {
            "completion_ids": np.concatenate([t.completion_ids for t in items] or empty_ids),
            "logprobs": np.concatenate([t.logprobs for t in items] or empty_logprobs),
        }
        rows = [[*t.summary, t.prefix, aside, place] for place, aside, t in places]
        masked = [number for number, t in enumerate(items) if t.mask is not None]
        if masked:
            arrays["masks"] = np.concatenate([np.asarray(items[number].mask, np.uint8) for number in masked])
        numbers = {q: n for q, n in self._next.items() if owner(q, self.ranks) == self.rank}
        return arrays, {"rows": _nan_to_none(rows), "next": numbers, "masked": masked}

    def load(self, shares: Iterable[tuple[dict[str, np.ndarray], dict[str, Any]]]) -> None:
        """Take over what this rank owns from all saved shares, whatever number of ranks wrote them.

        Of a share only the owned tokens are kept, so `shares` that are read one by one never lie in memory together.
        """
        self._items.clear()
        self._next, self._of_kind = {}, _new_index()
        nothing = np.zeros(0, np.int32), np.zeros(0, np.float32)
        loaded: list[tuple[int, bool, Trajectory]] = []
        for arrays, metadata in shares:
            self._next.update({sys.intern(q): n for q, n in metadata["next"].items()})
            start = first = 0
            masked = set(metadata.get("masked", ()))  # absent in older checkpoints
            for number, (question, *values, prefix, aside, place) in enumerate(metadata["rows"]):
                fields: list[Any] = [math.nan if value is None else value for value in values]
                summary = Summary(sys.intern(question), *fields)
                size = summary.tokens or summary.length
                end = start + size
                (ids, logprobs), mask = nothing, None
                if owner(question, self.ranks) == self.rank:
                    ids, logprobs = arrays["completion_ids"][start:end].copy(), arrays["logprobs"][start:end].copy()
                    mask = arrays["masks"][first : first + size].astype(bool) if number in masked else None
                loaded.append((place, aside, Trajectory(summary, ids, logprobs, prefix, mask)))
                start, first = end, first + size * (number in masked)
        # Oldest first over all shares, so that a bound drops the same trajectories as before the restart.
        for _, aside, trajectory in sorted(loaded, key=lambda item: item[0]):
            self._add(trajectory, aside)


def _new_index() -> dict[Provenance, HistoryIndex]:
    return {kind: HistoryIndex(keeps_verdicts=kind == "fresh") for kind in KINDS}


class HistoryView:
    """What components see: the summaries of one batch's questions, and tokens on demand."""

    def __init__(self, store: TrajectoryHistory | None, summaries: dict[str, list[Summary]]) -> None:
        self._store = store
        self._summaries = summaries

    def summaries(self, question: str) -> Sequence[Summary]:
        return self._summaries.get(question, [])

    def finished(self) -> "HistoryView":
        """The view without answers that hit the length cap."""
        kept = {question: [row for row in rows if not row.truncated] for question, rows in self._summaries.items()}
        return HistoryView(self._store, kept)

    def answered(self, groups: Sequence[Group]) -> "HistoryView":
        """Of the bare questions of `groups` only answers to the very prompts (by `asked`) that these groups got.

        An environment or `rollout_func` may put the same question in other words. Where a question's rows of this batch
        got several, none of its answers is left.
        """
        prompts: dict[str, set[int]] = {}
        for group in groups:
            if group.provenance in ("fresh", "continuation"):
                prompts.setdefault(group.question, set()).update(group.asked)
        bare = ("fresh", "continuation")
        kept = {
            question: [row for row in rows if row.provenance not in bare or {row.asked} == prompts.get(question)]
            for question, rows in self._summaries.items()
        }
        return HistoryView(self._store, kept)

    def fetch(self, wanted: Sequence[Summary]) -> list[Trajectory]:
        if self._store is None:
            return []
        return self._store.fetch([(s.question, s.serial) for s in wanted])


def _trajectory_digest(trajectory: Trajectory) -> str:
    summary = trajectory.summary._replace(entropy_mean=math.nan, entropy_peak=math.nan)
    text = repr(tuple(summary)).encode()
    tokens = trajectory.completion_ids.astype(np.int32).tobytes()
    mask = b"" if trajectory.mask is None else np.asarray(trajectory.mask, np.uint8).tobytes()
    return hashlib.sha256(text + tokens + mask + str(trajectory.prefix).encode()).hexdigest()


def _nan_to_none(rows: list[list[Any]]) -> list[list[Any]]:
    return [[None if isinstance(v, float) and math.isnan(v) else v for v in row] for row in rows]


def trajectories_of(step: Step) -> list[Trajectory]:
    """Every judged row of a batch as a trajectory; the history numbers them on `insert`.

    Appended groups lie at the end of each rank's rows, so the groups' own order depends on the number of ranks; fresh
    ones first and the others by provenance and question is an order that doesn't.
    """

    def place(group: Group) -> tuple[bool, str, str]:
        planned = group.provenance != "fresh"
        return planned, group.provenance, group.question if planned else ""

    groups = sorted(step.groups, key=place)
    seen = [
        values[group.masks[place]] if group.masks else values
        for group in groups
        for place, values in enumerate(group.entropies)
    ]
    figures = iter(_entropy_figures(seen))
    rows = []
    for group in groups:
        verdicts = zip(
            group.correct.tolist(), group.truncated.tolist(), group.lengths.tolist(), group.rewards.tolist(),
            group.task_rewards.tolist(), strict=True,
        )  # fmt: skip
        for i, (correct, truncated, length, reward, task_reward) in enumerate(verdicts):
            mean, peak = next(figures)
            if not group.judged[i]:
                continue
            summary = Summary(
                question=group.question,
                serial=0,
                step=step.step,
                epoch=int(step.epoch),
                provenance=group.provenance,
                correct=correct,
                truncated=truncated,
                length=length,
                reward=reward,
                task_reward=task_reward,
                entropy_mean=mean,
                entropy_peak=peak,
            )
            if group.asked:
                summary = summary._replace(asked=group.asked[i])
            mask = group.masks[i] if group.masks and not group.masks[i].all() else None
            if mask is not None:
                summary = summary._replace(tokens=len(mask))
            rows.append(Trajectory(summary, group.completion_ids[i], group.logprobs[i], group.prefix, mask))
    return rows


def _entropy_figures(rows: Sequence[np.ndarray]) -> list[tuple[float, float]]:
    """Per row its mean (T,) entropy and that of its highest `PEAK_SHARE`; NaN for an empty one.

    Rows of equal length are taken together: one by one, NumPy's overhead would be most of the bookkeeping of a step.
    """
    figures = [(math.nan, math.nan)] * len(rows)
    alike: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        alike.setdefault(len(row), []).append(place)
    for length, places in alike.items():
        if length:
            falling = np.sort([rows[place] for place in places], axis=1)[:, ::-1]
            peak = falling[:, : max(1, int(PEAK_SHARE * length))].mean(axis=1)
            for place, *pair in zip(places, falling.mean(axis=1).tolist(), peak.tolist(), strict=True):
                figures[place] = (pair[0], pair[1])
    return figures
