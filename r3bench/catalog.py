"""Finds components, recipes, grids and tasks by name: in the project, the working directory, installed packages, and
last among the shipped ones."""

import ast
import dataclasses
import importlib
import importlib.util
import os
import re
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from types import ModuleType

from r3bench import project, source
from r3bench.component import Component
from r3bench.errors import ConfigError, nearest


@dataclass(frozen=True)
class Kind:
    """A kind of thing that is found by name."""

    package: str  # shipped as r3bench.<package>, the user's in ./<package>
    below: str  # folder inside it
    suffix: str  # of the file names

    @property
    def folder(self) -> str:
        """The user's folder, relative to the working directory."""
        return f"./{self.package}/{self.below}".rstrip("/")


KINDS = {
    "recipes": Kind("ablations", "recipes", ".yaml"),
    "grids": Kind("ablations", "", ".yaml"),
    "components": Kind("components", "", ".py"),
    "tasks": Kind("evals", "", ".yaml"),
}


@dataclass(frozen=True)
class Entry:
    """Something that can be named."""

    kind: str  # a key of KINDS
    name: str
    path: Path  # its file
    shipped: bool  # False: the user's
    about: str  # one line from the file's head


@cache
def shipped(package: str) -> Path:
    """The folder of a shipped package: 'components', 'ablations' or 'evals'."""
    return Path(str(files(f"r3bench.{package}")))


def names(package: str, suffix: str, below: str = "") -> dict[str, Path]:
    """Name -> file, in <package>/<below> of the project and the working directory, then in installed packages, then
    among the shipped; the first wins."""
    found = dict(_shipped_names(shipped(package) / below, suffix))
    kind = next(key for key, kind in KINDS.items() if (kind.package, kind.below) == (package, below))
    found |= _installed_names(kind, suffix)
    for root in reversed(project.roots()):
        found |= _names_in(root / package / below, suffix)
    return found


@cache
def installed(kind: str) -> tuple[tuple[str, Path], ...]:
    """(name, folder or file) of what installed packages offer under the entry point group `r3bench.<kind>`.

    Raises:
        ConfigError: an entry point names no package or module.
    """
    places = []
    for point in sorted(entry_points(group=f"r3bench.{kind}")):
        try:
            spec = importlib.util.find_spec(point.value)
        except Exception as error:
            raise ConfigError(f"entry point {point.name} of r3bench.{kind}: {point.value}: {error}") from error
        if spec is None:
            raise ConfigError(f"entry point {point.name} of r3bench.{kind}: no package '{point.value}'")
        origin = [spec.origin] if spec.origin is not None else []
        places += [(point.name, Path(place)) for place in list(spec.submodule_search_locations or []) or origin]
    return tuple(places)


def _installed_names(kind: str, suffix: str) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for name, place in installed(kind):
        found |= _names_in(place, suffix) if place.is_dir() else {name: place}
    return found


def task_folders() -> list[Path]:
    """Folders with tasks; a later one's win."""
    own = [root / KINDS["tasks"].package for root in reversed(project.roots())]
    places = [shipped("evals"), *(place for _, place in installed("tasks")), *own]
    return list({place.resolve(): place for place in places if place.is_dir()}.values())


def _names_in(folder: Path, suffix: str) -> dict[str, Path]:
    try:
        listed = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}
    files = sorted(name for name in listed if name.endswith(suffix) and not name.startswith("_"))
    return {(path := folder / name).stem: path for name in files}


@cache
def _shipped_names(folder: Path, suffix: str) -> dict[str, Path]:
    """Of the package's own files, listed once: a grid asks for each component of each cell."""
    return _names_in(folder, suffix)


def entries(kind: str) -> list[Entry]:
    """Everything of one kind ('recipes', 'grids', 'components', 'tasks'), sorted by name."""
    if kind not in KINDS:
        raise ConfigError(f"'{kind}': unknown kind{nearest(kind, KINDS)}")
    where = KINDS[kind]
    home = shipped(where.package)
    found = names(where.package, where.suffix, where.below)
    return [Entry(kind, name, path, home in path.parents, about(path)) for name, path in sorted(found.items())]


def find(name: str, kind: str | None = None) -> Entry:
    """The one entry called `name`, of any kind unless one is given."""
    known = [entry for key in ([kind] if kind else KINDS) for entry in entries(key)]
    matches = [entry for entry in known if entry.name == name]
    if not matches:
        raise ConfigError(f"'{name}': not found{nearest(name, {entry.name for entry in known})}")
    if len(matches) > 1:
        kinds = " or ".join(f"--kind {entry.kind}" for entry in matches)
        raise ConfigError(f"'{name}': used by several kinds; say {kinds}")
    return matches[0]


