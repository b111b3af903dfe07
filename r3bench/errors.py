"""The errors a user is shown: one message, no traceback, a non-zero exit code."""

from collections.abc import Iterable
from difflib import get_close_matches


class R3BenchError(Exception):
    """Base of every error with a message meant for the user. The CLI prints it and exits with `exit_code`."""

    exit_code = 1


class ConfigError(R3BenchError):
    """A recipe, grid or override that can't be used; names the file, key, value and expectation."""

    exit_code = 2


class DataError(R3BenchError):
    """A data set row or column that can't be used; names the source and the row."""

    exit_code = 2


class Unreachable(DataError):
    """A source on a network that can't be reached from here. Nothing is known of whether it could be used."""


class StateError(R3BenchError):
    """Files on disk that are torn, locked by another process, or contradict each other."""

    exit_code = 3


class Lost(StateError):
    """A process of ours was killed from outside. Nothing is known of its work, which can be repeated."""


class Diverged(R3BenchError):
    """Training met a non-finite loss, gradient or reward. A recorded outcome, not a bug."""

    exit_code = 4


class Interrupted(R3BenchError):
    """A signal asked the run to stop; its state is saved and the same command resumes from there."""

    exit_code = 75  # EX_TEMPFAIL: try again


def first_line(error: BaseException) -> str:
    """What an error says, in one line; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def nearest(name: str, valid: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the valid name closest to `name`, else the sorted list of valid names, if short."""
    names = sorted(valid)
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; valid: {', '.join(names)}" if 0 < len(names) <= 20 else ""
