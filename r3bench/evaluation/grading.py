"""The grader that scores of this process come from, so that lm-eval's scoring and the stored verdicts share one."""

import contextlib
from collections.abc import Iterator

from r3bench.evaluation.scorer import Scorer
from r3bench.grading import Grader

_active: list[Grader | Scorer] = []


def current() -> Grader | Scorer:
    """The grader in use; a default one is made when lm-eval runs the tasks on its own."""
    if not _active:
        _active.append(Grader())
    return _active[-1]


@contextlib.contextmanager
def using(grader: Grader | Scorer) -> Iterator[Grader | Scorer]:
    """Make `grader` the current one, and end its processes afterwards."""
    _active.append(grader)
    try:
        yield grader
    finally:
        _active.remove(grader)
        grader.close()
