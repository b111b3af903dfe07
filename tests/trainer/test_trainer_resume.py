"""A run cut at any checkpoint and resumed ends as one that was never cut: weights, log and history."""

import json
import shutil

import pytest
import torch
from trainer_tools import Recorder, arguments, losses, questions

from r3bench import R3Trainer
from r3bench.files import append_jsonl, read_jsonl
from r3bench.training import checkpoint

STEPS = 8  # of 3 per epoch: resumes fall into the first, second and third epoch


def often_collapsed(completion_ids, question_id, trainer_state, **_):
    """Whole groups right or wrong, by question and epoch, so that replay acts; some groups mixed."""
    epoch = int(trainer_state.epoch or 0)
    rewards = []
    for ids, question in zip(completion_ids, question_id, strict=True):
        number = int(question[1:])
        rewards.append(float(sum(ids) % 2 == 0) if number == 0 else float((number + epoch) % 2))
    return rewards


SETTINGS = {
    "off": {},
    "replay_append": {"components": {"replay": {"rows": 1, "truncated_negatives": True}}},
    "replay_replace": {"components": {"replay": {"rows": 2, "mode": "replace", "truncated_negatives": True}}},
    "two_iterations": {
        "num_iterations": 2, "save_steps": 2,
        "components": {"replay": {"rows": 1, "mode": "replace", "truncated_negatives": True, "weight": "ppo"}},
    },
}  # fmt: skip


def build(model, folder, settings):
    values = {"max_steps": STEPS, "save_strategy": "steps", "save_steps": 1, **settings}
    return R3Trainer(
        model=model,
        reward_funcs=Recorder(often_collapsed),
        args=arguments(folder, **values),
        train_dataset=questions(6),
    )


OFTEN = (
    "replay_replace",
    "two_iterations",
)  # the others in the slow tests


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in SETTINGS]
)
def test_resumed_equals_uninterrupted(tiny_model, tmp_path, name):
    whole = build(tiny_model, tmp_path / "whole", SETTINGS[name])
    whole.train()
    expected = losses(whole)
    if name != "off":
        assert whole.evidence["replay/rows"] > 0
    every = SETTINGS[name].get("save_steps", 1)
    for step in range(every, STEPS, every * 2):
        cut = build(tiny_model, tmp_path / f"cut-{step}", SETTINGS[name])
        shutil.copytree(tmp_path / "whole" / f"checkpoint-{step}", tmp_path / f"cut-{step}" / f"checkpoint-{step}")
        cut.train(resume_from_checkpoint=str(tmp_path / f"cut-{step}" / f"checkpoint-{step}"))
        assert losses(cut)[:-1] == expected[:-1], step  # the last line is the mean over this call's steps
        weights = whole.model.state_dict()
        assert all(torch.equal(value, weights[key]) for key, value in cut.model.state_dict().items()), step
        assert cut.history.digest() == whole.history.digest()
        assert cut.evidence == whole.evidence
        assert cut.generated_tokens == whole.generated_tokens


def test_newest_complete_checkpoint_skips_torn_ones(tiny_model, tmp_path):
    build(tiny_model, tmp_path, SETTINGS["replay_append"]).train()
    assert checkpoint.newest_complete(tmp_path)[0].name == "checkpoint-8"
    weights = tmp_path / "checkpoint-8" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    (tmp_path / "checkpoint-7" / checkpoint.MANIFEST).unlink()
    (tmp_path / "checkpoint-6" / checkpoint.MANIFEST).write_text("{")
    newest, torn = checkpoint.newest_complete(tmp_path)
    assert newest.name == "checkpoint-5"
    assert [folder.name for folder in torn] == ["checkpoint-8", "checkpoint-7", "checkpoint-6"]


def test_old_checkpoints_go_only_after_the_new_one_is_whole(tiny_model, tmp_path):
    trainer = build(tiny_model, tmp_path, {"save_total_limit": 1})
    present = []
    mark = checkpoint.mark_complete

    def watching(folder):
        present.append(sorted(p.name for p in tmp_path.glob("checkpoint-*") if checkpoint.is_complete(p)))
        mark(folder)

    checkpoint.mark_complete = watching
    try:
        trainer.train()
    finally:
        checkpoint.mark_complete = mark
    assert present[1:] == [[f"checkpoint-{step}"] for step in range(1, STEPS)]
    assert [p.name for p in tmp_path.glob("checkpoint-*")] == [f"checkpoint-{STEPS}"]


def test_checkpoint_state_is_plain_files(tiny_model, tmp_path):
    build(tiny_model, tmp_path, SETTINGS["replay_append"]).train()
    own = tmp_path / "checkpoint-8" / "r3bench"
    assert sorted(p.name for p in own.iterdir()) == [
        "arrays.safetensors", "history-0.json", "history-0.safetensors", "state.json",
    ]  # fmt: skip
    assert json.loads((own / "state.json").read_text())["ranks"] == 1


def test_what_was_just_saved_stays_beside_an_older_runs_higher_steps(tiny_model, tmp_path):
    for step in (90, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
    build(tiny_model, tmp_path, {"max_steps": 2, "save_steps": 2, "save_total_limit": 2}).train()
    assert checkpoint.is_complete(tmp_path / "checkpoint-2")
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-100", "checkpoint-2"]


def test_a_log_line_without_a_step_does_not_stop_a_run(tmp_path, capsys):
    from r3bench.training.callbacks import MetricsFile

    path = tmp_path / "metrics.jsonl"
    append_jsonl(path, {"step": 1, "elapsed": 2.0})
    with open(path, "a") as file:
        file.write('{"loss": 1}\n{"step": "x", "elapsed": 1}\n[]\n{"step": 2')
    metrics = MetricsFile(path, 5, None)
    assert metrics.elapsed >= 2.0 and read_jsonl(path) == [{"step": 1, "elapsed": 2.0}]
    assert f"{path}: 4 lines left out" in capsys.readouterr().err
