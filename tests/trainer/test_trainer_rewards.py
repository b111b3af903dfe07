"""What TRL allows of reward functions: abstaining, awaiting, one name for two, penalties. Through `train()`."""

from functools import partial

import numpy as np
import pytest
import torch
from trainer_tools import arguments, by_length, questions, spy_on

from r3bench import R3Trainer
from r3bench.errors import ConfigError, Diverged

ALL = {
    "replay": {"warmup": 0, "pick": "recent"}, "reflection": {"warmup": 0, "max_share": 0.5},
    "ranking": {"scope": "failed", "order": "length", "ties": "stable"},
    "retrospective": {"value": "random", "share": 0.5},
}  # fmt: skip


def run(model, folder, rewards, components=None, **changes):
    trainer = spy_on(R3Trainer)(
        model=model, reward_funcs=rewards, train_dataset=changes.pop("data", None) or questions(6),
        args=arguments(folder, components=components, **changes),
    )  # fmt: skip
    trainer.train()
    return trainer


def stored(trainer):
    names = sorted({group for group, _ in trainer.history._items})
    return [row for name in names for row in trainer.history.open([name]).summaries(name)]


def nothing(completions, **_):
    return [None] * len(completions)


async def nothing_later(completions, **_):
    return [None] * len(completions)


@pytest.mark.parametrize("components", [None, ALL])
@pytest.mark.parametrize("functions", [[nothing], [nothing, nothing_later]])
def test_a_batch_on_which_all_abstain_trains_on_as_in_trl(tiny_model, tmp_path, functions, components):
    trainer = run(tiny_model, tmp_path / "a", list(functions), components)
    assert trainer.state.global_step == 4
    assert not any(record["batch"]["advantages"].any() for record in trainer.records)
    assert not stored(trainer)
    assert not any(trainer.evidence.values()), trainer.evidence
    assert not any(
        key.startswith(("fresh/", "groups/homogeneous")) for line in trainer.state.log_history for key in line
    )


def odd_abstains(question_id, completion_ids, **_):
    return [
        None if int(q[1:]) % 2 else float(sum(ids) % 8 == 0) for q, ids in zip(question_id, completion_ids, strict=True)
    ]


def even_abstains(question_id, completion_ids, **_):
    return [1.0 if int(q[1:]) % 2 else None for q in question_id]


def test_a_row_is_judged_by_the_functions_that_spoke(tiny_model, tmp_path):
    both = {"functions": ["odd_abstains", "even_abstains"]}
    trainer = run(tiny_model, tmp_path / "a", [odd_abstains, even_abstains], ALL, correctness=both, max_steps=6)
    rows = stored(trainer)
    odd = [row for row in rows if int(row.question[1:]) % 2]
    assert len(odd) > 8, "no answer to an odd question was stored"
    assert all(row.correct for row in odd)
    assert {row.correct for row in rows if int(row.question[1:]) % 2 == 0} == {True, False}


def test_a_row_that_nobody_judged_is_left_alone(tiny_model, tmp_path):
    """Default rule: the first function. Questions it never speaks on are as without components."""
    settings = {name: ALL[name] for name in ("replay", "reflection", "ranking")}  # none takes a slot
    trainer = run(tiny_model, tmp_path / "a", [odd_abstains, even_abstains], settings, max_steps=9)
    assert not [row for row in stored(trainer) if int(row.question[1:]) % 2]
    assert trainer.evidence["ranking/groups"] > 0
    for record in trainer.records:
        batch = record["batch"]
        for place, row in enumerate(record["rows"][:8]):
            if int(row["question_id"][1:]) % 2 and place < 8:
                assert not batch["advantages"][place].any(), "all rows of the question got 1 from the second function"


