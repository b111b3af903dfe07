"""Which checkpoint training resumes from, and whether it can: the same on all ranks, told before anything is loaded.

transformers takes what it finds. Without optimizer files it trains on with a new optimizer; of weights in another form
one process fails while the others wait for it.
"""

import json
import warnings
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from transformers.trainer_utils import get_last_checkpoint

from r3bench.errors import StateError
from r3bench.training import checkpoint

WAYS = {"FSDP": "--strategy fsdp2", "DeepSpeed": "--strategy zero2 or zero3", "DDP": "--strategy ddp, or one process"}


class NoCheckpoint(StateError, ValueError):
    """There is nothing to resume from; scripts catch `ValueError`, which transformers raises, to start anew."""


def chosen(resume: str | bool | None, output: Path) -> Path | None:
    """The checkpoint that `train(resume_from_checkpoint=resume)` means: for `True` the newest whole one in `output`.

    Raises:
        NoCheckpoint: there is none. A `ValueError` too, as transformers' is.
        StateError: the one named was cut short.
    """
    if resume is None or resume is False:
        return None
    if resume is not True:
        folder = Path(resume)
        if not folder.is_dir():
            raise NoCheckpoint(f"{folder}: no such checkpoint")
        wrong = checkpoint.fault(folder, contents=False) if _ours(folder) else None
        if wrong is not None:
            newest, _ = checkpoint.newest_complete(folder.parent)
            other = f"the newest whole one there is {newest.name}" if newest else "no whole one is there"
            raise StateError(f"{folder}: can't be resumed, {wrong}; {other}")
        return folder
    newest, bad = checkpoint.newest_complete(output)
    if newest is None and output.is_dir() and not any(_ours(folder) for folder in bad):
        stock = get_last_checkpoint(str(output))  # TRL's own have no manifest
        newest = Path(stock) if stock else None
    if newest is None:
        raise NoCheckpoint(f"{output}: has no whole checkpoint to resume from")
    return newest


def _ours(folder: Path) -> bool:
    return (folder / "r3bench").is_dir() or (folder / checkpoint.MANIFEST).exists()


def form(folder: Path) -> str:
    """How a checkpoint was written: a key of `WAYS`."""
    if any(folder.glob("pytorch_model_fsdp*")):
        return "FSDP"
    return "DeepSpeed" if (folder / "latest").is_file() and any(folder.glob("global_step*")) else "DDP"


def _way(name: str) -> str:
    return f"{name} ({WAYS[name]})"


def check_resumable(folder: Path, trainer: Any) -> None:
    """Refuse a checkpoint that this trainer can't resume from as if it had never stopped.

    Raises:
        StateError: saying what wrote it and what would do.
    """
    here = "FSDP" if trainer.is_fsdp_enabled else "DeepSpeed" if trainer.is_deepspeed_enabled else "DDP"
    there, now = form(folder), trainer.accelerator.num_processes
    if here != there:
        raise StateError(
            f"{folder}: was written by {_way(there)}, and this run trains with {_way(here)}; go on as it was written, "
            "or remove the checkpoints to start anew"
        )
    ranks = checkpoint.saved_by(folder)
    if there == "DeepSpeed" and ranks not in (None, now):
        raise StateError(
            f"{folder}: {ranks} processes wrote it with DeepSpeed, which goes on with as many only; got {now}, "
            f"expected {ranks}"
        )
    if there == "FSDP":
        split = any(path.is_dir() for path in folder.glob("pytorch_model_fsdp*"))
        wanted = trainer.accelerator.state.fsdp_plugin.state_dict_type.name
        kind = "SHARDED_STATE_DICT" if split else "FULL_STATE_DICT"
        if wanted != kind:
            raise StateError(f"{folder}: saved with fsdp_state_dict_type {kind}, got {wanted}, expected the same")
    if there != "DeepSpeed":
        optimizer = any(path.stem.startswith("optimizer") for path in folder.iterdir())
        if not (optimizer and (folder / "scheduler.pt").is_file()):
            raise StateError(
                f"{folder}: holds weights without the optimizer's state (saved with save_only_model?); training can't "
                "resume from it, only start anew with it as the model"
            )


def settings_of(trainer: Any) -> dict[str, dict[str, Any]]:
    """What the state in a checkpoint was made with: section -> key -> value, JSON-ready.

    Every component's settings, what counts as right, the bounds of the history, and the rewards that stored totals sum.
    """
    sections: dict[str, dict[str, Any]] = {component.name: asdict(component.config) for component in trainer.components}
    if sections:
        filled = trainer.filled_columns
        weights = zip(trainer.reward_func_names, trainer.reward_weights.tolist(), strict=True)
        rewards = [[name, weight] for place, (name, weight) in enumerate(weights) if place not in filled]
        sections |= {"correctness": asdict(trainer.rule), "history": asdict(trainer.history.bounds)}
        sections["rewards"] = {"functions and weights": rewards}
    found: dict[str, dict[str, Any]] = json.loads(json.dumps(sections, default=str))
    return found


def warn_of_changes(folder: Path, then: Mapping[str, Mapping[str, Any]] | None, trainer: Any) -> None:
    """Warn of every setting with another value than when the checkpoint was written; other components aside.

    Args:
        folder: the checkpoint.
        then: what `settings_of` found when it was written; None for an older one, of which nothing is known.
        trainer: that resumes from it.
    """
    if then is None:
        return
    defaults = {component.name: _defaults(type(component.config)) for component in trainer.components}
    changes = []
    for section, values in settings_of(trainer).items():
        for key, value in values.items() if section in then else ():
            before = then[section].get(key, defaults.get(section, {}).get(key, value))  # a setting newer than it
            if before != value:
                changes.append(f"{section}.{key} was {json.dumps(before)}, is {json.dumps(value)}")
    if changes:
        warnings.warn(
            f"{folder}: was written with other settings: {'; '.join(changes)}. Training goes on with those of now; "
            "what was stored until then (answers, their verdicts and rewards, components' state) is as it was made",
            stacklevel=2,
        )


def _defaults(config: type) -> dict[str, Any]:
    """Default values of a settings class as JSON would have them."""
    found = {field.name: field.default for field in fields(config) if field.default is not MISSING}
    values: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return values
