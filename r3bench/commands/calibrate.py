"""`calibrate`: does a task tell a known effect from none?"""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from r3bench.commands.options import RUNS, Json, Overrides, Quiet, Runs, print_json, prints_aside, progress

LEAST = 2  # seeds an interval needs
APART = 1000  # the seeds of `null` are the others' plus this


def calibrate(
    recipe: Annotated[
        str,
        typer.Argument(metavar="RECIPE", help="A testbed: the name of its grid of controls, or a file."),
    ],
    overrides: Overrides = None,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", help="Seeds of each level, at least 2; null gets others.")
    ] = 4,
    first: Annotated[int, typer.Option("--first", metavar="S", help="The first seed; the others follow it.")] = 0,
    runs: Runs = RUNS,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run a testbed's positive and null control at equal tokens and print its card; exit code 1: not calibrated."""
    from r3bench.analysis.declared import Declared
    from r3bench.analysis.statistics.calibration import LEVELS, NULL, card, text
    from r3bench.commands.study import end
    from r3bench.errors import ConfigError, R3BenchError
    from r3bench.files import read_jsonl
    from r3bench.records import RunPaths, avg_at_k
    from r3bench.sweep.cells import BASE_MODEL
    from r3bench.sweep.dispatch.ablate import ablate
    from r3bench.sweep.grid import factors_of, load_grid

    if seeds < LEAST:
        raise ConfigError(f"--seeds: got {seeds}, expected at least {LEAST}")
    drawn = list(range(first, first + seeds))
    grid = load_grid(recipe, overrides or [])
    levels = {factor.name: tuple(factor.levels) for factor in factors_of(grid)}
    if set(levels) != {"control"} or set(levels["control"]) != set(LEVELS):
        raise ConfigError(f"{recipe}: factors: got {levels}, expected one, 'control', with {', '.join(LEVELS)}")
    control = grid.factors["control"]
    told = {name: control[name] for name in LEVELS if name != NULL}
    main = dataclasses.replace(grid, factors={"control": told}, seeds=tuple(drawn))
    # random numbers of its own, the same ones however many seeds there are
    later = tuple(seed + APART for seed in drawn)
    null = dataclasses.replace(grid, design="list", cells=({"control": NULL},), seeds=later, base_model=False)
    task = ""
    start: float | None = None
    found: dict[str, dict[int, dict[str, Any]]] = {level: {} for level in LEVELS}
    logs: dict[str, dict[int, Any]] = {level: {} for level in LEVELS}
    for part, study, shift in ((main, grid.name, 0), (null, f"{grid.name}-null", APART)):
        with prints_aside():
            report = ablate(part, runs, study=f"calibrate-{study}", say=progress(quiet or as_json))
        end(report)
        for name, record in report.finished.items():
            if record.train.outcome != "finished":
                raise R3BenchError(f"{name}: {record.train.outcome} ({record.train.reason}); a card needs all its runs")
            task, summary = next(iter(record.eval.items()))
            accuracy = avg_at_k(summary)
            if record.factors == BASE_MODEL:
                start = accuracy
                continue
            seed = record.seed - shift
            if seed not in drawn:
                continue
            level, spent = record.factors["control"], record.train
            found[level][seed] = {
                "accuracy": accuracy, "tokens": spent.generated_tokens, "seconds": spent.train_seconds,
            }  # fmt: skip
            logs[level][seed] = read_jsonl(RunPaths(Path(report.study) / name).metrics)
    made = card(grid.name, task, start, found, logs, float(grid.analysis.get("margin", Declared.margin)))
    if as_json:
        values = json.loads(json.dumps(dataclasses.asdict(made)).replace("NaN", "null"))
        print_json({**values, "calibrated": not made.faults, "faults": made.faults}, "calibrate")
    else:
        typer.echo(text(made))
    if made.faults:
        raise typer.Exit(1)
