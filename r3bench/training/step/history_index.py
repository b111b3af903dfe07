"""What every rank knows of the trajectories of one kind that the history holds: names, lengths, steps and their order.

Packed, because this is the part of the history that more ranks don't make smaller.
"""

from array import array
from collections import deque
from collections.abc import Iterator

FIELDS = 4  # numbers a trajectory has in `_of`: serial, length, step, verdict


class HistoryIndex:
    """The bounds of one kind of trajectories, and the order in which they were added.

    A question keeps its newest `per_question` ones. With `keeps_verdicts` the newest of each verdict stays besides,
    whatever came after it, for as long as there is room for it at all.
    """

    def __init__(self, keeps_verdicts: bool = False) -> None:
        self.tokens = 0  # completion tokens of all trajectories
        self._keeps = keeps_verdicts
        self._of: dict[str, array[int]] = {}  # question -> its trajectories' numbers, oldest first
        self._order: deque[str] = deque()  # the question of every trajectory, oldest first, dropped ones included
        self._serials: deque[int] = deque()  # its serial number
        self._held = 0  # trajectories
        self._aside: dict[tuple[str, int], None] = {}  # older than what `_order` begins with, and kept all the same

    def add(self, question: str, serial: int, length: int, step: int, verdict: int, *, aside: bool = False) -> None:
        """Append a trajectory; `verdict` is any small number that tells verdicts apart."""
        self._of.setdefault(question, array("i")).extend((serial, length, step, verdict))
        if aside:
            self._aside[question, serial] = None
        else:
            self._order.append(question)
            self._serials.append(serial)
        self.tokens += length
        self._held += 1

    def serials(self, question: str) -> list[int]:
        """Serial numbers of a question's trajectories, oldest first."""
        return self._of.get(question, array("i"))[::FIELDS].tolist()

    def is_aside(self, question: str, serial: int) -> bool:
        """Whether a trajectory has outlived its turn to go."""
        return (question, serial) in self._aside

    def surplus(self, question: str, per_question: int) -> list[int]:
        """Serial numbers of what a question has to give up: beyond its newest, and no longer kept for the verdict."""
        numbers = self._of[question]
        beyond = len(numbers) // FIELDS - per_question
        found = [at for at in range(beyond) if not self._newest_of_verdict(numbers, at)]
        if self._aside:
            places = range(max(0, beyond), len(numbers) // FIELDS)
            late = [at for at in places if (question, numbers[at * FIELDS]) in self._aside]
            found += [at for at in late if not self._newest_of_verdict(numbers, at)]
        return [numbers[at * FIELDS] for at in found]

    def _newest_of_verdict(self, numbers: "array[int]", at: int) -> bool:
        verdict = numbers[at * FIELDS + 3]
        return self._keeps and verdict not in numbers[(at + 1) * FIELDS + 3 :: FIELDS]

    def drop(self, question: str, serial: int) -> None:
        """Forget a trajectory."""
        numbers = self._of[question]
        at = numbers[::FIELDS].index(serial) * FIELDS
        self.tokens -= numbers[at + 1]
        del numbers[at : at + FIELDS]
        if not numbers:
            del self._of[question]
        self._aside.pop((question, serial), None)
        self._held -= 1
        if len(self._order) > 2 * self._held + 64:
            order = [name for name in self if name not in self._aside]
            self._order, self._serials = deque(q for q, _ in order), deque(s for _, s in order)

    def oldest(self) -> tuple[str, int, int] | None:
        """Question, serial and step of the oldest trajectory; None when there is none."""
        name = next(iter(self._aside), None) or self._front()
        numbers = None if name is None else self._numbers(*name)
        return None if name is None or numbers is None else (*name, numbers[2])

    def first_to_go(self) -> tuple[str, int] | None:
        """Question and serial of the oldest trajectory that isn't kept for its verdict; else of the oldest at all."""
        while (name := self._front()) is not None:
            numbers = self._of[name[0]]
            if not self._newest_of_verdict(numbers, numbers[::FIELDS].index(name[1])):
                return name
            self._aside[name] = None
            self._order.popleft()
            self._serials.popleft()
        return next(iter(self._aside), None)

    def _front(self) -> tuple[str, int] | None:
        while self._order:
            name = self._order[0], self._serials[0]
            if self._numbers(*name) is not None:
                return name
            self._order.popleft()
            self._serials.popleft()
        return None

    def _numbers(self, question: str, serial: int) -> "array[int] | None":
        numbers = self._of.get(question)
        if numbers is None or serial not in (serials := numbers[::FIELDS]):
            return None
        at = serials.index(serial) * FIELDS
        return numbers[at : at + FIELDS]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """(question, serial number) of all trajectories, oldest first."""
        yield from self._aside
        for name in zip(self._order, self._serials, strict=True):
            if self._numbers(*name) is not None:
                yield name
