"""The Optuna study that mirrors a study's cells, for optuna-dashboard and for queries: an index, never the truth.

Only the dispatcher writes it, from one thread, so the duplicate trials of concurrent workers can't happen. A lost or
broken SQLite file is made again from the run directories. A server that is down misses entries until it is back, and
one that doesn't answer is left behind: runs and the study's lock never wait for it longer than a limit.
"""

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

from r3bench.errors import ConfigError
from r3bench.records import RunRecord
from r3bench.secrets import in_address, masked, said_of
from r3bench.sweep.attempts import Failure
from r3bench.sweep.cells import Cell
from r3bench.sweep.dispatch.mirror import Mirror, Note, open_storage
from r3bench.sweep.study import Study

SILENCE = 30.0  # seconds without an answer after which a storage is given up
HURRIED = (SILENCE, 5.0)  # the same after no signal, and after one; after two it isn't waited for at all
LOOK = 0.1  # seconds between looks at it


class Index:
    """A watcher that keeps one trial per cell; params are the factor levels and the seed, values the accuracies.

    Args:
        study: the study to mirror.
        url: an Optuna RDB URL; by default SQLite in the study's folder.
        say: takes a line for the user.
        signals: how many signals have asked for an end.

    Raises:
        ConfigError: a given URL can't be opened, or doesn't answer.
    """

    def __init__(
        self,
        study: Study,
        url: str | None = None,
        say: Callable[[str], None] = print,
        signals: Callable[[], int] = lambda: 0,
    ) -> None:
        self.study = study
        self.file = None if url else index_file(study.root)
        self.url = url or f"sqlite:///{self.file}"
        self.shown = masked(self.url, in_address(self.url))
        self.say = say
        self.signals = signals
        self._notes: queue.SimpleQueue[Note | None] = queue.SimpleQueue()
        self._owed: dict[str, Note] = {}  # run id -> the newest that the storage doesn't have
        self._mirror: Mirror | None = None
        self._trouble: BaseException | None = None  # why it couldn't be opened
        self._without = False  # given up
        self._said = False  # that it is down, once per time
        self._beat = time.monotonic()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="optuna-index", daemon=True)
        self._thread.start()
        if not self._answered(self._ready.is_set):
            self._without = True
            if self.file is None and not self.signals():
                raise ConfigError(f"storage '{self.shown}': can't be opened: no answer in {SILENCE:g} s")
            self.say(f"the Optuna index at {self.shown} doesn't answer; going on without")
        if self._trouble is not None:
            why = said_of(self.url, self._trouble)
            raise ConfigError(f"storage '{self.shown}': can't be opened: {why}{self._hint()}") from None

    def __enter__(self) -> "Index":
        return self

    def __exit__(self, *_: object) -> None:
        if self._without:
            return
        self._notes.put(None)
        answered = self._answered(lambda: not self._thread.is_alive())
        self._without = True
        missing = len(self._owed)
        if missing or not answered:
            why = "" if answered else "doesn't answer and "
            some = f"misses {missing} entries" if missing else "may miss some entries"
            self.say(f"the Optuna index at {self.shown} {why}{some}; the next `ablate` adds them")

    def started(self, cell: Cell) -> None:
        """An attempt was handed to the executor."""
        self._notes.put((cell, None, None))

    def ended(self, cell: Cell, record: RunRecord | None, failure: Failure | None) -> None:
        """The cell has a record, or failed for good."""
        self._notes.put((cell, record, failure))

    def _answered(self, over: Callable[[], bool]) -> bool:
        """Wait for `over`, as long as the storage shows signs of life."""
        self._beat = time.monotonic()
        while not over():
            limit = HURRIED[self.signals()] if self.signals() < len(HURRIED) else 0.0
            if time.monotonic() - self._beat > limit:
                return False
            time.sleep(LOOK)
        return True

    def _run(self) -> None:
        self._open()
        self._ready.set()
        last = self._trouble is not None
        while not last:
            batch = [self._notes.get()]
            while not self._notes.empty():
                batch.append(self._notes.get())
            last = None in batch
            self._owed |= {note[0].run_id: note for note in batch if note is not None}  # one per cell that moved
            self._write(last)

    def _write(self, last: bool) -> None:
        """Hand over what is owed; after an error the rest waits for the next time, which opens the storage anew."""
        if self._without:
            return
        try:
            if self._mirror is None:
                self._mirror = self._opened()
            for run, note in list(self._owed.items()):
                self._mirror.take(*note)
                del self._owed[run]
                self._alive()
            if last:
                self._mirror.tidy()
            self._said = False
        except Exception as error:  # noqa: BLE001, whatever a driver raises: runs don't depend on it
            self._mirror = None
            if not (self._said or self._without):
                self._said = True
                self.say(f"the Optuna index at {self.shown} missed an entry: {said_of(self.url, error)}")

    def _alive(self) -> None:
        self._beat = time.monotonic()

    def _opened(self) -> Mirror:
        return Mirror(open_storage(self.url), self.study, self.file is not None, self._alive)

    def _open(self) -> None:
        fresh = self.file is not None and not self.file.exists()
        try:
            self._mirror = self._opened()
            return
        except Exception as error:  # noqa: BLE001, of a torn or foreign database, a missing driver, a lost server
            if self.file is None:
                self._trouble = error
                return
        if fresh:  # begun on a full disk
            self.file.unlink(missing_ok=True)
        elif self.file.exists():
            self.file.rename(self.file.with_suffix(".db.torn"))
            self.say(f"{self.file}: not readable as an Optuna study; set aside and made again from the run directories")
        try:
            self._mirror = self._opened()
        except Exception as error:  # noqa: BLE001, a full disk; the runs don't depend on it
            self._without = True
            self.say(f"{self.file}: can't be written ({said_of(self.url, error)}); going on without an Optuna index")

    def _hint(self) -> str:
        """For a password that holds what ends one in an address."""
        who = self.url.partition("://")[2].rpartition("@")[0]
        return "; an @ in its password is to be written %40" if "@" in who else ""


def index_file(root: Path) -> Path:
    """The SQLite file of a study's index."""
    return root / "optuna.db"
