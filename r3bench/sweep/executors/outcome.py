"""What a call came to, value or exception, for handing it to a future or another process."""

from concurrent.futures import Future
from typing import Any


class Outcome:
    """A context that keeps what its block raised.

    Args:
        everything: also keep exits and interrupts; for the outermost frame of a worker process.
    """

    def __init__(self, everything: bool = False) -> None:
        self.everything = everything
        self.value: Any = None
        self.error: BaseException | None = None

    def __enter__(self) -> "Outcome":
        return self

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: Any) -> bool:
        if error is None or not (self.everything or isinstance(error, Exception)):
            return False
        self.error = error
        return True

    def settle(self, future: "Future[Any]") -> None:
        """Give value or exception to `future`."""
        if self.error is not None:
            future.set_exception(self.error)
        else:
            future.set_result(self.value)
