"""Dynamic sampling, rescue, RePO and ExGRPO: rows, advantages and evidence against plain references."""

import math
import random
from collections import Counter

import numpy as np
import pytest
from component_tools import Memory, group, make, step, stored
from hypothesis import given
from hypothesis import strategies as st
from reference_components import best_variance, mixed

from r3bench.components.exgrpo import draw_questions
from r3bench.components.repo import choose, max_variance
from r3bench.config.load import parse_recipe
from r3bench.errors import ConfigError

FEW = st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=6)


@given(FEW)
def test_dynamic_sampling_keeps_groups_with_contrast_and_drops_the_rest(batch):
    groups = [group(i, rows) for i, rows in enumerate(batch)]
    component = make("dynamic_sampling")
    kept = component.keep(step(groups))
    assert kept == [0 < sum(rows) < 4 for rows in batch]
    dropped = component.rescale(step(groups), frozenset({0}))
    assert dropped == {i: 0.0 for i, alive in enumerate(kept) if not alive and i != 0}
    counts = component.take_counts()
    assert counts["dynamic_sampling/groups_dead"] == kept.count(False)
    assert component.acted(counts) == (kept.count(False) > 0)


def test_dynamic_sampling_leaves_planned_groups_alone_and_filter_never_samples_again():
    groups = [group(0, [0] * 4, provenance="reflection")]
    component = make("dynamic_sampling")
    assert component.keep(step(groups)) == [True] and component.rescale(step(groups), frozenset()) == {}
    assert component.resamples and not make("dynamic_sampling", "filter").resamples


def test_rescue_swaps_one_row_of_an_all_wrong_group_for_an_earlier_right_answer():
    memory = Memory(
        stored("q0", 0, True, epoch=1), stored("q0", 1, True, epoch=2), stored("q0", 2, False), stored("q1", 0, False)
    )
    groups = [group(0, [0] * 4), group(1, [1] * 4), group(2, [0] * 4)]
    component = make("rescue")
    (mixture,) = component.mix(step(groups, memory, epoch=2.0))
    assert (mixture.group, [row.serial for row in mixture.historic], len(mixture.replaced)) == (0, [0], 1)
    own, other = mixed([0.0] * 3, [1.0], 1.0, 1e-4, "mixed", "group_std")
    np.testing.assert_allclose(mixture.fresh_advantages[[p for p in range(4) if p not in mixture.replaced]], own)
    np.testing.assert_allclose(mixture.historic_advantages, other)
    counts = {"rescue/groups_all_wrong": 2, "rescue/rows": 1, "rescue/groups_no_history": 1}
    assert component.take_counts() == counts


@given(st.lists(st.integers(0, 6).map(float), min_size=1, max_size=9), st.integers(1, 9))
def test_max_variance_equals_trying_all(rewards, k):
    k = min(k, len(rewards))
    chosen = max_variance(rewards, k)
    assert len(set(chosen)) == k
    assert np.var([rewards[i] for i in chosen]) == pytest.approx(best_variance(rewards, k))


SIXTEEN = [stored("q0", s, s % 3 == 0) for s in range(20)]


@pytest.mark.parametrize("normalisation", ["split", "mixed"])
def test_repo_joins_the_newest_answers_at_every_visit(normalisation):
    settings = {"rows": 6, "normalisation": normalisation, "coefficient": 0.5}
    groups = [group(0, [0, 1, 1, 0]), group(1, [0] * 4)]
    component = make("repo", settings)
    (mixture,) = component.mix(step(groups, Memory(*SIXTEEN)))
    assert [row.serial for row in mixture.historic] == [19, 18, 17, 16, 15, 14]
    assert mixture.replaced == () and mixture.weight == "ppo"
    own, other = mixed(
        [0, 1, 1, 0], [float(s % 3 == 0) for s in (19, 18, 17, 16, 15, 14)], 1, 1e-4, normalisation, "group_std"
    )
    np.testing.assert_allclose(mixture.fresh_advantages, own)
    np.testing.assert_allclose(mixture.historic_advantages, 0.5 * np.array(other))


def test_repo_waits_for_a_full_buffer():
    component = make("repo")
    assert component.mix(step([group(0, [0, 1, 1, 0])], Memory(*SIXTEEN[:15]))) == []


@pytest.mark.parametrize("pick", ["all", "random", "recent", "highest", "max_variance"])
def test_repo_strategies(pick):
    chosen = choose(SIXTEEN, 5, pick, random.Random(0))
    assert len({row.serial for row in chosen}) == (20 if pick == "all" else 5)
    if pick == "highest":
        assert all(row.correct for row in chosen)
    if pick == "max_variance":
        assert sum(row.correct for row in chosen) in (2, 3)


def test_exgrpo_draws_buckets_by_their_normal_weight():
    accuracy = {"none": 0.0, "all": 1.0, **{f"a{i}": 0.25 for i in range(5)}, "b": 0.5, "c": 0.75}
    rng = random.Random(1)
    drawn = Counter(draw_questions(accuracy, 1, rng, centre=0.5, spread=0.25)[0][0] for _ in range(4000))
    side = math.exp(-0.5)
    for key, weight in (("a", side), ("b", 1.0), ("c", side)):
        assert drawn[key] / 4000 == pytest.approx(weight / (1 + 2 * side), abs=0.04)
    everything = draw_questions(accuracy, 99, rng, centre=0.5, spread=1.0)
    assert sorted(everything) == ["a0", "a1", "a2", "a3", "a4", "b", "c"]


