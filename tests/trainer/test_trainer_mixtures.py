"""Mixtures of a user's own components, through `train()`: right stays above wrong; what fits no group is refused."""

import textwrap

import numpy as np
import pytest
from trainer_tools import arguments, questions, spy_on

from r3bench import R3Trainer
from r3bench.errors import ConfigError

NAIVE = """
from dataclasses import dataclass

import numpy as np

from r3bench.component import Component, Mixture

@dataclass(frozen=True)
class Settings:
    \"\"\"Settings.\"\"\"
    right: bool = True  # which stored answers join
    lift: bool = False  # never below the best of the group
    places: tuple[int, ...] = ()  # rows that give way

class Naive(Component):
    name = "naive"
    Config = Settings
    uses_history = True

    def mix(self, step):
        found = []
        for group in step.groups:
            stored = [s for s in step.history.summaries(group.question) if s.correct == self.config.right][:1]
            if stored and step.step >= 3:
                rewards = np.append(group.rewards, stored[0].task_reward)
                if self.config.lift:
                    rewards[-1] = rewards.max()
                advantages = np.nan_to_num(rewards - np.nanmean(rewards))
                found.append(Mixture(group=group.index, historic=tuple(stored), replaced=self.config.places,
                                     fresh_advantages=advantages[:-1], historic_advantages=advantages[-1:],
                                     weight="none", clip=(0.0, 2.0)))
        return found
"""