class Partly:
    """Gives [0, 0, 1, None] to every group: the last row is never judged."""

    __name__ = "partly"

    def __init__(self, first=(0.0, 0.0, 1.0, None), rest=(0.0, 0.0, 0.0, None)):
        self.first, self.rest, self.calls = first, rest, 0

    def __call__(self, completions, **_):
        self.calls += 1
        return list(self.first if self.calls <= 3 else self.rest) * (len(completions) // 4)


def test_unjudged_rows_of_a_mixed_group_stay_at_zero(tiny_model, tmp_path):
    trainer = run(tiny_model, tmp_path / "a", Partly(), {"replay": {"warmup": 0}}, max_steps=6)
    mixed = 0
    for record in trainer.records:
        advantages = record["batch"]["advantages"]
        advantages = advantages if advantages.ndim == 1 else advantages[:, 0]
        assert not advantages[[3, 7]].any()
        if len(advantages) > 8:
            mixed += 1
            values = np.array([0, 0, 0, 1.0])
            expected = (values - values.mean()) / (values.std(ddof=1) + 1e-4)
            assert np.allclose(advantages[:3], expected[0], atol=1e-4)
    assert mixed
    assert all(len(record["batch"]["advantages"]) <= 10 for record in trainer.records)
    assert (
        sum(not row.correct for row in stored(trainer)) == trainer.evidence["replay/groups_all_wrong"] * 3 + 3 * 2 * 2
    )


@pytest.mark.parametrize("components", [None, {"replay": True}])
@pytest.mark.parametrize(
    "value", [float("nan"), np.float32("nan"), torch.tensor(float("nan")), float("inf"), -np.inf, 1e39]
)
def test_a_number_that_is_not_finite_is_divergence(tiny_model, tmp_path, value, components):
    def broken(completions, **_):
        return [None, value] + [0.0] * (len(completions) - 2)

    async def broken_later(completions, **_):
        return [None, value] + [0.0] * (len(completions) - 2)

    for function in (broken, partial(broken), broken_later):
        with pytest.raises(Diverged, match="step 0: non-finite reward from broken"):
            run(tiny_model, tmp_path / "a", [function, nothing], components)


@pytest.mark.parametrize(
    "kind", [torch.tensor, np.array, tuple, lambda v: [np.float64(x) for x in v], lambda v: (x for x in v)]
)
def test_other_containers_and_scalars_of_rewards(tiny_model, tmp_path, kind):
    def rewards(completion_ids, **_):
        return kind(by_length(completion_ids))

    ours = run(tiny_model, tmp_path / "a", rewards, {"replay": True}, max_steps=1)
    assert {row.correct for row in stored(ours)} == {True, False}


def ranking(completions, **_):
    return [0.0] * len(completions)


def named(name, value):
    def function(completions, **_):
        return [value] * len(completions)

    function.__name__ = name
    return function


def test_a_reward_function_called_like_a_component(tiny_model, tmp_path):
    settings = {"ranking": {"scope": "failed", "order": "random"}}
    trainer = run(tiny_model, tmp_path / "a", [ranking, named("ranking_component", 0.0)], settings)
    assert trainer.reward_func_names == ["ranking", "ranking_component", "ranking_component_component"]
    line = trainer.state.log_history[0]
    assert line["fresh/correct"] == 0
    assert line["rewards/ranking/mean"] == 0
    assert line["rewards/ranking_component_component/mean"] == pytest.approx(0.25)
    assert trainer.evidence["ranking/groups"] == 8
    assert trainer.args.reward_weights is None


def test_two_functions_of_one_name(tiny_model, tmp_path):
    def graded(completions, level, **_):
        return [level] * len(completions)

    functions = [partial(graded, level=0.0), partial(graded, level=1.0), named("other", 1.0)]
    with pytest.raises(ConfigError, match=r"correctness.functions: got 'graded', but reward functions 1 and 2 both"):
        run(tiny_model, tmp_path / "a", functions, {"replay": True}, correctness={"functions": ["graded"]})
    trainer = run(tiny_model, tmp_path / "b", functions, {"replay": True}, correctness={"functions": ["other"]})
    assert all(row.correct for row in stored(trainer))
    trainer = run(tiny_model, tmp_path / "c", functions, {"replay": True})
    assert not any(row.correct for row in stored(trainer)), "the default is the first function"


class Phases:
    """Rewards by call: the rows of a group in turn, then others from a given call on."""

    def __init__(self, name, *phases):
        self.__name__, self.phases, self.calls = name, phases, 0

    def __call__(self, completions, **_):
        phase = self.phases[min(self.calls // 3, len(self.phases) - 1)]
        self.calls += 1
        return list(phase) * (len(completions) // 4)


@pytest.mark.parametrize("weights", [None, [2.0, 2.0], [1.0, 1.0]])
def test_a_penalised_right_answer_never_enters_below_a_wrong_one(tiny_model, tmp_path, weights):
    """One right but punished answer (total 0), then only wrong ones, which ranking rewards with up to 0.5."""
    verdict = Phases("verdict", (1, 0, 0, 0), (0, 0, 0, 0))
    overlong = Phases("overlong", (-1, 0, 0, 0), (0, 0, 0, 0))
    components = {"replay": {"warmup": 0}, "ranking": {"scope": "failed", "order": "length", "ties": "stable"}}
    trainer = run(tiny_model, tmp_path / "a", [verdict, overlong], components, max_steps=6, reward_weights=weights)
    assert all(len(record["batch"]["advantages"]) == 8 for record in trainer.records), "it was mixed in"
    assert trainer.evidence["replay/groups_outranked"] == 6
    assert trainer.evidence["replay/rows_outranked"] == 6
    assert "replay/groups_mixed" not in trainer.evidence


@pytest.mark.parametrize("name", ["replay", "rescue", "repo", "exgrpo", "reattach"])
def test_whoever_mixes_keeps_the_order_of_right_and_wrong(name):
    """On the totals: a stored right answer with 0.2 among wrong ones with up to 0.3, and one with 0.3."""

    from component_tools import Memory, group, make, step
    from component_tools import stored as row

    provenance = "reflection" if name == "reattach" else "fresh"
    settings = {
        "replay": {"warmup": 0}, "rescue": {}, "repo": {"min_stored": 1, "rows": 1}, "exgrpo": {},
        "reattach": {"gradient": "reattach"},
    }[name]  # fmt: skip
    for total, mixed in ((0.2, False), (0.3, True), (1.0, True)):
        component = make("reflection" if name == "reattach" else name, settings)
        if name == "exgrpo":
            component._planned = frozenset({"q0"})
        memory = Memory(row("q0", 1, True, task_reward=total, reward=1.0, provenance=provenance))
        one = group(0, [0, 0, 0, 0], rewards=[0.0, 0.0, 0.3, 0.1])
        found = component.mix(step([one], memory))
        assert bool(found) == mixed
        assert component.take_counts().get(f"{component.name}/groups_outranked", 0) == int(not mixed)
