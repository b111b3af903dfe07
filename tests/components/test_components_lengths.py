"""Rows of very different length: forwarded and sampled in parts, with the same losses, gradients and answers."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from train_tools import batch_rows, train

from r3bench.config.load import parse_recipe
from r3bench.sweep.memory import micro_batch_growth
from r3bench.training import trl_adapter
from r3bench.training.lengths import parts_of_like_rows

SETTINGS = {"reflection": {"warmup": 0, "max_share": 0.5, "min_attempts": 1, "placement": "append"}}


def failing(completion_ids, **_):
    return [float(sum(ids) % 7 == 0) for ids in completion_ids]


def padded(widths, parts):
    return sum(len(part) * max(widths[row] for row in part) for part in parts)


@given(st.lists(st.integers(1, 30), min_size=2, max_size=8))
def test_two_parts_leave_the_least_padding(widths):
    parts = parts_of_like_rows(widths)
    assert sorted(itertools.chain(*parts)) == list(range(len(widths))) and len(parts) == 2 and all(parts)
    subsets = [c for n in range(1, len(widths)) for c in itertools.combinations(range(len(widths)), n)]
    best = min(padded(widths, [c, [r for r in range(len(widths)) if r not in c]]) for c in subsets)
    assert padded(widths, parts) == best


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 5))
def test_parts_of_a_size_are_as_many_on_every_rank(widths, size):
    parts = parts_of_like_rows(widths, size)
    assert sorted(itertools.chain(*parts)) == list(range(len(widths)))
    assert len(parts) == -(-len(widths) // size) and max(map(len, parts)) <= size
    assert [widths[row] for row in itertools.chain(*parts)] == sorted(widths)


class Forwards:
    """Tokens of every forward that was made for a gradient, padding included."""

    def __init__(self, monkeypatch):
        from transformers import LlamaModel

        self.tokens = 0
        plain = LlamaModel.forward

        def counted(model, *args, **kwargs):
            if torch.is_grad_enabled():
                self.tokens += kwargs["input_ids"].numel()
            return plain(model, *args, **kwargs)

        monkeypatch.setattr(LlamaModel, "forward", counted)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_iterations": 2, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, "steps": 14},
        {"beta": 0.1},
        {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    ],
    ids=["on-policy", "scored first", "with a reference", "one row at a time", "reentrant checkpoints"],
)
def test_the_loss_and_its_gradient_are_those_of_one_forward(tiny_model, tmp_path, monkeypatch, changes):
    """The same run with and without parts; only the padding that is computed differs."""
    components = {"reflection": {**SETTINGS["reflection"], "max_share": 1.0}}
    apart = train(tiny_model, tmp_path / "a", components, failing, **{"steps": 6, "learning_rate": 1e-3, **changes})
    assert apart.evidence["reflection/groups"] > 0
    monkeypatch.setattr(trl_adapter, "can_split", lambda *_: False)
    whole = train(tiny_model, tmp_path / "b", components, failing, **{"steps": 6, "learning_rate": 1e-3, **changes})
    assert len(apart.records) == len(whole.records) > 3
    for one, other in zip(apart.records, whole.records, strict=True):
        assert [row["completion"] for row in batch_rows(one)] == [row["completion"] for row in batch_rows(other)]
        assert one["losses"] == pytest.approx(other["losses"], abs=2e-5)
        for left, right in zip(one["grads"], other["grads"], strict=True):
            for name, gradient in left.items():
                torch.testing.assert_close(gradient, right[name], atol=2e-5, rtol=1e-3)
    for question in whole.history._items:  # what the history knows of each answer, too
        torch.testing.assert_close(
            torch.from_numpy(apart.history._items[question].logprobs),
            torch.from_numpy(whole.history._items[question].logprobs), atol=2e-5, rtol=1e-4,
        )  # fmt: skip


def test_short_rows_are_not_stretched_to_a_reflection_prompt(tiny_model, tmp_path, monkeypatch):
    counter = Forwards(monkeypatch)
    apart = train(tiny_model, tmp_path / "a", SETTINGS, failing, steps=6)
    widths = [(b["prompt_ids"].size(1) + b["completion_ids"].size(1)) for r in apart.records for b in r["parts"]]
    rows = [len(b["prompt_ids"]) for r in apart.records for b in r["parts"]]
    needed = sum(len(row["prompt"]) + len(row["completion"]) for r in apart.records for row in batch_rows(r))
    stretched = sum(w * n for w, n in zip(widths, rows, strict=True))
    assert needed <= counter.tokens < 0.75 * stretched


def test_an_answer_does_not_depend_on_what_is_sampled_beside_it(tiny_model, tmp_path, monkeypatch):
    """Greedy, so that random numbers can't tell the two runs apart."""
    greedy = {"top_k": 1, "steps": 6, "learning_rate": 0.0}
    apart = train(tiny_model, tmp_path / "a", SETTINGS, failing, **greedy)
    monkeypatch.setattr(trl_adapter, "pads_prompts", lambda _: False)
    together = train(tiny_model, tmp_path / "b", SETTINGS, failing, **greedy)
    assert apart.evidence["reflection/groups"] > 0
    for one, other in zip(apart.records, together.records, strict=True):
        assert [row["completion"] for row in batch_rows(one)] == [row["completion"] for row in batch_rows(other)]


def test_off_makes_one_forward(tiny_model, tmp_path, monkeypatch):
    """Without a rewritten prompt in the batch TRL's own call is made as it is."""

    def refuse(*_, **__):
        raise AssertionError("split")

    monkeypatch.setattr("r3bench.training.trainer.forward_by_length", refuse)
    train(tiny_model, tmp_path, {"replay": True}, failing, steps=2)
    with pytest.raises(AssertionError, match="split"):
        train(tiny_model, tmp_path / "b", SETTINGS, failing, steps=6)


def test_micro_batches_grow_as_far_as_the_memory_plan_says(tiny_model, tmp_path):
    """Replay and reflection append in the same step; no micro-batch is larger than planned, and one is as large."""
    components = {**SETTINGS, "replay": {"rows": 3, "warmup": 0, "truncated_negatives": True}}
    values = {"num_generations": 4, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    growth = micro_batch_growth(
        parse_recipe({"model": "m", "data": "d", "trainer": values, "components": components}, "r")
    )
    assert growth == 5  # 2 groups: 6 rows replayed and a group of 4, over two micro-batches
    seen = []
    for seed in range(3):
        trainer = train(tiny_model, tmp_path / str(seed), components, failing, steps=10, seed=seed, **values)
        seen += [len(part["prompt_ids"]) for record in trainer.records for part in record["parts"]]
    assert 4 + 2 < max(seen) <= 4 + growth
