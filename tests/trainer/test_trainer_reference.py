"""Rewards with None, masks, duplicate prompts and names at random, through `train()`, against a plain reference.

The long version: python -m pytest -m slow tests/trainer/test_trainer_reference.py
"""

import random
from collections import defaultdict

import numpy as np
import pytest
import torch
from datasets import Dataset
from reference_verdicts import Reference
from trainer_tools import arguments, spy_on

from r3bench import R3Trainer

NAMES = ("right", "ranking", "replay", "extra", "extra", "ranking_component")
STEPS, GROUP = 6, 4


class Draws:
    """All that is random in a run."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.count = self.rng.randint(1, 3)
        self.names = [self.rng.choice(NAMES) for _ in range(self.count)]
        once = [place for place, name in enumerate(self.names) if self.names.count(name) == 1]
        self.verdicts = sorted(self.rng.sample(once, self.rng.randint(0, len(once))))
        self.weights = (
            [self.rng.choice([0.5, 1.0, 2.0]) for _ in range(self.count)] if self.rng.random() < 0.5 else None
        )
        self.scale = self.rng.choice(["group", "batch", "none"])
        self.ranked = self.rng.random() < 0.7
        self.rows = self.rng.randint(1, 2)
        self.mode = random.Random(f"{seed} mode").choice(["append", "replace"])
        self.silence = self.rng.choice([0.0, 0.2, 0.5])
        self.table: list[list[list[float | None]]] = []  # batch, row, function
        self.completions: list[list[list[int]]] = []
        self.masks: dict[tuple[int, ...], list[int]] = {}

    def data(self) -> Dataset:
        """6 rows: some alike, some with one prompt and another answer."""
        pool = [
            {"prompt": f"Question {self.rng.randint(0, 2)}?", "answer": str(self.rng.randint(0, 1))} for _ in range(6)
        ]
        return Dataset.from_list(pool)

    def rollout(self, prompts, trainer):
        ids = trainer._tokenizer(text=prompts)["input_ids"]
        rows = [[self.rng.randint(10, 250) for _ in range(self.rng.randint(3, 9))] for _ in prompts]
        for row in rows:
            mask = [int(self.rng.random() < 0.7) for _ in row]
            mask[0] = 1
            self.masks[tuple(row)] = mask
        self.completions.append(rows)
        masks = [self.masks[tuple(row)] for row in rows]
        return {"prompt_ids": ids, "completion_ids": rows, "logprobs": None, "env_mask": masks}

    def value(self, base: float, place: int) -> float | None:
        if self.rng.random() < self.silence:
            return None
        if place not in (self.verdicts or [0]):  # bonuses and penalties
            return self.rng.choice([0.0, 0.0, 0.25, -1.0])
        return base if self.rng.random() < 0.9 else self.rng.choice([1 - base, 0.25, -0.5])

    def functions(self):
        def function(place, name):
            def reward(completions, **_):
                if place == 0:  # groups that agree are common, as replay needs them
                    bases = [float(self.rng.random() < 0.5) for _ in range(len(completions) // GROUP)]
                    rows = [base for base in bases for _ in range(GROUP)]
                    self.table.append([[self.value(base, f) for f in range(self.count)] for base in rows])
                found = [row[place] for row in self.table[-1]]
                return [None if v is None else self.rng.choice([float, np.float32, torch.tensor])(v) for v in found]

            reward.__name__ = name
            return reward

        return [function(place, name) for place, name in enumerate(self.names)]


def compare(model, folder, seed):
    """Run and reference, batch by batch; returns the reference's counts."""
    draws = Draws(seed)
    replay = {
        "warmup": 0,
        "pick": "recent",
        "rows": draws.rows,
        "weight": "none",
        "truncated_negatives": True,
        "mode": draws.mode,
    }
    components = {"replay": replay}
    if draws.ranked:
        components["ranking"] = {"scope": "failed", "order": "length", "ties": "stable", "max_reward": 0.125}
    trainer = spy_on(R3Trainer)(
        model=model, reward_funcs=draws.functions(), train_dataset=draws.data(), rollout_func=draws.rollout,
        args=arguments(
            folder, components=components, max_steps=STEPS, scale_rewards=draws.scale, reward_weights=draws.weights,
            correctness={"functions": [draws.names[place] for place in draws.verdicts], "threshold": 0.75},
        ),
    )  # fmt: skip
    trainer.train()
    reference = Reference(
        verdicts=draws.verdicts or [0], weights=draws.weights or [1.0] * draws.count, threshold=0.75, rows=draws.rows,
        most=0.125, keep=32, scale=draws.scale, ranked=draws.ranked, replace=draws.mode == "replace",
    )  # fmt: skip
    for number, record in enumerate(trainer.records):
        batch, rows = record["batch"], draws.completions[number]
        lengths = [sum(draws.masks[tuple(row)]) for row in rows]
        groups = []
        for first in range(0, len(rows), GROUP):
            part = slice(first, first + GROUP)
            question = tuple(record["rows"][first][key] for key in ("prompt", "answer"))
            groups.append((question, draws.table[number][part], rows[part], lengths[part]))
        places = [place for place, kind in enumerate(batch["r3_row"].tolist()) if kind == -1]
        gone = [
            [place - first for place in places if first <= place < first + GROUP]
            for first in range(0, len(rows), GROUP)
        ]
        expected = reference.step(groups, gone)
        advantages = batch["advantages"]
        advantages = advantages[:, 0] if advantages.ndim == 2 else advantages
        own = [value for fresh, _ in expected for value in fresh]
        stay = [place for place in range(len(rows)) if place not in places]
        assert advantages[stay].tolist() == pytest.approx([own[place] for place in stay], abs=2e-4, rel=2e-4), (
            f"seed {seed} batch {number}"
        )
        joined = [row for _, added in expected for row in added]
        assert len(places) == len(joined)
        for place, (completion, advantage) in zip(places, joined, strict=True):
            size = int(batch["completion_mask"][place].sum())
            assert batch["completion_ids"][place][:size].tolist() == completion
            assert batch["tool_mask"][place][:size].tolist() == draws.masks[tuple(completion)]
            assert float(advantages[place]) == pytest.approx(advantage, abs=2e-4, rel=2e-4)
    stored = defaultdict(list)
    names = {name for name, _ in trainer.history._items}
    view = trainer.history.open(sorted(names))
    for name in names:
        for one in view.fetch(view.summaries(name)):
            row = (one.summary.correct, pytest.approx(one.summary.task_reward), one.completion_ids.tolist())
            stored[name].append(row)
            assert (one.mask.tolist() if one.mask is not None else [1] * len(row[2])) == draws.masks[tuple(row[2])]
            assert one.summary.length == sum(draws.masks[tuple(row[2])])
    by_rows = sorted(stored.values(), key=lambda rows: rows[0][2])
    wanted = sorted(reference.stored.values(), key=lambda rows: rows[0][2])
    assert [[tuple(row) for row in rows] for rows in wanted] == by_rows
    for key, count in reference.counts.items():
        assert trainer.evidence.get(key, 0) == count, (seed, key)
    counted = ("replay/groups_mixed", "replay/rows", "replay/groups_outranked", "replay/rows_outranked", "ranking/rows")
    for key in counted:
        assert trainer.evidence.get(key, 0) == reference.counts.get(key, 0), (seed, key)
    return reference.counts


def check(model, folder, seeds):
    seen = defaultdict(int)
    for seed in seeds:
        for key, count in compare(model, folder / str(seed), seed).items():
            seen[key] += count
    for key in ("ranking/rows", "replay/groups_mixed", "replay/groups_no_history", "replay/rows_outranked"):
        assert seen[key] > 0, f"no draw had {key}"


def test_every_advantage_stored_row_and_counter(tiny_model, tmp_path):
    check(tiny_model, tmp_path, range(12))


@pytest.mark.slow
def test_every_advantage_stored_row_and_counter_in_many_draws(tiny_model, tmp_path):
    check(tiny_model, tmp_path, range(100, 300))
