"""Ranking: equality with a plain reference, the properties of the ramp, scope, controls and the config errors."""

import random

import numpy as np
import pytest
from component_tools import Memory, give_tokens, group, make, rewards_of, step, stored
from hypothesis import given
from hypothesis import strategies as st
from reference_components import by_context as reference_by_context
from reference_components import dominated, peak_and_global, ramp, serr

from r3bench.components.ranking import by_context, rank_correlation
from r3bench.config.load import parse_recipe
from r3bench.errors import ConfigError

# multiples of 1/64: sums and means are exact, so comparisons can't flip by rounding
ENTROPY = st.integers(0, 320).map(lambda n: n / 64)
RESPONSES = st.lists(st.lists(ENTROPY, min_size=1, max_size=16), min_size=1, max_size=7)


@given(
    RESPONSES,
    st.sampled_from([0.05, 0.2, 0.5, 1.0]),
    st.sampled_from([0.1, 0.5]),
    st.sampled_from(["average", "stable"]),
)
def test_rewards_equal_the_reference(responses, p, r_max, ties):
    got = rewards_of([np.array(r) for r in responses], peak_fraction=p, max_reward=r_max, ties=ties)
    np.testing.assert_allclose(got, serr(responses, p, r_max, ties), atol=1e-12)


@given(RESPONSES, st.randoms(use_true_random=False))
def test_permuting_the_rows_permutes_the_rewards(responses, rng):
    order = list(range(len(responses)))
    rng.shuffle(order)
    plain = rewards_of([np.array(r) for r in responses])
    permuted = rewards_of([np.array(responses[i]) for i in order])
    np.testing.assert_allclose(permuted, plain[order], atol=1e-12)


@given(
    st.lists(st.lists(ENTROPY, min_size=8, max_size=8), min_size=1, max_size=6),
    st.sampled_from([0.25, 0.5, 2.0, 4.0]), st.integers(-64, 64),
)  # fmt: skip
def test_positive_affine_maps_of_the_entropies_change_nothing(responses, scale, shift):
    plain = rewards_of([np.array(r) for r in responses], peak_fraction=0.25)
    moved = rewards_of([scale * np.array(r) + shift / 4 for r in responses], peak_fraction=0.25)
    np.testing.assert_allclose(moved, plain)


@given(RESPONSES)
def test_rewards_stay_on_the_ramp_and_keep_its_mean(responses):
    rewards = rewards_of([np.array(r) for r in responses], max_reward=0.4)
    assert rewards.min() >= 0 and rewards.max() <= 0.4
    if len(responses) > 1:
        assert rewards.mean() == pytest.approx(0.2)


def chain(count):
    """Responses of which each dominates all later ones: higher peak, lower mean."""
    return [np.array([5.0 - 0.1 * i] + [0.2 * i] * 9) for i in range(count)]


@pytest.mark.parametrize("count", [2, 3, 8])
def test_end_points(count):
    rewards = rewards_of(chain(count), peak_fraction=0.1, max_reward=0.5)
    np.testing.assert_allclose(rewards, np.linspace(0.5, 0, count))


@pytest.mark.parametrize("ties", ["average", "stable", "random"])
def test_one_row_gets_nothing_and_no_rows_are_fine(ties):
    assert rewards_of([np.array([1.0, 2.0])], ties=ties).tolist() == [0.0]
    assert rewards_of([], ties=ties).tolist() == []


def test_ties():
    same = [np.array([1.0, 0.5])] * 4
    assert rewards_of(same, ties="average").tolist() == [0.25] * 4
    np.testing.assert_allclose(rewards_of(same, ties="stable"), np.linspace(0.5, 0, 4))
    orders = {tuple(rewards_of(same, ties="random", rng=random.Random(seed))) for seed in range(30)}
    assert len(orders) > 5
    assert all(sorted(order) == pytest.approx(list(np.linspace(0, 0.5, 4))) for order in orders)


def test_an_empty_response_neither_dominates_nor_is_dominated():
    rewards = rewards_of([*chain(2), np.zeros(0)], peak_fraction=0.1)
    np.testing.assert_allclose(rewards, [0.5, 0.125, 0.125])


