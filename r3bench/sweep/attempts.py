"""Failures: their classes, and the attempts a run directory has seen (`attempts.jsonl`)."""

import contextlib
import os
import socket
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, CancelledError
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from r3bench.errors import Diverged, Interrupted, Lost
from r3bench.files import append_jsonl, expect, no_room, read_jsonl
from r3bench.lock import Locked
from r3bench.out_of_memory import out_of_memory
from r3bench.secrets import masked

FailureKind = Literal[
    "bug", "diverged", "out_of_memory", "preempted", "timeout", "disk", "machine", "lost", "locked", "stopped"
]  # lost: it never began
PAUSING = ("disk", "machine")  # no attempt failed: nothing could run here, and the study goes on once it can


@dataclass(frozen=True)
class Failure:
    """Why an attempt ended without a record."""

    kind: FailureKind
    message: str  # one line
    detail: str = ""  # traceback or last output


class Stopped(KeyboardInterrupt):
    """A signal ended this attempt where everything done so far is safe. Not an error that a library may swallow."""


class WorkerFailed(Exception):
    """A worker process ended without a result; carries what is known."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def classify(error: BaseException) -> Failure:
    """The class of an attempt's exception, from its type, its errno or the text of known out-of-memory errors."""
    if isinstance(error, WorkerFailed):
        return error.failure
    try:
        said = str(error)
    except Exception:  # noqa: BLE001, an exception of the user's code whose text can't be made
        return Failure("bug", type(error).__name__, masked("".join(traceback.format_tb(error.__traceback__))[-20_000:]))
    message = (said.strip().splitlines() or [""])[0]
    message = f"{type(error).__name__}: {message}" if message else type(error).__name__
    detail = "".join(traceback.format_exception(error))
    return Failure(_kind(error), masked(message[:2000]), masked(detail[-20_000:]))


def is_mistake(failure: Failure) -> bool:
    """Whether a failure is of a setting or of the data, and would be the same in every run that has them."""
    return failure.kind == "bug" and failure.message.partition(":")[0] in ("ConfigError", "DataError")


# of an exchange between ranks (gloo, NCCL) when the other process is gone
PEER_GONE = ("connection closed by peer", "connection reset by peer", "remote process exiting")


def _kind(error: BaseException) -> FailureKind:
    if isinstance(error, Diverged):
        return "diverged"
    if isinstance(error, Locked):
        return "locked"
    if no_room(error):
        return "disk"
    if out_of_memory(error):
        return "out_of_memory"
    text = str(error).lower()
    if isinstance(error, RuntimeError) and any(words in text for words in PEER_GONE):
        return "preempted"  # what ended the other is for that one to say
    if isinstance(error, Lost):
        return "preempted"
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, Interrupted | Stopped):
        return "stopped"
    # an exit or interrupt that no signal asked for (those are `Stopped`) is of the user's code, and a bug
    lost = BrokenExecutor | CancelledError | ConnectionError
    if isinstance(error, lost):
        return "preempted"
    return "bug"


def attempts_file(directory: Path) -> Path:
    """The log of attempts in a run directory."""
    return directory / "attempts.jsonl"


@contextlib.contextmanager
def attempt(directory: Path, halvings: int) -> Iterator[None]:
    """Note the start and, if it comes to that, the failure of an attempt. The exception goes on."""
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    given = {"devices": devices} if devices else {}
    note(directory, "start", pid=os.getpid(), host=socket.gethostname(), halvings=halvings, **given)
    finished = False
    try:
        yield
        finished = True
    finally:
        error = sys.exc_info()[1]
        if not finished and error is not None:
            note_failure(directory, classify(error))


def note(directory: Path, event: str, **values: object) -> None:
    """Append an event to the attempt log."""
    record = {"event": event, "time": datetime.now(UTC).isoformat("T", "seconds"), **values}
    append_jsonl(attempts_file(directory), record)


def note_failure(directory: Path, failure: Failure) -> None:
    """Append a failure. A run locked by someone else is no attempt and is not noted; neither is a full disk or a
    machine that starts no process. One that was asked to stop, and saved, has not failed either; its end is noted as
    what it is."""
    if failure.kind == "stopped":
        note(directory, "stopped", message=failure.message)
    elif failure.kind not in ("locked", "lost", *PAUSING):
        note(directory, "failure", kind=failure.kind, message=failure.message, detail=failure.detail)


def give_up(directory: Path) -> None:
    """Note that the retries are used up; a later `ablate` starts counting anew."""
    note(directory, "gave_up")


def failures(directory: Path) -> list[Failure]:
    """The failures since the last time the retries were used up."""
    found: list[Failure] = []
    for record in read_jsonl(attempts_file(directory)):
        if record.get("event") == "gave_up":
            found = []
        elif record.get("event") == "failure":
            found.append(_failure(record, directory))
    return found


def _failure(record: dict[str, Any], directory: Path) -> Failure:
    expect(record, attempts_file(directory), kind=str, message=str)
    return Failure(record["kind"], record["message"], str(record.get("detail", "")))


def counts(directory: Path) -> Counter[str]:
    """Failures by class since the last time the retries were used up."""
    return Counter(f.kind for f in failures(directory))
