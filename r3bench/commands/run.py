"""`train`: one run."""

import dataclasses
from typing import Annotated

import typer

from r3bench.commands.options import RUNS, Json, Overrides, Quiet, Runs, print_json


def train(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A name in ./ablations/recipes or shipped, or a file.")
    ],
    overrides: Overrides = None,
    runs: Runs = RUNS,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train and evaluate one recipe, or finish it after an interruption; a finished run is left as it is."""
    from r3bench.config.load import load_recipe, run_id
    from r3bench.errors import Diverged
    from r3bench.sweep.worker import run_cell

    loaded = load_recipe(recipe, overrides or [])
    directory = runs / run_id(loaded)
    record = run_cell(loaded, directory, quiet=quiet or as_json)
    if as_json:
        print_json(dataclasses.asdict(record))
    else:
        for task, summary in record.eval.items():
            figures = ", ".join(f"{key} {value:.3f}" for key, value in summary.items() if "@" in key)
            typer.echo(f"{task}: {figures}, {summary['questions']} questions")
        typer.echo(directory)
    if record.train.outcome == "diverged":
        raise Diverged(f"{directory}: diverged ({record.train.reason})")
