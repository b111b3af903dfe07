"""Rows of very different length: forwarded and sampled in parts, with the same losses, gradients and answers."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from train_tools import batch_rows, train
from trainer_tools import arguments

from r3bench.config.load import parse_recipe
from r3bench.errors import ConfigError
from r3bench.sweep.planning.memory import micro_batch_growth
from r3bench.training.step import trl_adapter
from r3bench.training.step.lengths import parts_of_like_rows, parts_of_tokens

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


@given(st.lists(st.lists(st.integers(1, 30), min_size=6, max_size=6), min_size=1, max_size=4), st.integers(1, 80))
def test_parts_under_a_budget_are_as_many_on_every_rank(ranks, tokens):
    alone = [len(parts_of_tokens(widths, tokens)) for widths in ranks]
    together = [parts_of_tokens(widths, tokens, lambda _: max(alone)) for widths in ranks]
    for widths, parts, needed in zip(ranks, together, alone, strict=True):
        assert sorted(itertools.chain(*parts)) == list(range(len(widths))) and all(parts)
        assert [widths[row] for row in itertools.chain(*parts)] == sorted(widths)
        assert len(parts) == max(alone) >= needed
        assert all(len(part) == 1 or padded(widths, [part]) <= tokens for part in parts)
        assert padded(widths, parts) <= padded(widths, [range(len(widths))])


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 40))
def test_no_fewer_parts_would_keep_to_the_budget(widths, tokens):
    def fits(part):
        return len(part) == 1 or padded(widths, [part]) <= tokens

    order = sorted(range(len(widths)), key=widths.__getitem__)
    for cuts in range(len(parts_of_tokens(widths, tokens)) - 1):
        for at in itertools.combinations(range(1, len(order)), cuts):
            edges = [0, *at, len(order)]
            assert not all(fits(order[a:b]) for a, b in itertools.pairwise(edges))


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
        pytest.param({"beta": 0.1}, marks=pytest.mark.slow),
        pytest.param({"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}, marks=pytest.mark.slow),
        pytest.param(
            {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
            marks=pytest.mark.slow,
        ),
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
    same_history(apart, whole)


def same_history(apart, whole):
    assert apart.history._items.keys() == whole.history._items.keys()
    for question in whole.history._items:  # what the history knows of each answer, too
        torch.testing.assert_close(
            torch.from_numpy(apart.history._items[question].logprobs),
            torch.from_numpy(whole.history._items[question].logprobs), atol=2e-5, rtol=1e-4,
        )  # fmt: skip


MIXED = {"replay": {"warmup": 0, "rows": 2}, "retrospective": {"gate_auc": 0.0, "quantile": 0.0, "cuts": "grid",
         "spacing": 1, "max_fraction": 0.5}, "ranking": {"scope": "failed"}}  # fmt: skip
BUDGETS = {
    "off": ({}, {}),
    "off, scored first, with a reference": ({}, {"num_iterations": 2, "gradient_accumulation_steps": 2, "beta": 0.1}),
    "mixed": (MIXED, {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}),
    "mixed, scored first, with a reference": (
        MIXED, {"num_iterations": 2, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, "beta": 0.1,
                "temperature": 0.7, "loss_type": "grpo"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BUDGETS)
def test_a_token_budget_changes_no_loss_and_no_gradient(tiny_model, tmp_path, monkeypatch, name):
    """Against one forward of every row; each part keeps to the budget, and fewer tokens are computed."""
    components, changes = BUDGETS[name]
    budget = 100
    # No Adam: it would turn a rounding error of a gradient that is exactly 0 in one run into a full step.
    changes = {"steps": 6, "optim": "sgd", "learning_rate": 0.02, "max_completion_length": 24, **changes}
    whole = train(tiny_model, tmp_path / "a", components, uneven_answers, **changes)
    sizes = []
    plain = trl_adapter.forward_by_length

    def counted(forward, *args, **kwargs):
        def one(input_ids, *more, **options):
            sizes.append(tuple(input_ids.shape))
            return forward(input_ids, *more, **options)

        return plain(one, *args, **kwargs)

    monkeypatch.setattr("r3bench.training.trainer.forward_by_length", counted)
    monkeypatch.setattr("r3bench.training.step.trl_adapter.forward_by_length", counted)
    apart = train(tiny_model, tmp_path / "b", components, uneven_answers, tokens_per_forward=budget, **changes)
    assert len(apart.records) == len(whole.records) > 2
    assert sizes and all(rows == 1 or rows * width <= budget for rows, width in sizes)
    assert any(rows > 1 for rows, _ in sizes) and len({width for _, width in sizes}) > 2
    assert apart.evidence == pytest.approx(whole.evidence) and bool(apart.evidence) == bool(components)
    for one, other in zip(apart.records, whole.records, strict=True):
        torch.testing.assert_close(one["batch"]["completion_ids"], other["batch"]["completion_ids"])
        assert one["losses"] == pytest.approx(other["losses"], abs=2e-5)
        for left, right in zip(one["grads"], other["grads"], strict=True):
            for key, gradient in left.items():
                torch.testing.assert_close(gradient, right[key], atol=2e-5, rtol=1e-3)
    same_history(apart, whole)


def uneven_answers(completion_ids, **_):
    return [float(len(ids) % 3 == 0) for ids in completion_ids]


@pytest.mark.parametrize("value", [0, -5, True, 1.5, "many"])
def test_a_budget_that_is_none_is_refused(tmp_path, value):
    with pytest.raises(ConfigError, match=r"tokens_per_forward: got .*, expected an integer of at least 1"):
        arguments(tmp_path, tokens_per_forward=value)
    with pytest.raises(ConfigError, match=r"r: trainer\.tokens_per_forward: got "):
        parse_recipe({"model": "m", "data": "d", "trainer": {"tokens_per_forward": value}}, "r")


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
