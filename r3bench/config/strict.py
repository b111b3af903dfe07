"""Build frozen dataclasses from plain mappings; every misfit is an error that says where and what was expected."""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from r3bench.errors import ConfigError, nearest

T = TypeVar("T")
PLURALS = {int: "integers", float: "numbers", str: "texts", bool: "true or false", dict: "mappings"}


def inside(where: str, key: str) -> str:
    """The place of `key` inside `where`: `recipe.yaml` -> `recipe.yaml: trainer` -> `recipe.yaml: trainer.beta`."""
    return f"{where}.{key}" if ": " in where else f"{where}: {key}"


def show(value: Any) -> str:
    """A value for a message, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def describe(kind: Any) -> str:
    """A type as a user would say it: `int | None` -> 'an integer or null'."""
    plain = {int: "an integer", float: "a number", str: "a text", bool: "true or false", type(None): "null"}
    if kind in plain:
        return plain[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(str(a) for a in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(a) for a in arguments)
    if origin in (tuple, list):
        item = PLURALS.get(arguments[0], describe(arguments[0])) if arguments else "values"
        return f"a list of {item}"
    return "a mapping"


def convert(value: Any, kind: Any, where: str) -> Any:
    """`value` as `kind`, or a `ConfigError` that names `where`. Integers pass as numbers, nothing else is coerced.

    YAML reads `1e-6` as text; where a number is expected such text is taken as the number it spells.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return build(kind, value, where)
    if origin in (Union, types.UnionType):
        return _convert_union(value, kind, arguments, where)
    if origin is Literal:
        if value in arguments and type(value) in {type(a) for a in arguments}:
            return value
        hint = _closest(value, arguments) or truth_hint(value)
        raise ConfigError(f"{where}: got {show(value)}, expected {describe(kind)}{hint}")
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(convert(v, arguments[0], f"{where}[{i}]") for i, v in enumerate(value))
    if (origin is dict or kind is dict) and isinstance(value, Mapping):
        bad = [k for k in value if not isinstance(k, str)]
        if bad:
            raise ConfigError(f"{where}: key {show(bad[0])} is not a text")
        return dict(value)
    if kind is float:
        return _convert_number(value, where)
    if kind in (int, str, bool) and type(value) is kind:
        return value
    hint = whole_number_hint(value) if kind is int else quote_hint(value) if kind is str else ""
    raise ConfigError(f"{where}: got {show(value)}, expected {describe(kind)}{hint}")


def truth_hint(value: Any) -> str:
    """What may have happened to a text that came as a truth value."""
    if not isinstance(value, bool):
        return ""
    bare = "on or yes" if value else "off or no"
    return f"; YAML reads a bare {bare} as {str(value).lower()}: quote it if a text is meant"


def quote_hint(value: Any) -> str:
    """How to write a text that YAML takes for something else."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"; quote it if it is meant as a text: '{value}'"
    return truth_hint(value)


def whole_number_hint(value: Any) -> str:
    """How to write a number that was meant whole: `1e6` and `20.0` are no integers in YAML."""
    number = spelled_number(value)
    return f"; write {int(number)}" if number is not None and number == int(number) else ""


def _convert_number(value: Any, where: str) -> float:
    number = spelled_number(value)
    if number is None:
        raise ConfigError(f"{where}: got {show(value)}, expected a number")
    return number


def spelled_number(value: Any) -> float | None:
    """`value` as a finite float if it is a number or a text that spells one (YAML reads `1e-6` as text), else None."""
    if type(value) not in (int, float, str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _convert_union(value: Any, kind: Any, members: tuple[Any, ...], where: str) -> Any:
    if value is None and type(None) in members:
        return None
    rest = [m for m in members if m is not type(None)]
    if len(rest) == 1:
        return convert(value, rest[0], where)
    for member in rest:
        try:
            return convert(value, member, where)
        except ConfigError:
            continue
    raise ConfigError(f"{where}: got {show(value)}, expected {describe(kind)}")


def build(cls: type[T], values: Any, where: str) -> T:
    """An instance of the dataclass `cls` from a mapping. Unknown, missing and mistyped keys are `ConfigError`s."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: got {values!r}, expected a mapping")
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    kinds = typing.get_type_hints(cls)
    for key in values:
        if key not in fields:
            raise ConfigError(
                f"{inside(where, str(key))}: got {show(values[key])} for an unknown key{nearest(str(key), fields)}"
            )
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise ConfigError(f"{inside(where, name)}: missing, expected {describe(kinds[name])}")
    try:
        return cls(**{key: convert(value, kinds[key], inside(where, key)) for key, value in values.items()})
    except ValueError as error:  # a dataclass's own __post_init__ check
        raise ConfigError(f"{where}: {error}") from error


def _closest(value: Any, valid: tuple[Any, ...]) -> str:
    """The suggestion of `nearest`, without its list of valid names: the expectation has them already."""
    hint = nearest(str(value), map(str, valid))
    return hint if "did you mean" in hint else ""


def plain(value: Any) -> Any:
    """A dataclass tree as JSON-ready dicts and lists, the inverse of `build`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
