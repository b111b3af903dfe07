"""`train`: one run."""

import dataclasses
import os
from typing import Annotated

import typer

from r3bench.commands import shell
from r3bench.commands.options import RUNS, Json, Overrides, Quiet, Runs, print_json, prints_aside, warn


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="A name in ./ablations/recipes or shipped, or a file.", autocompletion=shell.recipes
        ),
    ],
    overrides: Overrides = None,
    gpus: Annotated[
        int, typer.Option(metavar="N", help="Processes on this machine, one per GPU; without GPUs they share the CPU.")
    ] = 1,
    nodes: Annotated[int, typer.Option(metavar="M", help="Machines; the same command is given on each.")] = 1,
    master: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="With --nodes: a machine among them, and a free port on it.")
    ] = None,
    strategy: Annotated[
        str, typer.Option(metavar="NAME", help="How a model is spread over processes: ddp, fsdp2, zero2, zero3.")
    ] = "ddp",
    probe: Annotated[
        bool, typer.Option("--probe", help="First two updates on rows of full length: does it fit in memory?")
    ] = False,
    runs: Runs = RUNS,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train and evaluate one recipe, or finish it after an interruption; a finished run is left as it is."""
    from r3bench.config.advice import warnings_of
    from r3bench.config.load import load_recipe, run_id
    from r3bench.errors import Diverged, Unreachable
    from r3bench.records import RunPaths
    from r3bench.serving.training import split_devices
    from r3bench.sweep.cell_run import finished, lead, run_cell
    from r3bench.sweep.executors.launch import World, launch
    from r3bench.sweep.preflight.tried import tried, tried_apart
    from r3bench.sweep.strategy import check_launch

    loaded = load_recipe(recipe, overrides or [])
    directory = runs / run_id(loaded)
    world = World(gpus, nodes, strategy, master)  # type: ignore[arg-type]
    check_launch(loaded, gpus, nodes, strategy, master)
    if lead() and not RunPaths(directory).record.exists():
        unreachable = (tried if gpus * nodes == 1 else tried_apart)([loaded])
        if unreachable:
            raise Unreachable(unreachable[0])
    if lead() and finished(loaded, RunPaths(directory)) is None:
        warn(warnings_of(loaded, max(gpus * nodes, int(os.environ.get("WORLD_SIZE", "1")))))
    if probe and finished(loaded, RunPaths(directory)) is None:
        figures = launch(loaded, directory, world, quiet=quiet or as_json, probe=True)
        typer.echo(f"probe: {figures['text']}", err=True)
    if gpus * nodes > 1:
        record = launch(loaded, directory, world, quiet=quiet or as_json)
    else:
        os.environ.update(split_devices(loaded.trainer, 1))
        with prints_aside():
            record = run_cell(loaded, directory, quiet=quiet or as_json)
    if record is None or not lead():  # the first rank's node shows the result
        return
    if as_json:
        print_json(dataclasses.asdict(record), "train")
    else:
        for task, summary in record.eval.items():
            figures = ", ".join(f"{key} {value:.3f}" for key, value in summary.items() if "@" in key)
            typer.echo(f"{task}: {figures}, {summary['questions']} questions")
        typer.echo(directory)
    if record.train.outcome == "diverged":
        raise Diverged(f"{directory}: diverged ({record.train.reason})")
