"""Checks the `trainer` section against TRL's GRPOConfig without importing TRL (which takes seconds).

`grpo_fields.json` is a list of the fields, types and defaults of the supported TRL; a test compares it with the real one.
Regenerate: `python -m r3bench.config.trainer_fields`.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from r3bench.errors import ConfigError, nearest

FIELDS_FILE = Path(__file__).with_name("grpo_fields.json")
RESERVED = {  # set by the harness
    "output_dir": "the run directory decides it",
    "seed": "use the recipe's top-level 'seed'",
    "data_seed": "use the recipe's top-level 'seed'",
    "resume_from_checkpoint": "a run resumes by itself from its newest complete checkpoint",
    "trust_remote_code": "code from a model repository is never run",
    "hub_token": "never put a token in a recipe; log in with the hub's own tool",
}
PYTHON_TYPES = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,), "dict": (dict,), "list": (list,)}


@cache
def grpo_fields() -> dict[str, dict[str, Any]]:
    """Field name -> {"types": [...], "default": ...} of GRPOConfig."""
    fields: dict[str, dict[str, Any]] = json.loads(FIELDS_FILE.read_text())
    return fields


def check_trainer(values: dict[str, Any], where: str) -> dict[str, Any]:
    """`values` with number spellings resolved; unknown, reserved and mistyped fields are `ConfigError`s."""
    fields = grpo_fields()
    checked = {}
    for key, value in values.items():
        if key in RESERVED:
            raise ConfigError(f"{where}.{key}: can't be set here; {RESERVED[key]}")
        if key not in fields:
            raise ConfigError(f"{where}.{key}: unknown GRPOConfig field{nearest(key, fields)}")
        checked[key] = _check_type(value, fields[key]["types"], f"{where}.{key}")
    _check_arithmetic(checked, where)
    return checked


def trainer_value(values: dict[str, Any], key: str) -> Any:
    """The value a trainer field will have: the recipe's, else GRPOConfig's default."""
    return values[key] if key in values else grpo_fields()[key]["default"]


def generation_batch(values: dict[str, Any], processes: int = 1) -> int:
    """Rows sampled together on all ranks (TRL's `generation_batch_size`)."""
    if values.get("generation_batch_size"):
        return int(values["generation_batch_size"])
    steps = values.get("steps_per_generation") or trainer_value(values, "gradient_accumulation_steps")
    return int(trainer_value(values, "per_device_train_batch_size")) * int(steps) * processes


def _check_type(value: Any, types: list[str], where: str) -> Any:
    if value is None:
        if "None" in types:
            return None
        raise ConfigError(f"{where}: got null, expected {' or '.join(types)}")
    if "float" in types and isinstance(value, str) and "str" not in types:
        try:
            return float(value)
        except ValueError:
            pass
    for name in types:
        kinds = PYTHON_TYPES.get(name)
        if kinds is not None and isinstance(value, kinds) and not (isinstance(value, bool) and name != "bool"):
            return float(value) if name == "float" else value
    raise ConfigError(f"{where}: got {value!r}, expected {' or '.join(types)}")


def _check_arithmetic(values: dict[str, Any], where: str) -> None:
    group = trainer_value(values, "num_generations")
    if group is not None and group < 2:
        raise ConfigError(f"{where}.num_generations: got {group}, expected at least 2 (a group of one has no baseline)")
    if values.get("generation_batch_size") and values.get("steps_per_generation"):
        raise ConfigError(f"{where}: generation_batch_size and steps_per_generation exclude each other")
    for key in (
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "max_completion_length",
        "num_iterations",
    ):
        value = trainer_value(values, key)
        if value is not None and value < 1:
            raise ConfigError(f"{where}.{key}: got {value}, expected at least 1")
    rows = generation_batch(values)
    if group and rows % group and group % rows:
        raise ConfigError(
            f"{where}: {rows} rows per generation batch can't be cut into groups of num_generations={group}; "
            f"nearest that works: {max(group, rows - rows % group)} rows"
        )


def describe_grpo_config() -> dict[str, dict[str, Any]]:
    """The content `grpo_fields.json` should have for the installed TRL."""
    import dataclasses
    import enum
    import typing

    from trl import GRPOConfig

    def names(kind: Any) -> list[str]:
        if kind is type(None):
            return ["None"]
        origin = typing.get_origin(kind)
        if origin is typing.Literal:
            return sorted({type(a).__name__ for a in typing.get_args(kind)})
        if origin in (list, dict):
            return [origin.__name__]
        if typing.get_args(kind):
            return [n for a in typing.get_args(kind) for n in names(a)]
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return ["str"]
        return [getattr(kind, "__name__", str(kind))]

    described = {}
    for field in dataclasses.fields(GRPOConfig):
        default = field.default
        if default is dataclasses.MISSING:
            default = field.default_factory() if field.default_factory is not dataclasses.MISSING else None
        if isinstance(default, enum.Enum):
            default = default.value
        types = sorted(set(names(field.type)) & {*PYTHON_TYPES, "None"})
        described[field.name] = {"types": types, "default": default}
    return described


if __name__ == "__main__":
    FIELDS_FILE.write_text(json.dumps(describe_grpo_config(), indent=1, sort_keys=True) + "\n")
