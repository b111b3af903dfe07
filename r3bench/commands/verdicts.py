"""`grade` and `compare`: grade answers, look into verdicts, hold two runs against each other."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from r3bench.commands import shell
from r3bench.commands.options import (
    RUNS,
    Factors,
    Fixed,
    Ignore,
    Json,
    Reference,
    Rename,
    Runs,
    Tasks,
    answers_folder,
    print_columns,
    print_json,
    printable,
    table_file,
    told,
)

if TYPE_CHECKING:
    from r3bench.analysis.results import Results

SHOWN = 120  # characters of an answer in a line
EXPLAINED = ("reason", "rule", "gold", "extracted", "form", "canonical", "canonical_gold")  # of a row or an answer
LONG = 4000  # characters of an answer or response where one is explained


def grade(
    target: Annotated[str, typer.Argument(metavar="FILE|RUN", help="A JSONL file, - for stdin, or a run.")],
    question: Annotated[
        str | None, typer.Argument(metavar="ID", help="With --explain: the id of a row or question.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the answers with that ID, and the rule that decided.")
    ] = False,
    regrade: Annotated[bool, typer.Option("--regrade", help="Give a run's stored answers new verdicts.")] = False,
    grader: Annotated[
        str, typer.Option(metavar="NAME", help="math-verify, or exact (plain text equality).")
    ] = "math-verify",
    require_boxed: Annotated[
        bool | None,
        typer.Option(
            "--require-boxed/--any-form",
            help="Does only a boxed answer count?",
            show_default="--require-boxed, as for eval; with --regrade as the run was graded",
        ),
    ] = None,
    tasks: Tasks = None,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Grade a JSONL file (answer, response, optionally id), or look into verdicts of a file or run.

    A run alone prints how often equal spelling gives the stored verdict. For a file, --json is one object a line.
    """
    from r3bench.errors import ConfigError

    if question is not None and not explain:
        raise ConfigError(f"'{question}': a question's id is for --explain")
    if explain and regrade:
        raise ConfigError("--explain and --regrade: expected one of them")
    if target == "-" or Path(target).is_file():
        from r3bench.grading import grade_file, grade_lines

        if regrade or tasks or grader != "math-verify":
            raise ConfigError(f"{target}: --regrade, --grader and --tasks are about a run's stored answers")
        boxed = require_boxed is not False
        if explain:
            _explain_rows(target, question, boxed, as_json)
            return
        _print_verdicts(
            grade_lines(sys.stdin.buffer, "stdin", require_boxed=boxed)
            if target == "-"
            else grade_file(Path(target), require_boxed=boxed),
            as_json,
        )
        return
    folder = answers_folder(target, runs)
    chosen = tuple(tasks.split(",")) if tasks else None
    if explain:
        _explain(folder, question, chosen, as_json)
    elif regrade:
        _regrade(folder, grader, require_boxed, chosen, as_json)
    else:
        from r3bench.evaluation.regrade import agreement

        found = agreement(folder, chosen)
        if as_json:
            print_json(found, "agreement")
        else:
            print_columns(
                (task, f"{r['agreement']:.1%} agree with equal spelling; {len(r['differ'])} of {r['answers']} differ")
                for task, r in found.items()
            )


def _explain_rows(target: str, name: str | None, boxed: bool, as_json: bool) -> None:
    from r3bench.errors import ConfigError
    from r3bench.grading.file import explain_file

    if name is None or target == "-":
        raise ConfigError("--explain: expected a file and the id of a row in it")
    found = explain_file(Path(target), name, require_boxed=boxed)
    if as_json:
        print_json({"answers": found}, "explain")
        return
    for row in found:
        _print_explained(str(row["id"]), row, (*EXPLAINED, "response"), LONG)


def _print_explained(name: str, row: dict[str, Any], keys: Iterable[str], most: int | None = None) -> None:
    """A verdict with what it rests on, one line a key, of each `most` characters at the most."""
    from r3bench.grading.file import cut

    typer.echo(f"{name}: {'right' if row['correct'] else 'wrong'}")
    for key in keys:
        text = json.dumps(row[key], ensure_ascii=False)
        typer.echo(f"  {key}: {printable((cut(text, most) if most else text) or '')}")


def _print_verdicts(verdicts: Iterable[dict[str, Any]], as_json: bool) -> None:
    from r3bench.grading.file import cut

    right = total = late = 0
    for verdict in verdicts:
        total, right, late = total + 1, right + verdict["correct"], late + verdict["timed_out"]
        if as_json:
            typer.echo(json.dumps(verdict))
        else:
            mark = "right" if verdict["correct"] else "wrong"
            shown = cut(str(verdict["extracted"]), SHOWN)
            print_columns([(str(verdict["id"]), mark, shown or "", verdict["reason"])])
    if not as_json:
        typer.echo(f"{right} of {total} right" + (f", {late} timed out" if late else ""))


