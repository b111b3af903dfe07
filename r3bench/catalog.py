"""Finds components, recipes, grids and tasks by name: the user's folders first, then the shipped ones."""

import ast
import dataclasses
import hashlib
import importlib
import importlib.util
import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from r3bench.errors import ConfigError, nearest
from r3bench.training.component import Component


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


def shipped(package: str) -> Path:
    """The folder of a shipped package: 'components', 'ablations' or 'evals'."""
    return Path(str(files(f"r3bench.{package}")))


def names(package: str, suffix: str, below: str = "") -> dict[str, Path]:
    """Name -> file, in ./<package>/<below> and then the shipped folder; the user's wins."""
    own = _names_in(Path.cwd() / package / below, suffix)
    return dict(_shipped_names(shipped(package) / below, suffix)) | own


def _names_in(folder: Path, suffix: str) -> dict[str, Path]:
    if not folder.is_dir():
        return {}
    return {path.stem: path for path in sorted(folder.glob(f"*{suffix}")) if not path.name.startswith("_")}


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
    text = path.read_text(encoding="utf-8", errors="replace")
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
        path = Path(name)
        if not path.is_file():
            raise ConfigError(f"{kind} '{name}': no such file")
        return path
    known = names(where.package, where.suffix, where.below)
    if name not in known:
        raise ConfigError(
            f"{kind} '{name}': not found in {where.folder} or among the shipped ones{nearest(name, known)}"
        )
    return known[name]


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
    return _component_class(name, known[name].resolve(), component_source(name))


def component_source(name: str) -> str | None:
    """12 hex digits of a user's component file; None for a shipped one, which the package's commit covers."""
    path = component_names().get(name)
    if path is None or _is_shipped(path.resolve()):
        return None
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def _is_shipped(path: Path) -> bool:
    return path.parent == shipped("components").resolve()


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


class _Source(SourceFileLoader):
    """Loads the text, never bytecode, which may be of an older text as long and of the same second."""

    def path_stats(self, path: object) -> NoReturn:
        raise OSError(f"{path}: no bytecode")


def _load(name: str, path: Path) -> ModuleType:
    if _is_shipped(path):
        return importlib.import_module(f"r3bench.components.{name}")
    module_name = f"r3bench_user_components_{name}"
    spec = importlib.util.spec_from_file_location(module_name, path, loader=_Source(module_name, str(path)))
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: can't be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up here while they are made
    try:
        spec.loader.exec_module(module)
    # the file is the user's: whatever its top level raises, `sys.exit()` included, is its mistake and not ours
    except (Exception, SystemExit) as error:
        sys.modules.pop(module_name, None)
        raise ConfigError(f"{path}: can't be imported: {type(error).__name__}: {error}") from error
    return module