def test_rounding_decides_nothing():
    """The first token's entropy is the same for all rows of a group but for its last bits."""
    noisy = [np.array([5.0 + 1e-6 * i, 0.1 * i, 0.2]) for i in range(3)]
    assert rewards_of(noisy[::-1]).tolist() == rewards_of(noisy).tolist() == [0.25] * 3
    apart = [np.array([5.0 + 1e-3 * i, 0.1 * (3 - i), 0.2]) for i in range(3)]
    np.testing.assert_allclose(rewards_of(apart), [0.0, 0.25, 0.5])


ROWS = st.lists(st.lists(st.tuples(st.integers(0, 2), ENTROPY), max_size=9), max_size=6)


@given(ROWS)
def test_one_entropy_per_context(rows):
    tokens, entropies = [[t for t, _ in row] for row in rows], [[h for _, h in row] for row in rows]
    got = by_context([np.array(row) for row in entropies], [np.array(row) for row in tokens])
    for one, want in zip(got, reference_by_context(entropies, tokens), strict=True):
        np.testing.assert_allclose(one, want, atol=1e-12)


def test_noise_where_rows_begin_alike_ranks_nothing():
    """bfloat16: the first token's entropy is everyone's peak, and off by more than entropies are told apart by."""
    tokens = [np.array([7, i, 1]) for i in range(3)]
    noisy = [np.array([5.0 + 0.02 * i, 0.5, 0.5 - 0.1 * i]) for i in range(3)]
    np.testing.assert_allclose(rewards_of(noisy), [0.0, 0.25, 0.5])
    assert rewards_of(noisy, tokens).tolist() == [0.25] * 3
    apart = [np.array([2.0 - 0.1 * i, 0.5 - 0.1 * i, 5.0 + 0.02 * i]) for i in range(3)]
    np.testing.assert_allclose(rewards_of(apart), [0.0, 0.25, 0.5])
    assert rewards_of(apart, tokens).tolist() == [0.25] * 3  # only the last token's context is a row's own
    apart = [np.array([2.0, 0.5, 5.0 + 0.02 * i] + [0.5 - 0.1 * i] * 2) for i in range(3)]
    tokens = [np.array([7, i, 1, 1, 1]) for i in range(3)]
    np.testing.assert_allclose(rewards_of(apart, tokens), [0.0, 0.25, 0.5])


def ranked(settings, groups, entropies, memory=None, number=10):
    component = make("ranking", settings)
    at = step(groups, memory, number)
    wanted = component.entropy_rows(at)
    give_tokens(groups, {row: entropies[row] for row in wanted})
    rewards = component.score(at, {row: entropies[row] for row in wanted})
    return rewards, wanted, component


GROUPS = [
    group(0, [0, 0, 0, 0], truncated=[1, 1, 0, 1]),  # all wrong, three truncated
    group(1, [1, 0, 0, 0], truncated=[0, 1, 1, 0]),  # mixed
    group(2, [1, 1, 1, 1], truncated=[1, 0, 0, 0]),  # all right
]
ENTROPIES = {row: np.array([0.1, *tail]) for row, tail in enumerate(chain(12))}  # the first token is everyone's


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({}, [0, 1, 3]), ({"scope": "failed"}, [0, 1, 2, 3]), ({"scope": "truncated_anywhere"}, [0, 1, 3, 5, 6]),
    ],
)  # fmt: skip
def test_scope(settings, rows):
    rewards, wanted, component = ranked({"peak_fraction": 0.1, **settings}, GROUPS, ENTROPIES)
    assert sorted(rewards) == sorted(wanted) == rows
    per_group = [[r for r in rows if r in g.rows] for g in GROUPS]
    for members in filter(None, per_group):
        want = serr([ENTROPIES[r].tolist() for r in members], 0.1, 0.5, "average")
        np.testing.assert_allclose([rewards[r] for r in members], want)
    counts = component.take_counts()
    assert counts["ranking/rows"] == len(rows)
    figures = [[peak_and_global(ENTROPIES[r].tolist(), 0.1) for r in members] for members in per_group if members]
    assert counts["ranking/dominations"] == sum(sum(dominated(f)) for f in figures)
    assert counts["ranking/reward"] == pytest.approx(sum(rewards.values()))
    assert component.acted(counts)


def test_all_rows_truncated_without_any_domination_changes_nothing_and_says_so():
    groups = [group(0, [0] * 4, truncated=[1] * 4)]
    rewards, _, component = ranked({}, groups, {r: np.array([1.0, 0.5]) for r in range(4)})
    assert set(rewards.values()) == {0.25}  # equal: no advantage
    counts = component.take_counts()
    assert counts["ranking/groups_without_domination"] == 1
    assert not component.acted(counts)


