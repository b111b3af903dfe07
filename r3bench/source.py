"""Python that a user names: `./file.py:function` or `package.module:function`, its text and its hash."""

import ast
import hashlib
import importlib
import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from r3bench import project
from r3bench.errors import ConfigError, nearest


class _Source(SourceFileLoader):
    """Loads the text, never bytecode, which may be of an older text as long and of the same second."""

    def path_stats(self, path: object) -> NoReturn:
        raise OSError(f"{path}: no bytecode")


def digest(path: Path) -> str:
    """12 hex digits of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def load_file(module_name: str, path: Path) -> ModuleType:
    """The module in a file, under `module_name`.

    Raises:
        ConfigError: whatever its top level raises, `sys.exit()` included: the file is the user's.
    """
    spec = importlib.util.spec_from_file_location(module_name, path, loader=_Source(module_name, str(path)))
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: can't be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up here while they are made
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(module_name, None)
        raise ConfigError(f"{path}: can't be imported: {_said(error)}") from error
    return module


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}".rstrip(": ")


def split(name: str, where: str) -> tuple[str, str]:
    """File or module, and function, of a name.

    Raises:
        ConfigError: it has another form.
    """
    place, colon, function = name.rpartition(":")
    if not colon or not place or not function.isidentifier():
        raise ConfigError(f"{where}: got '{name}', expected ./file.py:function or package.module:function")
    if not (place.endswith(".py") or all(part.isidentifier() for part in place.split("."))):
        raise ConfigError(f"{where}: got '{name}', expected ./file.py:function or package.module:function")
    return place, function


def file_of(name: str, where: str) -> Path:
    """The file that holds the function `name`.

    Raises:
        ConfigError: there is none.
    """
    place, _ = split(name, where)
    if place.endswith(".py"):
        path = project.located(place)
        if not path.is_file():
            known = [other.name for other in path.parent.glob("*.py")] if path.parent.is_dir() else []
            raise ConfigError(f"{where}: '{name}': {path}: no such file{nearest(path.name, known) if known else ''}")
        return path
    try:
        spec = importlib.util.find_spec(place)
    except Exception as error:
        raise ConfigError(f"{where}: '{name}': no module '{place}' ({_said(error)})") from error
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise ConfigError(f"{where}: '{name}': no module '{place}'")
    return Path(spec.origin)


def check_defined(name: str, where: str) -> None:
    """Refuse a function that its file doesn't have, without running the file.

    Raises:
        ConfigError: no such file, no valid Python, or no such name at its top level.
    """
    path, (_, function) = file_of(name, where), split(name, where)
    if path.suffix != ".py":
        return
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ConfigError(f"{where}: {path}{line}: not valid Python: {_said(error)}") from error
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    if function not in names and "*" not in names:
        raise ConfigError(f"{where}: {path} has no '{function}'{nearest(function, names)}")


def load(name: str, where: str) -> Any:
    """The function (or other callable) called `name`.

    Raises:
        ConfigError: it can't be found, imported or called.
    """
    path, (place, function) = file_of(name, where), split(name, where)
    if place.endswith(".py"):
        module = load_file(f"r3bench_user_{digest(path)}_{path.stem}", path)
    else:
        try:
            module = importlib.import_module(place)
        except (Exception, SystemExit) as error:
            raise ConfigError(f"{where}: '{place}' can't be imported: {_said(error)}") from error
    found = getattr(module, function, None)
    if found is None:
        raise ConfigError(f"{where}: {path} has no '{function}'{nearest(function, vars(module))}")
    if not callable(found):
        raise ConfigError(f"{where}: '{name}' is a {type(found).__name__}, expected a function")
    return found
