"""What was measured of a kept checkpoint: `checkpoint-eval/<step>/measured.json`, with digests of the answers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from r3bench.errors import StateError
from r3bench.files import read_json, write_json
from r3bench.record_types import check
from r3bench.seals import SEAL, Files, changed, digests, sealed, unsealed

NAME = "measured.json"  # in the folder of a checkpoint's answers
SCHEMA = 1
KINDS = {"step": "a count", "eval": "a mapping", "files": "files with their sizes and digests"}


def write_measured(folder: Path, step: int, summaries: Mapping[str, Mapping[str, Any]]) -> None:
    """Note the scores of a checkpoint, and the digests of all answers in `folder`; earlier tasks stay."""
    before = read_measured(folder) or {}
    found = {"schema": SCHEMA, "step": step, "eval": {**before.get("eval", {}), **summaries}}
    write_json(folder / NAME, sealed({**found, "files": digests(folder, folder.glob("*/*.parquet"))}))


def read_measured(folder: Path) -> dict[str, Any] | None:
    """What was noted; None where nothing was (an older version, or a measurement that isn't finished).

    Raises:
        StateError: the file is damaged, edited or of another checkpoint.
    """
    file = folder / NAME
    if not file.exists():
        return None
    values = read_json(file)
    if not isinstance(values, dict) or SEAL not in values:
        raise StateError(f"{file}: {SEAL}: missing; the file is damaged or was edited")
    values = dict(unsealed(values, file))
    check(values, KINDS, str(file))
    if values.get("schema") != SCHEMA or str(values["step"]) != folder.name:
        raise StateError(f"{file}: is of step {values['step']}, schema {values.get('schema')}, in {folder.name}")
    return values


def known_answers(folder: Path, task: str) -> Files | None:
    """Name -> digest of a task's shards of a checkpoint; None where nothing was noted. Errors of `read_measured`."""
    values = read_measured(folder)
    if values is None:
        return None
    return {name.removeprefix(f"{task}/"): d for name, d in values["files"].items() if name.startswith(f"{task}/")}


def set_aside_changed(folder: Path) -> dict[Path, str]:
    """Rename answers that are not what was noted of them, so that they are drawn again; new name -> what was wrong."""
    known = (read_measured(folder) or {"files": {}})["files"]
    moved = {}
    for name, wrong in changed(folder, known).items():
        if (folder / name).is_file():
            moved[(folder / name).rename(folder / f"{name}.torn")] = wrong
    return moved
