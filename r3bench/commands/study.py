"""`quickstart`, `plan`, `ablate`, `status`: run a grid, know beforehand what it costs, and where it stands."""

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from r3bench.commands import shell
from r3bench.commands.options import (
    RUNS,
    Json,
    Overrides,
    Quiet,
    Runs,
    print_columns,
    print_json,
    prints_aside,
    progress,
    study_folder,
    warn,
)

if TYPE_CHECKING:
    from r3bench.sweep.dispatch.dispatcher import Report

GridOrRecipe = Annotated[
    str,
    typer.Argument(
        metavar="GRID|RECIPE", help="A grid as for `ablate`, or a recipe.", autocompletion=shell.grids_and_recipes
    ),
]
GridName = Annotated[
    str,
    typer.Argument(
        metavar="GRID", help="A name in ./ablations or among the shipped, or a file.", autocompletion=shell.grids
    ),
]


def quickstart(runs: Runs = RUNS, quiet: Quiet = False, as_json: Json = False) -> None:
    """Run the `quickstart` grid on the embedded model (minutes on two CPU cores), print its table, write its report."""
    from r3bench.commands.result import make_report, show_tables
    from r3bench.sweep.dispatch.ablate import ablate as run_grid

    with prints_aside():
        report = run_grid("quickstart", runs, say=progress(quiet or as_json))
    if report.interrupted:
        end(report)
    if as_json:
        from r3bench.analysis import load_study
        from r3bench.analysis.output.external import analysis

        results = load_study(report.study)
        print_json({**analysis(results), "made": [str(make_report(report.study, figures=False))]}, "quickstart")
        end(report)
        return
    show_tables(report.study, None)
    page = make_report(report.study, figures=False)
    typer.echo(f"look next at {page} in a browser,")
    typer.echo(f"and at wrong answers: r3bench answers {Path(report.study).name} base --wrong{_elsewhere(runs)}")
    end(report)


def _elsewhere(runs: Path) -> str:
    """What a command needs to find studies that aren't in ./runs."""
    return "" if runs == Path("runs") else f" --runs {shlex.quote(str(runs))}"


def ablate(
    grid: GridName,
    overrides: Overrides = None,
    study: Annotated[
        str | None, typer.Option("--study", metavar="NAME", help="Folder's name; default: the grid's.")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="Optuna database of the study's index; default: SQLite in it.")
    ] = None,
    hook: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="Run when a run fails and at the end; facts in R3BENCH_*.")
    ] = None,
    notify: Annotated[
        str | None,
        typer.Option(metavar="URL", envvar="R3BENCH_NOTIFY", help="Post likewise; http(s), or any of apprise's."),
    ] = None,
    runs: Runs = RUNS,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run every cell of a grid that isn't finished yet; call it again after any interruption."""
    from r3bench.sweep.dispatch.ablate import ablate as run_grid

    with prints_aside():
        report = run_grid(
            grid, runs, study=study, storage=storage, overrides=overrides or [], hook=hook, notify=notify,
            say=progress(quiet),
        )  # fmt: skip
    if as_json:
        print_json(
            {
                "study": str(report.study),
                "finished": {key: dataclasses.asdict(record) for key, record in report.finished.items()},
                "failed": {key: dataclasses.asdict(failure) for key, failure in report.failed.items()},
                "left": report.left,
                "reason": report.reason,
            },
            "ablate",
        )
    else:
        typer.echo(report.study)
    end(report)


