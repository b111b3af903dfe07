"""Engines kept full: answers are handed to sampling processes one by one, whatever shard they are of.

An engine works on hundreds of answers at a time, and the longest takes many times as long as the rest. Given a shard as
a whole it would idle for most of that time. So every process has a few more answers than its engine works on, and gets
the next as soon as one has ended; which of the processes that is, is left to whichever is faster.
"""

import dataclasses
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from r3bench.errors import R3BenchError
from r3bench.evaluation.backends.sampling import Completion, Draw, Sampling


class Engine(Protocol):
    """A sampling process, see `r3bench.evaluation.backends.pool.Worker`."""

    def send(self, message: dict[str, Any]) -> None:
        """A line to it."""
        ...

    def receive(self) -> dict[str, Any]:
        """Its next line; `R3BenchError` when it reports one or has ended."""
        ...


class Stream:
    """What has been asked for and not been answered.

    Args:
        engines: the processes, ready.
        slots: answers that one of them holds at a time.
    """

    def __init__(self, engines: Sequence[Engine], slots: int) -> None:
        self._engines, self._slots = engines, slots
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[Completion], Draw, Sampling]] = deque()
        self._held: list[dict[int, Future[Completion]]] = [{} for _ in engines]  # per engine, by number
        self._next = 0  # number
        self._failure: R3BenchError | None = None  # the first; others follow from it
        for place in range(len(engines)):
            threading.Thread(target=self._listen, args=(place,), daemon=True).start()

    def ask(self, draws: Sequence[Draw], sampling: Sampling) -> list[Future[Completion]]:
        """One future per draw; those asked for first are sampled first.

        Raises:
            R3BenchError: why a process has ended, if one has.
        """
        futures: list[Future[Completion]] = [Future() for _ in draws]
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self._waiting.extend((future, draw, sampling) for future, draw in zip(futures, draws, strict=True))
            self._hand_out()
        return futures

    def _hand_out(self) -> None:
        """To the process that holds the fewest first. With the lock held."""
        while self._waiting:
            place = min(range(len(self._engines)), key=lambda i: len(self._held[i]))
            if len(self._held[place]) >= self._slots:
                return
            future, draw, sampling = self._waiting.popleft()
            self._held[place][self._next] = future
            message = {"number": self._next, "draw": dataclasses.asdict(draw), "sampling": dataclasses.asdict(sampling)}
            self._engines[place].send(message)
            self._next += 1

    def _listen(self, place: int) -> None:
        while True:
            try:
                answers = self._engines[place].receive()["answers"]
            except R3BenchError as error:
                self._fail(error)
                return
            with self._lock:
                ended = [(self._held[place].pop(int(number), None), answer) for number, answer in answers.items()]
                self._hand_out()
            for future, answer in ended:
                if future is not None:  # else it has failed with another process
                    future.set_result(Completion(**answer))

    def _fail(self, error: R3BenchError) -> None:
        """Every answer asked for fails with the first failure, and so does whatever is asked for afterwards."""
        with self._lock:
            self._failure = self._failure or error
            lost = [future for future, _, _ in self._waiting] + [f for held in self._held for f in held.values()]
            self._waiting.clear()
            for held in self._held:
                held.clear()
        for future in lost:
            future.set_exception(self._failure)
