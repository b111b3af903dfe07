"""Replay: Eq. 3 against a plain reference, who is drawn, which groups are touched, and the evidence."""

import random

import numpy as np
import pytest
from component_tools import Memory, group, make, step, stored
from hypothesis import given
from hypothesis import strategies as st
from reference_components import mixed

from r3bench.config.load import parse_recipe
from r3bench.errors import ConfigError
from r3bench.training.toolkit.mixed_groups import mixed_advantages, pick_rows

REWARDS = st.lists(st.floats(-2, 2, allow_nan=False), min_size=1, max_size=8)


@given(
    REWARDS, REWARDS, st.floats(0.5, 3), st.sampled_from(["mixed", "split", "fresh"]),
    st.sampled_from(["group_std", "replayed_rows"]), st.sampled_from([None, 1.0, 0.3]), st.booleans(),
)  # fmt: skip
def test_advantages_equal_the_reference(fresh, replayed, alpha, normalisation, alpha_on, std, population):
    options = {"alpha": alpha, "normalisation": normalisation, "alpha_on": alpha_on, "std": std}
    got = mixed_advantages(fresh, replayed, eps=1e-4, population=population, **options)
    want = mixed(fresh, replayed, alpha, 1e-4, normalisation, alpha_on, std, population)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@given(st.integers(1, 12), st.integers(1, 4), st.booleans())
def test_one_stored_row_gives_a_collapsed_group_a_gradient(size, k, right):
    own, other = mixed_advantages([float(right)] * size, [float(not right)] * k)
    assert np.all(np.sign(own) == (1 if right else -1))
    assert np.all(np.sign(other) == (-1 if right else 1))
    assert abs(own.sum() + other.sum()) < 1e-9  # centred on the mixed group


def test_alpha_two_halves_all_advantages_or_only_the_replayed_ones():
    plain = mixed_advantages([0.0, 0.0, 0.0], [1.0], eps=0)
    literal = mixed_advantages([0.0, 0.0, 0.0], [1.0], alpha=2, eps=0)
    text = mixed_advantages([0.0, 0.0, 0.0], [1.0], alpha=2, eps=0, alpha_on="replayed_rows")
    np.testing.assert_allclose(literal[0], plain[0] / 2)
    np.testing.assert_allclose(literal[1], plain[1] / 2)
    np.testing.assert_allclose(text[0], plain[0])
    np.testing.assert_allclose(text[1], plain[1] / 2)


ROWS = [
    stored("q0", 0, True, length=9, entropy_mean=0.5),
    stored("q0", 1, True, length=3, entropy_mean=0.9),
    stored("q0", 2, True, length=6),
    stored("q0", 3, True, length=7, entropy_mean=0.1),
]


@pytest.mark.parametrize(
    ("pick", "serials"),
    [("recent", [3, 2]), ("shortest_correct", [1, 2]), ("lowest_entropy", [3, 0]), ("highest_entropy", [1, 0])],
)
def test_picks(pick, serials):
    for seed in range(5):
        assert [row.serial for row in pick_rows(ROWS, 2, pick, random.Random(seed))] == serials


def test_random_pick_reaches_every_row_and_never_repeats_one():
    seen = set()
    for seed in range(50):
        drawn = [row.serial for row in pick_rows(ROWS, 3, "random", random.Random(seed))]
        assert len(set(drawn)) == 3
        seen.update(drawn)
    assert seen == {0, 1, 2, 3}


def draw(settings, groups, memory, number=10, epoch=2.0, **facts):
    component = make("replay", settings, **facts)
    mixtures = component.mix(step(groups, memory, number, epoch))
    return {m.group: m for m in mixtures}, component.take_counts()


