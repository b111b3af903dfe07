"""Retrospective replay: cuts, values, what is stored, drawn, credited and retired; the critic; checkpoints."""

import json
import random

import numpy as np
import pytest
from component_tools import Memory, group, make, step
from hypothesis import given
from hypothesis import strategies as st
from reference_components import auc as plain_auc
from reference_components import critic, paragraph_ends, quantile

from r3bench.components.retrospective import promising
from r3bench.config.load import parse_recipe
from r3bench.errors import ConfigError
from r3bench.training.toolkit.critic import ValueHead, auc
from r3bench.training.toolkit.cuts import cut_points, leaks, paragraph_cuts

TEXT = "first idea\n\nsecond idea\n\nso it is \\boxed{5} ok"


@given(st.lists(st.text(alphabet="a\n", max_size=4), max_size=12))
def test_paragraph_cuts_equal_the_reference(pieces):
    ends = np.cumsum([len(piece) for piece in pieces])
    assert paragraph_cuts("".join(pieces), ends) == paragraph_ends(pieces)


@given(
    st.integers(0, 60), st.lists(st.integers(0, 60), max_size=8), st.none() | st.integers(1, 20), st.floats(0.1, 1),
    st.integers(1, 6), st.integers(0, 61),
)  # fmt: skip
def test_cut_points_stay_inside_the_answer(length, breaks, spacing, fraction, count, before):
    cuts = cut_points(length, breaks, spacing=spacing, max_fraction=fraction, max_cuts=count, before=before)
    assert cuts == sorted(set(cuts)) and len(cuts) <= count
    assert all(1 <= cut <= fraction * length and cut < before and cut < length for cut in cuts)
    wanted = [b for b in breaks if 1 <= b <= fraction * length and b < before and b < length]
    if wanted:
        assert set(cuts) <= set(wanted)


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=20))
def test_auc_equals_the_reference(pairs):
    scores, labels = np.array([p[0] for p in pairs], float), np.array([p[1] for p in pairs], float)
    if 0 < labels.sum() < len(labels):
        assert auc(scores, labels) == pytest.approx(plain_auc(scores, labels))
    else:
        assert np.isnan(auc(scores, labels))


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=10),
    st.sampled_from([0.0, 0.5, 0.75, 1.0]),
)
def test_promising_rules(pairs, q):
    values, base = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    common = {"quantile": q, "threshold": 0.4, "rise": 0.1}
    bound = quantile(list(values), q)
    got = promising(values, base, rule="quantile", **common)
    assert all(g == (v >= bound) for g, v in zip(got, values, strict=True) if abs(v - bound) > 1e-9)
    assert promising(values, base, rule="absolute", **common).tolist() == [v >= 0.4 for v in values]
    assert promising(values, base, rule="rise", **common).tolist() == [v - b >= 0.1 for v, b in pairs]


@pytest.mark.parametrize(
    ("text", "answer", "leak"),
    [
        ("so \\boxed{3}", "9", True), ("that makes 12 apples", "12", True), ("that makes 12.5", "12", False),
        ("112 and 120", "12", False), ("x = \\frac{1}{2}", "\\frac{1}{2}", True), ("nothing", None, False),
        ("ends with 12.", "12", True),
    ],
)  # fmt: skip
def test_leak_guard(text, answer, leak):
    assert leaks(text, answer) is leak


def test_the_critic_equals_a_plain_one_and_learns_to_tell():
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(3):
        labels = rng.integers(0, 2, 12).astype(float)
        batches.append((rng.normal(size=(12, 3)) + 2 * labels[:, None], labels))
    head = ValueHead(0.05)
    assert head.value(batches[0][0]).tolist() == [0.5] * 12  # knows nothing yet
    for features, returns in batches:
        head.learn(features, returns)
    value = critic([(f.tolist(), r.tolist()) for f, r in batches], 0.05)
    np.testing.assert_allclose(head.value(batches[2][0]), [value(row) for row in batches[2][0].tolist()], atol=1e-9)
    assert auc(head.value(batches[2][0]), batches[2][1]) > 0.9


