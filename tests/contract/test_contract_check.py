"""`r3bench check`: the shipped components keep every promise, and a component that breaks one is named with it."""
# ruff: noqa: E501, a table of cases

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from json_page import documented
from typer.testing import Result

from r3bench import catalog
from r3bench.contract.rules import RULES, examine

HEAD = '''"""A component."""

import os
import random
import time
from dataclasses import dataclass

import numpy as np

from r3bench import Component
from r3bench.component import Mixture, PlannedGroup

SEEN = []


@dataclass(frozen=True)
class OneConfig:
    amount: float = 0.5  # some number


class One(Component):
    name = "one"
    Config = OneConfig
    counters = {"acts": "what it did"}

'''
FACTOR = "    def rescale(self, step, mixed):\n        self.count('acts')\n        return {0: %s}\n"
SCORE = "    def score(self, step, entropies):\n        self.count('acts')\n        return {0: %s}\n"
STATE = "    def __init__(self, config, facts):\n        super().__init__(config, facts)\n        self.n = 0\n\n"
COUNTING = STATE + "    def observe(self, step):\n        self.n += 1\n\n" + FACTOR % "1 + self.n"
MIX = (
    "    uses_history = True\n\n    def mix(self, step):\n        self.count('acts')\n"
    "        rows = [(g, r) for g in step.groups for r in step.history.summaries(g.question)]\n"
    "        if not rows:\n            return []\n        group, row = rows[-1]\n"
    "        return [Mixture(group=group.index, historic=(row,), replaced=(), fresh_advantages=%s, historic_advantages=%s, weight='none', clip=(0.0, 2.0))]\n"
)
WRONG = {  # the rule, what is said, the body
    "a global generator": ("nothing global", "generator of `random`", FACTOR % "random.random()"),
    "numpy's global generator": ("nothing global", "generator of `numpy.random`", FACTOR % "np.random.rand()"),
    "an environment's variable": (
        "nothing global", "environment", "    def observe(self, step):\n        os.environ['ONE'] = str(step.step)\n\n" + FACTOR % "0.5",
    ),
    "another generator": ("a run repeated", "rescale() of batch 0", FACTOR % "np.random.default_rng().random()"),
    "time": ("a run repeated", "rescale() of batch 0", FACTOR % "time.perf_counter_ns() % 1000"),
    "a list of the module": ("a run repeated", "class or the module", FACTOR % "SEEN.append(1) or len(SEEN)"),
    "state of the class": (
        "a run repeated", "class or the module", "    seen = {}\n\n" + FACTOR % "self.seen.setdefault(len(self.seen), 1) + len(self.seen)",
    ),
    "the order of a set": (
        "every process alike", "rescale() of batch", FACTOR % "list({g.question for g in step.groups}).index(step.groups[0].question)",
    ),
    "a text's hash": ("every process alike", "rescale() of batch 0", FACTOR % "hash(step.groups[0].question) % 97"),
    "a process's number": ("every process alike", "rescale() of batch 0", FACTOR % "os.getpid()"),
    "state that isn't saved": ("state", "rescale() of batch 1", COUNTING),
    "state that isn't read": ("state", "missing in state_dict", COUNTING + "\n    def state_dict(self):\n        return {'n': self.n}\n"),
    "state that isn't JSON": ("state", "TypeError", COUNTING + "\n    def state_dict(self):\n        return {'n': {1, 2}}\n"),
    "state by numbers": (  # JSON has keys of text only
        "state", "KeyError",
        COUNTING + "\n    def state_dict(self):\n        return {1: self.n}\n\n    def load_state_dict(self, state):\n        self.n = state[1]\n",
    ),
    "no counter": ("evidence", "never acted", "    def rescale(self, step, mixed):\n        return {0: 0.5}\n"),
    "a counter of nothing": ("evidence", "changed nothing", "    def observe(self, step):\n        self.count('acts')\n"),
    "a counter without words": ("evidence", "'deeds'", (FACTOR % "0.5").replace("acts", "deeds")),
    "NaN for a reward": ("what moments give", "score() gave nan", SCORE % "float('nan')"),
    "a row that isn't": ("what moments give", "row 99", (SCORE % "1.0").replace("{0:", "{99:")),
    "a factor without end": ("what moments give", "rescale() gave inf", FACTOR % "float('inf')"),
    "a group that isn't": ("what moments give", "group 7", (FACTOR % "1.0").replace("{0:", "{7:")),
    "too few verdicts": (
        "what moments give", "keep() gave 1 verdicts for 4", "    def keep(self, step):\n        return [True]\n",
    ),
    "an exception": ("what moments give", "observe() raised ZeroDivisionError", "    def observe(self, step):\n        1 / 0\n"),
    "an old signature": ("what moments give", "score() raised TypeError", "    def score(self, groups):\n        return {}\n"),
    "a constructor": ("what moments give", "can't be made: OSError", "    def __init__(self, config, facts):\n        raise OSError('no')\n"),
    "a slot that isn't": ("what moments give", "slot 9", "    def plan(self, step):\n        return [PlannedGroup('q0', 'reflection', slot=9)]\n"),
    "an unknown question": ("what moments give", "'q99'", "    def plan(self, step):\n        return [PlannedGroup('q99', 'reflection')]\n"),
    "a prefix of full length": (
        "what moments give", "64 tokens of 64", "    def plan(self, step):\n        return [PlannedGroup('q1', 'continuation', 0, None, (65,) * 64)]\n",
    ),
    "advantages of another shape": ("what moments give", "expected (8,)", MIX % ("np.zeros(3)", "np.ones(1)")),
    "advantages that aren't finite": ("what moments give", "not finite", MIX % ("np.zeros(8)", "np.array([np.nan])")),
    "a position that isn't": (
        "what moments give", "positions [900]", "    observes_tokens = True\n\n    def probe(self, step):\n        return {0: [900]}\n",
    ),
    "rewards changed in place": (
        "what it is shown", "score() changed", (SCORE % "1.0").replace("        self.count", "        step.groups[0].rewards[:] = 0.25\n        self.count"),
    ),
    "verdicts changed in place": (
        "what it is shown", "observe() changed", "    def observe(self, step):\n        step.groups[0].correct ^= True\n",
    ),
    "settings that aren't frozen": ("settings", "no frozen dataclass", FACTOR % "0.5"),
    "a setting without default": ("settings", "amount has no default", FACTOR % "0.5"),
    "a preset of another setting": ("settings", "did you mean 'amount'", "    presets = {'none': {'amonut': 0.0}}\n\n" + FACTOR % "0.5"),
}  # fmt: skip
CHANGED = {
    "too few verdicts": ("float = 0.5", "float = 0.5\n    max_rounds: int = 2"),
    "settings that aren't frozen": ("(frozen=True)", ""),
    "a setting without default": ("float = 0.5", "float"),
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, tuple[str, str]], None]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "components").mkdir()

    def write(body: str, change: tuple[str, str] = ("", "")) -> None:
        (tmp_path / "components" / "one.py").write_text(HEAD.replace(*change) + body)

    return write