def test_only_collapsed_fresh_groups_get_opposite_rows_of_their_own_question():
    groups = [
        group(0, [0, 0, 0, 0]), group(1, [1, 1, 1, 1]), group(2, [0, 1, 0, 0]), group(3, [0, 0, 0, 0], question="new"),
        group(4, [0, 0, 0, 0], question="q0", provenance="reflection"),
    ]  # fmt: skip
    memory = Memory(stored("q0", 0, True), stored("q0", 1, False), stored("q1", 0, True), stored("q1", 1, False))
    mixtures, counts = draw({}, groups, memory)
    assert {g: [(r.question, r.serial) for r in m.historic] for g, m in mixtures.items()} == {
        0: [("q0", 0)], 1: [("q1", 1)]
    }  # fmt: skip
    own, other = mixed([0.0] * 4, [1.0], 1.0, 1e-4, "mixed", "group_std")
    np.testing.assert_allclose(mixtures[0].fresh_advantages, own)
    np.testing.assert_allclose(mixtures[0].historic_advantages, other)
    assert mixtures[0].replaced == ()
    assert counts["replay/groups_mixed"] == 2 and counts["replay/rows"] == 2
    assert counts["replay/groups_no_history"] == 1
    assert counts["replay/groups_all_wrong"] == 2 and counts["replay/groups_all_right"] == 1


def test_collapse_is_judged_by_correctness_not_by_reward_spread():
    groups = [group(0, [1, 1, 1, 1], rewards=[1.9, 1.8, 1.7, 1.95])]
    mixtures, _ = draw({}, groups, Memory(stored("q0", 0, False)))
    own, other = mixed([1.9, 1.8, 1.7, 1.95], [0.0], 1.0, 1e-4, "mixed", "group_std")
    np.testing.assert_allclose(mixtures[0].fresh_advantages, own)
    np.testing.assert_allclose(mixtures[0].historic_advantages, other)


def test_replace_keeps_the_size_and_takes_statistics_over_what_is_left():
    groups = [group(0, [1] * 4, rewards=[1.0, 1.2, 1.4, 1.6])]
    mixtures, _ = draw({"mode": "replace", "rows": 2}, groups, Memory(*[stored("q0", s, False) for s in range(3)]))
    mixture = mixtures[0]
    assert len(mixture.historic) == len(set(mixture.replaced)) == 2
    kept = [p for p in range(4) if p not in mixture.replaced]
    own, other = mixed([groups[0].rewards[p] for p in kept], [0.0, 0.0], 1.0, 1e-4, "mixed", "group_std")
    np.testing.assert_allclose(mixture.fresh_advantages[kept], own)
    np.testing.assert_allclose(mixture.historic_advantages, other)


@pytest.mark.parametrize(
    ("settings", "row", "drawn"),
    [
        ({}, {"truncated": True}, False),
        ({"truncated_negatives": True}, {"truncated": True}, True),
        ({}, {"provenance": "reflection"}, False),
        ({"from_provenance": ["fresh", "reflection"]}, {"provenance": "reflection"}, True),
        ({"max_age": 3}, {"step": 6}, False),
        ({"max_age": 4}, {"step": 6}, True),
        ({"labels": "positives"}, {}, False),
        ({"warmup": 3.0}, {}, False),
        ({"warmup": 11, "warmup_unit": "steps"}, {}, False),
        ({"warmup": 10, "warmup_unit": "steps"}, {}, True),
    ],
)
def test_who_may_be_replayed(settings, row, drawn):
    mixtures, _ = draw(settings, [group(0, [1, 1, 1, 1])], Memory(stored("q0", 0, False, **row)))
    assert (0 in mixtures) is drawn


def test_truncated_right_answers_may_be_replayed():
    mixtures, _ = draw({}, [group(0, [0, 0, 0, 0])], Memory(stored("q0", 0, True, truncated=True)))
    assert 0 in mixtures


def test_a_stored_row_counts_with_its_task_reward():
    memory = Memory(stored("q0", 0, False, reward=0.4))  # 0.4 was a ranking reward in another group
    mixtures, _ = draw({}, [group(0, [1, 1, 1, 1])], memory)
    np.testing.assert_allclose(
        mixtures[0].historic_advantages, mixed([1.0] * 4, [0.0], 1, 1e-4, "mixed", "group_std")[1]
    )


