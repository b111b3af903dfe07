"""`answers`: read what a model answered, with the question, the verdict and the rule behind it."""

from pathlib import Path
from typing import Annotated

import typer

from r3bench.commands import shell
from r3bench.commands.options import RUNS, Json, Runs, answers_folder, print_json, printable

SHOWN = 2000  # characters of a question or response, unless all are asked for


def answers(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN|STUDY", help="A run, a folder of answers, or a study.", autocompletion=shell.studies_and_runs
        ),
    ],
    cell: Annotated[
        str | None,
        typer.Argument(metavar="CELL", help="Of a study: a cell as in `status`, or factor=level,..."),
    ] = None,
    wrong: Annotated[bool, typer.Option("--wrong", help="Only answers judged wrong.")] = False,
    right: Annotated[bool, typer.Option("--right", help="Only answers judged right.")] = False,
    truncated: Annotated[bool, typer.Option("--truncated", help="Only answers that hit the cap.")] = False,
    sample: Annotated[int | None, typer.Option(metavar="N", help="N of them, drawn; default: all.")] = None,
    seed: Annotated[int, typer.Option(metavar="S", help="Seed of the draw.")] = 0,
    question: Annotated[str | None, typer.Option(metavar="ID", help="Only answers to this question.")] = None,
    task: Annotated[str | None, typer.Option(metavar="NAME", help="Only answers of this task.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Long questions and responses uncut.")] = False,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Show stored answers with the question's text, the gold answer, the verdict and the rule that decided.

    Loads the task for the question's text, so it takes seconds.
    """
    from r3bench.errors import ConfigError
    from r3bench.evaluation.look import Wanted, look
    from r3bench.grading.file import cut

    if wrong and right:
        raise ConfigError("--wrong and --right: expected one of them")
    if sample is not None and sample < 1:
        raise ConfigError(f"--sample: got {sample}, expected at least 1")
    study = next((path for path in (Path(target), runs / target) if (path / "study.json").is_file()), None)
    if study is None and cell is not None:
        raise ConfigError(f"'{cell}': a cell is of a study; '{target}' is none")
    chosen = _of_study(study, cell) if study is not None else [answers_folder(target, runs)]
    verdict = True if right else False if wrong else None
    found, total = look(chosen, Wanted(task, question, verdict, truncated or None, sample, seed))
    if as_json:
        print_json({"answers": found, "fitting": total}, "answers")
        return
    for row in found:
        verdict_text = "right" if row["correct"] else "wrong"
        cut_off = ", cut off at the cap" if row["truncated"] else ""
        typer.echo(
            printable(f"{row['run']} {row['task']} {row['question']} repeat {row['repeat']}: {verdict_text}{cut_off}")
        )
        lines = {"question": row["problem"] or "(its text is not at hand here)", "gold": row["gold"],
                 "answer": row["extracted"] if row["extracted"] is not None else "(none found)",
                 "why": row["reason"], "rule": row["rule"], "response": row["response"]}  # fmt: skip
        for key, text in lines.items():
            shown = text if full else cut(text, SHOWN)
            for number, line in enumerate((shown or "").split("\n")) if shown is not None else ():
                typer.echo(f"  {key + ':' if number == 0 else '':<10} {printable(line)}".rstrip())
        typer.echo()
    typer.echo(f"{len(found)} of {total} answers")


def _of_study(study: Path, cell: str | None) -> list[Path]:
    """The runs of a study, or of a cell as `status` names it, or as the tables do."""
    from r3bench.errors import ConfigError, R3BenchError
    from r3bench.evaluation.look import runs_of

    try:
        return runs_of(study, cell)
    except ConfigError:
        from r3bench.analysis.output.provenance import runs_of_cell

        try:
            return [study / run for run in sorted(runs_of_cell(study, cell or ""))]
        except R3BenchError:
            pass
        raise
