"""One cell, from a recipe to `run.json`: lock, train, evaluate, record. Safe to call again after any interruption."""

import contextlib
import dataclasses
import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from r3bench import project
from r3bench.config.load import check_sources, config_hash, parse_recipe, resolved, run_id
from r3bench.config.sections import EvalSection, Recipe
from r3bench.config.trainer_fields import trainer_value
from r3bench.devices import gpu_ids
from r3bench.errors import Diverged, R3BenchError, StateError
from r3bench.evaluation.settings import measured
from r3bench.files import expect, no_room, read_json, write_json
from r3bench.lock import exclusive
from r3bench.records import RunPaths, RunRecord, TrainRecord, read_record, read_train, write_record, write_train
from r3bench.seals import unsealed
from r3bench.serving.training import served
from r3bench.sweep.attempts import attempt
from r3bench.sweep.cells import BASE_MODEL
from r3bench.sweep.sharing.card import write_card
from r3bench.sweep.stored import answered


@dataclass(frozen=True)
class Steps:
    """What a cell is made of; tests put something quick in their place."""

    train: Callable[..., TrainRecord]  # (recipe, paths, quiet=...); resumes, writes metrics, checkpoints, model
    evaluate: Callable[..., dict[str, dict[str, Any]]]  # (model, section, out, default_max_tokens=..., quiet=...)
    environment: Callable[[], dict[str, Any]]  # commit, packages, device
    start_model: Callable[..., str]  # (name, revision[, warmup]) -> folder or hub id of the untrained model


def real_steps(disk_floor_gb: float = 0.0) -> Steps:
    """Training and evaluation. Imports torch, TRL and lm-eval."""
    from r3bench.evaluation.driver import evaluate
    from r3bench.training.environment import environment
    from r3bench.training.models.load import model_folder
    from r3bench.training.run import train

    gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if gpu_ids() else 1  # the cell's, free after training
    return Steps(partial(train, disk_floor_gb=disk_floor_gb), partial(evaluate, gpus=gpus), environment, model_folder)


def finished(recipe: Recipe, paths: RunPaths) -> RunRecord | None:
    """The record of a run that is finished and measured on all the recipe asks for, with its answers, else None.

    Raises:
        StateError: `run.json` is of another run (a copied directory) or torn.
    """
    if not paths.record.exists():
        return None
    record = read_record(paths)
    if record.config_hash != config_hash(recipe) or record.seed != recipe.seed:
        raise StateError(
            f"{paths.record}: is the record of {record.run_id}, not of {run_id(recipe)}; "
            "the directory was copied or edited"
        )
    if record.train.outcome == "diverged":
        return record
    # run.json is a summary: without the answers behind it nothing can be analysed, so they are drawn again
    complete = measured(record.eval, recipe.eval, _cap(recipe)) and answered(record, paths, recipe.eval.tasks)
    return record if complete else None


def lead() -> bool:
    """Whether this process is the first rank: the one that locks, writes and evaluates."""
    return int(os.environ.get("RANK", "0")) == 0


def run_cell(
    recipe: Recipe,
    directory: Path,
    factors: Mapping[str, str] | None = None,
    *,
    quiet: bool = False,
    halvings: int = 0,
    disk_floor_gb: float = 0.0,
    steps: Steps | None = None,
) -> RunRecord:
    """Train and evaluate one run in `directory`; what is already there is kept.

    Args:
        recipe: checked recipe, with its seed.
        directory: run directory, created when absent.
        factors: factor -> level for the record; `{"base": "model"}` evaluates the start model without training.
        quiet: no progress output.
        halvings: how often the micro-batch is halved and accumulation doubled (after running out of memory).
        disk_floor_gb: free space that a checkpoint must leave.
        steps: in place of the real training and evaluation.

    Raises:
        Locked: another process is at work in the directory.
        StateError: the directory is of another run.
    """
    paths = RunPaths(directory)
    factors = dict(factors or {})
    directory.mkdir(parents=True, exist_ok=True)
    with exclusive(paths.lock) if lead() else contextlib.nullcontext():
        if lead():
            clear_leftovers(paths)
            set_aside_torn(paths)
        record = finished(recipe, paths)
        if record is not None:
            return record
        steps = steps or real_steps(disk_floor_gb)
        before = _measured_before(paths, factors) if lead() else {}
        if lead():
            from r3bench.evaluation.tied import set_aside_corrupt

            for shard, wrong in set_aside_corrupt(paths).items():  # torn from outside: its answers are drawn again
                print(f"{shard}: set aside, it {wrong}", file=sys.stderr)
            _describe(recipe, paths, steps.environment())
        if factors == BASE_MODEL:
            trained, model = _untrained(), _start_model(recipe, steps)
        else:
            trained, model = _trained(recipe, halvings, paths, quiet, steps), str(paths.model)
        summaries: dict[str, dict[str, Any]] = {}
        if trained.outcome == "finished" and lead():
            try:
                with exits_are_bugs():
                    found = steps.evaluate(
                        model, _section(recipe, paths), paths.evaluation, default_max_tokens=_cap(recipe), quiet=quiet
                    )
                summaries = {**before, **found}
                write_json(paths.eval_environment, steps.environment())
            except Diverged as error:  # weights that no loss or gradient gave away
                if factors == BASE_MODEL:
                    raise
                trained = dataclasses.replace(trained, outcome="diverged", reason=f"in evaluation: {error}")
        environment = read_json(paths.environment) if lead() else {"started": ""}
        record = _record(recipe, factors, trained, summaries, environment)
        if lead():
            write_json(paths.config, resolved(recipe))
            write_card(recipe, record, paths)
            record = write_record(record, paths)
            if summaries:
                _tell_trackers(paths, summaries, trained.steps)
        return record