def _explain(folder: Path, question: str | None, tasks: tuple[str, ...] | None, as_json: bool) -> None:
    from r3bench.errors import ConfigError
    from r3bench.evaluation.explain import explain

    if question is None:
        raise ConfigError("--explain: expected a question's id after the run")
    found = [row for task in tasks or (None,) for row in explain(folder, question, task=task)]
    if as_json:
        print_json({"answers": found}, "explain")
        return
    for row in found:
        name = f"{row['task']} {row['question']} repeat {row['repeat']}"
        _print_explained(name, row, (*EXPLAINED, "exact", "grader", "tokens", "response"))


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
        print_json(found, "regrade")
    else:
        print_columns(
            (task, r["grader"], f"{r['answers']} answers, {r['to_right']} now right, {r['to_wrong']} now wrong")
            for task, r in found.items()
        )


def compare(
    a: Annotated[
        str,
        typer.Argument(
            metavar="RUN|STUDY|FILE",
            help="A run, a study, or a table or source as for `analyze`.",
            autocompletion=shell.studies_and_runs,
        ),
    ],
    b: Annotated[
        str,
        typer.Argument(
            metavar="RUN|STUDY",
            help="Another of its kind; after a table also a run's name in it.",
            autocompletion=shell.studies_and_runs,
        ),
    ],
    other: Annotated[
        str | None, typer.Argument(metavar="RUN", help="After a table and a run in it: the run to hold it against.")
    ] = None,
    tasks: Tasks = None,
    declared: Fixed = None,
    factors: Factors = None,
    ignore: Ignore = None,
    rename: Rename = None,
    reference: Reference = None,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Two runs on the questions both have answered, or the cells that two studies have in common.

    RUN RUN is about these two models; STUDY STUDY is about recipes, over the seeds of every cell.
    """
    from r3bench.analysis.output.external import load_table
    from r3bench.commands.two_studies import show_studies, two_wholes
    from r3bench.errors import ConfigError
    from r3bench.evaluation.compare import compare_runs

    fixed, reading = told(declared, factors, ignore, rename, reference)
    chosen = tuple(tasks.split(",")) if tasks else None
    if other is None and (sources := two_wholes(a, b, runs)) is not None:
        show_studies(sources, chosen, fixed, reading, as_json)
        return
    table = table_file(a)
    if table is not None:
        if other is None:
            raise ConfigError(
                f"{a}: expected the names of two runs in it, as in: r3bench compare {a} RUN RUN; or another table or "
                f"study, and '{b}' is none"
            )
        rows, confidence = _in_table(load_table(table, fixed, reading), b, other, chosen, table)
    else:
        if other is not None:
            raise ConfigError(f"'{other}': a third name is for two runs of a table; '{a}' is none")
        if reading != type(reading)():
            raise ConfigError(f"{a}: --factors, --ignore, --rename and --reference are about a table")
        confidence = fixed.confidence if fixed is not None else 0.95
        rows = compare_runs(answers_folder(a, runs), answers_folder(b, runs), chosen, confidence)
    if as_json:
        print_json({"tasks": rows}, "compare")
        return
    head = ("task", "questions", "a", "b", "a - b", f"{100 * confidence:g} % interval", "p", "better/worse/equal")
    print_columns([head, *((
        row["task"], str(row["questions"]), f"{row['a']:.3f}", f"{row['b']:.3f}", f"{row['difference']:+.3f}",
        "-" if row["low"] is None else f"{row['low']:+.3f} to {row['high']:+.3f}", f"{row['p']:.3f}",
        f"{row['better']}/{row['worse']}/{row['equal']}") for row in rows)])  # fmt: skip
    for row in rows:
        for note in row["notes"]:
            typer.echo(f"{row['task']}: {note}")


def _in_table(
    results: "Results", a: str, b: str, tasks: tuple[str, ...] | None, path: Path
) -> tuple[list[dict[str, Any]], float]:
    """The rows of `compare_runs` for two runs of a table, and the level of their intervals."""
    from r3bench.errors import ConfigError, StateError, nearest
    from r3bench.evaluation.compare import paired

    names = [run.run for run in results.runs]
    for name in (a, b):
        if name not in names:
            raise ConfigError(f"{path}: no run '{name}'{nearest(name, names)}")
    for task in tasks or ():
        if task not in results.benchmarks:
            raise ConfigError(f"{path}: no benchmark '{task}'{nearest(task, results.benchmarks)}")
    first, second = names.index(a), names.index(b)
    rows = []
    for task in tasks or tuple(results.benchmarks):
        scores = results.benchmarks[task]
        if not (scores.measured[first] and scores.measured[second]):
            continue
        samples = [int(scores.samples[i].min()) for i in (first, second)]
        unequal = [f"answers to a question: {samples[0]} and {samples[1]}"] if samples[0] != samples[1] else []
        values = paired(scores.accuracy[first], scores.accuracy[second], results.declared.confidence)
        rows.append({"task": task, "questions": len(scores.questions), "unmatched": 0, "samples": samples,
                     "notes": unequal, **values})  # fmt: skip
    if not rows:
        raise StateError(f"{path}: runs '{a}' and '{b}' have no benchmark in common")
    return rows, results.declared.confidence