@pytest.mark.parametrize("control", ["random", "reversed", "length", "shuffled"])
def test_controls_differ_from_the_real_thing_and_keep_its_ramp(control):
    groups = [group(0, [0] * 4, truncated=[1] * 4, texts=["x" * n for n in (5, 9, 2, 7)])]
    real, _, _ = ranked({"peak_fraction": 0.1, "scope": "failed"}, groups, ENTROPIES)
    fake, wanted, _ = ranked({"peak_fraction": 0.1, "order": control, "scope": "failed"}, groups, ENTROPIES, number=1)
    assert sorted(fake.values()) == pytest.approx(sorted(real.values()))
    assert fake != real
    if control == "reversed":
        assert [fake[r] for r in range(4)] == pytest.approx([0.5 - real[r] for r in range(4)])
    if control == "length":
        assert [fake[r] for r in range(4)] == pytest.approx(ramp([-5, -9, -2, -7], 0.5, "average"))
    if control in ("random", "length"):
        assert wanted == []  # no forward is paid for


def test_shuffling_deals_out_the_very_rewards():
    """Two rows dominate two others: ties are kept, unlike in `random`; without any domination there is no spread."""
    rows = [np.array([0.1, peak, low, low]) for peak, low in ((3.0, 0.1), (3.0, 0.1), (2.0, 1.5), (2.0, 1.5))]
    groups, found = [group(0, [0] * 4, truncated=[1] * 4)], dict(enumerate(rows))
    dealt = set()
    for number in range(20):
        rewards, _, component = ranked({"order": "shuffled"}, groups, found, number=number)
        assert sorted(rewards.values()) == pytest.approx([0.25 / 3, 0.25 / 3, 1.25 / 3, 1.25 / 3])
        assert component.take_counts()["ranking/dominations"] == 4
        dealt.add(tuple(rewards.values()))
    assert len(dealt) > 3
    alike = {row: np.array([0.1, 2.0, 0.3]) for row in range(4)}
    assert set(ranked({"order": "shuffled"}, groups, alike)[0].values()) == {0.25}


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8))
def test_the_correlation_is_spearmans(pairs):
    from scipy.stats import spearmanr

    first, second = (np.array([pair[i] for pair in pairs], float) for i in (0, 1))
    got = rank_correlation(first, second)
    if len(set(first)) < 2 or len(set(second)) < 2:
        assert np.isnan(got)
    else:
        assert got == pytest.approx(spearmanr(first, second).statistic)


def test_a_correlation_that_says_nothing_is_not_averaged_in():
    groups = [group(0, [0] * 4, truncated=[1, 0, 0, 0]), group(1, [0] * 4, truncated=[1] * 4)]
    _, _, component = ranked({"peak_fraction": 0.1}, groups, ENTROPIES)
    (figure,) = component.take_figures().values()
    assert figure == pytest.approx(-1.0)  # of the second group; a single row has none


def test_random_ranks_are_fresh_in_every_step():
    groups = [group(0, [0] * 4, truncated=[1] * 4)]
    component = make("ranking", "random")
    orders = set()
    for number in range(20):
        orders.add(tuple(component.score(step(groups, number=number), {}).values()))
    assert len(orders) > 5


def test_given_tokens_of_a_continuation_do_not_count():
    groups = [group(0, [0] * 2, truncated=[1] * 2, provenance="continuation", prefix=2)]
    tails = [np.array([2.0, 0.1]), np.array([1.0, 1.2])]
    into = {"into_provenance": ["continuation"]}
    rewards, _, _ = ranked(into, groups, {r: np.array([9.0 * r, 0.0, *tails[r]]) for r in range(2)})
    assert [rewards[0], rewards[1]] == [0.5, 0.0]


@pytest.mark.parametrize("kind", ["fresh", "reflection", "continuation"])
def test_only_the_provenances_named_are_ranked_and_groups_are_counted_by_provenance(kind):
    groups = [
        group(i, [0] * 4, truncated=[1] * 4, provenance=provenance)
        for i, provenance in enumerate(["fresh", "reflection", "continuation"])
    ]
    entropies = {row: np.array([1.0 + row % 4, 3.0 - 0.9 * (row % 4), 0.0]) for row in range(12)}
    rewards, _, component = ranked({"into_provenance": [kind], "peak_fraction": 0.1}, groups, entropies)
    chosen = next(one for one in groups if one.provenance == kind)
    assert sorted(rewards) == list(chosen.rows)
    counts = component.take_counts()
    assert counts["ranking/groups"] == counts[f"ranking/groups_{kind}"] == 1
    assert not any(f"ranking/groups_{other}" in counts for other in {"fresh", "reflection", "continuation"} - {kind})
    everything, _, _ = ranked("literal", groups, entropies)
    assert sorted(everything) == list(range(12))


