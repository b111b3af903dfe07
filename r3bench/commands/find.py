"""`list`, `copy`, `validate`, `env`: what there is, and whether it can be used."""

from pathlib import Path
from typing import Annotated, Any

import typer

from r3bench.commands import shell
from r3bench.commands.options import KINDS, Json, Overrides, print_columns, print_json, print_made, print_pairs, warn


def list_(
    kind: Annotated[
        str | None, typer.Argument(metavar="KIND", help=f"{', '.join(KINDS)}; default: all.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """List the recipes, grids, components and evaluation tasks that can be named."""
    from r3bench import catalog

    entries = {key: catalog.entries(key) for key in ([kind] if kind else catalog.KINDS)}
    if as_json:
        print_json({k: [{"name": e.name, "path": str(e.path), "shipped": e.shipped, "about": e.about} for e in found]
                    for k, found in entries.items()}, "list")  # fmt: skip
        return
    for position, (title, found) in enumerate(entries.items()):
        if kind is None:
            typer.echo(f"{chr(10) if position else ''}{title}")
        print_columns((f"  {e.name}", e.about if e.shipped else f"{e.about} [{e.path}]".strip()) for e in found)


def copy(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A name that `r3bench list` shows.", autocompletion=shell.everything)
    ],
    dest: Annotated[
        Path | None,
        typer.Argument(metavar="DEST", help="File or folder; default: the one r3bench looks in, such as ./components."),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="recipes, grids, components or tasks, for a name used twice.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is already there.")] = False,
    as_json: Json = False,
) -> None:
    """Copy a recipe, grid, component or task here, to be changed."""
    from r3bench import catalog
    from r3bench.errors import ConfigError
    from r3bench.files import write_bytes

    entry = catalog.find(name, kind)
    target = dest if dest is not None else Path(catalog.KINDS[entry.kind].folder)
    if dest is None or dest.is_dir() or not (dest.suffix or dest.exists()):
        target = target / entry.path.name
    if target.exists() and not force:
        raise ConfigError(f"{target}: already there; --force replaces it")
    write_bytes(target, entry.path.read_bytes())
    made = [target]
    for other in catalog.needs(entry.path) if entry.kind == "tasks" else []:
        beside = target.with_name(other.name)
        if not beside.exists():
            write_bytes(beside, other.read_bytes())
            made.append(beside)
    print_made(made, "copy", as_json)


def validate(
    name: Annotated[
        str,
        typer.Argument(metavar="RECIPE|GRID", help="A name, or a YAML file.", autocompletion=shell.grids_and_recipes),
    ],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Check a recipe or grid (both, if both have the name) without running anything: loads every task and the first
    rows of the data, tries rewards and components, grades gold answers.

    `--json` prints it with every default filled in.
    """
    from r3bench.config.advice import warnings_of
    from r3bench.config.clipping import ratio_moves, replays_with_ratios
    from r3bench.config.load import load_recipe, resolved, run_id
    from r3bench.config.world import least_processes
    from r3bench.sweep.preflight.tried import tried

    kinds = _kinds(name, bool(overrides))
    found: dict[str, Any] = {}
    lines: dict[str, Any] = {}
    advice: list[str] = []
    if "recipes" in kinds:
        recipe = load_recipe(name, overrides or [])
        advice += tried([recipe])
        found["recipe"] = resolved(recipe)
        on = ", ".join(recipe.components) or "none"
        least = least_processes(recipe.trainer)
        needs = f"; needs a multiple of {least} processes (--gpus)" if least > 1 else ""
        once = "" if ratio_moves(recipe) else "; one update per sampled batch: ratios are 1, no clip acts"
        if once and replays_with_ratios(recipe):
            once += " but on stored answers"
        lines["recipe"] = f"{kinds['recipes']}: run {run_id(recipe)}, components on: {on}{needs}{once}"
        advice += warnings_of(recipe)
    if "grids" in kinds:
        from r3bench.sweep.cells import BASE_MODEL
        from r3bench.sweep.grid import load_grid, written
        from r3bench.sweep.opening import cell_warnings, check_cells, open_study, tuned_on

        study = open_study(load_grid(name, overrides or []), Path())
        check_cells(study)
        base = [cell.recipe for cell in study.cells if cell.factors == BASE_MODEL] + tuned_on(study)
        advice += tried([cell.recipe for cell in study.cells if cell.factors != BASE_MODEL], measured_only=base)
        advice += cell_warnings(study.cells, study.grid.executor.gpus)
        found["grid"] = written(study.grid) | {"runs": [cell.run_id for cell in study.cells]}
        lines["grid"] = f"{kinds['grids']}: {len(study.cells)} runs, {len(study.duplicates)} left out as duplicates"
    if as_json:
        print_json(found | {"warnings": advice}, "validate")
    else:
        print_pairs(lines)
        warn(advice)


def prompts(
    style: Annotated[
        str | None, typer.Argument(metavar="STYLE", help="boxed, r1 or plain; default: all.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the prompts that `data.style` and `eval.style` name, as a template of one's own would have them."""
    from r3bench.errors import ConfigError, nearest
    from r3bench.prompts import ABOUT, STYLES

    if style is not None and style not in STYLES:
        raise ConfigError(f"style '{style}': unknown{nearest(style, STYLES)}")
    if as_json:
        print_json({"prompts": {name: STYLES[name] for name in ([style] if style else STYLES)}}, "prompts")
    elif style is not None:
        typer.echo(STYLES[style])
    else:
        typer.echo("\n\n".join(f"{name}: {ABOUT[name]}\n---\n{text}\n---" for name, text in STYLES.items()))


def env(as_json: Json = False) -> None:
    """Print what a bug report needs: commit, versions, device, extras, and what won't work together.

    Loads torch, so it takes seconds.
    """
    from r3bench import installation
    from r3bench.training.environment import environment

    found = environment()
    found["driver"] = installation.driver()
    found["extras"] = installation.extras()
    found["problems"] = installation.problems(found)
    found["diff"] = f"{len(found['diff'].splitlines())} lines"  # the text itself may hold what is nobody's business
    if as_json:
        print_json(found, "env")
    else:
        versions = {name: version for name, version in found.pop("packages").items() if version}
        extras = {
            f"extra '{extra}'": ", ".join(f"{name} {version}" for name, version in packages.items() if version)
            if all(packages.values())
            else f"not installed; {installation.install_line(extra)}"
            for extra, packages in found.pop("extras").items()
        }
        problems = found.pop("problems")
        print_pairs({**found, **versions, **extras})
        for problem in problems:
            print(f"problem: {problem}")


def _kinds(name: str, overridden: bool) -> dict[str, Path]:
    """'recipes' and/or 'grids' -> its file; a file with factors is a grid. Of a name that
    both have, overrides are the recipe's."""
    from r3bench import catalog
    from r3bench.config.yaml_file import read_yaml

    if catalog.is_path(name):
        path = catalog.recipe_path(name)
        found = {"grids" if "factors" in read_yaml(path) else "recipes": path}
    else:
        grids = {e.name: e.path for e in catalog.entries("grids")}
        found = {"grids": grids[name]} if name in grids else {}
        if not found or name in {e.name for e in catalog.entries("recipes")}:
            found["recipes"] = catalog.recipe_path(name)
    if overridden and "recipes" in found:
        return {"recipes": found["recipes"]}
    return found
