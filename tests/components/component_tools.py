"""What the component tests share: facts, groups, stored rows and a history without a trainer."""

import sys
from pathlib import Path

import numpy as np

from r3bench import catalog
from r3bench.component import Facts, Group, Step, Summary, Trajectory
from r3bench.config.strict import build

sys.path.insert(0, str(Path(__file__).parents[1] / "reference"))

NAN = float("nan")


def facts(**changes):
    values = {
        "seed": 3, "num_generations": 4, "groups": 4, "questions": 20, "max_completion_length": 64, "temperature": 1.0,
        "scale_rewards": "group", "decode": lambda ids: "".join(chr(i) for i in ids),
        "encode": lambda text: [ord(c) for c in text], **changes,
    }  # fmt: skip
    return Facts(**values)


def rewards_of(*rows, **settings):
    """What a ranking by entropies pays each response."""
    from r3bench.components.ranking import rank

    return rank(*rows, **settings).rewards


def make(name, settings=None, **changes):
    """An instance of the component `name` with `settings` (a mapping or a preset's name)."""
    cls = catalog.component(name)
    values = cls.presets[settings] if isinstance(settings, str) else settings or {}
    return cls(build(cls.Config, values, name), facts(**changes))


def group(index, correct, *, question=None, rewards=None, truncated=None, provenance="fresh", texts=None, **changes):
    """A group of len(correct) rows at its place in the batch; reward 1 for right rows unless given."""
    size = len(correct)
    correct = np.array(correct, bool)
    texts = texts or ["x" * 8] * size
    ids = [np.array([ord(c) for c in text], np.int32) for text in texts]
    task = np.array(correct if rewards is None else rewards, float)
    values = {
        "index": index, "question": question or f"q{index}", "prompt": [{"role": "user", "content": f"ask {index}"}],
        "provenance": provenance, "rows": range(index * size, (index + 1) * size), "correct": correct,
        "truncated": np.zeros(size, bool) if truncated is None else np.array(truncated, bool),
        "lengths": np.array([len(i) for i in ids]), "rewards": task, "task_rewards": task.copy(), "completion_ids": ids,
        "logprobs": [np.zeros(len(i)) for i in ids], "entropies": [np.ones(len(i)) for i in ids], **changes,
    }  # fmt: skip
    return Group(**values)


def stored(question, serial, correct, **changes):
    """A stored row's summary."""
    values = {
        "question": question, "serial": serial, "step": serial, "epoch": 0, "provenance": "fresh", "correct": correct,
        "truncated": False, "length": 5, "reward": float(correct), "task_reward": float(correct), "entropy_mean": NAN,
        "entropy_peak": NAN, **changes,
    }  # fmt: skip
    return Summary(**values)


def give_tokens(groups, entropies):
    """Fill in the tokens of the rows with entropies, as `score` finds them: they differ from the first token on."""
    for one in groups:
        one.completion_ids = [np.full(len(entropies.get(row, ())), row, np.int32) for row in one.rows]


class Memory:
    """A history in a dict; the text of a row is given or made from its name."""

    def __init__(self, *rows, texts=None):
        self.rows, self.texts, self.fetched = rows, texts or {}, []

    def summaries(self, question):
        return [row for row in self.rows if row.question == question]

    def fetch(self, wanted):
        self.fetched.append([(row.question, row.serial) for row in wanted])
        found = []
        for row in wanted:
            text = self.texts.get((row.question, row.serial), f"try {row.question}/{row.serial}")
            ids = np.array([ord(c) for c in text], np.int32)
            found.append(Trajectory(row, ids, np.zeros(len(ids), np.float32)))
        return found


def step(groups, history=None, number=10, epoch=2.0, **changes):
    return Step(number, epoch, groups, history or Memory(), **changes)
