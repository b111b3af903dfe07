"""What of a mixed batch the loss gets to see from update to update: masked tokens, weights, off-policy mask, KL."""

import itertools
import math
from unittest import mock

import numpy as np
import pytest
import torch
from component_tools import NAN  # noqa: F401  (puts tests/reference on the path)
from recording import PADDING, record
from reference_loss import constants
from trainer_tools import questions
from transformers import AutoModelForCausalLM

from r3bench.training.step import loss_inputs, mixing
from r3bench.training.step.loss_inputs import SHAPED_KEY, settle, shaped_weight

ENDING = {"generation_kwargs": {"sequence_bias": [[[2], 3.5]]}}  # about half of the answers end before the cap


def turning(completion_ids, question_id, trainer_state, **_):
    """In the first epoch one of four answers is right; later none is."""
    first = trainer_state.epoch is None or trainer_state.epoch < 1
    return [float(first and i % 4 == 0) for i in range(len(question_id))]


def some_right(completion_ids, **_):
    return [float(sum(ids) % 3 == 0) for ids in completion_ids]


def finite(trainer):
    return all(math.isfinite(v) for line in trainer.state.log_history for v in line.values() if isinstance(v, float))


def odd_solutions(rows):
    """Questions whose worked solutions no policy would write."""
    texts = ["~^~^~ {}}{ @@@ |||| ~^~ ;;;; %%% ~~~~ ^^^^ ??? !!!" for _ in range(rows)]
    return questions(rows).add_column("solution", texts)


GIVEN = {
    "retrospective": {
        "source": "canonical",
        "value": "random",
        "share": 0.5,
        "retire": 0.9,
        "cuts": "grid",
        "spacing": 2,
    }
}


@pytest.mark.parametrize("prefix_loss", [False, True])
def test_improbable_given_tokens_and_padding_rows_leave_the_loss_finite(tiny_model, tmp_path, prefix_loss):
    """At a low temperature given tokens have log-probs below -88, whose exponential float32 can't hold."""
    components = {"retrospective": {**GIVEN["retrospective"], "prefix_loss": prefix_loss}, "replay": {"warmup": 0.0}}
    lowest = []

    def watch(trainer):
        trainer.train_dataset = odd_solutions(6)
        forward = type(trainer)._forward

        def noting(self, model, *args, **kwargs):
            found = forward(self, model, *args, **kwargs)
            lowest.append(float(found[0].min()))
            return found

        trainer._forward = noting.__get__(trainer)

    trainer = record(
        tiny_model, tmp_path, components, turning, steps=16, prepare=watch, temperature=0.03,
        per_device_train_batch_size=4, gradient_accumulation_steps=2, num_iterations=2, learning_rate=1e-3,
        loss_type="grpo",
    )  # fmt: skip

    assert trainer.evidence["retrospective/groups"] > 0 and min(lowest) < -88
    assert finite(trainer)
    padded = [part for batch in trainer.batches for part in batch.parts if (part["r3_row"] == PADDING).any()]
    for part in padded:
        padding = part["r3_row"] == PADDING
        assert not part["old_per_token_logps"][padding].any(), "a masked row has no log-probs"
    assert padded


def test_masked_tokens_without_settling_are_no_number():
    """What the loss would compute of a given token whose log-prob rose by 100: the guard is what stands against it."""
    given = {
        "completion_mask": torch.ones(1, 2),
        "tool_mask": torch.tensor([[0.0, 1.0]]),
        "advantages": torch.tensor([-1.0]),
        "old_per_token_logps": torch.tensor([[-120.0, -1.0]]),
        "ref_per_token_logps": torch.tensor([[-1.0, -1.0]]),
    }
    logps = torch.tensor([[-20.0, -1.0]], requires_grad=True)

    def clipped(inputs, now):
        ratio = torch.exp(now - inputs["old_per_token_logps"])
        gain = torch.min(ratio * inputs["advantages"], ratio.clamp(0.8, 1.2) * inputs["advantages"])
        return -(gain * inputs["tool_mask"]).sum()

    assert torch.isnan(clipped(given, logps))
    copy = dict(given)
    value = clipped(copy, settle(copy, logps))
    value.backward()
    assert float(value.detach()) == pytest.approx(1.0) and logps.grad.tolist() == [[0.0, 1.0]]
    assert given["old_per_token_logps"][0, 0] == -120.0, "the buffered batch stays as it was"


@pytest.mark.parametrize("mode", ["append", "replace"])
@pytest.mark.parametrize("name", ["replay", "rescue", "exgrpo", "repo", "reflection"])
def test_truncated_answers_stay_out_of_the_loss_when_they_are_masked(tiny_model, tmp_path, name, mode):
    """With mask_truncated_completions no historic row may be one that hit the cap, right or wrong."""
    settings = {
        "replay": {"mode": mode, "rows": 2, "truncated_negatives": True}, "rescue": {}, "exgrpo": {"start": 0.0},
        "repo": {"window": 4, "min_stored": 2, "rows": 2},
        "reflection": {"gradient": "reattach", "template": "short", "max_share": 1.0, "threshold": 1.0},
    }[name]  # fmt: skip
    if mode == "replace" and name != "replay":
        pytest.skip("has one way only")

    def reward(completion_ids, question_id, trainer_state, **_):
        rewards = turning(completion_ids, question_id, trainer_state)
        if name == "exgrpo":
            return [float(i % 2 == 0) for i in range(len(question_id))]
        if name == "reflection":  # the added groups come last
            return [float(i >= 8 and i % 2 == 0) for i in range(len(question_id))]
        return rewards

    counts = {}
    for masked in (False, True):
        changes = {"mask_truncated_completions": masked, "steps": 12, **ENDING}
        trainer = record(tiny_model, tmp_path / str(masked), {name: settings}, reward, **changes)
        rows = [row for batch in trainer.batches for row in batch.rows if row.number < 0]
        counts[masked] = sum(row.completion[-1] not in (0, 2) for row in rows), len(rows)
    assert counts[False][0] > 0, "no truncated row would have been replayed anyway"
    assert counts[True][0] == 0 < counts[True][1]


