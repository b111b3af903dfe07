"""Loss and gradient of every component and mode through `train()`, against references written from the equations."""

from unittest import mock

import numpy as np
import pytest
import torch
from recording import record
from step_check import StepCheck  # puts tests/reference on the path
from torch_critic import TorchCritic

from r3bench.training.toolkit.critic import ValueHead

FRESH = 8  # rows of the data set's own groups in a batch


def by_tokens(completion_ids, **_):
    return [float(sum(ids) % 2 == 0) for ids in completion_ids]


def all_wrong(completion_ids, **_):
    return [0.0] * len(completion_ids)


def only_planned(completion_ids, **_):
    """Answers to the data set's own prompts are wrong, those of added groups partly right."""
    return [float(i >= FRESH and sum(ids) % 2 == 0) for i, ids in enumerate(completion_ids)]


def rarely(completion_ids, **_):
    return [float(sum(ids) % 5 == 0) for ids in completion_ids]


def turning(completion_ids, question_id, trainer_state, **_):
    """In the first epoch one of four answers is right; later none is."""
    first = trainer_state.epoch is None or trainer_state.epoch < 1
    return [float(first and i % 4 == 0) for i in range(len(question_id))]


def turning_some(completion_ids, question_id, trainer_state, **_):
    """As `turning`, but only every other question is ever solved: batches with one mixed group and with two."""
    solved = turning(completion_ids, question_id, trainer_state)
    return [r * (q in ("q0", "q2", "q4")) for r, q in zip(solved, question_id, strict=True)]


def alternating(completion_ids, trainer_state, **_):
    """All wrong in even epochs, all right in odd ones."""
    return [float(int((trainer_state.epoch or 0) + 1e-6) % 2)] * len(completion_ids)


def half_solved(completion_ids, question_id, **_):
    return [float(q != "q0" and (q == "q1" or i % 2 == 0)) for i, q in enumerate(question_id)]


def some_alive(completion_ids, question_id, **_):
    return [float(q in {"q1", "q4", "q7", "q9"} and i % 2 == 0) for i, q in enumerate(question_id)]


def unsteady(completion_ids, question_id, trainer_state, **_):
    """q0 to q3 never right; q4 to q7 all right in even epochs and all wrong in odd ones; the rest by their tokens."""
    even = int((trainer_state.epoch or 0) + 1e-6) % 2 == 0
    return [
        float((4 <= int(q[1:]) < 8 and even) or (int(q[1:]) >= 8 and sum(ids) % 2 == 0))
        for q, ids in zip(question_id, completion_ids, strict=True)
    ]


REFLECT = {"template": "short", "context": "full", "max_share": 1.0, "threshold": 1.0}
RANK = {"peak_fraction": 0.25}
RETRO = {"cuts": "grid", "spacing": 2, "quantile": 0.0, "share": 0.5, "retire": 0.9, "gate_auc": 0.0}

ENDING = {"generation_kwargs": {"sequence_bias": [[[2], 3.5]]}}  # about half of the answers end before the cap


def ranked(**settings):
    return {"ranking": {**RANK, **settings}}


def reflected(**settings):
    return {"reflection": {**REFLECT, **settings}}


def restarted(**settings):
    return {"retrospective": {**RETRO, **settings}}


def repo(**settings):
    return {"repo": {"window": 4, "min_stored": 4, **settings}}


THREE = {"steps": 3, **ENDING}
EIGHT = {"steps": 8, **ENDING}
GRPO = {"loss_type": "grpo"}
DAMPED = {"alpha": 2.0, "alpha_on": "replayed_rows", "deviation": "population"}

