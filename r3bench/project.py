"""The project at hand: the folder that holds the components, recipes, tasks and data which a grid or recipe names.

It is the folder of the file, or what is above it where the file lies in `ablations/`, `ablations/recipes/`, `evals/` or
`components/`. A path in a recipe, grid or task is looked for beside the file that names it, then in the project, then
in the working directory. It is kept as seen from the project, so that a moved folder, or another working directory,
makes no other run of it.
"""

import json
import os
from pathlib import Path

BELOW = ("ablations", "evals", "components")  # folders of a project
SUFFIXES = (".jsonl", ".parquet", ".csv", ".tsv", ".py", ".txt", ".md", ".yaml", ".yml")

_entered: list[Path] = []  # the project of the grid or recipe at hand; empty: the working directory


def home() -> Path:
    """The project's folder, absolute."""
    return _entered[-1] if _entered else Path.cwd()


def enter(folder: str | Path | None) -> None:
    """Make `folder` the project from now on; None: the working directory."""
    _entered[:] = [Path(folder).absolute()] if folder else []


def of(path: Path) -> Path:
    """The project that a file belongs to; a run's `config.json` belongs to the one that the run was made in."""
    if path.name == "config.json" and (trained := of_run(path.parent)) is not None:
        return trained
    folder = Path(os.path.abspath(path)).parent
    if folder.name == "recipes" and folder.parent.name == "ablations":
        folder = folder.parent
    return folder.parent if folder.name in BELOW else folder


def of_run(folder: Path) -> Path | None:
    """The project of a run, by its `environment.json`, where that still lies as it did; else None."""
    try:
        found = json.loads((folder / "environment.json").read_bytes())["project"]
        project = (folder / found).resolve()
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return project if project.is_dir() else None


def roots() -> list[Path]:
    """Where names are looked for: the project, then the working directory."""
    return list(dict.fromkeys([home(), Path.cwd()]))


def is_relative(name: str) -> bool:
    """Whether a text is meant as a path that starts nowhere in particular."""
    return bool(name) and not name.startswith(("/", "~")) and (name.startswith(".") or name.endswith(SUFFIXES))


def spelled(name: str, base: Path) -> str:
    """A path that a file in `base` names, as seen from the project; `name` itself where nothing is there.

    A name that isn't written as a path is one where a folder of that name exists (`models/tiny`).
    """
    if not name or name.startswith(("/", "~")) or "\n" in name or len(name) > 1000:
        return name
    for folder in dict.fromkeys([base.absolute(), *roots()]):
        path = folder / name
        if path.is_dir() if not is_relative(name) else path.exists():
            whole = Path(os.path.abspath(path))
            try:
                seen = f"./{whole.relative_to(os.path.abspath(home()))}"
            except ValueError:
                return str(whole)
            return name if seen == f"./{os.path.normpath(name)}" else seen
    return name


def located(name: str) -> Path:
    """The file or folder that a path in a resolved recipe stands for."""
    path = Path(name).expanduser()
    if path.is_absolute():
        return path
    for root in roots():
        if (root / path).exists():
            return path if root == Path.cwd() else root / path
    return path
