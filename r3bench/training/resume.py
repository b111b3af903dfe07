"""Which checkpoint training goes on from, and whether it can: the same on all ranks, told before anything is loaded.

transformers takes what it finds. Without optimizer files it trains on with a new optimizer; of weights in another form
one process fails while the others wait for it.
"""

from pathlib import Path
from typing import Any

from transformers.trainer_utils import get_last_checkpoint

from r3bench.errors import StateError
from r3bench.training import checkpoint

WAYS = {"FSDP": "--strategy fsdp2", "DeepSpeed": "--strategy zero2 or zero3", "DDP": "--strategy ddp, or one process"}


class NoCheckpoint(StateError, ValueError):
    """There is nothing to go on from; scripts catch `ValueError`, which transformers raises, to start anew."""


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
            raise StateError(f"{folder}: can't be gone on from, {wrong}; {other}")
        return folder
    newest, bad = checkpoint.newest_complete(output)
    if newest is None and output.is_dir() and not any(_ours(folder) for folder in bad):
        stock = get_last_checkpoint(str(output))  # TRL's own have no manifest
        newest = Path(stock) if stock else None
    if newest is None:
        raise NoCheckpoint(f"{output}: has no whole checkpoint to go on from")
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
    """Refuse a checkpoint that this trainer can't go on from as if it had never stopped.

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
                "go on from it, only start anew with it as the model"
            )