class Phases:
    """Rewards by call: the rows of a group in turn; the second list from the fourth call (second epoch) on."""

    def __init__(self, name, first, second):
        self.__name__, self.phases, self.calls = name, (first, second), 0

    def __call__(self, completions, **_):
        phase = self.phases[min(self.calls // 3, 1)]
        self.calls += 1
        return list(phase) * (len(completions) // 4)


def run(model, folder, rewards, components, **changes):
    trainer = spy_on(R3Trainer)(
        model=model, reward_funcs=rewards, train_dataset=changes.pop("data", None) or questions(6),
        args=arguments(folder, components=components, **{"max_steps": 6, **changes}),
    )  # fmt: skip
    trainer.train()
    return trainer


def historic(trainer):
    return sum(int((record["batch"].get("r3_row", np.zeros(1)) == -1).sum()) for record in trainer.records)


@pytest.fixture
def naive(tmp_path, monkeypatch):
    folder = tmp_path / "work" / "components"
    folder.mkdir(parents=True)
    (folder / "naive.py").write_text(NAIVE)
    monkeypatch.chdir(tmp_path / "work")
    return folder


ONE_RIGHT, NONE_RIGHT, ALL_RIGHT = (1, 0, 0, 0), (0, 0, 0, 0), (1, 1, 1, 1)
CASES = {  # settings, verdicts of the two epochs, the other function's rewards, how many of 6 groups are mixed
    "right, level": ({}, (ONE_RIGHT, NONE_RIGHT), ((-1, 0, 0, 0), NONE_RIGHT), 6),
    "right, below": ({}, (ONE_RIGHT, NONE_RIGHT), ((-1.5, 0, 0, 0), NONE_RIGHT), 0),
    "right, below one": ({}, (ONE_RIGHT, NONE_RIGHT), ((-0.75, 0, 0, 0), (0, 0, 0.5, 0)), 0),
    "right, lifted": ({"lift": True}, (ONE_RIGHT, NONE_RIGHT), ((-1.5, 0, 0, 0), NONE_RIGHT), 6),
    "right, below the one that goes": (
        {"places": (2,)},
        (ONE_RIGHT, NONE_RIGHT),
        ((-0.75, 0, 0, 0), (0, 0, 0.5, 0)),
        6,
    ),
    "wrong, above": ({"right": False}, (ONE_RIGHT, ALL_RIGHT), ((0, 0.5, 0, 0), (0, 0, -0.75, 0)), 0),
    "wrong, below": ({"right": False}, (ONE_RIGHT, ALL_RIGHT), ((0, 0.5, 0, 0), (0, 0, -0.25, 0)), 6),
    "nobody judged": ({}, (ONE_RIGHT, (None,) * 4), (NONE_RIGHT, NONE_RIGHT), 0),
    "a row nobody judged goes": ({"places": (1,)}, (ONE_RIGHT, (0, None, 0, 0)), (NONE_RIGHT, NONE_RIGHT), 0),
    "a row nobody judged stays": ({"places": (2,)}, (ONE_RIGHT, (0, None, 0, 0)), (NONE_RIGHT, NONE_RIGHT), 6),
}


@pytest.mark.parametrize("name", CASES)
def test_right_stays_above_wrong_whoever_mixes(naive, tiny_model, tmp_path, name):
    settings, verdicts, others, mixed = CASES[name]
    rewards = [Phases("verdict", *verdicts), Phases("other", *others)]
    trainer = run(tiny_model, tmp_path / "out", rewards, {"naive": settings})
    assert historic(trainer) == mixed
    key = "naive/groups_unjudged" if "judged" in name else "naive/groups_outranked"
    assert trainer.evidence.get(key, 0) == 6 - mixed


def test_a_group_left_out_is_free_for_the_next_component(naive, tiny_model, tmp_path):
    rewards = [Phases("verdict", ONE_RIGHT, NONE_RIGHT), Phases("other", (-1.5, 0, 0, 0), (-2, -2, -2, 0))]
    both = {"naive": True, "replay": {"warmup": 0}}
    trainer = run(tiny_model, tmp_path / "out", rewards, both)
    assert trainer.evidence["naive/groups_outranked"] == 6
    assert trainer.evidence["replay/groups_outranked"] == 6, "replay took part, and left it out as well"


FAULTY = {
    "group": ("99, stored, (), a, b", "gave group 99, there are groups 0 to 1"),
    "nothing stored": ("0, (), (), a, b[:0]", "group 0 no stored answers"),
    "another question": ("1 - group.index, stored, (), a, b", "an answer to another question, 'q"),
    "one place for two": ("group.index, stored * 2, (0,), a, np.zeros(2)", r"places \[0\] for 2 stored answers"),
    "a place twice": ("group.index, stored * 2, (0, 0), a, np.zeros(2)", r"places \[0, 0\] for 2"),
    "a place beyond": ("group.index, stored, (4,), a, b", r"places \[4\] for 1 .* out of 0 to 3"),
    "fresh": ("group.index, stored, (), a[:3], b", r"fresh_advantages of shape \(3,\), expected \(4,\)"),
    "historic": ("group.index, stored, (), a, np.zeros(2)", r"historic_advantages of shape \(2,\), expected \(1,\)"),
    "not finite": ("group.index, stored, (), a, b * np.nan", "historic_advantages that are not finite"),
}


@pytest.mark.parametrize("name", [*FAULTY, "weight", "twice"])
def test_a_mixture_that_fits_no_group_is_refused(naive, tiny_model, tmp_path, name):
    text, message = FAULTY.get(name, ("group.index, stored, (), a, b", ""))
    weight = "decouple" if name == "weight" else "none"
    message = {"weight": "weight 'decouple', expected one of decoupled", "twice": "two mixtures"}.get(name, message)
    body = f"""
    def mix(self, step):
        PARTS = "group", "historic", "replaced", "fresh_advantages", "historic_advantages"
        for group in step.groups:
            stored, a, b = tuple(step.history.summaries(group.question)[:1]), np.zeros(4), np.zeros(1)
            if stored:
                given = dict(zip(PARTS, ({text})), weight="{weight}", clip=(0.0, 2.0))
                return [Mixture(**given)] * {2 if name == "twice" else 1}
        return []
"""
    (naive / "naive.py").write_text(NAIVE[: NAIVE.index("    def mix")] + textwrap.dedent(body).replace("\n", "\n    "))
    with pytest.raises(ConfigError, match=f"component 'naive': mix.. gave .*{message}|{message}"):
        run(tiny_model, tmp_path / "out", Phases("verdict", ONE_RIGHT, NONE_RIGHT), {"naive": True})


@pytest.mark.parametrize(("penalty", "top"), [(-0.25, 0.5), (-0.75, 0.25), (-1.0, 0.0), (-2.0, 0.0)])
def test_ranking_beside_right_rows_lifts_none_above_them(tiny_model, tmp_path, penalty, top):
    """One right but punished row per group, three wrong ones that are ranked with up to 0.5."""
    settings = {"scope": "truncated_anywhere", "order": "random"}
    rewards = [Phases("verdict", ONE_RIGHT, ONE_RIGHT), Phases("other", *[(penalty, 0, 0, 0)] * 2)]
    changes = {"max_steps": 2, "scale_rewards": "none", "temperature": 0.7}
    trainer = run(tiny_model, tmp_path / "out", rewards, {"ranking": {**settings}}, **changes)
    assert trainer.evidence["ranking/rows"] > 0
    for record in trainer.records:
        groups = record["batch"]["advantages"].view(2, 4)
        ranked = (groups[:, 1:] - groups[:, 1:].min(dim=1, keepdim=True).values).max()
        assert float(ranked) == pytest.approx(top, abs=1e-6)
        if 1 + penalty >= 0:
            assert (groups[:, :1] >= groups[:, 1:] - 1e-6).all()
    assert (trainer.evidence["ranking/rows_capped"] > 0) == (top < 0.5)


@pytest.mark.parametrize("alike", [True, False])
def test_one_id_for_rows_of_a_stream_that_differ(tiny_model, tmp_path, alike):
    rows = questions(6).to_list()
    rows.append({**rows[0], "answer": rows[0]["answer"] if alike else "another"})
    from datasets import Dataset

    data = Dataset.from_list(rows).to_iterable_dataset()
    settings = {"replay": {"warmup": 0, "warmup_unit": "steps"}}
    if alike:
        run(tiny_model, tmp_path / "out", Phases("verdict", ONE_RIGHT, NONE_RIGHT), settings, data=data)
    else:
        with pytest.raises(
            ConfigError, match="two rows of the stream have one question_id, 'q0', but differ in 'answer'"
        ):
            run(tiny_model, tmp_path / "out", Phases("verdict", ONE_RIGHT, NONE_RIGHT), settings, data=data)
        trainer = run(tiny_model, tmp_path / "off", Phases("verdict", ONE_RIGHT, NONE_RIGHT), None, data=data)
        assert trainer.state.global_step == 6
