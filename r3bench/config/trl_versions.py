"""The versions of TRL that are supported, and all that differs between them as far as r3bench is concerned.

A new TRL is tried with `make trl VERSION=x.y.z`. If all passes, widen `SUPPORTED` (and the range in `pyproject.toml`).
What the configuration's fields differ in goes into `FIELDS`; what the trainer's methods differ in is asked of by name
in `training/step/trl_adapter.py`.
"""

from functools import cache
from typing import Any

from packaging.version import Version

from r3bench import installation

SUPPORTED = ("1.15", "1.17")  # [from, before)

# From this version on TRL's log-probs come from plain torch on a CPU; before, from a Triton kernel everywhere.
CPU_HEAD = "1.16"

# Before a version: the fields of GRPOConfig as they were (None: not there yet), against `grpo_fields.json`, which is of
# the newest one. 1.16 besides: a reference model is built in the policy's own dtype and attention (before: float32,
# TRL's default), DDP looks for unused parameters under a vision model, and prompts are padded to `pad_to_multiple_of`
# while sampling, too.
FIELDS: dict[str, dict[str, dict[str, Any] | None]] = {
    "1.16": {"pad_to_multiple_of": {"default": None, "types": ["None", "int"]}},
}


@cache
def installed() -> Version | None:
    """The installed TRL's version, without importing it; None without one."""
    return installation.installed("trl")


def supported(trl: Version) -> bool:
    """Whether r3bench was tested with this TRL."""
    low, high = (Version(v) for v in SUPPORTED)
    return low <= trl < high


def adapted(fields: dict[str, dict[str, Any]], trl: Version | None) -> dict[str, dict[str, Any]]:
    """The newest TRL's `fields` as the version `trl` has them; None: as they are."""
    fields = dict(fields)
    if trl is None:
        return fields
    for before in sorted(FIELDS, key=Version, reverse=True):  # newest first
        if trl >= Version(before):
            break
        for name, field in FIELDS[before].items():
            if field is None:
                fields.pop(name, None)
            else:
                fields[name] = field
    return fields
