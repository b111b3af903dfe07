"""What a checkpoint holds beyond TRL's files, and how to tell a whole one from a torn one.

checkpoint-N/r3bench/state.json, arrays.safetensors     components and counters, equal on all ranks
checkpoint-N/r3bench/history-<rank>.{json,safetensors}  each rank's share of the trajectory history
checkpoint-N/complete.json                              size and CRC-32 of all files, written last: without it, torn
"""

import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_tensors

from r3bench.errors import StateError
from r3bench.files import read_json, replacing, sync_directory, write_json
from r3bench.seals import sealed, unsealed
from r3bench.training.state_values import join, split

MANIFEST = "complete.json"
CHUNK = 1 << 24  # bytes read at a time


def save_state(
    folder: Path, state: dict[str, Any], history: tuple[dict[str, np.ndarray], dict[str, Any]], accelerator: Any
) -> None:
    """Write this rank's history share, and on the main rank the common state. Returns when all ranks have written."""
    own = folder / "r3bench"
    own.mkdir(parents=True, exist_ok=True)
    arrays, metadata = history
    with replacing(own / f"history-{accelerator.process_index}.safetensors") as temporary:
        save_file(arrays, str(temporary))
    write_json(own / f"history-{accelerator.process_index}.json", metadata)
    if accelerator.is_main_process:
        found: dict[str, np.ndarray] = {}
        values = split(state, "", found)
        with replacing(own / "arrays.safetensors") as temporary:
            save_file(found or {"empty": np.zeros(1, np.float32)}, str(temporary))
        write_json(own / "state.json", {"ranks": accelerator.num_processes, "state": values})
    accelerator.wait_for_everyone()


def load_state(folder: Path) -> tuple[dict[str, Any] | None, Iterator[tuple[dict[str, np.ndarray], dict[str, Any]]]]:
    """The common state and every rank's history share, read one by one; (None, nothing) for stock TRL's checkpoint."""
    own = folder / "r3bench"
    if not own.is_dir():
        return None, iter(())
    saved = read_json(own / "state.json")
    arrays = load_file(str(own / "arrays.safetensors"))
    shares = (
        (load_file(str(own / f"history-{rank}.safetensors")), read_json(own / f"history-{rank}.json"))
        for rank in range(saved["ranks"])
    )
    return join(saved["state"], arrays), shares


def saved_by(folder: Path) -> int | None:
    """The number of processes that wrote a checkpoint; None for one of stock TRL."""
    state = folder / "r3bench" / "state.json"
    return int(read_json(state)["ranks"]) if state.exists() else None


def mark_complete(folder: Path) -> None:
    """Make every file durable, then write the manifest that calls the checkpoint whole.

    The checksums are of the files as they lie in the page cache.
    """
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST):
        with open(path, "rb+") as file:
            os.fsync(file.fileno())
        files[str(path.relative_to(folder))] = {"bytes": path.stat().st_size, "crc32": checksum(path)}
    for directory in [folder, *(p for p in folder.rglob("*") if p.is_dir())]:
        sync_directory(directory)
    write_json(folder / MANIFEST, sealed({"files": files}))


def checksum(path: Path) -> int:
    """CRC-32 of a file: finds rot and overwriting; not meant against forgery."""
    value = 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            value = zlib.crc32(chunk, value)
    return value


def is_complete(folder: Path) -> bool:
    """Whether the manifest is there and every file has its size."""
    return fault(folder, contents=False) is None


def fault(folder: Path, *, contents: bool = True) -> str | None:
    """What is wrong with a checkpoint, None if it is whole.

    Args:
        folder: the checkpoint.
        contents: also read every file and compare its checksum. A manifest of an older version has sizes alone.
    """
    try:
        entries = unsealed(read_json(folder / MANIFEST), folder / MANIFEST)["files"].items()
    except (StateError, KeyError, TypeError, AttributeError):
        return f"no readable {MANIFEST}"
    for name, entry in entries:
        known = entry if isinstance(entry, dict) else {"bytes": entry}
        size, expected = known.get("bytes"), known.get("crc32")
        path = folder / name
        try:
            if path.stat().st_size != size:
                return f"{name} has another size than when it was saved"
            if contents and expected is not None and checksum(path) != expected:
                return f"{name} has other content than when it was saved"
        except OSError as error:
            return f"{name}: {error.strerror}"
    return None


def _step(folder: Path) -> int:
    suffix = folder.name.removeprefix("checkpoint-")
    return int(suffix) if suffix.isdigit() else -1


def kept_steps(checkpoints: Path) -> list[int]:
    """The steps of all whole checkpoints, in order."""
    return sorted(
        step for p in checkpoints.glob("checkpoint-*") if (step := _step(p)) >= 0 and p.is_dir() and fault(p) is None
    )


def newest_complete(checkpoints: Path, *, contents: bool = False) -> tuple[Path | None, dict[Path, str]]:
    """The newest whole checkpoint, and what is wrong with those that are newer than it.

    Args:
        checkpoints: folder of `checkpoint-N`s.
        contents: compare checksums too, reading whole checkpoints.
    """
    bad: dict[Path, str] = {}
    folders = [p for p in checkpoints.glob("checkpoint-*") if p.is_dir() and _step(p) >= 0]
    for folder in sorted(folders, key=_step, reverse=True):
        wrong = fault(folder, contents=contents)
        if wrong is None:
            return folder, bad
        bad[folder] = wrong
    return None, bad


def agreed(checkpoints: Path, accelerator: Any) -> Path | None:
    """The newest whole checkpoint, the same on all ranks. Collective.

    Raises:
        StateError: ranks see different ones, as on nodes that each have a disk of their own.
    """
    newest, _ = newest_complete(checkpoints)
    step = torch.tensor([-1 if newest is None else _step(newest)], device=accelerator.device)
    seen = accelerator.gather(step).tolist()
    if len(set(seen)) > 1:
        steps = ", ".join(f"{rank}: {'none' if step < 0 else step}" for rank, step in enumerate(seen))
        raise StateError(
            f"{checkpoints}: the processes see different newest checkpoints ({steps}); the run directory must be on a "
            "file system that all nodes share"
        )
    return newest


def remove(folder: Path) -> None:
    """Delete a checkpoint; its manifest goes first, so that a kill leaves a torn one, not a wrong one."""
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder)


def save_batch(output: Path, batches: Any, step: int, tokenizer: Any) -> Path:
    """Save the batch that met a non-finite number: tensors, and the texts readable. Returns the folder."""
    folder = output / f"diverged-{step}-rank{os.environ.get('RANK', '0')}"
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, batch in enumerate(batches or []):
        tensors = {k: v.detach().cpu().contiguous() for k, v in batch.items() if isinstance(v, torch.Tensor)}
        with replacing(folder / f"part-{number}.safetensors") as temporary:
            save_tensors(tensors, str(temporary))
        for prompt, completion in zip(batch["prompt_ids"], batch["completion_ids"], strict=True):
            rows.append({"prompt": tokenizer.decode(prompt), "completion": tokenizer.decode(completion)})
    write_json(folder / "texts.json", rows)
    return folder
