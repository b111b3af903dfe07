"""`eval`: measure a run or a model."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from r3bench.commands import shell
from r3bench.commands.options import (
    RUNS,
    Json,
    Quiet,
    Runs,
    Tasks,
    print_columns,
    print_json,
    prints_aside,
    run_folder,
    study_folder,
)

if TYPE_CHECKING:
    from r3bench.config.sections import EvalSection


def eval_(
    model: Annotated[
        str,
        typer.Argument(
            metavar="RUN|MODEL", help="A run, checkpoint, model folder, hub id or server.", autocompletion=shell.runs
        ),
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings of the eval section.")
    ] = None,
    tasks: Tasks = None,
    samples: Annotated[int | None, typer.Option(metavar="K", help="Answers per question.")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where a model's answers go.")] = None,
    gpus: Annotated[
        int, typer.Option(metavar="N", help="GPUs that sample, a process each; without GPUs they share the CPU.")
    ] = 1,
    tensor_parallel: Annotated[
        int, typer.Option(metavar="T", help="vLLM: GPUs of one process, over which it spreads the model.")
    ] = 1,
    runs: Runs = RUNS,
    checkpoints: Annotated[
        int | None,
        typer.Option("--checkpoints", metavar="N", help="Up to N kept checkpoints of a run, or of each of a study."),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure a run or a model; stored answers are kept, so that more tasks or samples cost only themselves.

    A run is measured as its recipe says unless told otherwise, and its record is brought up to date. With --checkpoints
    the model along its training is measured, for the report's comparison at equal cost.
    """
    from transformers.utils import logging

    from r3bench.errors import ConfigError
    from r3bench.evaluation.driver import evaluate

    logging.disable_progress_bar()  # of loading weights
    directory = run_folder(model, runs)
    changes = list(overrides or [])
    changes += [f"tasks=[{tasks}]"] if tasks else []
    changes += [f"samples={samples}"] if samples is not None else []
    for option, value in (("--gpus", gpus), ("--tensor-parallel", tensor_parallel), ("--checkpoints", checkpoints)):
        if value is not None and value < 1:
            raise ConfigError(f"{option}: got {value}, expected at least 1")
    if checkpoints is not None:
        if out is not None:
            raise ConfigError("--out: answers of checkpoints go into their run's folder")
        _along(
            model, runs, checkpoints, changes, quiet or as_json, as_json, max(gpus, tensor_parallel), tensor_parallel
        )
        return
    if directory is not None:
        subject, section, cap = _of_run(directory, changes)
        folder = directory / "eval"
        _check(directory)
    else:
        subject, section, cap = _of_model(model, changes)
        folder = out or runs / "models" / re.sub(r"[^\w.-]+", "-", model).strip("-.")
    with prints_aside():
        found = evaluate(
            subject, section, folder, default_max_tokens=cap, quiet=quiet or as_json,
            gpus=max(gpus, tensor_parallel), tensor_parallel=tensor_parallel,
        )  # fmt: skip
    if directory is not None:
        _update_record(directory, found)
    if as_json:
        print_json(found, "eval")
    else:
        print_columns([task, *map(str, _figures(summary))] for task, summary in found.items())
        typer.echo(folder)


def _along(
    name: str, runs: Path, most: int, changes: list[str], quiet: bool, as_json: bool, gpus: int, tensor_parallel: int
) -> None:
    """Measure kept checkpoints of one run or of every finished run of a study, evenly spread over training."""
    from r3bench.errors import StateError
    from r3bench.evaluation.driver import evaluate
    from r3bench.measured import set_aside_changed, write_measured
    from r3bench.records import RunPaths, read_record
    from r3bench.training.checkpoint import kept_steps

    one = run_folder(name, runs)
    roots = [one] if one is not None else sorted(p.parent for p in study_folder(name, runs).glob("*/run.json"))
    chosen = []
    for root in roots:
        paths = RunPaths(root)
        if not paths.record.exists():
            continue
        end = read_record(paths).train.steps
        steps = [step for step in kept_steps(paths.checkpoints) if step < end]  # the end is measured already
        count = min(most, len(steps))
        chosen += [(paths, steps[int((i + 0.5) * len(steps) / count)]) for i in range(count)]
    if not chosen:
        raise StateError(
            f"{name}: no run has kept a whole checkpoint from before its end; they are kept with `keep: all` in the "
            "grid and trainer.save_total_limit: null (or as many as wanted)"
        )
    found: dict[str, dict[str, Any]] = {}
    for paths, step in chosen:
        _, section, cap = _of_run(paths.root, changes, weights=False)
        folder = paths.checkpoints / f"checkpoint-{step}"
        for shard, wrong in set_aside_changed(paths.checkpoint_evaluation / str(step)).items():
            typer.echo(f"{shard}: set aside, it {wrong}", err=True)
        with prints_aside():
            summaries = evaluate(
                str(folder), section, paths.checkpoint_evaluation / str(step), default_max_tokens=cap, quiet=quiet,
                gpus=gpus, tensor_parallel=tensor_parallel,
            )  # fmt: skip
        write_measured(paths.checkpoint_evaluation / str(step), step, summaries)
        found.setdefault(paths.root.name, {})[str(step)] = summaries
        if not as_json:
            print_columns([paths.root.name, str(step), task, *_figures(s)] for task, s in summaries.items())
    if as_json:
        print_json(found, "eval-checkpoints")


