"""All subsets of the four components, and every preset, through `train()`: finite, acting, and counted rightly."""

import itertools
import math

import pytest
from component_tools import NAN  # noqa: F401  (puts tests/reference on the path)
from recording import record
from recount import Recount, StateLog
from train_tools import batch_rows, groups_of, text_of, train

from r3bench import catalog
from r3bench.config.strict import build, plain

FOUR = ("ranking", "reflection", "replay", "retrospective")
SETTINGS = {
    "ranking": {"peak_fraction": 0.25},
    "reflection": {"template": "short", "max_share": 0.5, "context": "full"},
    "replay": {"truncated_negatives": True},
    "retrospective": {
        "value": "random", "cuts": "grid", "spacing": 2, "quantile": 0.0, "share": 0.25, "retire": 0.9,
        "per_question": 64,
    },
}  # fmt: skip
GROUPS = {"per_device_train_batch_size": 16}  # 4 groups of 4 rows; 12 questions make 3 steps an epoch


class Turning:
    """q0 and q1 hardly ever right, q2 and q3 never; q4 to q7 all right in even epochs and all wrong in odd ones;
    the rest by their tokens."""

    __name__ = "turning"

    def __init__(self):
        self.calls = []

    def __call__(self, completion_ids, question_id, trainer_state, **_):
        even = int((trainer_state.epoch or 0) + 1e-6) % 2 == 0
        numbers = [int(q[1:]) for q in question_id]
        rewards = [
            float((4 <= n < 8 and even) or (n >= 8 and sum(ids) % 2 == 0) or (n < 2 and sum(ids) % 7 == 0))
            for n, ids in zip(numbers, completion_ids, strict=True)
        ]
        self.calls.append(rewards)
        return rewards


def recount(trainer, reward):
    """The evidence as the recorded batches show it."""
    counts = dict.fromkeys(FOUR, 0)
    for batch, rewards in zip(trainer.records, reward.calls, strict=True):
        rows = batch_rows(batch)
        counts["replay"] += sum(row["number"] < 0 for row in rows)
        whole = [row for row in rows if row["number"] >= 0]
        if len(whole) < len(rewards):  # rows that gave way can't be recounted
            continue
        for place, group in enumerate(groups_of(batch)):
            reflected, continued = "\nWrong: " in text_of(trainer, group[0]["prompt"]), 0 in group[0]["mask"]
            counts["reflection"] += reflected
            counts["retrospective"] += continued
            if not any(rewards[4 * place : 4 * place + 4]) and not reflected and not continued:
                counts["ranking"] += sum(row["completion"][-1] not in (0, 2) for row in group)
    return counts


def check_run(trainer, reward, names):
    assert trainer.state.global_step == len(trainer.records)
    for line in trainer.state.log_history:
        assert all(math.isfinite(v) for v in line.values() if isinstance(v, float)), line
    if not names:
        assert trainer.evidence == {}
        return
    keys = {"ranking": "rows", "reflection": "groups", "replay": "rows", "retrospective": "groups"}
    counts = recount(trainer, reward)
    for component in trainer.components:
        logged = trainer.evidence[f"{component.name}/{keys[component.name]}"]
        assert logged == counts[component.name], component.name
        few = component.name == "reflection" and logged > 0  # a handful of such groups may all be wrong
        assert component.acted(trainer.evidence) or few, f"{component.name} never acted among {names}"
    assert {key.split("/")[0] for key in trainer.evidence} == set(names)
    assert not any(counts[name] for name in {"reflection", "replay", "retrospective"} - set(names))


SUBSETS = [subset for size in range(5) for subset in itertools.combinations(FOUR, size)]


FEW = [names for names in SUBSETS if len(names) in (0, 4)] + [
    FOUR[:2],
    FOUR[1:3],
    FOUR[2:],
]  # every component; the rest is slow


@pytest.mark.parametrize(
    "names",
    [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in SUBSETS],
    ids=lambda names: "+".join(names) or "none",
)
def test_every_subset_trains_and_every_component_in_it_acts(tiny_model, tmp_path, names):
    components = {name: SETTINGS[name] for name in names}
    trainer = record(tiny_model, tmp_path, components, Turning(), rows=12, steps=20, prepare=StateLog().watch, **GROUPS)
    assert trainer.state.global_step == len(trainer.batches) == 20
    for line in trainer.state.log_history:
        assert all(math.isfinite(v) for v in line.values() if isinstance(v, float)), line
    if not names:
        assert trainer.evidence == {}
        return
    recount = Recount(trainer, components)
    recount.run()
    recount.check_evidence()
    for component in trainer.components:
        assert component.acted(trainer.evidence), f"{component.name} never acted among {names}"
    assert {key.split("/")[0] for key in trainer.evidence} == set(names)


