"""`eval`, `grade`, `compare`: measure a model, grade answers, hold two runs against each other."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from r3bench.commands.options import RUNS, Json, Quiet, Runs, print_columns, print_json, printable, run_folder

if TYPE_CHECKING:
    from r3bench.config.sections import EvalSection

Tasks = Annotated[str | None, typer.Option("--tasks", metavar="A,B", help="Names that `r3bench list tasks` shows.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, or its id below --runs.")]


def eval_(
    model: Annotated[
        str, typer.Argument(metavar="RUN|MODEL", help="A run, checkpoint, model folder, hub id or server.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings of the eval section.")
    ] = None,
    tasks: Tasks = None,
    samples: Annotated[int | None, typer.Option(metavar="K", help="Answers per question.")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where a model's answers go.")] = None,
    runs: Runs = RUNS,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure a run or a model; stored answers are kept, so that more tasks or samples cost only themselves.

    A run is measured as its recipe says unless told otherwise, and its record is brought up to date.
    """
    from transformers.utils import logging

    from r3bench.evaluation.driver import evaluate

    logging.disable_progress_bar()  # of loading weights
    directory = run_folder(model, runs)
    changes = list(overrides or [])
    changes += [f"tasks=[{tasks}]"] if tasks else []
    changes += [f"samples={samples}"] if samples is not None else []
    if directory is not None:
        subject, section, cap = _of_run(directory, changes)
        folder = directory / "eval"
    else:
        subject, section, cap = _of_model(model, changes)
        folder = out or runs / "models" / re.sub(r"[^\w.-]+", "-", model).strip("-.")
    found = evaluate(subject, section, folder, default_max_tokens=cap, quiet=quiet or as_json)
    if directory is not None:
        _update_record(directory, found)
    if as_json:
        print_json(found)
    else:
        print_columns([task, *map(str, _figures(summary))] for task, summary in found.items())
        typer.echo(folder)


def _section(values: dict[str, Any], changes: list[str]) -> "EvalSection":
    from r3bench import catalog
    from r3bench.config.load import apply_overrides
    from r3bench.config.sections import EvalSection
    from r3bench.config.strict import build

    section = build(EvalSection, apply_overrides(values, changes), "command line: eval")
    for task in section.tasks:
        catalog.task_path(task, "command line: eval.tasks")
    return section


def _of_run(directory: Path, changes: list[str]) -> tuple[str, "EvalSection", int]:
    from r3bench.config.load import parse_recipe
    from r3bench.config.strict import plain
    from r3bench.config.trainer_fields import trainer_value
    from r3bench.errors import StateError
    from r3bench.files import read_json
    from r3bench.records import RunPaths

    paths = RunPaths(directory)
    recipe = parse_recipe(read_json(paths.config), str(paths.config))
    if not paths.model.is_dir():
        raise StateError(f"{directory}: has no model (not trained to the end, or its weights were not kept)")
    cap = int(trainer_value(recipe.trainer, "max_completion_length"))
    return str(paths.model), _section(plain(recipe.eval), changes), cap


