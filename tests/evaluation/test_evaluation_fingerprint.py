"""Weights are told apart by the head of every tensor, wherever it stands in a file."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from r3bench.evaluation.backends.fingerprint import HEAD, leading, of_folder, of_tensors


def write(folder, **changes):
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "a.large": torch.randn(600, 1000, generator=generator),  # the next is beyond the first megabyte
        "b.last": torch.randn(300, 70, generator=generator).to(torch.bfloat16),
        "c.scalar": torch.tensor(1.0),
    }
    for name, change in changes.items():
        change(tensors[name.replace("_", ".")])
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    return tensors


def test_a_change_anywhere_in_the_file_is_seen(tmp_path):
    write(tmp_path / "a")
    write(tmp_path / "b", b_last=lambda t: t[0, 3].add_(1))
    write(tmp_path / "c", c_scalar=lambda t: t.add_(1))
    write(tmp_path / "same")
    found = [of_folder(str(tmp_path / name)) for name in ("a", "b", "c", "same")]
    assert len(set(found)) == 3 and found[0] == found[3]


def test_a_folder_has_the_fingerprint_of_its_tensors(tmp_path):
    tensors = write(tmp_path / "a")
    whole = of_tensors((name, t.shape, t.flatten()[:HEAD]) for name, t in sorted(tensors.items()))
    assert of_folder(str(tmp_path / "a")) == whole


def test_a_hub_id_is_its_name(tmp_path):
    assert of_folder("org/a") != of_folder("org/b")


@pytest.mark.parametrize(
    "shape", [(), (5,), (100,), (3, 70), (9, 10), (2, 3, 5), (4, 5, 6, 7), (2, 2, 200), (0, 4), (70, 1)]
)
def test_the_leading_block_holds_the_first_numbers_and_few_more(shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    block = array[leading(shape)]
    assert block.flatten()[:HEAD].tolist() == array.flatten()[:HEAD].tolist()
    assert block.size < HEAD + np.prod(shape[1:], dtype=int) + 1 and block.size <= 2 * HEAD