def test_the_gate_opens_on_unseen_batches_only():
    rng = np.random.default_rng(1)
    useful, useless = ValueHead(0.05), ValueHead(0.05)
    for _ in range(25):
        labels = (rng.random(60) < 0.4).astype(float)
        useful.learn(rng.normal(size=(60, 8)) + labels[:, None], labels)
        useless.learn(rng.normal(size=(60, 8)), labels)
    assert useful.auc > 0.85
    assert abs(useless.auc - 0.5) < 0.08


def answers(correct, texts=None, index=0, **changes):
    return group(index, correct, texts=texts or [TEXT] * len(correct), **changes)


def test_failed_answers_are_cut_at_paragraphs_before_the_final_answer():
    component = make("retrospective", {"value": "random", "quantile": 0.0})
    component.observe(step([answers([0, 0, 0, 1])]))
    breaks = {12, 25}
    assert {len(state.prefix) for state in component.states["q0"]} <= breaks
    assert all(TEXT.startswith("".join(map(chr, state.prefix))) for state in component.states["q0"])
    assert component.take_counts()["retrospective/states_collected"] == len(component.states["q0"])


def test_no_prefix_reaches_the_final_answer():
    component = make("retrospective", {"value": "random", "max_fraction": 1.0})
    texts = ["idea\n\n\\boxed{5}\n\nand a long tail that goes on and on", "ab\\boxed{5} and a tail without any break"]
    one = answers([0, 0], texts)
    assert component._cuts(one)[0] == [6]
    assert component._cuts(one)[1] == []  # the first grid cut would already include it


@pytest.mark.parametrize(
    ("correct", "settings", "collects"),
    [
        ([0, 0, 0, 0], {}, True), ([1, 1, 0, 0], {}, False), ([1, 1, 1, 1], {"retire": 1.0, "outcome": "any"}, False),
        ([1, 0, 0, 0], {}, True),
    ],
)  # fmt: skip
def test_mastered_questions_are_not_collected(correct, settings, collects):
    component = make("retrospective", {"value": "random", "quantile": 0.0, **settings})
    component.observe(step([answers(correct)]))
    assert bool(component.states) is collects


def test_right_answers_are_cut_only_with_outcome_any():
    for outcome, expected in (("failed", set()), ("any", {"R"})):
        component = make("retrospective", {"value": "random", "quantile": 0.0, "outcome": outcome})
        texts = ["Right\n\nidea and more text", "W", "W", "W"]
        component.observe(step([answers([1, 0, 0, 0], texts)]))
        assert {chr(state.prefix[0]) for state in component.states.get("q0", [])} == expected


def test_grid_and_entropy_cuts():
    component = make("retrospective", {"value": "random", "quantile": 0.0, "cuts": "grid", "spacing": 4, "max_cuts": 9})
    assert component._cuts(answers([0], ["x" * 20])) == [[4, 8, 12]]
    component = make("retrospective", {"value": "random", "cuts": "entropy", "max_cuts": 2})
    one = answers([0], ["x" * 20])
    one.entropies = [np.arange(20) % 7 * 1.0]
    assert set(component._cuts(one)[0]) <= {6, 13, 5, 12}


def collected(settings=None, questions=6, **facts):
    component = make("retrospective", {"value": "random", "quantile": 0.0, "share": 0.5, **(settings or {})}, **facts)
    component.observe(step([answers([0] * 4, index=i) for i in range(questions)]))
    component.take_counts()
    return component


BATCH = [group(i, [0] * 4, question=f"new{i}") for i in range(4)]


def test_a_share_of_the_slots_continues_stored_states():
    plans = collected().plan(step(BATCH, number=11))
    assert len(plans) == 2 and len({p.slot for p in plans}) == 2 and len({p.question for p in plans}) == 2
    for plan in plans:
        assert plan.provenance == "continuation"
        assert TEXT.startswith("".join(map(chr, plan.prefix_ids))) and 0 < len(plan.prefix_ids) <= 25


def test_taken_slots_and_other_provenances_are_left_alone():
    groups = [*BATCH[:2], group(2, [0] * 4, provenance="reflection"), BATCH[3]]
    for number in range(11, 20):
        plans = collected({"share": 1.0}).plan(step(groups, number=number, taken=frozenset({0})))
        assert {p.slot for p in plans} <= {1, 3}