VARIANTS = {
    "two iterations": {"num_iterations": 2, "steps": 14},
    "two micro-steps": {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2},
    "off-policy halves": {"per_device_train_batch_size": 8, "steps_per_generation": 2, "steps": 14},
    "kl": {"beta": 0.1},
    "sequence ratio": {"importance_sampling_level": "sequence", "loss_type": "grpo"},
    "batch scaling": {"scale_rewards": "batch"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_four_with_other_trainer_settings(tiny_model, tmp_path, variant):
    reward = Turning()
    changes = {"steps": 10, **GROUPS, **VARIANTS[variant]}
    trainer = train(tiny_model, tmp_path, SETTINGS, reward, rows=12, **changes)
    assert len(reward.calls) >= 7
    for line in trainer.state.log_history:
        assert all(math.isfinite(v) for v in line.values() if isinstance(v, float)), line
    for component in trainer.components:  # a handful of reflection groups may all be wrong
        assert component.acted(trainer.evidence) or trainer.evidence["reflection/groups"] > 0, component.name


def test_all_four_on_low_rank_adapters(tiny_model, tmp_path):
    from peft import LoraConfig
    from trainer_tools import arguments, questions, spy_on

    from r3bench import R3Trainer

    reward = Turning()
    trainer = spy_on(R3Trainer)(
        model=tiny_model, reward_funcs=reward, train_dataset=questions(12), peft_config=LoraConfig(r=4),
        args=arguments(tmp_path, components=SETTINGS, max_steps=20, **GROUPS),
    )  # fmt: skip
    trainer.train()
    check_run(trainer, reward, FOUR)


PRESETS = [(name, preset) for name in catalog.component_names() for preset in catalog.component(name).presets]


@pytest.mark.parametrize(("name", "preset"), PRESETS, ids=str)
def test_presets_load_and_differ_from_the_defaults(name, preset):
    component = catalog.component(name)
    settings = plain(build(component.Config, component.presets[preset], name))
    assert settings != plain(build(component.Config, {}, name))
    assert plain(build(component.Config, settings, name)) == settings  # resolved settings read back


CONTROLS = {
    ("ranking", "random"): {"order": "random"}, ("ranking", "reversed"): {"order": "reversed"},
    ("ranking", "shuffled"): {"order": "shuffled"},
    ("ranking", "length"): {"order": "length", "scope": "failed"}, ("reflection", "other"): {"source": "other"},
    ("replay", "positives"): {"labels": "positives"}, ("retrospective", "random"): {"value": "random"},
}  # fmt: skip


OTHER_ORDERS = [("ranking", preset) for preset in ("random", "reversed", "length")]


@pytest.mark.parametrize(
    ("name", "preset"), [c if c not in OTHER_ORDERS else pytest.param(*c, marks=pytest.mark.slow) for c in CONTROLS]
)
def test_controls_train_act_and_change_what_is_trained(tiny_model, tmp_path, name, preset):
    real = {**SETTINGS[name], **({"value": "monte_carlo"} if name == "retrospective" else {})}
    runs = []
    for settings in (real, {**real, **CONTROLS[name, preset]}):
        trainer = train(tiny_model, tmp_path, {name: settings}, Turning(), rows=12, steps=20, **GROUPS)
        assert trainer.components[0].acted(trainer.evidence)
        assert all(math.isfinite(line.get("grad_norm", 0.0)) for line in trainer.state.log_history)
        runs.append([(row["prompt"], row["advantages"]) for record in trainer.records for row in batch_rows(record)])
    assert runs[0] != runs[1]


@pytest.mark.parametrize("bounds", [{"per_question": 1}, {"max_states": 3}], ids=str)
def test_states_that_are_evicted_at_once_are_not_counted_as_collected(tiny_model, tmp_path, bounds):
    """More answers fail in a batch than states may be kept; the states after every batch tell how many are new."""
    components = {"retrospective": {**SETTINGS["retrospective"], **bounds}}
    trainer = record(tiny_model, tmp_path, components, Turning(), rows=12, steps=9, prepare=StateLog().watch, **GROUPS)
    recount = Recount(trainer, components)
    recount.run()
    recount.check_evidence()
    failed = sum(not row.correct for answers in recount.store.values() for row in answers if row.kind == "fresh")
    assert 0 < trainer.evidence["retrospective/states_collected"] < failed
