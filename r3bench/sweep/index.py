"""The Optuna study that mirrors a study's cells, for optuna-dashboard and for queries: an index, never the truth.

Only the dispatcher writes it, from one thread, so the duplicate trials of concurrent workers can't happen. A lost or
broken SQLite file is made again from the run directories.
"""

import queue
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.trial import TrialState

from r3bench.errors import ConfigError
from r3bench.records import RunRecord
from r3bench.sweep.attempts import Failure
from r3bench.sweep.cells import Cell
from r3bench.sweep.study import Study

optuna.logging.set_verbosity(optuna.logging.ERROR)
STORAGE_ERRORS = (
    optuna.exceptions.OptunaError, sqlalchemy.exc.SQLAlchemyError, AssertionError, KeyError, ValueError,
)  # fmt: skip  # what Optuna's RDB storage raises on a torn or foreign database


class Index:
    """A watcher that keeps one trial per cell; params are the factor levels and the seed, values the accuracies.

    Args:
        study: the study to mirror.
        url: an Optuna RDB URL; by default SQLite in the study's folder.
        say: takes a line for the user.

    Raises:
        ConfigError: a given URL can't be opened.
    """

    def __init__(self, study: Study, url: str | None = None, say: Callable[[str], None] = print) -> None:
        self.study = study
        self.file = None if url else index_file(study.root)
        self.url = url or f"sqlite:///{self.file}"
        self.say = say
        self.mirror = self._opened()
        self._notes: queue.SimpleQueue[tuple[Cell, RunRecord | None, Failure | None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="optuna-index", daemon=True)

    def __enter__(self) -> "Index":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._notes.put(None)
        self._thread.join()

    def started(self, cell: Cell) -> None:
        """An attempt was handed to the executor."""
        self._notes.put((cell, None, None))

    def ended(self, cell: Cell, record: RunRecord | None, failure: Failure | None) -> None:
        """The cell has a record, or failed for good."""
        self._notes.put((cell, record, failure))

    def _write(self) -> None:
        last = False
        while not last:
            batch = [self._notes.get()]
            while not self._notes.empty():
                batch.append(self._notes.get())
            last = None in batch
            latest = {note[0].run_id: note for note in batch if note is not None}  # one write per cell that moved
            if self.mirror is None:
                continue
            try:
                for note in latest.values():
                    self.mirror.take(*note)
            except STORAGE_ERRORS as error:
                self.say(f"the Optuna index at {self.url} missed an entry: {_first_line(error)}")

    def _opened(self) -> "_Mirror | None":
        try:
            return _Mirror(_storage(self.url), self.study)
        except (*STORAGE_ERRORS, ImportError) as error:
            if self.file is None:
                raise ConfigError(f"storage '{self.url}': can't be opened: {_first_line(error)}") from error
        if self.file.exists():
            self.file.rename(self.file.with_suffix(".db.torn"))
            self.say(f"{self.file}: not readable as an Optuna study; set aside and made again from the run directories")
        try:
            return _Mirror(_storage(self.url), self.study)
        except (*STORAGE_ERRORS, OSError) as error:  # a full disk; the runs don't depend on it
            self.say(f"{self.file}: can't be written ({_first_line(error)}); going on without an Optuna index")
            return None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _storage(url: str) -> optuna.storages.RDBStorage:
    """RDB storage; SQLite doesn't wait for the disk at each of a trial's small writes: it is only an index."""
    storage = optuna.storages.RDBStorage(url)
    if url.startswith("sqlite"):

        def relax(connection: Any, _record: Any) -> None:
            connection.execute("PRAGMA synchronous=OFF")

        sqlalchemy.event.listen(storage.engine, "connect", relax)
        storage.engine.dispose()
    return storage


class _Mirror:
    """Writes what happens to cells into an Optuna storage, through its public methods only."""

    def __init__(self, storage: optuna.storages.RDBStorage, study: Study) -> None:
        self.storage = storage
        self.tasks = list(study.cells[0].recipe.eval.tasks)
        name = study.root.name
        found = optuna.create_study(
            storage=storage, study_name=name, load_if_exists=True, directions=["maximize"] * len(self.tasks)
        )
        if len(found.directions) != len(self.tasks):  # a task was added since
            optuna.delete_study(storage=storage, study_name=name)
            found = optuna.create_study(storage=storage, study_name=name, directions=["maximize"] * len(self.tasks))
        if found.metric_names is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                found.set_metric_names([f"{task} accuracy" for task in self.tasks])
        self.study_id = storage.get_study_id_from_name(name)
        self.distributions = _distributions(study.cells)
        self.open: dict[str, int] = {}  # run id -> trial id of a running trial
        self.done: dict[str, str] = {}  # run id -> when the mirrored record ended
        for trial in storage.get_all_trials(self.study_id, deepcopy=False):
            run = str(trial.user_attrs.get("run_id"))
            if trial.state == TrialState.RUNNING:
                self.open[run] = trial._trial_id
            elif "record" in trial.user_attrs:
                self.done[run] = trial.user_attrs["record"]["ended"]

    def take(self, cell: Cell, record: RunRecord | None, failure: Failure | None) -> None:
        """Note a start (neither record nor failure), a record or a final failure."""
        if record is not None:
            if self.done.get(cell.run_id) == record.ended:
                return
            self.done[cell.run_id] = record.ended
            values = [_accuracy(record, task) for task in self.tasks]
            known = [v for v in values if v is not None]
            summary = {"outcome": record.train.outcome, "ended": record.ended, "commit": record.commit}
            complete = len(known) == len(values)  # a diverged run has none
            self._end(cell, TrialState.COMPLETE if complete else TrialState.FAIL, known, {"record": summary})
        elif failure is not None:
            self._end(cell, TrialState.FAIL, [], {"failure": {"kind": failure.kind, "message": failure.message}})
        elif cell.run_id not in self.open:
            self.open[cell.run_id] = self._add(cell, TrialState.RUNNING, [], {})

    def _end(self, cell: Cell, state: TrialState, values: list[float], attributes: Mapping[str, Any]) -> None:
        values = values if state == TrialState.COMPLETE else []
        trial = self.open.pop(cell.run_id, None)
        if trial is None:
            self._add(cell, state, values, attributes)
            return
        for key, value in attributes.items():
            self.storage.set_trial_user_attr(trial, key, value)
        self.storage.set_trial_state_values(trial, state, values or None)

    def _add(self, cell: Cell, state: TrialState, values: list[float], attributes: Mapping[str, Any]) -> int:
        params = {**cell.factors, "seed": cell.seed}
        trial = optuna.create_trial(
            state=state,
            params=params,
            distributions={name: self.distributions[name] for name in params},
            values=values or None,
            user_attrs={"run_id": cell.run_id, "name": cell.name, **attributes},
        )
        return self.storage.create_new_trial(self.study_id, template_trial=trial)


def _distributions(cells: Sequence[Cell]) -> dict[str, optuna.distributions.BaseDistribution]:
    levels: dict[str, list[str]] = {}
    for cell in cells:
        for factor, level in cell.factors.items():
            if level not in levels.setdefault(factor, []):
                levels[factor].append(level)
    found: dict[str, optuna.distributions.BaseDistribution] = {
        factor: optuna.distributions.CategoricalDistribution(sorted(names)) for factor, names in levels.items()
    }
    return {**found, "seed": optuna.distributions.IntDistribution(0, 2**31)}


def _accuracy(record: RunRecord, task: str) -> float | None:
    summary = record.eval.get(task, {})
    return next((float(v) for k, v in summary.items() if k.startswith("avg@")), None)


def index_file(root: Path) -> Path:
    """The SQLite file of a study's index."""
    return root / "optuna.db"