def _of_model(name: str, changes: list[str]) -> tuple[str, "EvalSection", int]:
    from r3bench.errors import ConfigError
    from r3bench.training.models import model_folder

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

    context = getattr(AutoConfig.from_pretrained(folder), "max_position_embeddings", None) or 65536
    return engine + folder, section, min(context // 2, 32768)


def _update_record(directory: Path, found: dict[str, dict[str, Any]]) -> None:
    import dataclasses

    from r3bench.config.load import parse_recipe
    from r3bench.files import read_json, write_json
    from r3bench.records import RunPaths, read_record, write_record
    from r3bench.sweep.card import write_card
    from r3bench.training.environment import environment

    paths = RunPaths(directory)
    write_json(paths.eval_environment, environment())
    if paths.record.exists():
        record = read_record(paths)
        record = dataclasses.replace(record, eval={**record.eval, **found})
        write_card(parse_recipe(read_json(paths.config), str(paths.config)), record, paths)
        write_record(record, paths)


def _figures(summary: dict[str, Any]) -> list[str]:
    shown = [f"{key} {value:.3f}" for key, value in summary.items() if "@" in key and isinstance(value, float)]
    return [*shown[:3], f"{summary['questions']} questions"]


def grade(
    target: Annotated[str, typer.Argument(metavar="FILE|RUN", help="A JSONL file, or a run.")],
    question: Annotated[str | None, typer.Argument(metavar="[ID]", help="With --explain: the question's id.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show each stored answer to question ID, and why.")
    ] = False,
    regrade: Annotated[bool, typer.Option("--regrade", help="Give a run's stored answers new verdicts.")] = False,
    grader: Annotated[str, typer.Option(help="math-verify, or exact (plain text equality).")] = "math-verify",
    require_boxed: Annotated[
        bool | None, typer.Option("--require-boxed/--any-form", help="Does only a boxed answer count?")
    ] = None,
    tasks: Tasks = None,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Grade a JSONL file (answer, response, optionally id), or look into a run's verdicts.

    A run alone prints how often plain text equality gives the stored verdict. For a file, --json is one object a line.
    """
    if Path(target).is_file():
        _grade_file(Path(target), bool(require_boxed), as_json)
        return
    folder = run_folder(target, runs) or Path(target)
    chosen = tuple(tasks.split(",")) if tasks else None
    if explain:
        _explain(folder, question, chosen, as_json)
    elif regrade:
        _regrade(folder, grader, require_boxed, chosen, as_json)
    else:
        from r3bench.evaluation.regrade import agreement

        found = agreement(folder, chosen, require_boxed is not False)
        if as_json:
            print_json(found)
        else:
            print_columns(
                (task, f"{len(r['differ'])} of {r['answers']} verdicts differ from plain text equality")
                for task, r in found.items()
            )


def _grade_file(path: Path, require_boxed: bool, as_json: bool) -> None:
    from r3bench.grading.file import grade_file

    right = total = late = 0
    for verdict in grade_file(path, require_boxed=require_boxed):
        total, right, late = total + 1, right + verdict["correct"], late + verdict["timed_out"]
        if as_json:
            typer.echo(json.dumps(verdict))
        else:
            mark = "right" if verdict["correct"] else "wrong"
            print_columns([(str(verdict["id"]), mark, str(verdict["extracted"]), verdict["reason"])])
    if not as_json:
        typer.echo(f"{right} of {total} right" + (f", {late} timed out" if late else ""))


def _explain(folder: Path, question: str | None, tasks: tuple[str, ...] | None, as_json: bool) -> None:
    from r3bench.errors import ConfigError
    from r3bench.evaluation.explain import explain

    if question is None:
        raise ConfigError("--explain: expected a question's id after the run")
    found = [row for task in tasks or (None,) for row in explain(folder, question, task=task)]
    if as_json:
        print_json(found)
        return
    for row in found:
        typer.echo(f"{row['task']} {row['question']} repeat {row['repeat']}: {'right' if row['correct'] else 'wrong'}")
        for key in ("reason", "gold", "extracted", "form", "canonical", "canonical_gold", "exact", "grader", "tokens"):
            typer.echo(f"  {key}: {printable(json.dumps(row[key], ensure_ascii=False))}")
        typer.echo(f"  response: {printable(json.dumps(row['response'], ensure_ascii=False))}")


def _regrade(
    folder: Path, grader: str, require_boxed: bool | None, tasks: tuple[str, ...] | None, as_json: bool
) -> None:
    from r3bench.errors import ConfigError, nearest
    from r3bench.evaluation.regrade import regrade
    from r3bench.files import expect, read_json

    if grader not in ("math-verify", "exact"):
        raise ConfigError(f"--grader: got '{grader}'{nearest(grader, ('math-verify', 'exact'))}")
    if require_boxed is None:  # as the run was graded
        config = folder / "config.json"
        asked = expect(read_json(config), config, eval=dict)["eval"] if config.is_file() else {}
        require_boxed = asked.get("require_boxed", True) is not False
    found = regrade(folder, grader=grader, require_boxed=require_boxed, tasks=tasks)  # type: ignore[arg-type]
    if as_json:
        print_json(found)
    else:
        print_columns(
            (task, r["grader"], f"{r['answers']} answers, {r['to_right']} now right, {r['to_wrong']} now wrong")
            for task, r in found.items()
        )


def compare(a: RunName, b: RunName, tasks: Tasks = None, runs: Runs = RUNS, as_json: Json = False) -> None:
    """Paired test of two runs on the questions both have answered: about these two models, not about their recipes."""
    from r3bench.evaluation.compare import compare_runs

    first, second = (run_folder(name, runs) or Path(name) for name in (a, b))
    rows = compare_runs(first, second, tuple(tasks.split(",")) if tasks else None)
    if as_json:
        print_json(rows)
        return
    head = ("task", "questions", "a", "b", "a - b", "95 % interval", "p", "better/worse/equal")
    print_columns([head, *((
        row["task"], str(row["questions"]), f"{row['a']:.3f}", f"{row['b']:.3f}", f"{row['difference']:+.3f}",
        "-" if row["low"] is None else f"{row['low']:+.3f} to {row['high']:+.3f}", f"{row['p']:.3f}",
        f"{row['better']}/{row['worse']}/{row['equal']}") for row in rows)])  # fmt: skip
    for row in rows:
        for note in row["notes"]:
            typer.echo(f"{row['task']}: {note}")
