"""Finds components, recipes, grids and tasks by name: the user's folders first, then the shipped ones."""

import importlib
import importlib.util
import sys
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import ModuleType

from r3bench.errors import ConfigError, nearest
from r3bench.training.component import Component


def shipped(package: str) -> Path:
    """The folder of a shipped package: 'components', 'ablations' or 'evals'."""
    return Path(str(files(f"r3bench.{package}")))


def names(package: str, suffix: str, below: str = "") -> dict[str, Path]:
    """Name -> file, in ./<package>/<below> and then the shipped folder; the user's wins."""
    found: dict[str, Path] = {}
    for folder in (Path.cwd() / package / below, shipped(package) / below):
        if folder.is_dir():
            for path in sorted(folder.glob(f"*{suffix}")):
                if not path.name.startswith("_"):
                    found.setdefault(path.stem, path)
    return found


def _yaml_path(name: str, kind: str, below: str) -> Path:
    if name.endswith((".yaml", ".yml")) or "/" in name:
        path = Path(name)
        if not path.is_file():
            raise ConfigError(f"{kind} '{name}': no such file")
        return path
    known = names("ablations", ".yaml", below)
    if name not in known:
        raise ConfigError(
            f"{kind} '{name}': not found in ./ablations/{below} or among the shipped ones{nearest(name, known)}"
        )
    return known[name]


def recipe_path(name: str) -> Path:
    """The YAML file of a recipe: a path, or a name in `ablations/recipes/`."""
    return _yaml_path(name, "recipe", "recipes")


def grid_path(name: str) -> Path:
    """The YAML file of a grid: a path, or a name in `ablations/`."""
    return _yaml_path(name, "grid", "")


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
    return _component_class(name, known[name].resolve())


@cache
def _component_class(name: str, path: Path) -> type[Component]:
    module = _load(name, path)
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Component) and value.__module__ == module.__name__:
            if value.name == name:
                return value
    raise ConfigError(f"{path}: no Component subclass with name = '{name}'")


def _load(name: str, path: Path) -> ModuleType:
    if path.parent == shipped("components").resolve():
        return importlib.import_module(f"r3bench.components.{name}")
    module_name = f"r3bench_user_components_{name}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: can't be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except (SyntaxError, ImportError) as error:
        raise ConfigError(f"{path}: can't be imported: {error}") from error
    return module
