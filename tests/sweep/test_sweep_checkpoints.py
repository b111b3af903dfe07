"""Checkpoints that a disk or a clock corrupt, and weights that ran away: what a real training run makes of them."""

import os
import shutil
from types import SimpleNamespace

import pytest
import torch

from r3bench.config.load import load_recipe
from r3bench.errors import Diverged, StateError
from r3bench.files import read_json, write_json
from r3bench.records import RunPaths
from r3bench.sweep.attempts import classify
from r3bench.training.checkpoint import MANIFEST, agreed, fault, mark_complete, newest_complete
from r3bench.training.divergence import StopAtRunawayWeights
from r3bench.training.run import _remove_bad, train

SHORT = (
    "trainer.max_steps=6", "trainer.save_steps=2", "trainer.per_device_train_batch_size=8", "data.limit=4",
    "trainer.max_completion_length=8", "trainer.num_generations=4",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of six steps, with its checkpoints 4 and 6."""
    paths = RunPaths(tmp_path_factory.mktemp("trained"))
    train(load_recipe("quickstart", SHORT), paths, quiet=True)
    return paths


@pytest.fixture
def cut(trained, tmp_path):
    """The same run as if it had been killed before its end."""
    shutil.copytree(trained.root, tmp_path / "run")
    paths = RunPaths(tmp_path / "run")
    paths.train.unlink()
    shutil.rmtree(paths.model)
    return paths


def steps(paths):
    return sorted(int(p.name.split("-")[1]) for p in paths.checkpoints.glob("checkpoint-*"))


def same(paths, trained):
    records = [{**read_json(p.train), "train_seconds": 0, "notes": []} for p in (paths, trained)]
    for record in records:
        del record["digest"], record["files"]  # they are over seconds and folders, too
    weights = [(p.model / "model.safetensors").read_bytes() for p in (paths, trained)]
    return records[0] == records[1] and weights[0] == weights[1]


def flip(file):
    """Another byte in the middle; size and time stay."""
    about, content = file.stat(), bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))


def test_a_spoilt_checkpoint_is_left_for_the_one_before(cut, trained, capfd):
    flip(cut.checkpoints / "checkpoint-6" / "model.safetensors")
    record = train(load_recipe("quickstart", SHORT), cut, quiet=True)
    assert record.notes == [
        "checkpoint-6 was corrupt (model.safetensors has other content than when it was saved); resumed from "
        "checkpoint-4"
    ]
    assert "checkpoint-6: left out" in capfd.readouterr().err
    assert same(cut, trained) and steps(cut) == [4, 6] and fault(cut.checkpoints / "checkpoint-6") is None


@pytest.mark.slow
def test_without_any_whole_checkpoint_training_starts_again(cut, trained):
    for step in steps(cut):
        flip(cut.checkpoints / f"checkpoint-{step}" / "model.safetensors")
    record = train(load_recipe("quickstart", SHORT), cut, quiet=True)
    assert [note.rpartition("; ")[2] for note in record.notes] == ["resumed from the start"] * 2
    assert same(cut, trained)


def test_every_file_of_a_checkpoint_is_looked_at(cut):
    folder = cut.checkpoints / "checkpoint-6"
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    assert {"optimizer.pt", "rng_state.pth", "r3bench/state.json"} < set(names)
    for name in names:
        whole = (folder / name).read_bytes()
        flip(folder / name)
        assert newest_complete(cut.checkpoints, contents=True)[0].name == "checkpoint-4", name
        (folder / name).write_bytes(whole)
    assert newest_complete(cut.checkpoints, contents=True) == (folder, {})


def test_a_checkpoint_cut_short_by_a_kill_is_no_note(cut):
    (cut.checkpoints / "checkpoint-6" / MANIFEST).unlink()
    _remove_bad(cut)
    assert steps(cut) == [4] and not (cut.root / "notes.jsonl").exists()


def test_a_manifest_of_sizes_alone_is_still_read(cut):
    manifest = cut.checkpoints / "checkpoint-6" / MANIFEST
    files = read_json(manifest)["files"]
    assert {"bytes", "crc32"} == set(files["model.safetensors"])
    write_json(manifest, {"files": {name: entry["bytes"] for name, entry in files.items()}})
    assert fault(manifest.parent) is None
    with open(manifest.parent / "model.safetensors", "ab") as file:
        file.write(b"x")
    assert "another size" in fault(manifest.parent)


@pytest.mark.parametrize("text", ["{", "[]", '{"files": 3}', '{"files": {"a": "b"}}', '{"files": {"a": [1]}}'])
def test_a_foreign_manifest_is_a_torn_checkpoint(tmp_path, text):
    (tmp_path / "a").write_text("x")
    (tmp_path / MANIFEST).write_text(text)
    assert fault(tmp_path) is not None
    mark_complete(tmp_path)
    assert fault(tmp_path) is None


def test_the_newest_checkpoints_are_kept_by_step_when_the_clock_was_set_back(cut, trained):
    shutil.rmtree(cut.checkpoints / "checkpoint-6")
    for path in [cut.checkpoints / "checkpoint-4", *(cut.checkpoints / "checkpoint-4").rglob("*")]:
        os.utime(path, (4e9, 4e9))
    longer = [*SHORT, "trainer.max_steps=10"]
    train(load_recipe("quickstart", longer), cut, quiet=True)
    assert steps(cut) == [8, 10]


def test_a_checkpoint_that_would_leave_less_than_the_floor_is_not_written(tmp_path, monkeypatch):
    """The run stops with the numbers, and goes on when there is space."""
    recipe, paths = load_recipe("quickstart", SHORT), RunPaths(tmp_path)
    with pytest.raises(OSError, match=r"checkpoint needs about 0\.00 GB and 1e\+06 GB are to stay free") as caught:
        train(recipe, paths, quiet=True, disk_floor_gb=1e6)
    assert classify(caught.value).kind == "disk" and not list(paths.checkpoints.glob("checkpoint-*"))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(OSError, match=r"needs about 0\.00 GB, 0\.00 GB are free"):
        train(recipe, paths, quiet=True)
    monkeypatch.undo()
    assert train(recipe, paths, quiet=True, disk_floor_gb=0.01).outcome == "finished"


@pytest.mark.parametrize("rate", ["1e30", pytest.param("1e5", marks=pytest.mark.slow)])
def test_weights_that_run_away_are_a_diverged_run(tmp_path, rate):
    """Every number would stay finite, and loss and gradient be 0 from then on."""
    recipe = load_recipe("quickstart", [*SHORT, f"trainer.learning_rate={rate}"])
    record = train(recipe, RunPaths(tmp_path), quiet=True)
    assert record.outcome == "diverged" and "a weight is" in record.reason and record.steps < 6
    assert not (tmp_path / "model").exists()


def watched(*parameters):
    """A watch over the weights of a model that has these parameters."""
    accelerator = SimpleNamespace(device=torch.device("cpu"), gather=lambda value: value)
    model = SimpleNamespace(parameters=lambda: parameters)
    return StopAtRunawayWeights(SimpleNamespace(accelerator=accelerator, model=model)), model


def test_a_weight_that_is_not_finite_is_a_diverged_run():
    weights = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))]
    watch, model = watched(*weights)
    state = SimpleNamespace(global_step=1)
    watch.on_step_end(None, state, None, model)
    for value in (float("nan"), float("-inf"), -1001.0):
        with torch.no_grad():
            weights[1][1] = value
        with pytest.raises(Diverged, match="step 1: a weight is"):
            watch.on_step_end(None, state, None, model)


def test_what_fills_up_a_share_of_a_split_weight_is_no_weight(monkeypatch):
    """ZeRO 3 cuts 5 numbers into shares of 3; the last number of the second share is memory as it was found."""
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group: 1)
    share = torch.tensor([1.0, 2.0, float("nan")])
    split = SimpleNamespace(requires_grad=True, ds_tensor=share, ds_numel=5, ds_process_group="its group")
    watch, model = watched(split)
    watch.on_step_end(None, SimpleNamespace(global_step=1), None, model)
    share[1] = float("nan")
    with pytest.raises(Diverged):
        watch.on_step_end(None, SimpleNamespace(global_step=1), None, model)


def test_ranks_that_see_different_checkpoints_are_told(cut):
    """As on nodes with disks of their own; they would train on different steps, or wait for each other for ever."""

    def of_ranks(*steps):
        return SimpleNamespace(device="cpu", gather=lambda own: torch.tensor(steps))

    assert agreed(cut.checkpoints, of_ranks(6, 6)).name == "checkpoint-6"
    with pytest.raises(StateError, match=r"different newest checkpoints \(0: 6, 1: none\); .* that all nodes share"):
        agreed(cut.checkpoints, of_ranks(6, -1))


@pytest.mark.slow
def test_a_rate_far_too_high_that_leaves_usable_weights_is_a_finished_run(tmp_path):
    record = train(load_recipe("quickstart", [*SHORT, "trainer.learning_rate=0.1"]), RunPaths(tmp_path), quiet=True)
    assert record.outcome == "finished" and record.steps == 6