@pytest.mark.parametrize(
    ("settings", "number", "rate"),
    [
        ({}, 5, 0.5), ({"schedule": "ramp", "ramp_steps": 20}, 5, 0.125),
        ({"schedule": "ramp", "ramp_steps": 20}, 99, 0.5),
        ({"schedule": "failing"}, 5, 0.25),
    ],
)  # fmt: skip
def test_schedules(settings, number, rate):
    component = make("retrospective", {"value": "random", "share": 0.5, **settings})
    component.observe(step([answers([0] * 4), answers([1, 0, 0, 0], index=1)]))  # half of the groups are all wrong
    assert component._rate(number) == pytest.approx(rate)


def test_draws_depend_on_seed_and_step_only():
    assert collected().plan(step(BATCH, number=11)) == collected().plan(step(BATCH, number=11))
    assert collected().plan(step(BATCH, number=11)) != collected().plan(step(BATCH, number=12))
    assert collected().plan(step(BATCH, number=11)) != collected(seed=9).plan(step(BATCH, number=11))


def continuation(component, question, correct):
    state = component.states[question][0]
    text = "".join(map(chr, state.prefix))
    return state, group(
        0,
        correct,
        question=question,
        provenance="continuation",
        prefix=len(state.prefix),
        texts=[text + "x"] * len(correct),
    )


def test_monte_carlo_values_are_the_success_rates_of_continuations():
    component = collected({"value": "monte_carlo"})
    assert all(np.isnan(state.value) for stored in component.states.values() for state in stored)
    state, visited = continuation(component, "q0", [1, 0, 0, 1])
    component.observe(step([visited], number=11))
    assert state.value == 0.5 and state.uses == 1 and any(kept is state for kept in component.states["q0"])
    counts = component.take_counts()
    assert counts["retrospective/groups"] == 1 and counts["retrospective/rows_correct"] == 2
    assert counts["retrospective/tokens_given"] == len(state.prefix) and component.acted(counts)
    for rows in ([0, 0, 0, 0], [1, 1, 1, 1]):  # hopeless, or nothing left to learn
        state, visited = continuation(component, "q1", rows)
        component.observe(step([visited], number=11))
        assert all(kept is not state for kept in component.states.get("q1", []))


def test_monte_carlo_draws_tried_and_untried_states():
    component = collected({"value": "monte_carlo", "explore": 0.5, "share": 0.25}, questions=8)
    for question in ("q0", "q1", "q2", "q3"):
        component.states[question] = component.states[question][:1]
        component.states[question][0].value = 0.5
    tried = [component.plan(step(BATCH, number=n))[0].question in {"q0", "q1", "q2", "q3"} for n in range(60)]
    assert 15 < sum(tried) < 45


def test_mastered_questions_retire_and_stay_out():
    component = collected()
    component.observe(step([answers([1, 1, 0, 0])], number=11))
    assert "q0" not in component.states and component.take_counts()["retrospective/states_retired"] > 0


@given(st.integers(1, 3), st.integers(1, 5), st.integers(0, 1000))
def test_bounds_are_never_exceeded(per_question, total, seed):
    settings = {"value": "random", "quantile": 0.0, "cuts": "grid", "spacing": 2}
    component = make("retrospective", {**settings, "per_question": per_question, "max_states": total}, seed=seed)
    rng = random.Random(seed)
    for number in range(4):
        texts = ["".join(rng.choices("abcdef", k=rng.randrange(0, 30))) for _ in range(4)]
        component.observe(step([answers([0] * 4, texts, index=i) for i in range(3)], number=number))
        assert all(len(stored) <= per_question for stored in component.states.values())
        assert sum(map(len, component.states.values())) <= total
    for question, stored in component.states.items():
        prefixes = [tuple(state.prefix) for state in stored]
        assert len(set(prefixes)) == len(prefixes), question


def test_old_states_expire_only_with_a_limit():
    assert len(collected().plan(step(BATCH, number=500))) == 2
    assert collected({"max_age": 50}).plan(step(BATCH, number=500)) == []


def test_canonical_prefixes_do_not_give_the_answer_away():
    component = make("retrospective", {"source": "canonical", "value": "monte_carlo"})
    columns = {"answer": "12", "solution": "Add five\n\nwhich is 12\n\nand so on, at some length. \\boxed{12}"}
    for number in range(10):
        component.observe(step([answers([0] * 4, columns=columns)], number=number))
    assert {"".join(map(chr, s.prefix)) for s in component.states["q0"]} == {"Add five\n\n"}
    component.observe(step([answers([0] * 4, index=1)]))
    assert component.take_counts()["retrospective/questions_without_solution"] == 1