WEIGHTS = list(itertools.product(("decoupled", "ppo", "shaped", "none"), (False, True)))


@pytest.mark.parametrize(
    ("weight", "twice"),
    [w if n in (0, 3, 5) else pytest.param(*w, marks=pytest.mark.slow) for n, w in enumerate(WEIGHTS)],
)
def test_the_off_policy_mask_sees_the_behaviour_policy_of_replayed_rows(tiny_model, tmp_path, weight, twice):
    """Mean of log pi_b - log pi over a replayed row's tokens, as the mask gets it, against the recorded weights."""
    seen = []

    def alternating(completion_ids, trainer_state, **_):  # so that failures are replayed, too
        return [float(int((trainer_state.epoch or 0) + 1e-6) % 2)] * len(completion_ids)

    def watch(trainer):
        plain = trainer.get_off_policy_mask

        def noting(**kwargs):
            keep = plain(**kwargs)
            gap = torch.nan_to_num(kwargs["sampling_per_token_logps"] - kwargs["per_token_logps"].detach())
            mask = kwargs["mask"]
            seen.append(((gap * mask).sum(1) / mask.sum(1).clamp(min=1), keep, kwargs["advantages"]))
            return keep

        trainer.get_off_policy_mask = noting

    components = {"replay": {"weight": weight, "rows": 1, "truncated_negatives": True}}
    changes = {"off_policy_mask_threshold": 1e-4, "learning_rate": 3e-3, "steps": 24, "num_iterations": 1 + twice}
    trainer = record(tiny_model, tmp_path, components, alternating, prepare=watch, **changes)
    model = AutoModelForCausalLM.from_config(trainer.model.config, dtype=torch.float32).eval()
    stored = {}  # (prompt, completion) -> log-probs when it was sampled
    compared = dropped = 0
    updates = iter(seen)
    for batch in trainer.batches:
        model.load_state_dict(batch.weights)
        for number in range(len(batch.steps)):
            gaps, keep, advantages = next(updates)
            if number or not any(row.number < 0 for row in batch.rows):
                continue  # later updates: the policy has moved, so has everything
            where = [i for i, row in enumerate(batch.parts[0]["r3_row"].tolist()) if row < 0]
            rows = [row for row in batch.rows if row.number < 0]
            for place in where:
                ids = batch.parts[0]["completion_ids"][place][batch.parts[0]["completion_mask"][place] > 0].tolist()
                row = next(row for row in rows if row.completion == ids)
                now = constants(model, [(row.prompt, row.completion)])[0][0]
                want = [np.mean(old - now) for old in stored[tuple(row.prompt), tuple(row.completion)]]
                assert min(abs(float(gaps[place]) - w) for w in want) < 1e-4
                compared += 1
                if max(map(float, advantages[place])) < 0 or min(map(float, advantages[place])) < 0:
                    dropped += bool((keep[place] == 0).any())
                    assert bool((keep[place] == 0).any()) == (float(gaps[place]) > 1e-4)
        for rows in batch.rounds:
            for row, old in zip(rows, constants(model, [(r.prompt, r.completion) for r in rows])[0], strict=True):
                stored.setdefault((tuple(row.prompt), row.text), []).append(old)
    assert compared > 2 and dropped > 0


def test_a_shaped_weight_has_its_limits_and_follows_the_policy():
    ratio = torch.tensor([0.0, 1e-30, 0.1, 1.0, 50.0, math.inf, math.nan], dtype=torch.float64)
    want = [0.0, 1e-29, 0.25, 0.1 / 1.21, 5.0 / 50.1**2, 0.0, 1.0]
    assert shaped_weight(ratio).tolist() == pytest.approx(want)
    assert mixing.policy_weight(ratio.numpy(), "shaped", (0.0, 2.0)).tolist() == pytest.approx(want)
    inputs = {
        "completion_mask": torch.ones(1, 2), "advantages": torch.tensor([[0.5, 0.5]]),
        SHAPED_KEY: torch.tensor([[2.0, math.nan]]), "r3_behaviour": torch.tensor([[-1.0, 0.0]]),
        "r3_free": torch.tensor([[1.0, 0.0]]), "old_per_token_logps": torch.tensor([[-3.0, -4.0]]),
    }  # fmt: skip
    settle(inputs, torch.tensor([[-2.0, -3.5]]))
    x = math.exp(-1.0)
    assert inputs["advantages"].tolist() == [pytest.approx([2.0 * 0.1 * x / (x + 0.1) ** 2, 0.5])]
    assert inputs["old_per_token_logps"].tolist() == [[-2.0, -4.0]]


def test_the_batch_keeps_what_settling_changes_only_where_there_is_something_to_settle(tiny_model, tmp_path):
    """All-off and single-update runs never come near it: the loss is TRL's, on TRL's dictionary."""
    with mock.patch.object(loss_inputs, "settle", side_effect=AssertionError):
        trainer = record(tiny_model, tmp_path, {"replay": {"weight": "shaped"}}, turning, steps=6)
    assert trainer.evidence["replay/rows"] > 0
    assert not any(key.startswith("r3_") for batch in trainer.batches for part in batch.parts for key in part
                   if key not in ("r3_row", "r3_loss_scale"))  # fmt: skip