def _check(directory: Path) -> None:
    """Refuse weights that are not those that were trained; set answers aside that are not those that were recorded."""
    from r3bench.evaluation.tied import check_weights, set_aside_corrupt
    from r3bench.records import RunPaths

    check_weights(RunPaths(directory))
    for shard, wrong in set_aside_corrupt(RunPaths(directory)).items():
        typer.echo(f"{shard}: set aside, it {wrong}", err=True)


def _section(values: dict[str, Any], changes: list[str]) -> "EvalSection":
    from r3bench import catalog
    from r3bench.config.load import apply_overrides
    from r3bench.config.sections import EvalSection
    from r3bench.config.strict import build

    section = build(EvalSection, apply_overrides(values, changes), "command line: eval")
    for task in section.tasks:
        catalog.task_path(task, "command line: eval.tasks")
    return section


def _of_run(directory: Path, changes: list[str], weights: bool = True) -> tuple[str, "EvalSection", int]:
    from r3bench.config.load import parse_recipe
    from r3bench.config.strict import plain
    from r3bench.config.trainer_fields import trainer_value
    from r3bench.errors import StateError
    from r3bench.evaluation.choose_backend import resolve
    from r3bench.files import read_json
    from r3bench.records import RunPaths, enter_project

    paths = RunPaths(directory)
    enter_project(paths)
    recipe = parse_recipe(read_json(paths.config), str(paths.config))
    if weights and not paths.model.is_dir():
        raise StateError(
            f"{directory}: has no model: not trained to the end, its weights were not kept, or an archive left them "
            "out (r3bench export --models takes them along)"
        )
    cap = int(trainer_value(recipe.trainer, "max_completion_length"))
    section = _section(plain(recipe.eval), changes)
    use_vllm = bool(trainer_value(recipe.trainer, "use_vllm")) and recipe.model.saved_whole
    return str(paths.model), resolve(section, paths.evaluation, use_vllm=use_vllm), cap


def _of_model(name: str, changes: list[str]) -> tuple[str, "EvalSection", int]:
    from r3bench.errors import ConfigError, first_line
    from r3bench.training.models.load import model_folder

    section = _section({}, changes)
    if name.startswith(("http://", "https://")):
        if section.max_tokens is None:
            raise ConfigError("command line: eval.max_tokens: missing, expected a response cap for a server's model")
        return name, section, section.max_tokens
    engine = "vllm:" if name.startswith("vllm:") else ""
    folder = model_folder(name.removeprefix(engine), None)
    if section.max_tokens is not None:
        return engine + folder, section, section.max_tokens
    from transformers import AutoConfig

    from r3bench.files import expect, read_json
    from r3bench.training.models.names import ADAPTER, start_revision

    alone = Path(folder, ADAPTER)  # adapters: the context is their start model's
    whole = (
        expect(read_json(alone), alone, base_model_name_or_path=str)["base_model_name_or_path"]
        if alone.is_file()
        else folder
    )
    try:
        config = AutoConfig.from_pretrained(whole, revision=start_revision(Path(folder)))
    except (OSError, ValueError) as error:
        raise ConfigError(f"model '{name}': can't be loaded: {first_line(error)}") from error
    context = getattr(config, "max_position_embeddings", None) or 65536
    return engine + folder, section, min(context // 2, 32768)


def _update_record(directory: Path, found: dict[str, dict[str, Any]]) -> None:
    import dataclasses

    from r3bench.config.load import parse_recipe
    from r3bench.files import read_json, write_json
    from r3bench.records import RunPaths, read_record, write_record
    from r3bench.sweep.sharing.card import write_card
    from r3bench.training.environment import environment

    paths = RunPaths(directory)
    write_json(paths.eval_environment, environment())
    if paths.record.exists():
        record = read_record(paths)
        record = dataclasses.replace(record, eval={**record.eval, **found})
        write_card(parse_recipe(read_json(paths.config), str(paths.config)), record, paths)
        write_record(record, paths)
        from r3bench.training.trackers import log_scores

        log_scores(paths, found, record.train.steps)


def _figures(summary: dict[str, Any]) -> list[str]:
    shown = [f"{key} {value:.3f}" for key, value in summary.items() if "@" in key and isinstance(value, float)]
    return [*shown[:3], f"{summary['questions']} questions"]