def test_a_bonus_for_running_into_the_cap_is_no_evidence_of_ranking():
    """Equal entropies dominate nothing; one finished wrong answer in the group makes a spread all the same."""
    groups = [group(0, [0] * 4, truncated=[1, 1, 1, 0])]
    flat = {row: np.ones(4) for row in range(4)}
    rewards, _, component = ranked({}, groups, flat)
    assert set(rewards.values()) == {0.25}
    counts = component.take_counts()
    assert counts["ranking/groups_with_spread"] == counts["ranking/groups_spread_by_scope"] == 1
    assert not component.acted(counts)
    groups = [group(0, [0] * 4, truncated=[1] * 4)]
    _, _, component = ranked({"ties": "stable"}, groups, flat)  # the whole ramp, by row order
    counts = component.take_counts()
    assert counts["ranking/groups_with_spread"] == 1 and not component.acted(counts)
    _, _, component = ranked({"peak_fraction": 0.1}, groups, ENTROPIES)
    assert component.acted(component.take_counts())


def test_no_history_only_ranks_questions_without_a_stored_right_answer():
    groups = [group(0, [0] * 4, truncated=[1] * 4), group(1, [0] * 4, truncated=[1] * 4)]
    memory = Memory(stored("q0", 0, True), stored("q1", 0, False))
    rewards, _, component = ranked({"when": "no_history", "peak_fraction": 0.1}, groups, ENTROPIES, memory)
    assert sorted(rewards) == [4, 5, 6, 7]
    assert component.uses_history and not make("ranking").uses_history


def test_no_history_asks_the_batch_at_hand_not_the_one_that_was_planned():
    component = make("ranking", {"when": "no_history", "scope": "failed"})
    groups = [group(0, [0] * 4)]
    component.plan(step([group(0, [0] * 4, question="other")]))
    assert component.score(step(groups, Memory(stored("q0", 0, True))), ENTROPIES) == {}


def test_unanchored_weight_scales_ranked_all_wrong_groups_without_historic_rows():
    groups = [group(0, [0] * 4, truncated=[1] * 4), group(1, [0] * 4, truncated=[1] * 4), group(2, [0, 1, 0, 0])]
    rewards, _, component = ranked({"unanchored_weight": 0.1, "peak_fraction": 0.1}, groups, ENTROPIES)
    for one in groups:
        one.rewards = one.task_rewards + [rewards.get(row, 0.0) for row in one.rows]
    assert component.rescale(step(groups), frozenset({1})) == {0: 0.1}
    uneven = [group(0, [0] * 4, rewards=np.float32([0.1, 0.2, 0.3, 0.7]), truncated=[1] * 4)]
    uneven[0].rewards = (np.float32(uneven[0].task_rewards) + np.float32(0.25)).astype(float)  # as TRL sums them
    assert np.ptp(uneven[0].rewards - uneven[0].task_rewards) > 0
    assert component.rescale(step(uneven), frozenset()) == {}  # equal rewards: none of it is the ranking's
    _, _, literal = ranked({"peak_fraction": 0.1}, groups, ENTROPIES)
    assert literal.rescale(step(groups), frozenset()) == {}


@pytest.mark.parametrize(
    ("settings", "trainer", "words"),
    [
        ({"max_reward": 1.0}, {}, "max_reward"), ({"max_reward": 0}, {}, "max_reward"),
        ({"peak_fraction": 0}, {}, "peak_fraction"),
        ({}, {"mask_truncated_completions": True}, "mask_truncated_completions"), ({"order": "up"}, {}, "order"),
        ({"unanchored_weight": -1}, {}, "unanchored_weight"),
    ],
)  # fmt: skip
def test_bad_settings_are_config_errors(settings, trainer, words):
    with pytest.raises(ConfigError, match=words):
        parse_recipe({"components": {"ranking": settings}, "trainer": trainer}, "recipe")
