"""What trackers are told beside TRL's own figures: study, cell, levels, the recipe, and scores once they are measured.

Clients open their runs while training begins; `trackers.json` in the run's folder says which, so that scores go to the
same tracker run whenever they are measured, and training that is resumed goes on in it.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from r3bench.config.load import resolved
from r3bench.config.sections import Recipe
from r3bench.errors import StateError, first_line
from r3bench.files import read_json, write_json
from r3bench.records import RunPaths, read_study
from r3bench.secrets import masked, masked_values

FILE = "trackers.json"
PROJECT = "r3bench"  # of W&B and trackio, and MLflow's experiment outside a study, unless the user names one
TAG = 64  # characters that W&B takes for a tag
VALUE = 500  # characters that MLflow takes for a parameter
BATCH = 100  # parameters that MLflow takes at a time
Found = dict[str, dict[str, str]]  # tracker -> what identifies the run in it


@dataclass(frozen=True)
class Facts:
    """What a run is, in a tracker's terms."""

    run: str  # run id
    study: str | None  # None: a run of its own
    cell: str  # readable, such as 'replay+ranking'
    levels: dict[str, str]  # factor -> level; empty outside a study
    seed: int
    recipe: dict[str, Any]  # the whole configuration, without secrets

    @property
    def tags(self) -> list[str]:
        """`factor=level` of each factor, and the seed."""
        found = [f"{factor}={level}" for factor, level in self.levels.items()] + [f"seed={self.seed}"]
        return [tag.replace(",", ";")[:TAG] for tag in found]

    @property
    def config(self) -> dict[str, Any]:
        """For a client's configuration, under keys of their own."""
        about = {"study": self.study, "cell": self.cell, "run": self.run, "seed": self.seed, "levels": self.levels}
        return {"r3bench": {key: value for key, value in about.items() if value is not None}, "recipe": self.recipe}


def facts(recipe: Recipe, paths: RunPaths) -> Facts:
    """What trackers are told of a run; its study is the folder around it, if that is one."""
    study, levels = None, {}
    file = paths.root.parent / "study.json"
    if file.exists():
        with contextlib.suppress(StateError):  # torn: it is written anew
            cells = {cell["run_id"]: cell for cell in read_study(file)["cells"]}
            if paths.root.name in cells:
                study = paths.root.absolute().parent.name
                levels = {str(k): str(v) for k, v in cells[paths.root.name]["factors"].items()}
    values: Any = masked_values(json.loads(json.dumps(resolved(recipe), default=str)))
    return Facts(paths.root.name, study, recipe.name, levels, recipe.seed, values)


@contextlib.contextmanager
def described(about: Facts, paths: RunPaths) -> Iterator[None]:
    """While training begins: environment variables that the clients take group, tags and run from.

    What the user has set stays, and all are as before afterwards: one process may run several cells.
    """
    _finish_wandb()
    known = known_runs(paths)
    tags = {"study": about.study or "", "cell": about.cell, "seed": str(about.seed)}
    tags |= {f"level.{factor}": level for factor, level in about.levels.items()}
    with contextlib.suppress(ValueError):  # not JSON: the client will say so
        tags |= json.loads(os.environ.get("MLFLOW_TAGS") or "{}")
    wanted = {
        "WANDB_PROJECT": PROJECT,
        "WANDB_RUN_GROUP": about.study,
        "WANDB_TAGS": ",".join(about.tags),
        "WANDB_RUN_ID": known.get("wandb", {}).get("id"),
        "WANDB_RESUME": "allow" if "wandb" in known else None,
        "MLFLOW_EXPERIMENT_NAME": about.study or PROJECT,
        "MLFLOW_RUN_ID": known.get("mlflow", {}).get("run_id"),
    }
    given = {key: value for key, value in wanted.items() if value and key not in os.environ}
    before = os.environ.get("MLFLOW_TAGS")
    os.environ.update({**given, "MLFLOW_TAGS": json.dumps(tags)})
    try:
        yield
    finally:
        for key in given:
            os.environ.pop(key, None)
        if before is None:
            os.environ.pop("MLFLOW_TAGS", None)
        else:
            os.environ["MLFLOW_TAGS"] = before


class TellTrackers(TrainerCallback):
    """Gives the clients that TRL has opened the configuration, and notes which runs they opened.

    Args:
        about: the run.
        paths: its directory.
        trainer: its trainer, whose other callbacks have been called before this one.
    """

    def __init__(self, about: Facts, paths: RunPaths, trainer: Any) -> None:
        self._about, self._paths, self._trainer = about, paths, trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        found = {}
        for callback in self._trainer.callback_handler.callbacks:
            teller = TELLERS.get(type(callback).__name__)
            if teller is None:
                continue
            name, tell = teller
            with _harmless(name):
                found[name] = tell(callback, self._about, args)
        if found:
            write_json(self._paths.root / FILE, {**known_runs(self._paths), **found})


def known_runs(paths: RunPaths) -> Found:
    """The tracker runs of a run: tracker -> what identifies it there; none where no tracker was used."""
    try:
        found = read_json(paths.root / FILE)
    except StateError:
        return {}
    return {
        str(name): {str(k): str(v) for k, v in values.items()}
        for name, values in (found.items() if isinstance(found, dict) else ())
        if isinstance(values, dict)
    }


def log_scores(paths: RunPaths, summaries: Mapping[str, Mapping[str, Any]], steps: int) -> None:
    """Send measured scores (`eval/<task>/avg@k`, ...) to the tracker runs of a run, at its last step.

    A tracker that is down or was uninstalled costs a line on stderr, never the measurement.
    """
    flat = scores(summaries)
    for name, values in known_runs(paths).items():
        logger = LOGGERS.get(name)
        if logger is not None and flat:
            with _harmless(name):
                logger(values, flat, steps)


