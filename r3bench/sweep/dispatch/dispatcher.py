"""The one process that runs a study: hands cells to an executor, notes how each ended, and survives being killed.

The run directories are the truth. Whatever happens to the dispatcher, starting it again finds the finished cells,
waits for those another process still holds, and runs the rest.
"""

import contextlib
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from r3bench.errors import Interrupted, StateError
from r3bench.files import no_room
from r3bench.lock import exclusive, holder
from r3bench.records import RunRecord, avg_at_k, read_record
from r3bench.sweep.attempts import PAUSING, Failure, classify, counts, failures, give_up, is_mistake, note_failure
from r3bench.sweep.cell_run import job, run_job
from r3bench.sweep.cells import BASE_MODEL, Cell
from r3bench.sweep.disk import free_gb, prune
from r3bench.sweep.executors.signals import DRAIN_GRACE, end, handling
from r3bench.sweep.progress import newest_change, saved
from r3bench.sweep.status_text import duration
from r3bench.sweep.study import Study

HANG_GRACE = 5.0  # seconds a hung cell gets to dump its stacks and stop
POLL = 0.5  # seconds between looks at signals, hangs and other processes' locks
Runner = Callable[[Mapping[str, Any]], dict[str, Any]]


class Watcher(Protocol):
    """Told how cells go; the Optuna index is one."""

    def started(self, cell: Cell) -> None:
        """An attempt was handed to the executor."""

    def ended(self, cell: Cell, record: RunRecord | None, failure: Failure | None) -> None:
        """The cell has a record, or failed for good."""


@dataclass
class Report:
    """What a dispatcher leaves behind."""

    study: Path
    finished: dict[str, RunRecord] = field(default_factory=dict)  # run id -> record, diverged runs included
    failed: dict[str, Failure] = field(default_factory=dict)  # run id -> why it was given up
    left: list[str] = field(default_factory=list)  # run ids not run because of an interruption or a full disk
    reason: str | None = None  # why some are left
    interrupted: bool = False  # a signal asked to stop

    @property
    def complete(self) -> bool:
        """Every cell has a record."""
        return not self.failed and not self.left


@dataclass
class _Running:
    cell: Cell
    change: float = 0.0  # latest file time seen in the run directory
    seen: float = field(default_factory=time.monotonic)  # when `change` was first seen; no wall clock is compared
    failures: int = 0  # noted in the run directory at submission
    saved: tuple[int, ...] = ()  # what was safe at submission
    stopped: str | None = None  # why we ended it: 'timeout' or 'drain'
    begun: float = field(default_factory=time.monotonic)  # when it was handed over


