"""Checks the `trainer` section against TRL's GRPOConfig without importing TRL (which takes seconds).

`grpo_fields.json` lists the fields, types, choices and defaults of the newest supported TRL, `trl_versions.py` how an
older one differs; a test compares both with the installed TRL. Regenerate, with the newest one installed:
`python -m r3bench.config.trainer_fields`.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from r3bench.config import trl_versions
from r3bench.config.strict import quote_hint, show, spelled_number, whole_number_hint
from r3bench.errors import ConfigError, nearest

FIELDS_FILE = Path(__file__).with_name("grpo_fields.json")
RESERVED = {  # set by the harness
    "output_dir": "the run directory decides it",
    "seed": "use the recipe's top-level 'seed'",
    "data_seed": "use the recipe's top-level 'seed'",
    "resume_from_checkpoint": "a run resumes by itself from its newest complete checkpoint",
    "model_init_kwargs": "TRL ignores it for a model that is loaded already; use model.dtype, model.attention, "
    "model.revision",
    "trust_remote_code": "code from a model repository is never run",
    "push_to_hub": "`r3bench push RUN OWNER/NAME` does it afterwards, with a card",
    "log_completions_hub_repo": "answers stay here; the run directory has them",
    "hub_token": "never put a token in a recipe; log in with the hub's own tool",
}
PYTHON_TYPES = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,), "dict": (dict,), "list": (list,)}
SPOKEN = {
    "int": "an integer", "float": "a number", "bool": "true or false", "str": "a text", "dict": "a mapping",
    "list": "a list", "None": "null",
}  # fmt: skip
CHOICES = {  # texts that GRPOConfig takes as they are and GRPOTrainer compares with these, some only at the first loss
    "importance_sampling_level": ("token", "sequence"),
    "loss_type": ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
    "scale_rewards": ("group", "batch", "none"),
    "vllm_importance_sampling_mode": ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
    "vllm_mode": ("colocate", "server"),
}
RANGES: dict[str, tuple[Callable[[float], bool], str]] = {  # numbers that would fail late, or train something else
    "beta": (lambda x: x >= 0, "0 or above"),
    "epsilon": (lambda x: x > 0, "above 0"),
    "generation_batch_size": (lambda x: x >= 1, "at least 1"),
    "gradient_accumulation_steps": (lambda x: x >= 1, "at least 1"),
    "learning_rate": (lambda x: x >= 0, "0 or above"),
    "logging_steps": (lambda x: x > 0, "above 0"),
    "max_completion_length": (lambda x: x >= 1, "at least 1"),
    "max_grad_norm": (lambda x: x >= 0, "0 or above"),
    "max_steps": (lambda x: x == -1 or x >= 1, "at least 1, or -1 for num_train_epochs"),
    "num_generations": (lambda x: x >= 2, "at least 2 (a group of one has no baseline)"),
    "num_generations_eval": (lambda x: x >= 1, "at least 1"),
    "num_iterations": (lambda x: x >= 1, "at least 1"),
    "num_train_epochs": (lambda x: x > 0, "above 0"),
    "per_device_eval_batch_size": (lambda x: x >= 1, "at least 1"),
    "per_device_train_batch_size": (lambda x: x >= 1, "at least 1"),
    "save_steps": (lambda x: x > 0, "above 0"),
    "steps_per_generation": (lambda x: x >= 1, "at least 1"),
    "temperature": (lambda x: x > 0, "above 0 (a group sampled greedily is one answer G times)"),
    "top_p": (lambda x: 0 < x <= 1, "a number in (0, 1]"),
    "tokens_per_forward": (lambda x: x >= 1, "at least 1, or null"),
    "vllm_gpu_memory_utilization": (lambda x: 0 < x <= 1, "a number in (0, 1]"),
    "vllm_tensor_parallel_size": (lambda x: x >= 1, "at least 1"),
}

OWN_FIELDS: dict[str, dict[str, Any]] = {  # of R3Config, beside GRPOConfig's and the sections that a recipe has anyway
    "tokens_per_forward": {"types": ["None", "int"], "default": None},
}


@cache
def grpo_fields() -> dict[str, dict[str, Any]]:
    """Field name -> {"types": [...], "default": ..., "choices": [...] for an enumeration} of GRPOConfig."""
    return trl_versions.adapted(json.loads(FIELDS_FILE.read_text()), trl_versions.installed())


def trainer_fields() -> dict[str, dict[str, Any]]:
    """`grpo_fields`, and those that `R3Config` adds."""
    return {**grpo_fields(), **OWN_FIELDS}


def check_trainer(values: dict[str, Any], where: str) -> dict[str, Any]:
    """`values` with number spellings resolved; unknown, reserved and mistyped fields are `ConfigError`s."""
    fields = trainer_fields()
    checked = {}
    for key, value in values.items():
        if key in RESERVED:
            raise ConfigError(f"{where}.{key}: got {show(value)}, but it can't be set here; {RESERVED[key]}")
        if key not in fields:
            raise ConfigError(f"{where}.{key}: got {show(value)} for an unknown GRPOConfig field{nearest(key, fields)}")
        checked[key] = _check_type(value, fields[key]["types"], _choices(key), f"{where}.{key}")
        _check_value(key, checked[key], f"{where}.{key}")
    _check_together(checked, where)
    return checked


def trainer_value(values: dict[str, Any], key: str) -> Any:
    """The value a trainer field will have: the recipe's, else GRPOConfig's default."""
    return values[key] if key in values else trainer_fields()[key]["default"]


def generation_batch(values: dict[str, Any], processes: int = 1) -> int:
    """Rows sampled together on all ranks (TRL's `generation_batch_size`)."""
    if values.get("generation_batch_size"):
        return int(values["generation_batch_size"])
    steps = values.get("steps_per_generation") or trainer_value(values, "gradient_accumulation_steps")
    return int(trainer_value(values, "per_device_train_batch_size")) * int(steps) * processes


def _choices(key: str) -> Sequence[str]:
    return CHOICES.get(key) or trainer_fields()[key].get("choices") or ()


def _check_type(value: Any, types: list[str], choices: Sequence[str], where: str) -> Any:
    if value is None and "None" in types:
        return None
    if value is False and "bool" not in types and "no" in choices:
        return "no"  # YAML reads a bare `no` as false
    for name in types:
        kinds = PYTHON_TYPES.get(name)
        if kinds is not None and isinstance(value, kinds) and not (isinstance(value, bool) and name != "bool"):
            return float(value) if name == "float" else value  # type: ignore[arg-type]
    number = spelled_number(value) if "float" in types else None
    if number is None or isinstance(value, bool):
        hint = whole_number_hint(value) if "int" in types else quote_hint(value) if "str" in types else ""
        raise ConfigError(f"{where}: got {show(value)}, expected {' or '.join(SPOKEN[name] for name in types)}{hint}")
    return number


def _check_value(key: str, value: Any, where: str) -> None:
    choices = _choices(key)
    if choices and isinstance(value, str) and value not in choices:
        hint = nearest(value, choices)
        raise ConfigError(
            f"{where}: got {show(value)}, expected one of {', '.join(choices)}{hint if 'did you mean' in hint else ''}"
        )
    if key in RANGES and isinstance(value, int | float):
        holds, expectation = RANGES[key]
        if not holds(value):
            raise ConfigError(f"{where}: got {value}, expected {expectation}")


def _check_together(values: dict[str, Any], where: str) -> None:
    def value(key: str) -> Any:
        return trainer_value(values, key)

    if value("bf16") and value("fp16"):
        raise ConfigError(f"{where}: bf16 and fp16 exclude each other; expected at most one to be true")
    context, cap = value("vllm_max_model_length"), value("max_completion_length")
    if value("use_vllm") and context is not None and context <= cap:
        raise ConfigError(
            f"{where}.vllm_max_model_length: got {context}, expected more than max_completion_length={cap}: a row is a "
            "prompt and an answer; left out, it is set from the longest of both"
        )
    if value("auto_find_batch_size"):
        raise ConfigError(f"{where}.auto_find_batch_size: got True, but halving the batch would cut groups apart")
    level, loss = value("importance_sampling_level"), value("loss_type")
    needed = {"luspo": "sequence", "vespo": "token"}.get(loss)
    if needed and level != needed:
        raise ConfigError(
            f"{where}.importance_sampling_level: got '{level}', expected '{needed}' with loss_type '{loss}'"
        )
    if values.get("generation_batch_size") and values.get("steps_per_generation"):
        raise ConfigError(f"{where}: generation_batch_size and steps_per_generation exclude each other")
    rows, device = generation_batch(values), value("per_device_train_batch_size")
    if rows % device:  # whether they make whole groups depends on the number of processes: r3bench.config.world
        raise ConfigError(
            f"{where}.generation_batch_size: got {rows}, expected a multiple of per_device_train_batch_size={device}; "
            f"nearest that works: {max(device, rows - rows % device)}"
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

    def options(kind: Any) -> list[str]:
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return [str(member.value) for member in kind]
        return [o for a in typing.get_args(kind) for o in options(a)] if typing.get_origin(kind) is not list else []

    described: dict[str, dict[str, Any]] = {}
    kinds = typing.get_type_hints(GRPOConfig)  # a command-line parser that was made before rewrites `field.type`
    for field in dataclasses.fields(GRPOConfig):
        default = field.default
        if default is dataclasses.MISSING:
            default = field.default_factory() if field.default_factory is not dataclasses.MISSING else None
        if isinstance(default, enum.Enum):
            default = default.value
        types = sorted(set(names(kinds[field.name])) & {*PYTHON_TYPES, "None"})
        described[field.name] = {"types": types, "default": default}
        choices = list(field.metadata.get("choices") or ()) + options(kinds[field.name])
        if choices:
            described[field.name]["choices"] = choices
    return described


if __name__ == "__main__":
    FIELDS_FILE.write_text(json.dumps(describe_grpo_config(), indent=1, sort_keys=True) + "\n")
