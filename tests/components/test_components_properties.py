"""Properties that hold for any input: the ranking's ramp and its special cases, and components' states through JSON."""

import json
import random

import numpy as np
import pytest
from component_tools import Memory, give_tokens, group, make, rewards_of, step
from hypothesis import assume, given
from hypothesis import strategies as st

from r3bench.components.ranking import domination_scores, peak_and_global, ramp

SCORES = st.lists(st.integers(0, 6), min_size=2, max_size=9)
ENTROPIES = st.lists(st.integers(0, 320).map(lambda n: n / 64), min_size=1, max_size=12)
RESPONSES = st.lists(ENTROPIES, min_size=1, max_size=6)


@given(SCORES, st.sampled_from(["average", "stable", "random"]), st.sampled_from([0.1, 0.5]), st.integers(0, 99))
def test_the_ramp_orders_rows_by_score_and_ends_at_its_bounds(scores, ties, r_max, seed):
    rewards = ramp(np.array(scores), max_reward=r_max, ties=ties, rng=random.Random(seed))
    for i, a in enumerate(scores):
        for j, b in enumerate(scores):
            if a > b:
                assert rewards[i] > rewards[j]
            elif a == b and ties == "average":
                assert rewards[i] == pytest.approx(rewards[j])
    ladder = r_max * np.arange(len(scores)) / (len(scores) - 1)
    if ties == "average":  # a lone best or worst row stands at the end of the ramp; the sum is the ramp's
        assert rewards.sum() == pytest.approx(ladder.sum())
        if scores.count(max(scores)) == 1:
            assert rewards[scores.index(max(scores))] == pytest.approx(r_max)
        if scores.count(min(scores)) == 1:
            assert rewards[scores.index(min(scores))] == pytest.approx(0, abs=1e-12)
    else:
        np.testing.assert_allclose(np.sort(rewards), ladder, atol=1e-12)
    if ties == "stable":
        first = scores.index(max(scores))
        assert rewards[first] == r_max


@given(ENTROPIES, st.sampled_from(["average", "stable", "random"]))
def test_a_group_of_one_gets_nothing(entropies, ties):
    assert rewards_of([np.array(entropies)], ties=ties).tolist() == [0.0]
    groups = [group(0, [0, 0, 0, 0], truncated=[0, 0, 1, 0])]  # one row in scope
    component = make("ranking", {"ties": ties})
    give_tokens(groups, {2: entropies})
    assert component.score(step(groups), {2: np.array(entropies)}) == {2: 0.0}
    assert not component.acted(component.take_counts())


@given(RESPONSES, st.integers(0, 6))
def test_an_empty_completion_changes_nobodys_score(responses, place):
    rows = [np.array(row) for row in responses]
    place = min(place, len(rows))

    def scores(given):
        figures = np.array([peak_and_global(row, 0.2) for row in given])
        return domination_scores(figures[:, 0], figures[:, 1])

    together = scores([*rows[:place], np.zeros(0), *rows[place:]])
    assert together[place] == 0
    assert np.delete(together, place).tolist() == scores(rows).tolist()
    assert np.isfinite(rewards_of([*rows, np.zeros(0)])).all()


@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=4, max_size=4),
    st.lists(ENTROPIES, min_size=4, max_size=4),
    st.sampled_from(["truncated", "failed", "truncated_anywhere"]), st.sampled_from([0.1, 0.5, 0.9]),
)  # fmt: skip
def test_who_is_ranked_and_that_no_failure_reaches_a_success(rows, entropies, scope, r_max):
    correct, cut = [row[0] for row in rows], [row[1] for row in rows]
    groups = [group(0, correct, truncated=cut)]
    component = make("ranking", {"scope": scope, "max_reward": r_max})
    in_scope = scope == "truncated_anywhere" or not any(correct)
    wanted = {i for i in range(4) if in_scope and not correct[i] and (cut[i] or scope == "failed")}
    assert set(component.entropy_rows(step(groups))) == wanted
    found = {place: np.array(entropies[place]) for place in wanted}
    give_tokens(groups, found)
    rewards = component.score(step(groups), found)
    assert set(rewards) == wanted
    assert all(0 <= reward <= r_max < 1 for reward in rewards.values())


@given(st.lists(ENTROPIES, min_size=2, max_size=6))
def test_all_rows_truncated_are_ranked_like_their_entropies_alone(entropies):
    size = len(entropies)
    groups = [group(0, [0] * size, truncated=[1] * size)]
    component = make("ranking")
    rows = [np.array(row) for row in entropies]
    give_tokens(groups, dict(enumerate(rows)))
    rewards = component.score(step(groups), dict(enumerate(rows)))
    want = rewards_of(rows, groups[0].completion_ids)
    np.testing.assert_allclose([rewards[place] for place in range(size)], want)
    counts = component.take_counts()
    assert component.acted(counts) == (counts["ranking/dominations"] > 0)  # equal rewards are no advantage


def through_json(state):
    """A state as the checkpoint keeps it: arrays by themselves, all else as JSON."""
    arrays = {key: value for key, value in state.items() if isinstance(value, np.ndarray)}
    return {**json.loads(json.dumps({k: v for k, v in state.items() if k not in arrays}, allow_nan=False)), **arrays}


@given(st.dictionaries(st.integers(0, 30), st.floats(0, 1), max_size=12), st.booleans(), st.integers(0, 99))
def test_exgrpos_state_comes_back(accuracy, started, number):
    component = make("exgrpo")
    component.accuracy = {f"q{n}": value for n, value in accuracy.items()}
    component._started = started
    twin = make("exgrpo")
    twin.load_state_dict(through_json(component.state_dict()))
    batch = step([group(i, [0] * 4, question=f"new{i}") for i in range(4)], number=number)
    assert twin.plan(batch) == component.plan(batch)
    assert twin.state_dict() == component.state_dict()


@given(
    st.lists(st.tuples(st.integers(0, 4), st.text("abc\n", min_size=3, max_size=20), st.integers(0, 4)), max_size=10),
    st.sampled_from(["random", "monte_carlo"]), st.integers(0, 99),
)  # fmt: skip
def test_retrospectives_state_comes_back(answers, value, number):
    settings = {"value": value, "quantile": 0.0, "cuts": "grid", "spacing": 2, "share": 0.5, "retire": 1.0}
    component = make("retrospective", settings)
    for at, (question, text, right) in enumerate(answers):
        correct = [place < right for place in range(4)]
        component.observe(step([group(0, correct, question=f"q{question}", texts=[text] * 4)], Memory(), at))
    twin = make("retrospective", settings)
    twin.load_state_dict(through_json(component.state_dict()))
    assume(answers)
    batch = step([group(i, [0] * 4, question=f"new{i}") for i in range(4)], number=50 + number)
    assert twin.plan(batch) == component.plan(batch)
    for key, kept in component.state_dict().items():
        np.testing.assert_array_equal(np.asarray(twin.state_dict()[key], object), np.asarray(kept, object))
