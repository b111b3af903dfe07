"""Executors in front of a scheduler whose jobs outlive the dispatcher: a new one adopts what is queued or running.

A job leaves its reply in a file, so nothing depends on the connection of the process that submitted it.
"""

import contextlib
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, InvalidStateError
from pathlib import Path
from typing import Any, Protocol

from r3bench.files import read_json
from r3bench.sweep.attempts import Failure, FailureKind, WorkerFailed
from r3bench.sweep.executors.child import log_file, name_of, unpack
from r3bench.sweep.executors.outcome import Outcome

LAG = 3  # looks after a job's end until its reply is given up: a shared file system may be late


class Job(Protocol):
    """A job that a scheduler knows."""

    reply: Path  # where it leaves its result

    @property
    def name(self) -> str:
        """For messages."""

    def ended(self) -> tuple[str, FailureKind] | None:
        """(the scheduler's word, class) once it is over without a reply; None before, or when that can't be known."""

    def cancel(self) -> None:
        """Ask for its end."""


class JobFuture(Future[Any]):
    """A future whose work is a queued or running job."""

    queues = True  # time without progress counts only once the job runs

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job
        self.looks = 0  # at the queue since the job ended

    def stop(self, grace: float, dump: bool = False) -> None:
        """Cancel the job when it hangs (`dump`); when the dispatcher is drained it goes on, for the next one."""
        if dump:
            self.job.cancel()
        else:
            with contextlib.suppress(InvalidStateError):  # it ended this moment
                self.set_exception(WorkerFailed(Failure("preempted", "left running; a new dispatcher adopts it")))


class QueueExecutor(Executor):
    """Submits jobs and watches for their replies from one thread.

    Args:
        poll: seconds between looks.
    """

    def __init__(self, poll: float) -> None:
        self.poll = poll
        self._waiting: dict[JobFuture, Path] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def enqueue(self, function: str, work: Mapping[str, Any], directory: Path) -> Job:
        """Submit a job and leave behind what `known` needs to find it again."""

    @abstractmethod
    def known(self, directory: Path) -> Job | None:
        """The unfinished job that an earlier dispatcher submitted for this run directory."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> JobFuture:
        """Queue `fn(work)`, or adopt the job there already is for the same directory."""
        (work,) = args
        directory = Path(work["directory"])
        future = JobFuture(self.known(directory) or self.enqueue(name_of(fn), work, directory))
        future.set_running_or_notify_cancel()
        with self._lock:
            self._waiting[future] = log_file(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="job-queue", daemon=True)
                self._thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop watching; jobs go on."""
        self._closing.set()
        if self._thread is not None and wait:
            self._thread.join()

    def _watch(self) -> None:
        while not self._closing.wait(self.poll):
            with self._lock:
                waiting = dict(self._waiting)
            for future, log in waiting.items():
                outcome = None if future.done() else _outcome(future, log)
                if outcome is not None:
                    with contextlib.suppress(InvalidStateError):
                        outcome.settle(future)
                if future.done():
                    with self._lock:
                        del self._waiting[future]


def _outcome(future: JobFuture, log: Path) -> Outcome | None:
    """A finished job's reply, or why there is none; None while it isn't over."""
    job = future.job
    if job.reply.exists():
        return unpack(read_json(job.reply), 0, log)
    ended = job.ended()
    if ended is None:
        return None
    future.looks += 1
    if future.looks < LAG:
        return None
    outcome = Outcome()
    word, kind = ended
    outcome.error = WorkerFailed(Failure(kind, f"{job.name} ended as {word} without a reply; see {log}"))
    return outcome
