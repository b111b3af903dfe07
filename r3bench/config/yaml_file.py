"""Reads YAML that a user wrote: plain data only, every key once, and errors that name the line.

A recipe is small and flat, so what makes YAML dangerous or surprising is refused outright: tags (`!!python/...`),
aliases (a few lines of them can stand for gigabytes), deep nesting, NaN and infinity (JSON has neither), and numbers
that YAML 1.1 reads otherwise than they look (`010` is 8, `1:30` is 90).
"""

import math
import re
import stat
from pathlib import Path
from typing import Any

import yaml

from r3bench.errors import ConfigError

MAX_BYTES = 1_000_000  # of one file
MAX_DEPTH = 20  # nested mappings and lists
MOST = 2**63 - 1  # of an integer, either way
DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)")  # integers that are what they look like


class _PlainLoader(yaml.SafeLoader):
    """Safe YAML whose keys are texts, each given once, and in which a date is a text."""

    yaml_implicit_resolvers = {  # noqa: RUF012, as PyYAML has it
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(f"line {line}: a key is a list or mapping, expected a text")
        key = str(key_node.value)  # as written: YAML would read the key `on` as true
        if key in result:
            raise ConfigError(f"line {line}: key '{key}' is given twice")
        result[key] = loader.construct_object(value_node, deep=True)  # type: ignore[no-untyped-call]
    return result


def _number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    if ":" in node.value:
        raise _misread(node, float(loader.construct_yaml_float(node)))  # type: ignore[no-untyped-call]
    value = float(loader.construct_yaml_float(node))  # type: ignore[no-untyped-call]
    if not math.isfinite(value):
        raise ConfigError(f"line {node.start_mark.line + 1}: got {node.value}, expected a finite number")
    return value


def _misread(node: yaml.ScalarNode, value: float) -> ConfigError:
    text = node.value if len(node.value) < 40 else f"{node.value[:37]}..."
    read = str(value) if abs(value) <= MOST else "a number of many digits"
    return ConfigError(
        f"line {node.start_mark.line + 1}: got {text}, which YAML reads as the number {read}; expected a decimal "
        f"number without a leading 0, or '{text}' in quotes if a text is meant"
    )


_PlainLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    value = int(loader.construct_yaml_int(node))  # type: ignore[no-untyped-call]
    if not DECIMAL.fullmatch(node.value):
        raise _misread(node, value)
    if abs(value) > MOST:
        shown = node.value if len(node.value) < 40 else f"a number of {len(node.value)} digits"
        raise ConfigError(f"line {node.start_mark.line + 1}: got {shown}, expected at most {MOST}")
    return value


_PlainLoader.add_constructor("tag:yaml.org,2002:float", _number)
_PlainLoader.add_constructor("tag:yaml.org,2002:int", _integer)


def _refuse_tricks(text: str) -> None:
    """Look through the parser's events, before anything is built."""
    depth = 0
    for event in yaml.parse(text, Loader=_PlainLoader):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(f"line {line}: alias '*{event.anchor}' is not supported; write the value out")
        tag = getattr(event, "tag", None)
        if tag is not None:
            shown = tag.replace("tag:yaml.org,2002:", "!!")
            raise ConfigError(f"line {line}: tag '{shown}' is not supported; write plain values")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise ConfigError(f"line {line}: nested more than {MAX_DEPTH} levels deep")


def read_value(text: str) -> Any:
    """The value that `text` spells, as plain data: None, bool, int, float, str, list, dict with text keys.

    Raises:
        ConfigError: with the line and what is wrong with it.
    """
    try:
        _refuse_tricks(text)
        return yaml.load(text, Loader=_PlainLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise ConfigError(f"{f'line {mark.line + 1}: ' if mark else ''}not valid YAML: {problem}") from error
    except ValueError as error:  # a number with thousands of digits
        raise ConfigError(f"not valid YAML: {str(error).partition(';')[0]}") from error


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Errors name the file and the line; an empty file is one."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):  # a device can be endless, a pipe never come
            raise ConfigError(f"{path}: not a regular file")
        if about.st_size > MAX_BYTES:
            raise ConfigError(f"{path}: {about.st_size} bytes, expected at most {MAX_BYTES}")
        value = read_value(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    except ConfigError as error:
        raise error if str(error).startswith(str(path)) else ConfigError(f"{path}: {error}") from error
    if value is None:
        raise ConfigError(f"{path}: empty, expected a mapping of sections")
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: got a {type(value).__name__}, expected a mapping of sections")
    return value
