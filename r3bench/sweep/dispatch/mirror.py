"""A study's cells as trials of an Optuna study, through Optuna's public methods; made again when they are off."""

import os
import socket
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.trial import FrozenTrial, TrialState

from r3bench.errors import StateError
from r3bench.files import expect, read_json, write_json
from r3bench.records import RunRecord, avg_at_k
from r3bench.sweep.attempts import Failure
from r3bench.sweep.cells import Cell
from r3bench.sweep.study import Study

optuna.logging.set_verbosity(optuna.logging.ERROR)
CONNECT_SECONDS = 10  # that connecting to a server may take
WITH_TIMEOUT = ("psycopg2", "psycopg", "pymysql", "mysqldb")  # drivers that take `connect_timeout`
OWNER = "r3bench"  # attribute of the Optuna study: which folder it mirrors
Stamp = tuple[str, tuple[float, ...]]  # when a record ended, and its accuracies: clocks are set back
Note = tuple[Cell, RunRecord | None, Failure | None]  # a start (neither), a record, or a final failure


def open_storage(url: str) -> optuna.storages.RDBStorage:
    """RDB storage; SQLite doesn't wait for the disk at each of a trial's small writes: it is only an index."""
    parsed = sqlalchemy.engine.make_url(url)
    options: dict[str, Any] = {}
    if parsed.get_backend_name() != "sqlite":
        options["pool_pre_ping"] = True  # a server that was started again has forgotten its connections
        if parsed.get_driver_name() in WITH_TIMEOUT and "connect_timeout" not in parsed.query:
            options["connect_args"] = {"connect_timeout": CONNECT_SECONDS}
    storage = optuna.storages.RDBStorage(url, engine_kwargs=options)
    if url.startswith("sqlite"):

        def relax(connection: Any, _record: Any) -> None:
            connection.execute("PRAGMA synchronous=OFF")

        sqlalchemy.event.listen(storage.engine, "connect", relax)
        storage.engine.dispose()
    return storage


