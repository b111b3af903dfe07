"""An executor that runs everything at once in the calling thread, behind the futures interface."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from r3bench.sweep.executors.outcome import Outcome


class InlineExecutor(Executor):
    """`submit` returns a finished future. Signals are the dispatcher's; an exit that user code raises is a failure."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call `fn` now."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        with Outcome(everything=True) as outcome:
            outcome.value = fn(*args, **kwargs)
        outcome.settle(future)
        return future
