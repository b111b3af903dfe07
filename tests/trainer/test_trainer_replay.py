"""Replay through `train()`: which rows, advantages, losses and gradients reach the optimiser."""

import numpy as np
import pytest
import torch
from reference_grpo import eq3, grpo_loss, token_logprobs
from trainer_tools import arguments, questions, spy_on
from transformers import AutoModelForCausalLM

from r3bench import R3Trainer

ROWS, GROUP = 8, 4  # a batch: two groups


def scripted(completion_ids, question_id, trainer_state, **_):
    """Epoch 1: q0 and q1 all right, the rest all wrong. Later q0, q1 and q2 are all wrong, the others all right."""
    first = trainer_state.epoch is None or trainer_state.epoch < 1
    right = {"q0", "q1"} if first else {"q3", "q4", "q5"}
    return [float(q in right) for q in question_id]


def run(model, folder, settings, **changes):
    components = {"replay": {"truncated_negatives": True, **settings}}
    trainer = spy_on(R3Trainer)(
        model=model, reward_funcs=scripted, train_dataset=questions(6),
        args=arguments(folder, components=components, max_steps=6, max_grad_norm=0.0, **changes),
    )  # fmt: skip
    trainer.train()
    return trainer


def test_what_is_stored_holds_on_to_nothing_else(tiny_model, tmp_path):
    """A view of the log-probs of a whole batch would keep all of it, padding included."""
    trainer = run(tiny_model, tmp_path, {})
    view = trainer.history.open([f"q{i}" for i in range(6)])
    stored = view.fetch([summary for i in range(6) for summary in view.summaries(f"q{i}")])
    assert len(stored) > ROWS
    assert all(array.base is None for row in stored for array in (row.completion_ids, row.logprobs))


def batch_rows(record, part=None):
    """(prompt, completion, advantages per token, old log-probs, row number) of every unmasked row of a batch."""
    rows = []
    for batch in [part] if part is not None else record["parts"]:
        for i in range(len(batch["prompt_ids"])):
            mask = batch["completion_mask"][i].bool()
            if not mask.any():
                continue
            advantages = batch["advantages"][i]
            advantages = advantages.expand(len(mask)) if advantages.ndim == 0 else advantages
            old = batch["old_per_token_logps"][i][mask].tolist() if "old_per_token_logps" in batch else None
            rows.append(
                (
                    batch["prompt_ids"][i][batch["prompt_mask"][i].bool()].tolist(),
                    batch["completion_ids"][i][mask].tolist(),
                    advantages[mask].tolist(), old, int(batch["r3_row"][i]),
                )
            )  # fmt: skip
    return rows


def by_question(trainer, record):
    """question id -> (fresh rows, historic rows) of a batch, questions told apart by their prompt."""
    found = {}
    for row in batch_rows(record):
        text = trainer._tokenizer.decode(row[0])
        question = "q" + text.split("What is ")[1].split(" ")[0]
        found.setdefault(question, ([], []))[0 if row[4] >= 0 else 1].append(row)
    return found


@pytest.fixture(scope="module", params=["append", "replace"])
def replayed(request, tiny_model, tmp_path_factory):
    settings = {"rows": 2, "mode": request.param, "weight": "none", "alpha": 1.5}
    return request.param, run(tiny_model, tmp_path_factory.mktemp("replay"), settings)


def test_rows_are_stored_opposite_answers_to_the_same_question(replayed):
    mode, trainer = replayed
    first_epoch = [by_question(trainer, record) for record in trainer.records[:3]]
    sampled = {q: {tuple(row[1]) for row in fresh} for batch in first_epoch for q, (fresh, _) in batch.items()}
    assert sorted(sampled) == [f"q{i}" for i in range(6)]
    assert all(not old for batch in first_epoch for _, old in batch.values()), "something was replayed in epoch 1"
    later = [by_question(trainer, record) for record in trainer.records[3:6]]
    seen = {q: parts for batch in later for q, parts in batch.items()}
    for question, (fresh, old) in seen.items():
        # q0 and q1 turned wrong and get right answers, q3 to q5 turned right and get wrong ones, q2 has no contrast
        expected = 0 if question == "q2" else 2
        assert len(old) == expected, question
        assert len(fresh) == (GROUP - expected if mode == "replace" else GROUP)
        assert all(tuple(row[1]) in sampled[question] for row in old)
        assert len({tuple(row[1]) for row in old}) == len(old) or len(sampled[question]) < GROUP