def test_canonical_prefixes_leave_room_below_the_cap():
    columns = {"answer": "12", "solution": " ".join(["and then"] * 300)}
    for cuts in ("paragraphs", "grid"):
        component = make("retrospective", {"source": "canonical", "value": "random", "cuts": cuts, "spacing": 10})
        for number in range(20):
            component.observe(step([answers([0] * 4, columns=columns)], number=number))
        lengths = {len(state.prefix) for state in component.states["q0"]}
        assert lengths and max(lengths) <= 0.7 * 64


@pytest.mark.parametrize("source", ["canonical", "both"])
def test_canonical_without_any_solution_is_an_error_at_the_first_plan(source):
    component = make("retrospective", {"source": source, "value": "random"})
    with pytest.raises(ConfigError, match=r"retrospective\.source: got '\w+'.*data\.solution"):
        component.plan(step([answers([0] * 4, columns={"answer": "12"})]))
    component.plan(step([answers([0] * 4, columns={"answer": "12", "solution": None})]))


def value_step(component, number, rng, right=4):
    """A batch whose hidden states tell right answers from wrong ones at the second cut only."""
    groups = []
    for index in range(8):
        correct = [index * 8 % 3 == 0 and place < right for place in range(8)]
        groups.append(answers(correct, index=index, question=f"v{number}-{index}"))
    wanted = component.probe(step(groups))
    for one in groups:
        for place, row in enumerate(one.rows):
            positions = wanted[row]
            assert positions == [11, 24]
            hidden = rng.normal(size=(2, 4)) * 0.3
            hidden[1] += 2.0 if one.correct[place] else 0.0
            one.hidden[place] = hidden.astype(np.float32)
    component.observe(step(groups, number=number))
    return groups


def test_value_head_waits_for_its_gate_then_stores_the_best_valued_cuts():
    component = make("retrospective", {"gate_auc": 0.6, "retire": 1.0})
    assert component.probes_hidden
    rng = np.random.default_rng(0)
    value_step(component, 0, rng)
    assert not component.states and component.take_counts()["retrospective/steps_gate_closed"] == 1
    for number in range(1, 30):
        value_step(component, number, rng)
    assert component.critic.auc > 0.6 and component.states
    assert "retrospective/value_auc" in component.take_figures()
    for stored in component.states.values():
        for state in stored:
            assert 0 < state.value < 1 and state.features.shape == (4,)
    plans = component.plan(step(BATCH, number=31))
    assert len(plans) == 1
    some = component.states[plans[0].question]
    assert any(s.value == pytest.approx(float(component.critic.value(s.features[None])[0])) for s in some)


def test_state_round_trip_gives_the_same_future():
    rng = np.random.default_rng(0)
    component = make("retrospective", {"gate_auc": 0.5, "retire": 1.0})
    for number in range(6):
        value_step(component, number, rng)
    saved = component.state_dict()
    arrays = {k: v for k, v in saved.items() if isinstance(v, np.ndarray)}
    plain = json.loads(json.dumps({k: v for k, v in saved.items() if k not in arrays}, allow_nan=False))
    twin = make("retrospective", {"gate_auc": 0.5, "retire": 1.0})
    twin.load_state_dict({**plain, **arrays})
    for number in range(6, 9):
        one, two = np.random.default_rng(number), np.random.default_rng(number)
        nxt = step(BATCH, Memory(), number)
        assert twin.plan(nxt) == component.plan(nxt)
        value_step(component, number, one)
        value_step(twin, number, two)
    again = twin.state_dict()
    for key, value in component.state_dict().items():
        np.testing.assert_array_equal(np.asarray(again[key], dtype=object), np.asarray(value, dtype=object))


@pytest.mark.parametrize("value", ["value_head", "monte_carlo", "random"])
def test_state_round_trip_without_states_or_features(value):
    full = [collected({"value": value})] if value != "value_head" else []
    for component in [make("retrospective", {"value": value}), *full]:
        twin = make("retrospective", {"value": value, "share": 0.5, "quantile": 0.0})
        twin.load_state_dict(component.state_dict())
        nxt = step(BATCH, number=11)
        drawn = component.plan(nxt) if component.states else []
        assert twin.plan(nxt) == drawn


