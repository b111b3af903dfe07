"""A quota or a size limit that no look at free space foresees: an outcome of the machine that names a place."""

import dataclasses
import errno
import resource

import pytest
import torch
from safetensors.torch import save_file
from toy import TOY

from r3bench.config.load import parse_recipe
from r3bench.files import no_room, write_bytes
from r3bench.records import RunPaths
from r3bench.sweep.attempts import classify
from r3bench.sweep.cell_run import run_cell

LIMIT = 50_000  # bytes of a file; what is written is larger


@pytest.fixture
def small_files():
    """The kernel refuses to let any file of this process grow beyond LIMIT."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


WEIGHTS = {"w": torch.zeros(LIMIT)}
WRITERS = {
    "safetensors": lambda path: save_file(WEIGHTS, path),
    "torch": lambda path: torch.save(WEIGHTS, path),
    "ours": lambda path: write_bytes(path, b"x" * 2 * LIMIT),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_of_a_checkpoint_is_understood(tmp_path, small_files, writer):
    with pytest.raises(Exception) as caught:
        WRITERS[writer](tmp_path / "file")
    assert no_room(caught.value) and classify(caught.value).kind == "disk"
    if writer == "ours":
        assert caught.value.filename == str(tmp_path / "file") and not list(tmp_path.iterdir())


@pytest.mark.parametrize("writer", ["safetensors", "torch"])
def test_a_run_that_meets_it_names_its_folder(home, small_files, writer):
    def train(recipe, paths, quiet=False):
        WRITERS[writer](paths.root / "file")

    recipe = parse_recipe({"name": "r"}, "r.yaml")
    with pytest.raises(OSError) as caught:
        run_cell(recipe, home / "run", steps=dataclasses.replace(TOY, train=train))
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(home / "run"))
    assert "a quota may be full" in caught.value.strerror
    assert not RunPaths(home / "run").train.exists()


def test_other_errors_stay_what_they_are(home):
    def train(recipe, paths, quiet=False):
        raise RuntimeError("unexpected pos of a comma")

    with pytest.raises(RuntimeError, match="comma"):
        run_cell(parse_recipe({"name": "r"}, "r.yaml"), home / "run", steps=dataclasses.replace(TOY, train=train))
    assert classify(RuntimeError("unexpected pos of a comma")).kind == "bug"
    assert classify(OSError(errno.EDQUOT, "Disk quota exceeded")).kind == "disk"