# name -> components, reward, changes of the run, what has to have been compared
CASES = {
    "reflection, appended": (reflected(), by_tokens, ENDING, "reflection"),
    "reflection, in its own slot": (reflected(placement="replace"), by_tokens, GRPO, "reflection"),
    "reflection, re-attached": (reflected(gradient="reattach"), only_planned, {"steps": 9}, "shaped swapped"),
    "reflection, re-attached, clipped ratio": (
        reflected(gradient="reattach", weight="decoupled"), only_planned, {"steps": 9, **GRPO}, "decoupled swapped",
    ),
    "ranking": (ranked(), all_wrong, THREE, "ranked with spread"),
    "ranking, all rows": (ranked(scope="failed"), all_wrong, THREE, "ranked with spread"),
    "ranking, anywhere": (ranked(scope="truncated_anywhere"), rarely, THREE, "ranked with spread"),
    "ranking, warm": (ranked(), all_wrong, {"temperature": 1.6, **THREE}, "ranked with spread"),
    "ranking, cold": (ranked(scope="failed"), all_wrong, {"temperature": 0.6, **THREE}, "ranked with spread"),
    "ranking, cold, scored by TRL": (
        ranked(scope="failed"), all_wrong, {"temperature": 0.6, "num_iterations": 2, **THREE}, "ranked with spread",
    ),
    "ranking, cold, as sampled": (
        ranked(scope="failed", entropy_temperature="sampling"), all_wrong, {"temperature": 0.6, **THREE},
        "ranked with spread",
    ),
    "ranking, ties in row order": (ranked(ties="stable"), all_wrong, THREE, "ranked with spread"),
    "ranking, ties drawn": (ranked(ties="random"), all_wrong, THREE, "ranked with spread"),
    "ranking, random": (ranked(order="random"), all_wrong, THREE, "ranked with spread"),
    "ranking, shuffled": (ranked(order="shuffled"), all_wrong, THREE, "ranked with spread"),
    "ranking, and dead groups dropped": (
        {**ranked(), "dynamic_sampling": {"max_rounds": 0}}, all_wrong, THREE, "ranked with spread",
    ),
    "ranking, reversed": (ranked(order="reversed"), all_wrong, THREE, "ranked with spread"),
    "ranking, length": (
        ranked(order="length", scope="failed"), all_wrong, {"loss_type": "dr_grpo", **THREE}, "ranked with spread",
    ),
    "ranking, weak where nothing is right": (ranked(unanchored_weight=0.1), all_wrong, THREE, "rescaled"),
    "ranking, weak, then replay": (
        {**ranked(unanchored_weight=0.1), "replay": {"weight": "none"}}, turning, ENDING, "none added",
    ),
    "ranking, without history only": (
        {**ranked(when="no_history"), "rescue": {}}, turning, ENDING, "none swapped",
    ),
    "retrospective, critic": (restarted(), rarely, EIGHT, "continuation"),
    "retrospective, continuations": (restarted(value="monte_carlo"), rarely, {"steps": 8, **GRPO}, "continuation"),
    "retrospective, random": (restarted(value="random"), rarely, EIGHT, "continuation"),
    "retrospective, prefix trained": (restarted(value="random", prefix_loss=True), rarely, EIGHT, "continuation"),
    "dynamic sampling": (
        {"dynamic_sampling": {"max_rounds": 3}}, some_alive, {"rows": 12, "steps": 4}, "resampled",
    ),
    "dynamic sampling, dropped": (
        {"dynamic_sampling": {"max_rounds": 0}}, some_alive, {"rows": 12, **GRPO}, "rescaled",
    ),
    "dynamic sampling, ranked": (
        {"dynamic_sampling": {"max_rounds": 0}, **ranked(scope="failed")}, some_alive, {"rows": 12, **ENDING},
        "rescaled",
    ),
    "rescue": ({"rescue": {}}, turning, {}, "none swapped"),
    "rescue, clipped ratio": (
        {"rescue": {"weight": "decoupled", "ratio_max": 1.2}}, turning, GRPO, "decoupled swapped",
    ),
    "repo": (repo(rows=4, coefficient=0.5), by_tokens, ENDING, "ppo added"),
    "repo, together": (repo(rows=3, normalisation="mixed"), by_tokens, GRPO, "ppo added"),
    "exgrpo": ({"exgrpo": {"start": 0.0}}, half_solved, {"steps": 8, "scale_rewards": "none"}, "shaped swapped"),
    "replay": ({"replay": {"rows": 2, "pick": "recent"}}, turning, {"scale_rewards": "batch"}, "decoupled added"),
    "replay, in two parts": (
        {"replay": {}}, turning_some, {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, **GRPO},
        "padding",
    ),
    "replay, damped": (
        {"replay": {"rows": 2, "mode": "replace", **DAMPED}}, turning, GRPO, "decoupled swapped",
    ),
    "replay, statistics apart": (
        {"replay": {"rows": 2, "normalisation": "fresh", "weight": "ppo", "eps": 1e-6}}, turning, {}, "ppo added",
    ),
    "replay of continuations": (
        {**restarted(value="random"), "replay": {"rows": 2, "from_provenance": ["fresh", "continuation"]}}, alternating,
        {"steps": 9}, "given tokens replayed",
    ),
}  # fmt: skip
FOUR = {
    "ranking": RANK,
    "reflection": {**REFLECT, "threshold": 0.5, "max_share": 0.5},
    "replay": {"truncated_negatives": True},
    "retrospective": {**RETRO, "value": "random", "share": 0.25},
}