class Dispatcher:
    """Runs the cells of one study on one executor.

    Args:
        study: the grid with its folder.
        executor: anything with `submit` and futures; futures that have `stop(grace)` can be ended early.
        slots: cells handed over at a time.
        run: what a cell does, a module-level function from and to JSON-ready data.
        index: opens a watcher that is told about starts and ends, once the study's lock is held.
        say: takes a line for the user.
        watchers: told about starts and ends as well.
    """

    def __init__(
        self,
        study: Study,
        executor: Executor,
        *,
        slots: int,
        run: Runner = run_job,
        index: Callable[[Study], AbstractContextManager[Watcher]] | None = None,
        say: Callable[[str], None] = print,
        watchers: Iterable[Watcher] = (),
    ) -> None:
        self.study = study
        self.executor = executor
        self.slots = slots
        self.run = run
        self.index = index
        self.watchers: list[Watcher] = list(watchers)
        self.say = say
        self.report = Report(study.root)
        self.todo: deque[Cell] = deque()
        self.elsewhere: list[Cell] = []
        self.running: dict[Future[dict[str, Any]], _Running] = {}
        self.signals = 0
        self.lengths: list[float] = []  # seconds that runs took here, and that those finished before were trained

    def dispatch(self) -> Report:
        """Run what is left of the study; returns when nothing is running any more.

        Raises:
            Locked: another dispatcher is at work on this study.
            StateError: the folder belongs to another version of the grid, or can't be written.
        """
        with exclusive(self.study.lock), handling(self._on_signal), ExitStack() as stack:
            for leftover in self.study.root.glob(".*.tmp"):  # of a kill in the middle of a write
                leftover.unlink(missing_ok=True)
            self.study.write()
            if self.index is not None:
                self.watchers.append(stack.enter_context(self.index(self.study)))
            for cell in self.study.cells:
                self._reconcile(cell)
            already = len(self.report.finished)
            if already:
                self.say(f"{already} of {len(self.study.cells)} runs are finished already")
            while self.todo or self.running or self.elsewhere:
                self._fill()
                if not self.running and not self.elsewhere:
                    break
                self._collect()
                self._end_hung()
                self._look_elsewhere()
            self.report.left += [cell.run_id for cell in self.todo]
            self._look_back()
        return self.report

    def _look_back(self) -> None:
        """Runs that were removed while others ran are not finished any more."""
        gone = [
            cell.run_id
            for cell in self.study.cells
            if cell.run_id in self.report.finished and not self.study.paths(cell).record.exists()
        ]
        for run in gone:
            del self.report.finished[run]
        if gone:
            self.report.left += gone
            self.report.reason = self.report.reason or "removed while the study ran; the same command makes them again"
            with contextlib.suppress(OSError):  # only a description, which the next call writes again
                self.study.write()

    def _reconcile(self, cell: Cell) -> None:
        state, record = self.study.state(cell)
        if state == "finished":
            assert record is not None
            if record.train.train_seconds and record.train.outcome == "finished":
                self.lengths.append(record.train.train_seconds)
            self._finish(cell, record, quiet=True)
        elif state == "elsewhere":
            self.say(f"{cell.run_id}: running in another process; waiting for it")
            self.elsewhere.append(cell)
        else:
            self.todo.append(cell)

    def _fill(self) -> None:
        while self.todo and len(self.running) < self._room() and self.report.reason is None:
            free = free_gb(self.study.root)
            if free < self.study.grid.disk_floor_gb:
                self._stop_filling(
                    f"{free:.2f} GB free in {self.study.root}, below disk_floor_gb = {self.study.grid.disk_floor_gb:g}"
                )
                return
            cell = self.todo.popleft()
            paths = self.study.paths(cell)
            work = job(cell.recipe, paths.root, cell.factors, counts(paths.root)["out_of_memory"])
            work["strategy"] = self.study.grid.executor.strategy
            work["disk_floor_gb"] = self.study.grid.disk_floor_gb
            now = time.monotonic()
            before = _Running(cell, newest_change(paths), now, len(failures(paths.root)), saved(paths), begun=now)
            try:
                future = self.executor.submit(self.run, work)
            except OSError as error:  # no room for a job's files, or no process: running cells go on
                self.todo.appendleft(cell)
                self._stop_filling(
                    f"no cell could be started: {error.filename or ''} {error.strerror or error}".strip()
                )
                return
            self.running[future] = before
            self.say(f"started {cell.run_id} ({self._state()})")
            for watcher in self.watchers:
                watcher.started(cell)

    def _state(self) -> str:
        """How far the study is, for a line: runs at work and to come, and about how long they take."""
        todo = len(self.todo)
        text = f"{len(self.running)} running, {todo} to come"
        if not self.lengths:
            return text
        usual = sum(self.lengths) / len(self.lengths)
        now = time.monotonic()
        open_ = [max(0.0, usual - (now - run.begun)) for run in self.running.values()]
        return f"{text}, about {duration(max([(sum(open_) + todo * usual) / max(1, len(open_)), *open_]))} left"

    def _room(self) -> int:
        """Cells that may run now: the model before training is measured alone; what fails there fails everywhere."""
        waiting = [*self.todo, *(run.cell for run in self.running.values())]
        return 1 if any(cell.factors == BASE_MODEL for cell in waiting) else self.slots

    def _stop_filling(self, reason: str) -> None:
        if self.report.reason is None:
            self.report.reason = reason
            self.say(f"no further runs are started: {reason}")

    def _collect(self) -> None:
        if not self.running:
            time.sleep(POLL)
            return
        done, _ = wait(self.running, timeout=POLL, return_when=FIRST_COMPLETED)
        for future in done:
            run = self.running.pop(future)
            error = CancelledFailure() if future.cancelled() else future.exception()
            if error is None:
                record = read_record(self.study.paths(run.cell))
                if record.train.steps:  # not the untrained model, nor one that was only measured
                    self.lengths.append(time.monotonic() - run.begun)
                self._finish(run.cell, record)
            elif isinstance(error, Interrupted):  # raised in this process: the signal was for us
                run.stopped, self.report.interrupted = "drain", True
                self._failed(run, classify(error))
                self._stop_filling("interrupted")
            else:
                self._failed(run, classify(error))

    def _finish(self, cell: Cell, record: RunRecord, quiet: bool = False) -> None:
        self.report.finished[cell.run_id] = record
        paths = self.study.paths(cell)
        prune(paths, record, self.study.grid.keep)
        for watcher in self.watchers:
            watcher.ended(cell, record, None)
        if not quiet:
            done, total = len(self.report.finished), len(self.study.cells)
            self.say(f"[{done}/{total}] {cell.run_id}: {_headline(record)}")

    def _failed(self, run: _Running, failure: Failure) -> None:
        cell, root = run.cell, self.study.paths(run.cell).root
        if run.stopped == "drain":
            _, record = self.study.state(cell)
            if record is not None:  # it had its record before the signal reached it
                self._finish(cell, record)
            else:
                self.todo.appendleft(cell)
            return
        if failure.kind == "locked":
            self.elsewhere.append(cell)
            return
        if failure.kind == "lost":
            self.todo.appendleft(cell)
            return
        if failure.kind in PAUSING:
            self.todo.appendleft(cell)
            self._stop_filling(failure.message)
            return
        if failure.kind == "stopped" and run.stopped is None:
            if saved(self.study.paths(cell)) > run.saved:
                self.say(f"{cell.run_id}: asked to stop from outside; it has saved and goes on")
                self.todo.append(cell)
                return
            failure = Failure("preempted", f"asked to stop before it got any further: {failure.message}")
        try:
            self._count(run, failure)
        except OSError as error:
            if not no_room(error):
                raise
            self.todo.append(cell)  # the failure isn't noted and doesn't count
            self._stop_filling(f"{error.filename or root}: {error.strerror}")

    def _count(self, run: _Running, failure: Failure) -> None:
        """Note a failure; try again, or give up when the retries are used up."""
        cell, root = run.cell, self.study.paths(run.cell).root
        if run.stopped == "timeout":
            failure = Failure("timeout", f"no progress for {self.study.grid.hang_after:g} s", failure.detail)
        if run.stopped == "timeout" or all(noted.kind != failure.kind for noted in failures(root)[run.failures :]):
            note_failure(root, failure)  # the worker had no chance to, or another rank than the one that notes knew why
        allowed = getattr(self.study.grid.retries, failure.kind, 0)
        seen = counts(root)[failure.kind]
        if seen <= allowed:
            self.say(f"{cell.run_id}: {failure.kind}, attempt {seen + 1} of {allowed + 1} follows: {failure.message}")
            (self.todo.appendleft if cell.factors == BASE_MODEL else self.todo.append)(cell)
        else:
            give_up(root)
            self.report.failed[cell.run_id] = failure
            for watcher in self.watchers:
                watcher.ended(cell, None, failure)
            self.say(f"{cell.run_id}: failed ({failure.kind}): {failure.message}; see {root / 'attempts.jsonl'}")
            if cell.factors == BASE_MODEL and is_mistake(failure):
                self._stop_filling(f"the model before training can't be measured: {failure.message}")

    def _end_hung(self) -> None:
        limit = self.study.grid.hang_after
        for future, run in self.running.items():
            paths = self.study.paths(run.cell)
            change = newest_change(paths)
            queued = getattr(future, "waiting", False)  # for its process: a fork server that still imports, a free GPU
            queued |= getattr(future, "queues", False) and holder(paths.lock) is None
            if change != run.change or queued:
                run.change, run.seen = change, time.monotonic()
            elif run.stopped is None and time.monotonic() - run.seen > limit:
                run.stopped = "timeout"
                self.say(f"{run.cell.run_id}: no progress for {limit:g} s; stopping it")
                end(future, HANG_GRACE, dump=True)

    def _look_elsewhere(self) -> None:
        waiting, self.elsewhere = self.elsewhere, []
        for cell in waiting:
            state, record = self.study.state(cell)
            if state == "elsewhere":
                self.elsewhere.append(cell)
            elif record is not None:
                self._finish(cell, record)
            else:
                self.todo.append(cell)
        if self.report.reason is not None:
            self.report.left += [cell.run_id for cell in self.elsewhere]
            self.elsewhere = []

    def _on_signal(self, number: int, _frame: Any) -> None:
        """First SIGINT, SIGTERM or SIGHUP: start nothing, let running cells save and stop. Second: kill them."""
        self.signals += 1
        self.report.interrupted = True
        if self.signals == 1:
            self._stop_filling(f"{signal.Signals(number).name} received")
        for future, run in self.running.items():
            run.stopped = "drain"
            end(future, DRAIN_GRACE if self.signals == 1 else 0.0)


class CancelledFailure(StateError):
    """A future was cancelled before it started."""


def _headline(record: RunRecord) -> str:
    if record.train.outcome == "diverged":
        return f"diverged ({record.train.reason})"
    parts = []
    for task, summary in record.eval.items():
        score = avg_at_k(summary)
        if score is not None:
            parts.append(f"{task} {score:.3f}")
    return ", ".join([*parts, f"{record.train.train_seconds:.0f} s training"])