@pytest.mark.parametrize("scale", ["none", "batch"])
def test_the_trainers_scaling_is_followed(scale):
    groups = [group(0, [0] * 4), group(1, [1, 0, 0, 1])]
    mixtures, _ = draw({}, groups, Memory(stored("q0", 0, True)), scale_rewards=scale)
    batch = np.std([0, 0, 0, 0, 1, 0, 0, 1, 1], ddof=1)  # the mixed row's reward counts
    std, lam = (1.0, 0.0) if scale == "none" else (batch, 1e-4)
    np.testing.assert_allclose(
        mixtures[0].fresh_advantages, mixed([0.0] * 4, [1.0], 1.0, lam, "mixed", "group_std", std)[0]
    )


def test_batch_scaling_of_a_batch_without_any_spread_stays_of_ordinary_size():
    mixtures, _ = draw({}, [group(0, [0] * 4), group(1, [0] * 4)], Memory(stored("q0", 0, True)), scale_rewards="batch")
    std = np.std([0] * 8 + [1], ddof=1)
    np.testing.assert_allclose(mixtures[0].historic_advantages, 0.8 / (std + 1e-4))


def test_draws_depend_on_seed_step_and_group_only():
    memory = Memory(*[stored(f"q{g}", s, True) for g in range(2) for s in range(20)])
    groups = [group(0, [0] * 4), group(1, [0] * 4)]

    def serials(number, batch, **facts):
        mixtures, _ = draw({"rows": 3}, batch, memory, number, **facts)
        return {g: [r.serial for r in m.historic] for g, m in mixtures.items()}

    assert serials(10, groups) == serials(10, groups)
    assert serials(10, groups)[1] == serials(10, groups[1:])[1]  # other groups do not matter
    assert serials(10, groups) != serials(11, groups)
    assert serials(10, groups) != serials(10, groups, seed=4)


@pytest.mark.parametrize(
    "settings",
    [
        {"rows": 0}, {"alpha": 0}, {"normalisation": "split"}, {"from_provenance": []}, {"ratio_min": 3.0},
        {"mode": "replace", "rows": 8}, {"max_age": 0}, {"warmup": -1}, {"pick": "longest"}, {"rowz": 1},
    ],
)  # fmt: skip
def test_bad_settings_are_config_errors(settings):
    with pytest.raises(ConfigError, match=r"components\.replay"):
        parse_recipe({"components": {"replay": settings}, "trainer": {"num_generations": 8}}, "recipe")


@pytest.mark.parametrize("scale", ["batch", "none"])
def test_a_deviation_of_the_group_that_nothing_divides_by_is_refused(tmp_path, scale):
    from trainer_tools import arguments, questions

    from r3bench import R3Trainer

    components = {"replay": {"deviation": "population"}}
    message = rf"components\.replay\.deviation: got 'population' with trainer\.scale_rewards='{scale}'"
    with pytest.raises(ConfigError, match=f"recipe: {message}"):
        parse_recipe({"components": components, "trainer": {"scale_rewards": scale}}, "recipe")
    scale = {"none": False}.get(scale, scale)  # TRL takes both
    with pytest.raises(ConfigError, match=f"R3Config: {message}"):
        R3Trainer(
            model="never loaded", reward_funcs=len, train_dataset=questions(2),
            args=arguments(tmp_path, components=components, scale_rewards=scale),
        )  # fmt: skip
    parse_recipe({"components": components, "trainer": {"scale_rewards": "group"}}, "recipe")


def test_a_mixture_without_gradient_is_no_evidence_of_acting(tiny_model, tmp_path):
    """Statistics of each part on its own: rows of one label have equal rewards, so nothing has an advantage."""
    from train_tools import batch_rows, train

    def turning(completion_ids, question_id, trainer_state, **_):
        first = trainer_state.epoch is None or trainer_state.epoch < 1
        return [float(first and i % 4 < 2) for i in range(len(question_id))]

    for settings, acts in (({"rows": 2, "normalisation": "split"}, False), ({"rows": 2}, True)):
        trainer = train(tiny_model, tmp_path / str(acts), {"replay": {"weight": "none", **settings}}, turning)
        later = [row for record in trainer.records[3:] for row in batch_rows(record)]
        assert sum(row["number"] < 0 for row in later) == trainer.evidence["replay/rows"] == 12
        assert any(any(row["advantages"]) for row in later) == acts
        assert trainer.components[0].acted(trainer.evidence) == acts
        assert trainer.evidence["replay/groups_with_gradient"] == (6 if acts else 0)
