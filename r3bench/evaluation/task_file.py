"""A task's YAML file, looked at without lm-eval: is what it names there? Loads no torch."""

import ast
import functools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from r3bench import source
from r3bench.errors import ConfigError, DataError, nearest


class _Loose(yaml.SafeLoader):
    """Plain values; `!function` and other tags are taken as text with a mark in front."""


_Loose.add_multi_constructor("!", lambda loader, suffix, node: f"!{suffix} {node.value}")
MODULE = "!function "
FILES = (".jsonl", ".parquet", ".csv", ".tsv")  # of questions
GIVEN = {"style", "template", "folder"}  # arguments of a loader that r3bench gives
OURS = {"file", "scorer", "threshold", "columns"}  # arguments by which our own loader is known
TAKEN = {"prompt", "prompts", "completions", "scorer", "threshold"}  # columns that a scorer gets from us
KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "file": ((str,), "a path"),
    "problem": ((str,), "a column's name"),
    "answer": ((str,), "a column's name"),
    "id": ((str,), "a column's name"),
    "columns": ((list, tuple), "a list of columns"),
    "scorer": ((str,), "./file.py:function or package.module:function"),
    "threshold": ((int, float), "a number"),
    "items": ((int, Mapping), "a whole number"),
    "split": ((str,), "a split's name"),
}


def read(path: Path) -> dict[str, Any]:
    """A task's values, those of its includes below its own.

    Raises:
        ConfigError: the file or an include of it isn't there, or is no YAML mapping.
    """
    return _read(path, ())


def _read(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loose)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read: {error}") from error
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        raise ConfigError(f"{path}:{mark.line + 1 if mark else 1}: not valid YAML: {problem or error}") from error
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path}: got a {type(values).__name__}, expected a mapping")
    found: dict[str, Any] = {}
    includes = values.get("include") or []
    for name in [includes] if isinstance(includes, str) else includes:
        other = path.parent / str(name)
        if not other.is_file():
            known = [near.name for near in path.parent.glob("*.yaml")]
            raise ConfigError(
                f"{path}: include: '{name}': no such file beside it{nearest(str(name), known)}"
                + ("; `r3bench copy embedded --kind tasks` brings the shipped one" if name == "_maths.yaml" else "")
            )
        if other in above or other == path:
            raise ConfigError(f"{path}: include: '{name}' includes this file again")
        found |= _read(other, (*above, path))
    return {**found, **{key: value for key, value in values.items() if key != "include"}}


def check_file(path: Path, name: str) -> None:
    """Refuse a task whose file names what isn't there: an include, a function, a file of questions, a scorer.

    Raises:
        ConfigError, DataError: naming file and key.
    """
    values = read(path)
    if values.get("task") != name:
        raise ConfigError(
            f"{path}: expected a task called '{name}', like the file; 'task' is {values.get('task')!r:.60}"
        )
    for key, text in _functions(values):
        _check_function(path, key, text)
    if not any(values.get(key) for key in ("custom_dataset", "dataset_path", "class")):
        raise ConfigError(
            f"{path}: no custom_dataset and no dataset_path, so nothing says where its questions come from; with "
            "'include: _maths.yaml' dataset_kwargs does (`r3bench copy embedded --kind tasks` brings that file)"
        )
    details = values.get("dataset_kwargs") or {}
    if not isinstance(details, Mapping):
        raise ConfigError(f"{path}: dataset_kwargs: got {details!r:.80}, expected a mapping")
    _check_details(path, values.get("custom_dataset"), details)
    if isinstance(file := details.get("file"), str) and not (found := beside(file, path.parent)).is_file():
        known = [near.name for near in found.parent.glob("*") if near.suffix in FILES]
        raise DataError(
            f"{path}: dataset_kwargs.file: {found}: no such file{nearest(found.name, known) if known else ''}"
        )
    if isinstance(scorer := details.get("scorer"), str):
        source.check_defined(function_beside(scorer, path.parent), f"{path}: dataset_kwargs.scorer")
    stem, ours = details.get("name"), "utils.load" in str(values.get("custom_dataset"))
    if ours and "file" not in details and isinstance(stem, str) and not details.get("hub"):
        folder = os.environ.get("R3BENCH_DATA")
        if not folder or not (Path(folder) / f"{stem}.jsonl").is_file():
            tried = f"{Path(folder) / stem}.jsonl does not exist" if folder else "R3BENCH_DATA is not set"
            raise DataError(
                f"{path}: dataset_kwargs.name: '{stem}': no hub data set is known and {tried}; "
                "'file: ./questions.jsonl' names a file beside the task's"
            )