def _start_model(recipe: Recipe, steps: Steps) -> str:
    model = recipe.model
    return steps.start_model(model.name, model.revision, *([model.warmup] if model.warmup else []))


def _tell_trackers(paths: RunPaths, summaries: dict[str, dict[str, Any]], steps: int) -> None:
    if (paths.root / "trackers.json").exists():  # else nothing is to be told, and nothing to be imported
        from r3bench.training.trackers import log_scores

        log_scores(paths, summaries, steps)


@contextlib.contextmanager
def exits_are_bugs() -> Iterator[None]:
    """`sys.exit` in a component, reward or task would end the program as if all were done.

    Raises:
        RuntimeError: in place of the exit.
    """
    try:
        yield
    except SystemExit as error:
        raise RuntimeError(f"sys.exit({error.code!r}) was called in a component, a reward or a task") from error


def _section(recipe: Recipe, paths: RunPaths) -> EvalSection:
    """The recipe's `eval` section with what samples chosen."""
    if recipe.eval.backend != "auto":
        return recipe.eval
    from r3bench.evaluation.choose_backend import resolve

    use_vllm = bool(trainer_value(recipe.trainer, "use_vllm")) and recipe.model.saved_whole
    section = resolve(recipe.eval, paths.evaluation, use_vllm=use_vllm)
    spread = int(trainer_value(recipe.trainer, "vllm_tensor_parallel_size"))
    if section.backend == "vllm" and spread > 1:  # a model too large for one GPU in training is so here
        return dataclasses.replace(section, engine={"tensor_parallel_size": spread, **section.engine})
    return section


def _cap(recipe: Recipe) -> int:
    """The response cap of training, in tokens; evaluation's where it has none."""
    return int(trainer_value(recipe.trainer, "max_completion_length"))


def clear_leftovers(paths: RunPaths) -> None:
    """Remove what a kill in the middle of a write left under its temporary name: whoever wrote held our lock.

    Only what the first rank writes: the others of this attempt may be at work already.
    """
    for pattern in (".*.tmp", "model/.README.md.*.tmp", "eval/.*.tmp", "eval/*/.*.tmp"):
        for path in paths.root.glob(pattern):
            path.unlink(missing_ok=True)
    for folder in paths.root.glob(".model.*"):
        shutil.rmtree(folder, ignore_errors=True)


def set_aside_torn(paths: RunPaths) -> list[Path]:
    """Rename unreadable and damaged `run.json` and `train.json` so that they are made again; the new names."""
    moved = []
    for path in (paths.record, paths.train):
        if path.exists():
            try:
                unsealed(read_json(path), path)
            except StateError:
                moved.append(_aside(path))
    return moved


def _aside(path: Path) -> Path:
    target = path.with_name(f"{path.name}.torn")
    os.replace(path, target)
    return target