def about(path: Path) -> str:
    """One line on what a file is: the first of a Python docstring or YAML comment, else a YAML `description`."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    if path.suffix == ".py":
        try:
            return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deeply
            return "(not valid Python)"
    first = text.partition("\n")[0]
    if first.startswith("#"):
        return first.lstrip("# ").rstrip()
    described = re.search(r"^description: *(\S.*)$", text, re.MULTILINE)
    return described[1].strip("'\" ") if described else ""


def needs(path: Path) -> list[Path]:
    """Files beside a task's YAML that it includes or takes functions from, theirs included."""
    found: list[Path] = []
    waiting = [path]
    while waiting:
        current = waiting.pop()
        text = current.read_text(encoding="utf-8") if current.suffix == ".yaml" else ""
        names = re.findall(r"^include: *(\S+)$", text, re.MULTILINE)
        names += [f"{module}.py" for module in re.findall(r"!function (\w+)\.", text)]
        for other in (path.parent / name for name in names):
            if other not in found and other.is_file():
                found.append(other)
                waiting.append(other)
    return found


def is_path(name: str) -> bool:
    """Whether a recipe or grid is given as a file, not by its name."""
    return name.endswith((".yaml", ".yml")) or "/" in name


def _yaml_path(name: str, kind: str) -> Path:
    where = KINDS[f"{kind}s"]
    if is_path(name):
        path = project.located(name)
        if not path.is_file():
            raise ConfigError(f"{kind} '{name}': no such file")
        return path
    known = names(where.package, where.suffix, where.below)
    if name not in known:
        raise ConfigError(
            f"{kind} '{name}': not found in {where.folder} or among the shipped ones{nearest(name, known)}"
        )
    return known[name]


def enter_project(path: Path) -> None:
    """Make the project of a grid or recipe the one at hand; a shipped or installed file has none of its own."""
    folders = [shipped("ablations"), *(place for kind in ("grids", "recipes") for _, place in installed(kind))]
    own = not any(folder.resolve() in path.resolve().parents for folder in folders)
    project.enter(project.of(path) if own else None)


def recipe_path(name: str) -> Path:
    """The YAML file of a recipe: a path, or a name in `ablations/recipes/`."""
    return _yaml_path(name, "recipe")


def grid_path(name: str) -> Path:
    """The YAML file of a grid: a path, or a name in `ablations/`."""
    return _yaml_path(name, "grid")


def task_path(name: str, where: str = "tasks") -> Path:
    """The YAML file of the evaluation task `name` in `evals/`."""
    known = names("evals", ".yaml")
    if name not in known:
        if name.endswith((".yaml", ".yml")):
            stem = Path(name).stem
            raise ConfigError(f"{where}: got '{name}', expected a name: put the file into ./evals and name it '{stem}'")
        raise ConfigError(f"{where}: no task '{name}' in ./evals or among the shipped ones{nearest(name, known)}")
    return known[name]


def component_names() -> dict[str, Path]:
    """Name -> file of every component that can be switched on."""
    return names("components", ".py")


def component(name: str, where: str = "components") -> type[Component]:
    """The component class in `<name>.py`. A component is one file with one `Component` subclass of the same name."""
    known = component_names()
    if name not in known:
        raise ConfigError(
            f"{where}: no component '{name}' in ./components or among the shipped ones{nearest(name, known)}"
        )
    path = known[name].resolve()
    return _component_class(name, path, _source_of(path))


def component_source(name: str) -> str | None:
    """12 hex digits of a user's component file; None for a shipped one, which the package's commit covers."""
    path = component_names().get(name)
    return None if path is None else _source_of(path.resolve())


def _source_of(path: Path) -> str | None:
    if _is_shipped(path):
        return None
    return source.digest(path)


def _is_shipped(path: Path) -> bool:
    return path.parent == _shipped_components()


@cache
def _shipped_components() -> Path:
    return shipped("components").resolve()


@cache
def _component_class(name: str, path: Path, _source: str | None) -> type[Component]:
    module = _load(name, path)
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Component) and value.__module__ == module.__name__:
            if value.name != name:
                continue
            settings = getattr(value, "Config", None)
            if not (isinstance(settings, type) and dataclasses.is_dataclass(settings)):
                raise ConfigError(f"{path}: {value.__name__}.Config: got {settings!r}, expected a frozen dataclass")
            return value
    raise ConfigError(f"{path}: no Component subclass with name = '{name}'")


def _load(name: str, path: Path) -> ModuleType:
    if _is_shipped(path):
        return importlib.import_module(f"r3bench.components.{name}")
    return source.load_file(f"r3bench_user_components_{name}", path)