def plan(
    grid: GridOrRecipe,
    overrides: Overrides = None,
    effect: Annotated[
        float | None, typer.Option(metavar="X", help="An accuracy difference you hope to see, such as 0.02.")
    ] = None,
    assume: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A variance assumption; may be given several times.")
    ] = None,
    from_study: Annotated[
        str | None, typer.Option("--from", metavar="STUDY", help="A finished study to take variances and lengths from.")
    ] = None,
    tokens_per_second: Annotated[
        float | None, typer.Option(metavar="R", help="Measured rate of one device, training included.")
    ] = None,
    mean_length: Annotated[float, typer.Option(metavar="S", help="Response length as a share of the cap.")] = 0.5,
    power: Annotated[float, typer.Option(metavar="P", help="Chance of finding an effect of the printed size.")] = 0.8,
    gpus: Annotated[int | None, typer.Option(metavar="N", help="GPUs of a run; default: the grid's, or 1.")] = None,
    strategy: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="How a model is spread over them: ddp, fsdp2, zero2, zero3; as --gpus."),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(metavar="N", help="Nodes that the runs are spread over; of a recipe: of one run.")
    ] = None,
    per_node: Annotated[
        int | None, typer.Option(metavar="N", help="Devices of a node; default: this machine's, or 8 GPUs.")
    ] = None,
    price: Annotated[float | None, typer.Option(metavar="P", help="What one device costs in an hour.")] = None,
    study: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose finished runs are subtracted; default: the grid's name.")
    ] = None,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """What a grid will run, cost, and be able to see; of a recipe, its cost and memory. Starts and writes nothing."""
    from r3bench.sweep.grid import load_grid
    from r3bench.sweep.opening import cell_warnings, open_study
    from r3bench.sweep.planning.plan import plan as make_plan
    from r3bench.sweep.planning.spending import Machines
    from r3bench.sweep.planning.text import plan_data, plan_text
    from r3bench.sweep.preflight.tried import look
    from r3bench.sweep.strategy import check_numbers

    machines = Machines(nodes, per_node, price)
    if _is_recipe(grid):
        from r3bench.config.advice import warnings_of
        from r3bench.config.load import load_recipe
        from r3bench.sweep.planning.recipe import recipe_plan

        recipe = load_recipe(grid, overrides or [])
        look([recipe])
        advice = warnings_of(recipe, (gpus or 1) * (nodes or 1))
        data, text = recipe_plan(
            recipe,
            gpus=(per_node or 1) if gpus is None else gpus,
            nodes=nodes or 1,
            price=price,
            strategy=strategy or "ddp",  # type: ignore[arg-type]
            mean_length=mean_length,
            tokens_per_second=tokens_per_second,
        )
        if as_json:
            print_json(data | {"warnings": advice}, "plan-recipe")
        else:
            typer.echo(text)
            warn(advice)
        return
    opened = open_study(load_grid(grid, overrides or []), runs, study)
    look(cell.recipe for cell in opened.cells)
    if gpus is not None or strategy is not None:
        executor = opened.grid.executor
        gpus = executor.gpus if gpus is None else gpus
        strategy = strategy or (executor.strategy if gpus > 1 else "ddp")
        for cell in opened.cells:
            check_numbers(cell.recipe, gpus, 1, strategy)
        section = dataclasses.replace(executor, gpus=gpus, strategy=strategy)  # type: ignore[arg-type]
        opened = dataclasses.replace(opened, grid=dataclasses.replace(opened.grid, executor=section))
    found = make_plan(
        opened,
        effect=effect,
        assume=_assumptions(assume or []),
        from_study=study_folder(from_study, runs) if from_study else None,
        tokens_per_second=tokens_per_second,
        mean_length=mean_length,
        power=power,
        machines=machines,
    )
    advice = cell_warnings(opened.cells, opened.grid.executor.gpus)
    if as_json:
        data = plan_data(found)
        print_json(data | {"warnings": [*data["warnings"], *advice]}, "plan")
    else:
        typer.echo(plan_text(found))
        warn(advice)


def _is_recipe(name: str) -> bool:
    """Whether `plan` takes a name for a recipe's: no grid has it, or the file has no factors."""
    from r3bench import catalog
    from r3bench.config.yaml_file import read_yaml

    if catalog.is_path(name):
        return Path(name).is_file() and "factors" not in read_yaml(Path(name))
    grids = {entry.name for entry in catalog.entries("grids")}
    return name not in grids and name in {entry.name for entry in catalog.entries("recipes")}


def _assumptions(given: list[str]) -> dict[str, float] | None:
    from r3bench.config.strict import spelled_number
    from r3bench.errors import ConfigError

    values = {}
    for text in given:
        key, equals, value = text.partition("=")
        number = spelled_number(value)
        if not equals or number is None:
            raise ConfigError(f"--assume '{text}': expected name=number")
        values[key.strip()] = number
    return values or None


def status(
    study: Annotated[
        str | None,
        typer.Argument(
            metavar="STUDY", help="A study's folder or name; default: all below --runs.", autocompletion=shell.studies
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Keep showing until the study is over; waits for it to be started.")
    ] = False,
    errors: Annotated[bool, typer.Option("--errors", help="Failures in full.")] = False,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Where a study stands: every run with its state or phase, progress, time left, accuracy, last failure."""
    from r3bench.errors import ConfigError
    from r3bench.sweep import status as look
    from r3bench.sweep.status_text import duration, status_lines
    from r3bench.sweep.status_text import watch as keep_showing

    if as_json and watch:
        raise ConfigError("--watch and --json: expected one of them")
    if study is None:
        if watch:
            raise ConfigError("--watch: expected the name of a study")
        found = [look.status(runs / name) for name in look.studies(runs)]
        if as_json:
            print_json({"studies": [look.status_data(one) for one in found]}, "studies")
            return
        print_columns(
            (one.study, ", ".join(f"{count} {state}" for state, count in one.counts.items()),
             f"about {duration(one.left)} left" if one.left else "-", one.dispatcher or "no dispatcher")
            for one in found
        )  # fmt: skip
        if not found:
            typer.echo(f"no studies below {runs}; r3bench ablate GRID starts one")
        return
    known = [path for path in (Path(study), runs / study) if (path / "study.json").is_file()]
    if watch and not known and Path(study).name == study:
        keep_showing(runs / study, errors=errors)
        return
    folder = study_folder(study, runs)
    if as_json:
        print_json(look.status_data(look.status(folder)), "status")
    elif watch:
        keep_showing(folder, errors=errors)
    else:
        import shutil
        import sys

        width = shutil.get_terminal_size((100, 24)).columns
        for line in status_lines(look.status(folder), width, errors=errors, colour=sys.stdout.isatty()):
            typer.echo(line)


def end(report: "Report") -> None:
    """Exit code 1, or 75 after a signal, with one line, unless every cell has a record."""
    from r3bench.errors import Interrupted, R3BenchError

    if not report.complete:
        total = len(report.finished) + len(report.failed) + len(report.left)
        why = f" ({report.reason})" if report.reason else ""
        raise (Interrupted if report.interrupted else R3BenchError)(
            f"{report.study}: {len(report.finished)} of {total} runs have a record, "
            f"{len(report.failed)} failed, {len(report.left)} not run{why}"
        )