def _measured_before(paths: RunPaths, factors: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """What the record says of earlier measurements of the same weights, of tasks the recipe doesn't name as well."""
    if not paths.record.exists() or not (paths.train.exists() or factors == BASE_MODEL):
        return {}
    return read_record(paths).eval


def _describe(recipe: Recipe, paths: RunPaths, environment: dict[str, Any]) -> None:
    """Write `config.json` and `environment.json`; those of a trained run say what it was trained with, and stay."""
    if not paths.record.exists():  # else its eval section is what was measured, until the new one is
        write_json(paths.config, resolved(recipe))
    if paths.train.exists() and _readable(paths.environment):
        return
    try:
        before = expect(read_json(paths.environment), paths.environment, started=str)
        started = before["started"]  # of the first attempt
    except StateError:
        started = datetime.now(UTC).isoformat("T", "seconds")
    where = os.path.relpath(project.home(), paths.root)  # as seen from here: no path of this machine
    write_json(paths.environment, {**environment, "started": started, "project": where})


def _readable(environment: Path) -> bool:
    try:
        return bool(expect(read_json(environment), environment, started=str))
    except StateError:
        return False


def _trained(recipe: Recipe, halvings: int, paths: RunPaths, quiet: bool, steps: Steps) -> TrainRecord:
    if paths.train.exists():
        record = read_train(paths)
        if record.outcome == "finished" and not paths.model.is_dir():
            raise StateError(
                f"{paths.root}: trained, but its weights were not kept, so it can't be measured; remove the folder to "
                "train it again, or import an archive that has them (r3bench export --models)"
            )
        from r3bench.evaluation.tied import check_weights

        check_weights(paths)
        return record
    check_sources(recipe)
    from safetensors import SafetensorError

    server = _server(recipe, paths, quiet, steps) if lead() else contextlib.nullcontext(recipe)
    try:
        with server as served_recipe, exits_are_bugs():
            record = steps.train(smaller_batches(served_recipe, halvings), paths, quiet=quiet)
    except Diverged as error:
        record = dataclasses.replace(_untrained(), outcome="diverged", reason=str(error))
    except (RuntimeError, SafetensorError) as error:
        if not no_room(error):
            raise
        said = f"can't be written, the disk or a quota may be full ({str(error).partition(chr(10))[0]})"
        raise OSError(errno.ENOSPC, said, str(paths.root)) from error
    record = dataclasses.replace(record, halvings=halvings)
    if lead() and (halvings or not paths.train.exists()):  # the first rank's: it alone knows the seconds
        record = write_train(record, paths)
    return record


def _server(recipe: Recipe, paths: RunPaths, quiet: bool, steps: Steps) -> contextlib.AbstractContextManager[Recipe]:
    def say(line: str) -> None:
        if not quiet:
            print(line, file=sys.stderr, flush=True)

    def model() -> str:
        return _start_model(recipe, steps)

    def context(recipe: Recipe) -> int | None:
        from r3bench.training.context import served_context  # imports torch, which only a server's lead needs here

        return served_context(recipe)

    return served(recipe, model, context, paths.root / "server.log", say)


def smaller_batches(recipe: Recipe, halvings: int) -> Recipe:
    """The recipe with micro-batches halved `halvings` times and accumulation doubled: the same rows per update.

    Raises:
        R3BenchError: the micro-batch can't be halved that often.
    """
    if halvings == 0:
        return recipe
    trainer = dict(recipe.trainer)
    rows = int(trainer_value(trainer, "per_device_train_batch_size"))
    if rows % 2**halvings:
        raise R3BenchError(
            f"out of memory, and a micro-batch of {rows} rows can't be halved {halvings} times; "
            "lower trainer.max_completion_length or use a larger device"
        )
    trainer["per_device_train_batch_size"] = rows // 2**halvings
    trainer["gradient_accumulation_steps"] = int(trainer_value(trainer, "gradient_accumulation_steps")) * 2**halvings
    if trainer.get("steps_per_generation"):
        trainer["steps_per_generation"] = int(trainer["steps_per_generation"]) * 2**halvings
    return dataclasses.replace(recipe, trainer=trainer)


def _untrained() -> TrainRecord:
    return TrainRecord("finished", None, 0, 0, 0.0, "none", 1)


def _record(
    recipe: Recipe,
    factors: dict[str, str],
    train: TrainRecord,
    summaries: dict[str, dict[str, Any]],
    environment: dict[str, Any],
) -> RunRecord:
    commit = environment.get("commit")
    return RunRecord(
        run_id=run_id(recipe),
        name=recipe.name,
        config_hash=config_hash(recipe),
        seed=recipe.seed,
        factors=factors,
        train=train,
        eval=summaries,
        commit=f"{commit}+dirty" if commit and environment.get("dirty") else commit,
        started=environment["started"],
        ended=datetime.now(UTC).isoformat("T", "milliseconds"),
    )


def job(recipe: Recipe, directory: Path, factors: Mapping[str, str], halvings: int = 0) -> dict[str, Any]:
    """A cell as JSON-ready data, for an executor to hand to `run_job`."""
    return {
        "recipe": resolved(recipe),
        "directory": str(directory.absolute()),
        "factors": dict(factors),
        "halvings": halvings,
        "home": str(project.home()),
    }


def run_job(work: Mapping[str, Any], steps: Steps | None = None) -> dict[str, Any]:
    """Run a cell described by `job`, noting the attempt in `attempts.jsonl`; the record as JSON-ready data."""
    directory = Path(work["directory"])
    project.enter(work.get("home"))
    recipe = parse_recipe(work["recipe"], str(directory / "config.json"))
    halvings = work["halvings"]
    with attempt(directory, halvings) if lead() else contextlib.nullcontext():
        record = run_cell(
            recipe,
            directory,
            work["factors"],
            quiet=True,
            halvings=halvings,
            disk_floor_gb=work.get("disk_floor_gb", 0.0),
            steps=steps,
        )
    return dataclasses.asdict(record)
