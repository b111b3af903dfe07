"""Runs with components cut at a checkpoint and resumed end as ones that were never cut; states, critic and history."""

import shutil

import numpy as np
import pytest
import torch
from train_tools import batch_rows, groups_of, grpo, question_of
from trainer_tools import arguments, losses, questions, spy_on

from r3bench import R3Trainer

STEPS = 8  # of 3 per epoch


def now_and_then(completion_ids, question_id, trainer_state, **_):
    """Right by the row's tokens, but for one question in three that never is: mixed groups and hopeless ones."""
    return [
        float(int(question[1:]) % 3 > 0 and sum(ids) % 3 == 0)
        for ids, question in zip(completion_ids, question_id, strict=True)
    ]


RETRO = {"cuts": "grid", "spacing": 2, "quantile": 0.0, "share": 0.5, "retire": 1.0, "gate_auc": 0.0}
CASES = {
    "critic": ({"retrospective": RETRO}, "retrospective/groups"),
    "monte_carlo": ({"retrospective": {**RETRO, "value": "monte_carlo"}}, "retrospective/groups"),
    "exgrpo": ({"exgrpo": {"share": 0.5, "start": 0.0}}, "exgrpo/rows"),
    "critic and resampling": ({"retrospective": RETRO, "dynamic_sampling": True}, "dynamic_sampling/groups_dead"),
}


EOS = 2


class ShortThenLong(spy_on(R3Trainer)):
    """Answers of a batch end after six tokens, those sampled again run to the cap: the tensors differ in width."""

    sampled = -1

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        completions, logprobs = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        if self.sampled < len(self.records):
            self.sampled = len(self.records)
            completions = [[*list(ids)[:5], EOS] for ids in completions]
        return completions, logprobs


def build(model, folder, components, cls=None):
    return (cls or spy_on(R3Trainer))(
        model=model, reward_funcs=now_and_then, train_dataset=questions(6),
        args=arguments(folder, components=components, max_steps=STEPS, save_strategy="steps", save_steps=1),
    )  # fmt: skip


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return np.array_equal(np.asarray(one, dtype=object), np.asarray(other, dtype=object))


SLOW = ("monte_carlo", "critic and resampling")  # what they add is tried below, and on several ranks


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in CASES]
)
def test_resumed_equals_uninterrupted(tiny_model, tmp_path, name):
    components, evidence = CASES[name]
    whole = build(tiny_model, tmp_path / "whole", components)
    whole.train()
    assert whole.evidence[evidence] > 0
    states = [component.state_dict() for component in whole.components]
    expected, weights = losses(whole), whole.model.state_dict()
    for step in (2, 5):
        cut = build(tiny_model, tmp_path / f"cut-{step}", components)
        checkpoint = tmp_path / f"cut-{step}" / f"checkpoint-{step}"
        shutil.copytree(tmp_path / "whole" / f"checkpoint-{step}", checkpoint)
        cut.train(resume_from_checkpoint=str(checkpoint))
        assert losses(cut)[:-1] == expected[:-1], step  # the last line is the mean over this call's steps
        assert all(torch.equal(value, weights[key]) for key, value in cut.model.state_dict().items()), step
        assert cut.evidence == whole.evidence
        assert cut.generated_tokens == whole.generated_tokens
        assert cut.history.digest() == whole.history.digest()
        for one, other in zip(cut.components, states, strict=True):
            assert same(one.state_dict(), other), step


@pytest.mark.parametrize("cls", [None, ShortThenLong])
def test_continuations_and_resampled_groups_share_a_batch(tiny_model, tmp_path, cls):
    trainer = build(tiny_model, tmp_path, CASES["critic and resampling"][0], cls)
    trainer.train()
    both = 0
    for record in trainer.records:
        given = [[row["mask"].count(0) for row in group] for group in groups_of(record)]
        assert all(len(set(places)) == 1 for places in given)
        of_data = [row["question_id"] for row in record["rows"][::4]]
        swapped = [question_of(trainer, group[0]) != q for group, q in zip(groups_of(record), of_data, strict=True)]
        both += any(places[0] for places in given) and any(s and not g[0] for s, g in zip(swapped, given, strict=True))
        for group, places in zip(groups_of(record), given, strict=True):
            number = int(question_of(trainer, group[0])[1:])
            right = [float(number % 3 > 0 and sum(row["completion"]) % 3 == 0) for row in group]
            sampled = [row["advantages"][-1] for row in group]
            if places[0] or 0 < sum(right) < 4:
                np.testing.assert_allclose(sampled, grpo(right), atol=1e-5)
            else:
                assert sampled == [0.0] * 4
            assert all(row["mask"][places[0] :] == [1] * (len(row["completion"]) - places[0]) for row in group)
    assert both > 0, "no batch held a continuation and a group that was sampled again"
    lengths = {len(row["completion"]) for record in trainer.records for row in batch_rows(record)}
    assert cls is None or lengths >= {6, 8}
