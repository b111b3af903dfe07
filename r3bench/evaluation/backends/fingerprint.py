"""Which weights answers come from: a hash that changes with every training step and costs next to nothing."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

HEAD = 64  # first numbers of every tensor that enter, in row-major order


def of_tensors(tensors: Iterable[tuple[str, Sequence[int], Any]]) -> str:
    """12 hex digits over (name, shape, head) of every tensor; head: its first `HEAD` numbers as a torch tensor."""
    import torch

    digest = hashlib.sha256()
    for name, shape, head in tensors:
        digest.update(f"{name}{tuple(shape)}".encode() + head.to("cpu", torch.float32).numpy().tobytes())
    return digest.hexdigest()[:12]


def of_model(model: Any) -> str:
    """The fingerprint of a model in memory."""
    state = sorted(model.state_dict().items())
    return of_tensors((name, tensor.shape, tensor.detach().flatten()[:HEAD]) for name, tensor in state)


def of_folder(name: str) -> str:
    """The fingerprint of a folder's safetensors files, read at the head of each tensor; of a hub id: of the id itself.

    Raises:
        safetensors.SafetensorError: a file is torn.
    """
    files = sorted(Path(name).glob("*.safetensors")) if Path(name).is_dir() else []
    if not files:
        return hashlib.sha256(name.encode()).hexdigest()[:12]
    return of_tensors(head for path in files for head in _heads(path))


def _heads(path: Path) -> Iterator[tuple[str, Sequence[int], Any]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        for name in sorted(file.keys()):
            tensor = file.get_slice(name)
            shape = tensor.get_shape()
            part = tensor[leading(shape)] if shape else file.get_tensor(name)
            yield name, shape, part.flatten()[:HEAD]


def leading(shape: Sequence[int]) -> tuple[slice, ...]:
    """The smallest block from the origin of an array of this shape that holds its first `HEAD` numbers."""
    ends, rest = [], HEAD
    for size in reversed(shape):
        ends.append(min(size, rest))
        rest = -(-rest // max(size, 1))
    return tuple(slice(0, end) for end in reversed(ends))