def _check_details(path: Path, loader: Any, details: Mapping[str, Any]) -> None:
    """Refuse keys that the function which loads the questions would pass over: one with `**_` takes and drops any."""
    if isinstance(loader, str) and loader.startswith(MODULE):
        module, _, function = loader.removeprefix(MODULE).strip().rpartition(".")
        known = _arguments((path.parent / f"{module.replace('.', '/')}.py").read_bytes()).get(function)
        for key in details:
            if known is not None and key not in known:
                raise ConfigError(f"{path}: dataset_kwargs.{key}: unknown key{nearest(str(key), known - GIVEN)}")
        if function != "load" or known is None or not known >= OURS:
            return
        for key, (kinds, expected) in KINDS.items():
            if (value := details.get(key)) is not None and (
                not isinstance(value, kinds) or isinstance(value, bool) or (key == "columns" and not _texts(value))
            ):
                raise ConfigError(f"{path}: dataset_kwargs.{key}: got {value!r:.80}, expected {expected}")
        if taken := [name for name in details.get("columns") or () if name in TAKEN]:
            raise ConfigError(
                f"{path}: dataset_kwargs.columns: got '{taken[0]}', which is a name of ours; rename it in the data"
            )
        if "threshold" in details and "scorer" not in details:
            raise ConfigError(f"{path}: dataset_kwargs.threshold: got {details['threshold']!r} without a scorer")


def _texts(value: Any) -> bool:
    return all(isinstance(item, str) for item in value)


@functools.lru_cache(maxsize=8)
def _arguments(source: bytes) -> dict[str, set[str]]:
    """Functions of a Python source that drop what they don't know (`**_`), with the arguments that they know."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.args.kwarg is not None and node.args.kwarg.arg.startswith("_"):
            found[node.name] = {arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
    return found


def _functions(values: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from _functions(value, f"{key}.{name}" if key else str(name))
    elif isinstance(values, list):
        for value in values:
            yield from _functions(value, key)
    elif isinstance(values, str) and values.startswith(MODULE):
        yield key, values.removeprefix(MODULE)


def _check_function(path: Path, key: str, text: str) -> None:
    module, _, function = text.strip().rpartition(".")
    file = path.parent / f"{module.replace('.', '/')}.py"
    if not file.is_file():
        raise ConfigError(f"{path}: {key}: '!function {text}': no {file.name} beside it")
    try:
        names = _names(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{path}: {key}: {file}: not valid Python: {error}") from error
    if function not in names and "*" not in names:
        raise ConfigError(f"{path}: {key}: {file} has no '{function}'{nearest(function, names)}")


@functools.lru_cache(maxsize=8)  # tasks share one file of functions
def _names(source: bytes) -> set[str]:
    """What a Python source binds to a name, anywhere in it; '*' for an import of everything."""
    nodes = list(ast.walk(ast.parse(source)))
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names | {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}


def beside(name: str, folder: Path) -> Path:
    """A path that a task's file in `folder` names."""
    path = Path(name).expanduser()
    return path if path.is_absolute() else folder / path


def function_beside(name: str, folder: Path) -> str:
    """A function that a task's file in `folder` names, its path made absolute."""
    place, _, function = name.rpartition(":")
    return f"{beside(place, folder).absolute()}:{function}" if place.endswith(".py") else name