def test_exgrpo_from_observation_to_mixture():
    component = make("exgrpo", {"share": 0.5})
    seen = [group(i, rows, question=f"old{i}") for i, rows in enumerate([[1, 1, 0, 0], [0] * 4, [1] * 4, [1, 0, 0, 0]])]
    assert component.plan(step(seen)) == []
    component.observe(step(seen))  # success rate 7/16 passes 0.35
    plans = component.plan(step([group(i, [0] * 4) for i in range(4)], number=11))
    assert {plan.question for plan in plans} == {"old0", "old3"}  # never the solved or the hopeless one
    assert len({plan.slot for plan in plans}) == 2 and all(plan.provenance == "fresh" for plan in plans)
    memory = Memory(
        stored("old0", 0, True, entropy_mean=0.9), stored("old0", 1, True, entropy_mean=0.2), stored("old0", 2, False),
        stored("q1", 0, True),
    )  # fmt: skip
    groups = [group(0, [1, 0, 0, 0], question="old0"), group(1, [0] * 4)]
    (mixture,) = component.mix(step(groups, memory, 11))
    assert mixture.group == 0 and mixture.historic[0].serial == 1 and mixture.weight == "shaped"
    kept = [p for p in range(4) if p not in mixture.replaced]
    own, other = mixed([groups[0].rewards[p] for p in kept], [1.0], 1.0, 1e-4, "mixed", "group_std")
    np.testing.assert_allclose(mixture.fresh_advantages[kept], own)
    np.testing.assert_allclose(mixture.historic_advantages, other)

    twin = make("exgrpo", {"share": 0.5})
    twin.load_state_dict(component.state_dict())
    nxt = step([group(i, [0] * 4) for i in range(4)], number=12)
    assert twin.plan(nxt) == component.plan(nxt)


def test_exgrpo_does_not_start_below_its_success_rate():
    component = make("exgrpo")
    component.observe(step([group(0, [1, 0, 0, 0])]))
    assert component.plan(step([group(i, [0] * 4) for i in range(4)], number=11)) == []


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("replay", {}), ("rescue", {}), ("repo", {"window": 4, "min_stored": 4, "rows": 4}), ("exgrpo", {}),
        ("reflection", {"gradient": "reattach"}),
    ],
)  # fmt: skip
def test_groups_an_earlier_component_mixed_are_left_alone_and_are_no_evidence(name, settings):
    rows = [stored(f"q{g}", s, s < 2, epoch=0) for g in range(2) for s in range(4)]
    rows += [stored(f"q{g}", 9, True, provenance="reflection") for g in range(2)]
    groups = [group(i, [0] * 4) for i in range(2)]
    component = make(name, settings)
    component._planned = frozenset({"q0", "q1"})  # exgrpo's
    assert {mixture.group for mixture in component.mix(step(groups, Memory(*rows)))} == {0, 1}
    component.take_counts()
    assert [mixture.group for mixture in component.mix(step(groups, Memory(*rows), taken=frozenset({1})))] == [0]
    assert component.take_counts()[f"{name}/groups_taken"] == 1
    assert component.mix(step(groups, Memory(*rows), taken=frozenset({0, 1}))) == []
    counts = component.take_counts()
    assert counts == {f"{name}/groups_taken": 2} and not component.acted(counts)


def test_repo_needs_a_history_that_keeps_enough():
    settings = {"min_stored": 20, "window": 40}
    parse_recipe({"components": {"repo": settings}}, "recipe")
    with pytest.raises(ConfigError, match=r"repo\.min_stored: got 20, but the history keeps 8"):
        parse_recipe({"components": {"repo": settings}, "history": {"per_question": 8}}, "recipe")
    with pytest.raises(ConfigError, match=r"repo\.min_stored: got 40, but the history keeps 32"):
        parse_recipe({"components": {"repo": {**settings, "min_stored": 40}}}, "recipe")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dynamic_sampling", {"max_rounds": -1}), ("rescue", {"weight": "some"}), ("repo", {"min_stored": 17}),
        ("repo", {"rows": 0}), ("exgrpo", {"share": 0}), ("exgrpo", {"spread": 0}), ("rescue", {"ratio_max": 0}),
    ],
)  # fmt: skip
def test_bad_settings_are_config_errors(name, settings):
    with pytest.raises(ConfigError, match=rf"components\.{name}"):
        parse_recipe({"components": {name: settings}}, "recipe")


def test_a_share_that_never_makes_a_group_is_refused():
    trainer = {"num_generations": 4, "generation_batch_size": 12, "per_device_train_batch_size": 12}
    with pytest.raises(
        ConfigError, match=r"components\.exgrpo\.share: got 0\.3 of 3 groups a batch.* at least 0\.3334"
    ):
        parse_recipe({"components": {"exgrpo": {"share": 0.3}}, "trainer": trainer}, "recipe")
    parse_recipe({"components": {"exgrpo": {"share": 0.3334}}, "trainer": trainer}, "recipe")


def test_groups_that_found_nothing_stored_are_counted_in_every_method():
    groups = [group(0, [0] * 4)]
    for name, settings in (("rescue", {}), ("repo", {"window": 2, "min_stored": 2}), ("replay", {})):
        component = make(name, settings)
        assert component.mix(step(groups, Memory(stored("q0", 0, False)))) == []
        counts = component.take_counts()
        assert counts[f"{name}/groups_no_history"] == 1
        assert not component.acted(counts), name


def test_dynamic_sampling_drops_no_group_that_another_component_rewards():
    groups = [group(0, [0] * 4), group(1, [0] * 4)]
    groups[1].rewards = np.array([0.0, 0.1, 0.2, 0.3])
    component = make("dynamic_sampling")
    assert component.rescale(step(groups), frozenset()) == {0: 0.0}
    assert component.take_counts()["dynamic_sampling/groups_dropped"] == 1
