"""Share of clipped tokens or answers by update, and whether a clip or cap ever bound."""

import pytest
from trainer_tools import arguments, questions

from r3bench import R3Trainer


def by_tokens(completion_ids, **_):
    return [float(sum(ids) % 2 == 0) for ids in completion_ids]


def run(model, folder, **changes):
    trainer = R3Trainer(
        model=model, reward_funcs=by_tokens, train_dataset=questions(6), args=arguments(folder, max_steps=6, **changes)
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize(
    ("changes", "name", "binds"),
    [
        ({"epsilon": 1e-3, "learning_rate": 3e-3}, "clip", True),
        ({"epsilon": 0.9, "epsilon_high": 50.0, "learning_rate": 1e-6}, "clip", False),
        ({"loss_type": "cispo", "epsilon_high": 1.001, "learning_rate": 3e-3}, "cap", True),
        ({"loss_type": "cispo", "epsilon_high": 50.0}, "cap", False),
        ({"importance_sampling_level": "sequence", "epsilon": 1e-5, "epsilon_high": 1e-5}, "clip", True),
    ],
)  # fmt: skip
def test_the_share_by_update_and_whether_it_ever_bound(tiny_model, tmp_path, changes, name, binds):
    trainer = run(tiny_model, tmp_path, num_iterations=2, logging_steps=1, **changes)
    found, metric = trainer.clipping.evidence, "cispo_clip_ratio" if name == "cap" else "clip_ratio/region_mean"
    lines = [line[metric] for line in trainer.state.log_history if metric in line]
    assert found.keys() == {f"{name}/share_update_1", f"{name}/share_update_2"}
    for update in (1, 2):
        shares = lines[update - 1 :: 2]
        assert found[f"{name}/share_update_{update}"] == pytest.approx(sum(shares) / len(shares), abs=1e-4)
    assert found[f"{name}/share_update_1"] == 0
    assert trainer.clipping.acted == {name: binds}


def test_one_update_a_batch_says_nothing_unless_the_cap_is_the_method(tiny_model, tmp_path):
    assert run(tiny_model, tmp_path / "1").clipping.acted == {}
    assert run(tiny_model, tmp_path / "2", loss_type="cispo", epsilon_high=2.0).clipping.acted == {"cap": False}
