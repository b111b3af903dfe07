"""What every rank knows of all that the trajectory history holds: names, lengths, steps and their order.

Packed, because this is the part of the history that more ranks don't make smaller.
"""

from array import array
from collections import deque
from collections.abc import Iterator


class HistoryIndex:
    """Question -> (length, step) of its trajectories, and the order in which all were added.

    Only the oldest trajectory of a question is ever dropped, so its serial numbers have no gaps, and the n-th time a
    question stands in the order is its n-th trajectory.
    """

    def __init__(self) -> None:
        self.next: dict[str, int] = {}  # question -> serial number of its next trajectory
        self.tokens = 0  # completion tokens of all trajectories
        self._of: dict[str, array[int]] = {}  # question -> length, step, length, step, ..., oldest first
        self._order: deque[str] = deque()  # the question of every trajectory, oldest first, dropped ones included
        self._dropped: dict[str, int] = {}  # question -> how many of its oldest places in the order are void
        self._void = 0  # sum of those

    def add(self, question: str, length: int, step: int) -> None:
        """Append a trajectory; its serial number, `next[question] - 1` at the latest, is the caller's to count."""
        self._of.setdefault(question, array("i")).extend((length, step))
        self._order.append(question)
        self.tokens += length

    def serials(self, question: str) -> range:
        """Serial numbers of a question's trajectories, oldest first."""
        count = len(self._of.get(question, ())) // 2
        return range(self.next.get(question, 0) - count, self.next.get(question, 0))

    def drop(self, question: str) -> int:
        """Forget a question's oldest trajectory; returns its serial number."""
        serial, figures = self.serials(question)[0], self._of[question]
        self.tokens -= figures[0]
        del figures[:2]
        if not figures:
            del self._of[question]
        self._dropped[question] = self._dropped.get(question, 0) + 1
        self._void += 1
        if self._void > len(self._order) // 2:
            self._order = deque(q for q, _ in self)
            self._dropped, self._void = {}, 0
        return serial

    def oldest(self) -> tuple[str, int] | None:
        """The question and step of the oldest trajectory; None when there is none."""
        while self._order and self._dropped.get(self._order[0]):
            self._dropped[self._order.popleft()] -= 1
            self._void -= 1
        return (self._order[0], self._of[self._order[0]][1]) if self._order else None

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """(question, serial number) of all trajectories, oldest first."""
        passed: dict[str, int] = {}
        for question in self._order:
            place = passed.get(question, -self._dropped.get(question, 0))
            passed[question] = place + 1
            if place >= 0:
                yield question, self.serials(question)[place]