def scores(summaries: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The numbers of a measurement: `eval/<task>/<figure>` -> value."""
    return {
        f"eval/{task}/{key}": float(value)
        for task, summary in summaries.items()
        for key, value in summary.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


@contextlib.contextmanager
def _harmless(name: str) -> Iterator[None]:
    try:
        with contextlib.redirect_stdout(sys.stderr):  # clients say hello; stdout is for results
            yield
    except Exception as error:  # noqa: BLE001, whatever a client or its server raises: a run doesn't depend on it
        print(f"warning: {name} was not told: {masked(first_line(error))}", file=sys.stderr, flush=True)


# Clients are imported by name: they may be absent.
def _tell_wandb(_callback: Any, about: Facts, _args: Any) -> dict[str, str]:
    wandb: Any = import_module("wandb")

    wandb.config.update(about.config, allow_val_change=True)
    run = wandb.run
    return {"id": run.id, "project": run.project or PROJECT, "entity": run.entity or ""}


def _tell_mlflow(_callback: Any, about: Facts, _args: Any) -> dict[str, str]:
    mlflow: Any = import_module("mlflow")

    values = {k: str(v)[:VALUE] for k, v in _flat(about.config) if str(v)}
    items = list(values.items())
    client, run = mlflow.MlflowClient(), mlflow.active_run()
    for start in range(0, len(items), BATCH):
        params = [mlflow.entities.Param(_mlflow_key(k), v) for k, v in items[start : start + BATCH]]
        client.log_batch(run.info.run_id, params=params)
    address = mlflow.get_tracking_uri()
    local = address.removeprefix("sqlite:///")
    if local != address and not Path(local).is_absolute():
        address = f"sqlite:///{Path(local).absolute()}"
    shown = {"tracking_uri": address} if masked(address) == address else {}  # with a password: as the environment says
    return {"run_id": run.info.run_id, **shown}


def _tell_tensorboard(callback: Any, about: Facts, _args: Any) -> dict[str, str]:
    import yaml

    writer = callback.tb_writer
    writer.add_text("r3bench", f"```yaml\n{yaml.safe_dump(about.config['r3bench'], sort_keys=False)}```")
    writer.add_text("recipe", f"```yaml\n{yaml.safe_dump(about.recipe, sort_keys=False)}```")
    return {"folder": str(Path(callback.logging_dir).absolute())}


def _tell_trackio(_callback: Any, about: Facts, args: Any) -> dict[str, str]:
    trackio: Any = import_module("trackio")

    trackio.config.update({**about.config["r3bench"], "tags": about.tags, "recipe": about.recipe})
    # whoever logs to the run later replaces its configuration, so it is kept to be given again
    told: Any = masked_values(json.loads(json.dumps(dict(trackio.config), default=str)))
    config = {key: value for key, value in told.items() if not key.startswith("_")}  # the client's own
    return {"project": str(args.project), "name": str(args.run_name), "config": json.dumps(config)}


def _log_wandb(known: Mapping[str, str], flat: Mapping[str, float], steps: int) -> None:
    wandb: Any = import_module("wandb")

    run = wandb.run
    if run is None or run.id != known["id"]:
        _finish_wandb()
        run = wandb.init(id=known["id"], project=known["project"], entity=known.get("entity") or None, resume="allow")
    run.log({**flat, "train/global_step": steps})
    run.summary.update(dict(flat))
    _finish_wandb()


def _log_mlflow(known: Mapping[str, str], flat: Mapping[str, float], steps: int) -> None:
    mlflow: Any = import_module("mlflow")

    client = mlflow.MlflowClient(tracking_uri=known.get("tracking_uri"))
    for key, value in flat.items():
        client.log_metric(known["run_id"], _mlflow_key(key.replace("@", "_at_")), value, step=steps)


def _log_tensorboard(known: Mapping[str, str], flat: Mapping[str, float], steps: int) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(log_dir=known["folder"]) as writer:
        for key, value in flat.items():
            writer.add_scalar(key, value, steps)


def _log_trackio(known: Mapping[str, str], flat: Mapping[str, float], steps: int) -> None:
    trackio: Any = import_module("trackio")

    config = json.loads(known.get("config", "{}"))
    trackio.init(project=known["project"], name=known["name"], resume="allow", config=config)
    trackio.log(dict(flat), step=steps)
    trackio.finish()


def _finish_wandb() -> None:
    """A run that an earlier cell of this process has left open would take this one's figures.

    The client reads its environment variables once per process, unless it is torn down in between.
    """
    client: Any = sys.modules.get("wandb")
    if client is not None:
        with _harmless("wandb"):
            if client.run is not None:
                client.run.finish()
            client.teardown()


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _mlflow_key(key: str) -> str:
    """A name that MLflow takes: letters, digits and _ - . : / and space."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-. :/") else "_" for c in key)


TELLERS: dict[str, tuple[str, Callable[[Any, Facts, Any], dict[str, str]]]] = {  # class of a callback -> tracker
    "WandbCallback": ("wandb", _tell_wandb),
    "MLflowCallback": ("mlflow", _tell_mlflow),
    "TensorBoardCallback": ("tensorboard", _tell_tensorboard),
    "TrackioCallback": ("trackio", _tell_trackio),
}
LOGGERS: dict[str, Callable[[Mapping[str, str], Mapping[str, float], int], None]] = {
    "wandb": _log_wandb,
    "mlflow": _log_mlflow,
    "tensorboard": _log_tensorboard,
    "trackio": _log_trackio,
}