class Mirror:
    """One trial per cell; params are the factor levels and the seed, values the accuracies.

    Args:
        storage: where.
        study: the study to mirror.
        own: the storage is a file in the study's folder; else a database that other studies may share.
        beat: called at every write, to show that the storage answers.
    """

    def __init__(
        self, storage: optuna.storages.RDBStorage, study: Study, own: bool, beat: Callable[[], None] = lambda: None
    ) -> None:
        self.storage = storage
        self.beat = beat
        self.cells = {cell.run_id: cell for cell in study.cells}
        self.tasks = list(study.cells[0].recipe.eval.tasks)
        self.distributions = _distributions(study.cells)
        self.owner: dict[str, str] = {} if own else _identity(study.root)
        self.name = study.root.name if own else self._free_name(study.root)
        self.off = False  # some trials are of results that are no more
        self.study_id = self._found()
        self.open: dict[str, int] = {}  # run id -> trial id of a running trial
        self.done: dict[str, Stamp] = {}  # run id -> the mirrored record's
        if self._read():
            self._again()

    def take(self, cell: Cell, record: RunRecord | None, failure: Failure | None) -> None:
        """Note a start (neither record nor failure), a record or a final failure."""
        run = cell.run_id
        if record is not None:
            values = [_accuracy(record, task) for task in self.tasks]
            known = [v for v in values if v is not None]
            stamp = (record.ended, tuple(known) if len(known) == len(values) else ())
            if self.done.get(run) == stamp and run not in self.open:
                return
            summary = {"outcome": record.train.outcome, "ended": record.ended, "commit": record.commit}
            self._end(cell, TrialState.COMPLETE if stamp[1] else TrialState.FAIL, known, {"record": summary})
            self.off |= run in self.done
            self.done[run] = stamp
        elif failure is not None:
            self._end(cell, TrialState.FAIL, [], {"failure": {"kind": failure.kind, "message": failure.message}})
            self.off |= self.done.pop(run, None) is not None
        elif run not in self.open:
            self.open[run] = self._add(cell, TrialState.RUNNING, [], {})
        self.beat()

    def tidy(self) -> None:
        """Let trials go whose result was measured again or removed; finished trials can only be made anew."""
        if self.off:
            self._again()

    def _end(self, cell: Cell, state: TrialState, values: list[float], attributes: Mapping[str, Any]) -> None:
        values = values if state == TrialState.COMPLETE else []
        trial = self.open.get(cell.run_id)
        if trial is None:
            self._add(cell, state, values, attributes)
            return
        for key, value in attributes.items():
            self.storage.set_trial_user_attr(trial, key, value)
        self.storage.set_trial_state_values(trial, state, values or None)
        del self.open[cell.run_id]

    def _add(self, cell: Cell, state: TrialState, values: Sequence[float], attributes: Mapping[str, Any]) -> int:
        trial = optuna.create_trial(
            state=state,
            params=_params(cell),
            distributions={name: self.distributions[name] for name in _params(cell)},
            values=list(values) or None,
            user_attrs={**attributes, "run_id": cell.run_id, "name": cell.name},
        )
        return self.storage.create_new_trial(self.study_id, template_trial=trial)

    def _free_name(self, root: Path) -> str:
        """The name in a shared database: the folder's, with something behind it where another folder has that."""
        for name in (self.owner.get("name"), root.name, f"{root.name}-{self.owner['id'][:6]}"):
            if name is None:
                continue
            try:
                attributes = self.storage.get_study_user_attrs(self.storage.get_study_id_from_name(name))
            except KeyError:
                return name
            owner = attributes.get(OWNER)
            if isinstance(owner, dict) and any(self.owner[key] == owner.get(key) for key in ("id", "folder")):
                return name
        return f"{root.name}-{self.owner['id']}"

    def _found(self) -> int:
        """The Optuna study's number; it is made when absent, and anew when it has other objectives."""
        study_id = self._create()
        if len(self.storage.get_study_directions(study_id)) != len(self.tasks):  # a task was added since
            self.storage.delete_study(study_id)
            study_id = self._create()
        if self.owner and self.storage.get_study_user_attrs(study_id).get(OWNER) != self.owner:
            self.storage.set_study_user_attr(study_id, OWNER, self.owner)
        return study_id

    def _create(self) -> int:
        found = optuna.create_study(
            storage=self.storage, study_name=self.name, load_if_exists=True, directions=["maximize"] * len(self.tasks)
        )
        if found.metric_names is None and len(found.directions) == len(self.tasks):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                found.set_metric_names([f"{task} accuracy" for task in self.tasks])
        return self.storage.get_study_id_from_name(self.name)

    def _read(self) -> bool:
        """Take in what is there; whether it has to be made again: foreign or double trials, or levels added since."""
        wrong = False
        for trial in self.storage.get_all_trials(self.study_id, deepcopy=False):
            run = str(trial.user_attrs.get("run_id"))
            cell = self.cells.get(run)
            fits = cell is not None and trial.params == _params(cell)
            wrong |= not fits or any(self.distributions[name] != kind for name, kind in trial.distributions.items())
            if trial.state == TrialState.RUNNING:
                wrong |= run in self.open
                self.open[run] = trial._trial_id
            elif (stamp := _stamp(trial)) is not None:
                wrong |= run in self.done
                # of two that ended at one time, the later trial
                self.done[run] = max(stamp, self.done.get(run, stamp), key=lambda s: s[0])
        return wrong

    def _again(self) -> None:
        """The Optuna study anew, from what its trials say of our runs: failures, and each run's newest record.

        A kill in the middle loses what the run directories hold as well.
        """
        before = self.storage.get_all_trials(self.study_id)
        newest, self.done, self.open = self.done, {}, {}
        last = {}  # run id -> number of the trial with its newest record
        for trial in before:
            run = str(trial.user_attrs.get("run_id"))
            if run in newest and _stamp(trial) == newest[run]:
                last[run] = trial.number
        self.storage.delete_study(self.study_id)
        self.study_id = self._found()
        self.off = False
        for trial in before:
            cell = self.cells.get(str(trial.user_attrs.get("run_id")))
            stamp = _stamp(trial)
            if cell is None or trial.state == TrialState.RUNNING:
                continue
            if stamp is not None and last.get(cell.run_id) != trial.number:
                continue
            self._add(cell, trial.state, trial.values or [], trial.user_attrs)
            if stamp is not None:
                self.done[cell.run_id] = stamp
            self.beat()


def _stamp(trial: FrozenTrial) -> Stamp | None:
    """What tells the record behind a trial from another of its run; None for a trial without one."""
    record = trial.user_attrs.get("record")
    return (str(record.get("ended")), tuple(trial.values or ())) if isinstance(record, dict) else None


def _params(cell: Cell) -> dict[str, Any]:
    return {**cell.factors, "seed": cell.seed}


def _distributions(cells: Iterable[Cell]) -> dict[str, optuna.distributions.BaseDistribution]:
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
    return avg_at_k(record.eval.get(task, {}))


def _identity(root: Path) -> dict[str, str]:
    """What tells this folder's Optuna study from one of the same name: a number of its own, kept in the folder.

    A folder that was moved keeps its number, a copy beside the original gets another.
    """
    file = root / ".optuna.json"
    folder = f"{socket.gethostname()}:{root.resolve()}"
    try:
        found = expect(read_json(file), file, id=str, folder=str)
        host, _, path = found["folder"].partition(":")
        copied = found["folder"] != folder and host == socket.gethostname() and os.path.exists(Path(path, "study.json"))
        if not copied and found["folder"] == folder:
            return {"id": found["id"], "folder": folder}
        me = {"id": uuid.uuid4().hex if copied else found["id"], "folder": folder}
    except StateError:
        me = {"id": uuid.uuid4().hex, "folder": folder}
    write_json(file, me)
    return me