@pytest.mark.parametrize(
    "settings",
    [
        {"share": 0}, {"max_fraction": 1.5}, {"cuts": "entropy"}, {"gate_auc": 2}, {"per_question": 0},
        {"cuts": "grid", "spacing": 600}, {"value": "oracle"}, {"max_age": 0}, {"learning_rate": 0},
    ],
)  # fmt: skip
def test_bad_settings_are_config_errors(settings):
    with pytest.raises(ConfigError, match=r"components\.retrospective"):
        parse_recipe({"components": {"retrospective": settings}}, "recipe")


def shrinking(success):
    """Lengths of the prefixes given, over visits whose answers have these success rates out of four."""
    component = make("retrospective", {"source": "canonical", "value": "random", "share": 1.0, "cuts": "grid"})
    columns = {"answer": "12", "solution": "a long way to go, step by step by step"}
    lengths = []
    for number, right in enumerate(success):
        component.observe(step([answers([0] * 4, columns=columns)], number=2 * number))  # fails on its own
        states = component.states.get("q0", [])
        lengths.append(len(states[0].prefix) if states else 0)
        if states:
            _, visited = continuation(component, "q0", [i < right for i in range(4)])
            visited.columns = columns
            component.observe(step([visited], number=2 * number + 1))
    return lengths, component


def test_a_solutions_prefix_gets_shorter_with_success_and_longer_again_without():
    lengths, component = shrinking([4, 4, 4, 4])
    assert lengths[0] > lengths[1] > lengths[2] > 0 and lengths[0] > 4 * lengths[2]
    assert lengths[3] > lengths[2], "weaned, but it fails on its own"
    assert component.take_counts()["retrospective/questions_weaned"] >= 1, "down to the bare question"
    lengths, _ = shrinking([4, 0, 0, 2, 3])
    assert lengths[0] > lengths[1] < lengths[2] <= lengths[3] == lengths[4]
    twin = make("retrospective", {"source": "canonical", "value": "random"})
    twin.load_state_dict(component.state_dict())
    assert twin.state_dict()["given"] == component.state_dict()["given"]


@pytest.mark.parametrize("value", ["random", "monte_carlo"])
def test_early_states_survive_many_later_visits(value):
    """Untried or equal states go by lot: with 4 of 80 visits kept, the mean age is that of a uniform draw."""
    ages = []
    for seed in range(30):
        component = make("retrospective", {"value": value, "quantile": 0.0, "cuts": "grid", "spacing": 1}, seed=seed)
        for number in range(80):
            texts = ["".join(random.Random(f"{seed}{number}").choices("abcdef", k=24))]
            component.observe(step([answers([0], texts)], number=number))
        assert len(component.states["q0"]) == 4
        ages += [state.step for state in component.states["q0"]]
    assert 30 < np.mean(ages) < 49 and min(ages) < 10


@pytest.mark.parametrize("keep", ["value", "reservoir"])
def test_a_bound_on_all_states_drops_by_value_or_by_lot_and_never_the_oldest(keep):
    settings = {"value": "random", "quantile": 0.0, "max_states": 200, "keep": keep, "cuts": "grid", "spacing": 1}
    component = make("retrospective", settings, questions=200)
    for number in range(50):
        component.observe(step([answers([0] * 4, index=i, question=f"{number}-{i}") for i in range(8)], number=number))
    held = [state for stored in component.states.values() for state in stored]
    assert len(held) == 200 and 15 < np.mean([state.step for state in held]) < 34
    if keep == "value":
        assert min(state.value for state in held) > 0.8


def test_too_few_states_for_the_questions_are_warned_of_and_the_default_has_no_bound():
    with pytest.warns(UserWarning, match="max_states: 10 is fewer than the 20 training questions"):
        make("retrospective", {"value": "random", "max_states": 10}, questions=20)
    assert make("retrospective").config.max_states is None


def test_a_solution_far_longer_than_the_cap_is_cut_all_the_same():
    component = make("retrospective", {"source": "canonical", "value": "random", "cuts": "grid"})
    columns = {"answer": "12", "solution": "x" * 2000}
    component.observe(step([answers([0] * 4, columns=columns)]))
    assert 0 < len(component.states["q0"][0].prefix) <= 0.7 * 64
