"""The files of a project of one's own, and changes that break them."""

from collections.abc import Callable
from pathlib import Path

import yaml

REWARD = """
def near(completions, answer, **kwargs):
    return [float(str(gold) in completion[-1]["content"]) for completion, gold in zip(completions, answer)]


async def later(prompts, completions, level, **kwargs):
    return [0.1 * number for number in level]


def untaken(completions, answer, **kwargs):
    return [1.0 for _ in completions]
"""
COMPONENT = '''
"""Adds nothing."""
from dataclasses import dataclass
from r3bench.component import Component


@dataclass(frozen=True)
class NudgeConfig:
    size: float = 0.1  # extra reward


class Nudge(Component):
    name = "nudge"
    Config = NudgeConfig
    shapes_reward = True

    def score(self, step, entropies):
        return {row: self.config.size for group in step.groups for row in group.rows}
'''
RECIPE = {
    "model": "embedded",
    "data": {
        "name": "../../data/train.jsonl", "problem": "question", "answer": "gold", "id": "uid",
        "columns": ["level"], "template": "../../prompts/ask.txt",
    },
    "reward": {"functions": ["accuracy", "../../rewards.py:near", "../../rewards.py:later"], "weights": [1, 0.5, 0.1]},
    "components": {"nudge": True},
    "trainer": {"max_steps": 1, "per_device_train_batch_size": 16, "num_generations": 8, "max_completion_length": 24},
    "eval": {"tasks": ["own"], "samples": 2, "limit": 4},
}  # fmt: skip
GRID = {
    "recipe": "mine", "factors": {"nudge": ["off", "on"]}, "seeds": [0], "executor": {"kind": "inline"},
}  # fmt: skip
TASK = """# Sums
task: own
include: _maths.yaml
dataset_kwargs:
  file: ../data/heldout.jsonl
  problem: question
  answer: gold
  id: uid
  columns: [level]
"""


def changed(home: Path, changes: dict[str, object]) -> None:
    """Set dotted keys of the recipe."""
    path = home / "ablations/recipes/mine.yaml"
    values = yaml.safe_load(path.read_text())
    for key, value in changes.items():
        *parents, last = key.split(".")
        node = values
        for name in parents:
            node = node[name]
        node[last] = value
    path.write_text(yaml.safe_dump(values))


def replaced(path: str, old: str, new: str) -> Callable[[Path], None]:
    """A change of a file's text that must find what it replaces."""

    def change(home: Path) -> None:
        text = (home / path).read_text()
        assert old in text
        (home / path).write_text(text.replace(old, new))

    return change