def test_advantages_are_equation_3(replayed):
    _, trainer = replayed
    for record in trainer.records[3:6]:
        for question, (fresh, old) in by_question(trainer, record).items():
            now = 0.0 if question in ("q0", "q1", "q2") else 1.0
            own, other = eq3([now] * len(fresh), [1.0 - now] * len(old), alpha=1.5) if old else ([0.0] * GROUP, [])
            for rows, expected in ((fresh, own), (old, other)):
                got = [row[2] for row in rows]
                assert all(np.allclose(a, e, atol=1e-5) for a, e in zip(got, expected, strict=True)), question


def test_evidence_counts_what_was_mixed(replayed):
    _, trainer = replayed
    rows = sum(row[4] < 0 for record in trainer.records for row in batch_rows(record))
    assert trainer.evidence["replay/rows"] == rows == 10
    assert trainer.evidence["replay/groups_mixed"] == 5
    assert sum(line.get("replay/rows", 0) for line in trainer.state.log_history) == rows


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
@pytest.mark.parametrize("mode", ["append", "replace"])
@pytest.mark.parametrize("weight", ["decoupled", "ppo", "shaped", "none"])
def test_loss_and_gradient_equal_the_reference(tiny_model, tmp_path, weight, mode, loss_type):
    trainer = run(
        tiny_model, tmp_path, {"rows": 1, "mode": mode, "weight": weight, "ratio_max": 1.2}, loss_type=loss_type
    )
    check_against_reference(trainer, tiny_model, weight, loss_type, 1.2)


def check_against_reference(trainer, tiny_model, weight, loss_type, ratio_max, parts=1):
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    behaviour, compared = {}, 0
    for step, record in enumerate(trainer.records):
        model.load_state_dict(record["weights"])
        rows, mixed = [], False
        for prompt, completion, advantages, _, number in batch_rows(record):
            key = (tuple(prompt), tuple(completion))
            now = token_logprobs(model, prompt, completion).detach().numpy()
            if number >= 0:
                behaviour.setdefault(key, []).append(now)
                rows.append((prompt, completion, advantages, None))
                continue
            mixed = True
            scale = advantages_before_weight(advantages, now, behaviour[key], weight, ratio_max)
            rows.append((prompt, completion, *scale))
        if not mixed:
            continue
        compared += 1
        model.zero_grad()
        loss = grpo_loss(model, rows, loss_type)
        loss.backward()
        assert np.isclose(sum(record["losses"]), float(loss), atol=2e-5), step
        expected = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        scale = max(float(g.abs().max()) for g in expected.values())
        assert scale > 1e-4, "the reference gradient vanishes: nothing is compared"
        for name, gradient in record["grads"][0].items():
            assert torch.allclose(gradient, expected[name], atol=1e-4 * scale), (step, name)
    assert compared == 3


def advantages_before_weight(advantages, now, before, weight, ratio_max):
    """Reference advantages per token and old log-probs of one historic row, from its recorded scalar advantage."""
    options = [np.exp(now - b) for b in before]
    for ratio, b in zip(options, before, strict=True):
        factors = {
            "decoupled": np.clip(ratio, 0.0, ratio_max),
            "shaped": 0.1 * ratio / (ratio + 0.1) ** 2,
            "ppo": np.ones_like(ratio),
            "none": np.ones_like(ratio),
        }[weight]
        unweighted = np.array(advantages) / factors
        if np.allclose(unweighted, unweighted[0], rtol=1e-3):  # one scalar advantage behind all tokens
            scalar = np.float64(np.sign(unweighted[0])) * abs(unweighted.mean())
            return scalar * factors, (b if weight == "ppo" else None)
    raise AssertionError("the recorded advantages are not one number times the off-policy weight")


def test_history_holds_every_row_with_its_behaviour_logprobs(tiny_model, tmp_path):
    trainer = run(tiny_model, tmp_path, {"rows": 1, "mode": "replace"})
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    view = trainer.history.open([f"q{i}" for i in range(6)])
    stored = [s for i in range(6) for s in view.summaries(f"q{i}")]
    assert len(stored) == 6 * ROWS
    prompts = {
        q: row[0] for record in trainer.records for q, (rows, _) in by_question(trainer, record).items() for row in rows
    }
    for trajectory in view.fetch(stored):
        model.load_state_dict(trainer.records[trajectory.summary.step]["weights"])
        with torch.no_grad():
            expected = token_logprobs(model, prompts[trajectory.summary.question], trajectory.completion_ids.tolist())
        assert np.allclose(trajectory.logprobs, expected.numpy(), atol=1e-4)