@pytest.mark.parametrize("name", [e.name for e in catalog.entries("components") if e.shipped])
def test_a_shipped_component_keeps_every_rule(name: str) -> None:
    settings = {"retrospective": {"gate_auc": 0.0}}.get(name, {})
    found = examine(name, settings)
    assert [one.rule for one in found] == list(RULES)
    assert not [one for one in found if one.kept is not True]


FIRST = {rule: kind for kind, (rule, _, _) in reversed(WRONG.items())}  # the first of each rule isn't slow


@pytest.mark.parametrize("kind", [k if k in FIRST.values() else pytest.param(k, marks=pytest.mark.slow) for k in WRONG])
def test_a_wrong_component_is_named(own: Callable[..., None], kind: str) -> None:
    rule, said, body = WRONG[kind]
    own(body, CHANGED.get(kind, ("", "")))
    settings = {"amount": 1.0} if kind == "a setting without default" else {}
    broken = {one.rule: one.text for one in examine("one", settings) if one.kept is False}
    assert rule in broken, broken
    assert said in broken[rule]


def test_the_command_prints_every_rule_and_fails_with_one(
    own: Callable[..., None], r3bench: Callable[..., Result]
) -> None:
    own(
        COUNTING
        + "\n    def state_dict(self):\n        return {'n': self.n}\n\n    def load_state_dict(self, s):\n        self.n = s['n']\n"
    )
    result = r3bench("check", "one", "amount=2")
    assert result.exit_code == 0, result.output
    assert [line[:2] for line in result.stdout.splitlines()] == ["ok"] * len(RULES)
    own(COUNTING)
    result = r3bench("check", "one", "--json")
    assert result.exit_code == 1
    document = documented(result.stdout, "check")
    assert not document["ok"] and [r["rule"] for r in document["rules"] if r["kept"] is False] == ["state"]
    assert "FAULT  state" in r3bench("check", "one").stdout


def test_what_cannot_be_checked_is_refused(own: Callable[..., None], r3bench: Callable[..., Result]) -> None:
    own(FACTOR % "0.5")
    for words, said in (
        (("oen",), "did you mean 'one'"),
        (("one", "amonut=1"), "did you mean 'amount'"),
        (("ranking", "--preset", "litteral"), "did you mean 'literal'"),
        (("one", "amount=1", "--preset", "x"), "one of the two"),
    ):
        result = r3bench("check", *words)
        assert result.exit_code == 2 and said in result.stderr, result.output
        assert len(result.stderr.strip().splitlines()) == 1


def test_a_component_that_did_nothing_is_no_failure(own: Callable[..., None], r3bench: Callable[..., Result]) -> None:
    own("    def observe(self, step):\n        self.measure('level', 1.0)\n")
    result = r3bench("check", "one")
    assert result.exit_code == 0 and "it did nothing in these batches" in result.stdout
    assert json.loads(r3bench("check", "one", "--json").stdout)["ok"]
