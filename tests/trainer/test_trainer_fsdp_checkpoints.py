"""Which checkpoint training resumes from, and what is refused with a reason instead of starting afresh."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from trainer_tools import arguments, by_length, losses, questions
from trl import GRPOConfig, GRPOTrainer

from r3bench import R3Config, R3Trainer
from r3bench.errors import StateError
from r3bench.files import write_json
from r3bench.training import checkpoint
from r3bench.training.resume import check_resumable

SAVING = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1}


def trainer(model, folder, cls=R3Trainer, config=R3Config, **changes):
    args = arguments(folder, config, **{**SAVING, **changes})
    return cls(model=model, reward_funcs=by_length, train_dataset=questions(6), args=args)


@pytest.fixture(scope="module")
def whole(tiny_model, tmp_path_factory):
    run = trainer(tiny_model, tmp_path_factory.mktemp("whole"))
    run.train()
    return run


@pytest.fixture
def cut(whole, tmp_path):
    """A copy of the folder of a run that was killed while it wrote checkpoint 4."""
    shutil.copytree(whole.args.output_dir, tmp_path / "run")
    (tmp_path / "run" / "checkpoint-4" / checkpoint.MANIFEST).unlink()
    (tmp_path / "run" / "checkpoint-4" / "optimizer.pt").write_bytes(b"half")
    return tmp_path / "run"


def test_true_means_the_newest_whole_one(tiny_model, whole, cut):
    resumed = trainer(tiny_model, cut)
    resumed.train(resume_from_checkpoint=True)
    steps, expected = ([line for line in losses(run) if "loss" in line] for run in (resumed, whole))
    assert steps == expected and len(steps) == 4
    assert checkpoint.is_complete(cut / "checkpoint-4")


def test_a_torn_one_is_refused_by_name(tiny_model, cut):
    with pytest.raises(StateError) as caught:
        trainer(tiny_model, cut).train(resume_from_checkpoint=str(cut / "checkpoint-4"))
    assert str(caught.value) == (
        f"{cut / 'checkpoint-4'}: can't be resumed, no readable complete.json; the newest whole one there is "
        "checkpoint-3"
    )


def test_a_folder_with_nothing_whole(tiny_model, cut):
    for step in (1, 2, 3):
        shutil.rmtree(cut / f"checkpoint-{step}")
    for folder in (cut, cut / "nowhere"):
        with pytest.raises(StateError, match="has no whole checkpoint to resume from"):
            trainer(tiny_model, folder).train(resume_from_checkpoint=True)


def test_checkpoints_of_trls_own_trainer(tiny_model, tmp_path):
    stock = trainer(tiny_model, tmp_path / "run", GRPOTrainer, GRPOConfig)
    stock.train()
    shutil.rmtree(tmp_path / "run" / "checkpoint-4")
    resumed = trainer(tiny_model, tmp_path / "run")
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.log_history[:3] == stock.state.log_history[:3]
    assert resumed.state.global_step == 4


def test_weights_alone_are_refused(tiny_model, tmp_path):
    trainer(tiny_model, tmp_path, save_only_model=True, max_steps=1).train()
    with pytest.raises(
        StateError, match=r"checkpoint-1: holds weights without the optimizer's state \(saved with save_"
    ):
        trainer(tiny_model, tmp_path).train(resume_from_checkpoint=True)


def test_a_checkpoint_that_cuts_a_batch_is_warned_of(tiny_model, tmp_path):
    settings = {"max_steps": 3, "save_steps": 1, "num_iterations": 2}
    with pytest.warns(UserWarning, match="checkpoint-1 lies inside a sampled batch: resumed from it, training samples"):
        trainer(tiny_model, tmp_path, **settings).train()


def written_by(folder: Path, ranks: int, *files: str) -> Path:
    """A checkpoint's names, as the strategies leave them."""
    for name in (*files, "scheduler.pt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "r3bench").mkdir()
    write_json(folder / "r3bench" / "state.json", {"ranks": ranks, "state": {}})
    return folder


def training_with(strategy: str, ranks: int, kind: str = "FULL_STATE_DICT") -> SimpleNamespace:
    plugin = SimpleNamespace(state_dict_type=SimpleNamespace(name=kind))
    accelerator = SimpleNamespace(num_processes=ranks, state=SimpleNamespace(fsdp_plugin=plugin))
    return SimpleNamespace(
        accelerator=accelerator, is_fsdp_enabled=strategy == "FSDP", is_deepspeed_enabled=strategy == "DeepSpeed"
    )


FILES = {
    "DDP": ("model.safetensors", "optimizer.pt"),
    "FSDP": ("pytorch_model_fsdp.bin", "optimizer.bin"),
    "split FSDP": ("pytorch_model_fsdp_0/a.distcp", "optimizer_0/a.distcp"),
    "DeepSpeed": ("latest", "global_step4/optim_states.pt", "model.safetensors"),
}


@pytest.mark.parametrize("written", ["DDP", "FSDP", "DeepSpeed"])
@pytest.mark.parametrize("strategy", ["DDP", "FSDP", "DeepSpeed"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_strategy_stays(tmp_path, written, strategy, ranks):
    folder = written_by(tmp_path / "checkpoint-4", 2, *FILES[written])
    if written != strategy:
        with pytest.raises(StateError, match=rf"was written by {written} \(.*and this run trains with {strategy} \("):
            check_resumable(folder, training_with(strategy, ranks))
    elif strategy == "DeepSpeed" and ranks != 2:
        with pytest.raises(StateError, match=r"2 processes wrote it with DeepSpeed, .* got 3, expected 2"):
            check_resumable(folder, training_with(strategy, ranks))
    else:
        check_resumable(folder, training_with(strategy, ranks))


def test_the_kind_of_sharded_files_stays(tmp_path):
    split = written_by(tmp_path / "split", 2, *FILES["split FSDP"])
    full = written_by(tmp_path / "full", 2, *FILES["FSDP"])
    check_resumable(split, training_with("FSDP", 4, "SHARDED_STATE_DICT"))
    with pytest.raises(
        StateError, match="fsdp_state_dict_type SHARDED_STATE_DICT, got FULL_STATE_DICT, expected the sam"
    ):
        check_resumable(split, training_with("FSDP", 2))
    with pytest.raises(
        StateError, match="fsdp_state_dict_type FULL_STATE_DICT, got SHARDED_STATE_DICT, expected the sam"
    ):
        check_resumable(full, training_with("FSDP", 2, "SHARDED_STATE_DICT"))
