"""An executor that runs everything at once in the calling thread, behind the futures interface."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class InlineExecutor(Executor):
    """`submit` returns a finished future. Interrupts (Ctrl-C) go to the caller."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call `fn` now."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        outcome = _Outcome()
        with outcome:
            outcome.value = fn(*args, **kwargs)
        if outcome.error is not None:
            future.set_exception(outcome.error)
        else:
            future.set_result(outcome.value)
        return future


class _Outcome:
    """Keeps what a block raised, whatever its type: a future's job. Interrupts and exits pass through."""

    def __init__(self) -> None:
        self.value: Any = None
        self.error: BaseException | None = None

    def __enter__(self) -> "_Outcome":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: Any) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        self.error = error
        return True