def checked(tiny_model, folder, components, reward, changes):
    trainer = record(tiny_model, folder, components, reward, **changes)
    check = StepCheck(trainer, components)
    return check, check.run()


@pytest.mark.parametrize("case", CASES)
def test_rows_rewards_advantages_masks_loss_and_gradient(tiny_model, tmp_path, case):
    components, reward, changes, wanted = CASES[case]
    _, seen = checked(tiny_model, tmp_path, components, reward, changes)
    assert seen[wanted] > 0, seen
    assert seen["with gradient"] > 0, seen
    if wanted.split()[0] in ("shaped", "decoupled"):
        assert seen["weights far from 1"] > 0, "the off-policy weight was never put to the test"


def test_a_second_pass_over_the_batch_is_clipped_against_the_first(tiny_model, tmp_path):
    """With two iterations the same rows meet a policy that has moved: ratios to the sampling policy, clipped."""
    components = {"ranking": RANK, "replay": {"rows": 2, "ratio_max": 1.5}}
    changes = {"num_iterations": 2, "steps": 10, "learning_rate": 3e-3}
    _, seen = checked(tiny_model, tmp_path, components, turning, changes)
    assert seen["steps"] == 10 and seen["decoupled added"] > 0 and seen["with gradient"] > 5


@pytest.mark.parametrize(
    ("components", "reward", "changes", "rule"),
    [
        ({"replay": {"rows": 2}}, turning, {}, "decoupled added"),
        (CASES["repo"][0], by_tokens, {}, "ppo added"),
        (CASES["exgrpo"][0], half_solved, {"steps": 8}, "shaped swapped"),
        ({"rescue": {}}, turning, {"loss_type": "grpo"}, "none swapped"),
    ],
)
def test_the_references_gradient_equals_finite_differences(tiny_model, tmp_path, components, reward, changes, rule):
    check, seen = checked(tiny_model, tmp_path, components, reward, changes)
    assert seen[rule] > 0
    check.finite_differences()


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_all_four_together(tiny_model, tmp_path, loss_type):
    changes = {"rows": 12, "steps": 9, "per_device_train_batch_size": 16, "loss_type": loss_type, **ENDING}
    check, seen = checked(tiny_model, tmp_path, FOUR, unsteady, changes)
    wanted = ["fresh", "reflection", "continuation", "ranked with spread", "decoupled added"]
    assert all(seen[what] > 0 for what in wanted), seen
    check.finite_differences()


def test_the_critics_loss_and_gradient_on_the_recorded_batches(tiny_model, tmp_path):
    """Mean cross-entropy of V at every cut of the fresh answers against the outcome, with weight decay, by Adam."""
    gradients = []
    plain_adam, plain_bias = ValueHead._adam, ValueHead._adam_bias

    def weights(self, arrays, gradient):
        gradients.append([gradient.copy(), None])
        plain_adam(self, arrays, gradient)

    def bias(self, gradient):
        gradients[-1][1] = float(gradient)
        return plain_bias(self, gradient)

    with mock.patch.object(ValueHead, "_adam", weights), mock.patch.object(ValueHead, "_adam_bias", bias):
        trainer = record(tiny_model, tmp_path, {"retrospective": RETRO}, rarely, steps=8, **ENDING)
    check = StepCheck(trainer, {"retrospective": RETRO})
    critic = TorchCritic(RETRO.get("learning_rate", 0.05))
    for batch in trainer.batches:
        check.model.load_state_dict(batch.weights)
        features, returns = [], []
        for group in check.final_groups(batch):
            for row in group.rows if group.kind == "fresh" else ():
                cuts = range(2, int(0.7 * len(row.completion) + 1e-9) + 1, 2)
                states = critic.states(check.model, row.prompt, row.completion, list(cuts)[:8])
                features += states
                returns += [float(row.correct)] * len(states)
        critic.learn(features, returns)
    assert len(gradients) == len(critic.gradients) == 8 * 8
    for (own, own_bias), (other, other_bias) in zip(gradients, critic.gradients, strict=True):
        np.testing.assert_allclose(own, other, atol=2e-4)
        assert own_bias == pytest.approx(other_bias, abs=2e-4)
    assert max(np.abs(g).max() for g, _ in critic.gradients) > 0.01, "nothing was compared"
    head = trainer.components[0].critic
    some = np.array(features)
    np.testing.assert_allclose(head.value(some), critic.value(torch.tensor(some)).detach().numpy(), atol=5e-3)
    critic.finite_differences()
