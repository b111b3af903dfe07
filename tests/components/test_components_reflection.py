"""Reflection: which questions are hard, what the policy is shown, templates, controls, re-attached successes."""

import numpy as np
import pytest
from component_tools import Memory, group, make, step, stored
from hypothesis import given
from hypothesis import strategies as st

from r3bench.components.reflection import defuse, fill_template, hardness
from r3bench.config.load import parse_recipe, resolved
from r3bench.errors import ConfigError


def batch(count=4):
    return [group(i, [0] * 4) for i in range(count)]


def history(*means):
    """Four stored answers per question with the given numbers of right ones."""
    return Memory(*[stored(f"q{q}", s, s < right) for q, right in enumerate(means) for s in range(4)])


def planned(settings, memory, groups=None, number=10, epoch=2.0, taken=frozenset(), **facts):
    component = make("reflection", settings, **facts)
    plans = component.plan(step(groups or batch(), memory, number, epoch, taken=taken))
    return plans, component


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.booleans()), max_size=12), st.integers(0, 4))
def test_hardness_equals_the_reference(rows, epoch):
    attempts = [
        stored("q", s, right, epoch=e, provenance="fresh" if fresh else "reflection")
        for s, (right, e, fresh) in enumerate(rows)
    ]
    for window in ("all", "last_epoch"):
        counted = [
            right for right, e, fresh in rows if fresh and (window == "all" or e in (epoch - 1, epoch) or e > epoch)
        ]
        mean, number = hardness(attempts, epoch, window)
        assert number == len(counted)
        assert (mean == sum(counted) / len(counted)) if counted else np.isnan(mean)


def test_hard_questions_are_asked_again_hardest_first():
    plans, component = planned({"max_share": 0.5, "threshold": 0.5}, history(1, 4, 0, 2))
    assert [plan.question for plan in plans] == ["q2", "q0"]
    assert all(plan.provenance == "reflection" and plan.slot is None and plan.prefix_ids == () for plan in plans)
    counts = {"reflection/questions_hard": 2, "reflection/groups_planned": 2, "reflection/groups_surplus": 0}
    assert component.take_counts() == counts


def test_the_threshold_is_strict():
    plans, _ = planned({"max_share": 1.0, "threshold": 0.25}, history(1, 0))
    assert [plan.question for plan in plans] == ["q1"]


@pytest.mark.parametrize(
    ("settings", "epoch", "number"),
    [
        ({}, 0.5, 10),
        ({"warmup": 3.0}, 2.9, 10),
        ({"warmup": 11, "warmup_unit": "steps"}, 2.0, 10),
        ({"min_attempts": 5}, 2.0, 10),
    ],
)
def test_nothing_is_planned_too_early(settings, epoch, number):
    assert planned(settings, history(0, 0), epoch=epoch, number=number)[0] == []


def test_the_share_bounds_the_groups_and_respects_the_multiple():
    assert len(planned({"max_share": 0.5}, history(0, 0, 0, 0))[0]) == 2
    plans, component = planned({"max_share": 1.0}, history(0, 0, 0, 4), append_multiple=2)
    assert len(plans) == 2 and component.take_counts()["reflection/groups_surplus"] == 1
    assert len(planned({"max_share": 1.0, "placement": "replace"}, history(0, 0, 0, 4), append_multiple=2)[0]) == 3
    assert len(planned({"max_share": 0.2}, history(0, 0, 0, 0))[0]) == 0


def test_a_question_drawn_twice_in_a_batch_is_reflected_once():
    groups = [group(0, [0] * 4), group(1, [0] * 4, question="q0")]
    assert len(planned({"max_share": 1.0}, history(0), groups)[0]) == 1


def test_replace_uses_the_hard_questions_own_slot_unless_taken():
    plans, _ = planned({"placement": "replace", "max_share": 1.0}, history(0, 4, 0, 4), taken=frozenset({0}))
    assert [(plan.question, plan.slot) for plan in plans] == [("q2", 2)]


def test_the_prompt_shows_an_own_wrong_answer_and_keeps_its_type():
    memory = history(0, 4, 4, 4)
    groups = [
        group(0, [0] * 4, prompt=[{"role": "system", "content": "s"}, {"role": "user", "content": "Why {attempt}?"}])
    ]
    (plan,), _ = planned({"max_share": 1.0, "template": "short"}, memory, groups)
    assert plan.prompt[0] == {"role": "system", "content": "s"}
    assert plan.prompt[1]["content"] in {f"Why {{attempt}}?\nWrong: try q0/{s}" for s in range(4)}
    assert groups[0].prompt[1]["content"] == "Why {attempt}?"  # the data set's prompt stays
    (plan,), _ = planned({"max_share": 1.0, "template": "short"}, memory, [group(0, [0] * 4, prompt="Why?")])
    assert plan.prompt.startswith("Why?\nWrong: try q0/")


def test_right_and_reflected_answers_are_never_shown():
    memory = Memory(stored("q0", 0, True), stored("q0", 1, False, provenance="reflection"), stored("q0", 2, False))
    for number in range(12):
        (plan,), _ = planned({"max_share": 1.0, "threshold": 1.0, "template": "short"}, memory, batch(1), number)
        assert "try q0/2" in plan.prompt[0]["content"]


def test_control_shows_another_questions_failure():
    for number in range(8):
        plans, _ = planned(
            {"source": "other", "max_share": 1.0, "template": "short"}, history(0, 0, 4, 4), number=number
        )
        shown = {plan.question: plan.prompt[0]["content"].split("Wrong: ")[1] for plan in plans}
        assert shown["q0"].startswith("try q1/") and shown["q1"].startswith("try q0/")
    plans, component = planned({"source": "other"}, history(0, 4, 4, 4))
    assert plans == [] and component.take_counts()["reflection/questions_without_exemplar"] == 1


def test_truncated_answers_can_be_left_out():
    memory = Memory(stored("q0", 0, False, truncated=True))
    assert len(planned({"max_share": 1.0}, memory, batch(1))[0]) == 1
    assert planned({"max_share": 1.0, "truncated_exemplars": False}, memory, batch(1))[0] == []


@pytest.mark.parametrize(
    ("context", "text", "shown"),
    [
        ("full", "<think>abcdefgh</think>so \\boxed{7}", "abcdefghso \\boxed{7}"),
        ("tail", "<think>abcdefgh</think>so \\boxed{7}", "efghso \\boxed{7}"),
        ("tail", "<think>abcdefgh</think>so again \\boxed{7}", "again \\boxed{7}"),
        ("tail", "the thought never ends", "ought never ends"),
        ("answer", "x \\boxed{1} y \\boxed{\\frac{1}{2}} z", "\\frac{1}{2}"),
        ("answer", "x \\boxed{3} y \\boxed{never closed", "3"),
        ("answer", "no answer", "(none)"),
        ("full", "a<|im_end|>b", "a< |im_end|>b"),
    ],
)
def test_contexts(context, text, shown):
    memory = Memory(stored("q0", 0, False), texts={("q0", 0): text})
    settings = {"context": context, "budget": 16, "max_share": 1.0, "template": "short"}
    (plan,), _ = planned(settings, memory, batch(1))
    assert plan.prompt[0]["content"] == f"ask 0\nWrong: {shown}"


def test_tokens_are_fetched_once_for_all_groups():
    memory = history(0, 0, 0, 4)
    planned({"max_share": 1.0}, memory)
    assert len(memory.fetched) == 1 and len(memory.fetched[0]) == 3


def test_several_exemplars_show_different_answers():
    plans, _ = planned({"exemplars": 3, "max_share": 1.0, "template": "short"}, history(0, 4, 4, 4))
    assert len({plan.prompt[0]["content"] for plan in plans}) == 3


def test_draws_depend_on_seed_and_step_only():
    def shown(**changes):
        return planned({"max_share": 1.0}, history(0, 0, 0, 0), **changes)[0]

    assert shown() == shown()
    assert shown() != shown(number=11)
    assert shown() != shown(seed=5)


@given(st.text(max_size=30), st.text(max_size=30))
def test_templates_are_filled_in_one_pass(problem, attempt):
    assert fill_template("<{problem}|{attempt}>", problem, attempt) == f"<{problem}|{attempt}>"


@given(st.text(alphabet="<|/>thinkabc ｜", max_size=40))
def test_no_control_token_survives(text):
    safe = defuse(text)
    assert not any(bad in safe for bad in ("<|", "</", "<｜", "<think>"))


def test_the_record_holds_the_templates_hash_and_a_changed_file_is_refused(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("{problem} {attempt}")
    recipe = parse_recipe({"components": {"reflection": {"template": str(path)}}}, "recipe")
    saved = resolved(recipe)
    assert len(saved["components"]["reflection"]["template_hash"]) == 12
    assert parse_recipe(saved, "recipe") == recipe
    path.write_text("{problem} changed {attempt}")
    with pytest.raises(ConfigError, match="file has changed"):
        parse_recipe(saved, "recipe")


@pytest.mark.parametrize(
    "settings",
    [
        {"template": "absent"}, {"threshold": 0}, {"exemplars": 2, "placement": "replace"}, {"budget": 0},
        {"context": "head"}, {"max_share": 1.5},
    ],
)  # fmt: skip
def test_bad_settings_are_config_errors(settings):
    with pytest.raises(ConfigError, match=r"components\.reflection"):
        parse_recipe({"components": {"reflection": settings}}, "recipe")


def test_a_template_without_its_places_is_refused(tmp_path):
    path = tmp_path / "bad.txt"
    path.write_text("{problem}")
    with pytest.raises(ConfigError, match="attempt"):
        parse_recipe({"components": {"reflection": {"template": str(path)}}}, "recipe")


def test_counters_of_reflection_groups():
    component = make("reflection")
    groups = [
        group(0, [0] * 4),
        group(1, [0, 1, 1, 0], provenance="reflection"),
        group(2, [0] * 4, provenance="reflection"),
    ]
    assert component.mix(step(groups)) == []
    counts = component.take_counts()
    assert counts == {
        "reflection/groups": 2, "reflection/rows_correct": 2, "reflection/converted": 1,
        "reflection/groups_with_gradient": 1,
    }  # fmt: skip
    assert component.acted(counts) and not component.acted({"reflection/questions_hard": 3})


def test_reattach_replays_a_reflected_success_on_the_bare_question_by_its_own_prompt():
    memory = Memory(stored("q0", 0, True, provenance="reflection"), stored("q0", 1, True), stored("q1", 0, False))
    component = make("reflection", "reattach")
    (mixture,) = component.mix(step([group(0, [0] * 4), group(1, [0] * 4)], memory))
    assert mixture.group == 0 and [row.serial for row in mixture.historic] == [0]
    assert mixture.weight == "shaped" and len(mixture.replaced) == 1
    kept = [p for p in range(4) if p not in mixture.replaced]
    np.testing.assert_allclose(mixture.fresh_advantages[kept], -0.25)
    np.testing.assert_allclose(mixture.historic_advantages, [0.75])


@pytest.mark.parametrize(
    ("settings", "changes", "words"),
    [
        ({}, {}, "max_share: got 0.25 of 2 groups a batch, but that is less than one group, .* at least 0.5"),
        ({"placement": "replace"}, {}, "max_share: got 0.25 of 2 groups"),
        (
            {"max_share": 0.5}, {"gradient_accumulation_steps": 8, "per_device_train_batch_size": 1},
            "max_share: got 0.5 of 2 groups a batch, but appended groups come in multiples of 2, .* at least 1.0",
        ),
        (
            {"max_share": 1.0}, {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 4},
            None,
        ),
        (
            {"max_share": 0.6}, {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 4},
            "max_share: got 0.6 of 3 groups a batch, but appended groups come in multiples of 3, .* at least 1.0",
        ),
        ({"max_share": 0.5}, {}, None),
        ({"max_share": 0.5, "placement": "replace"}, {"gradient_accumulation_steps": 2}, None),
    ],
)  # fmt: skip
def test_a_share_that_never_makes_a_group_is_refused_before_a_model_is_loaded(tmp_path, settings, changes, words):
    from trainer_tools import arguments, questions

    from r3bench import R3Trainer

    args = arguments(tmp_path, components={"reflection": settings}, **changes)
    with pytest.raises(ConfigError if words else OSError, match=words or "never loaded"):
        R3Trainer(model="never loaded", reward_funcs=len, train_dataset=questions(8), args=args)


def test_a_recipes_share_is_checked_once_the_number_of_processes_is_known():
    from r3bench.sweep.strategy import check_numbers

    trainer = {"num_generations": 8, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
    recipe = parse_recipe({"components": {"reflection": True}, "trainer": trainer}, "recipe")
    with pytest.raises(ConfigError, match=r"^run: components\.reflection\.max_share: got 0\.25 of 2 groups"):
        check_numbers(recipe, 1, 1, "ddp")
    with pytest.raises(ConfigError, match=r"^r3, cell all: components\.reflection\.max_share: got 0\.25 of 2 groups"):
        check_numbers(recipe, 1, 1, "ddp", "r3, cell all: trainer")
    with pytest.raises(ConfigError, match=r"come in multiples of 2, .* at least 0\.5"):
        check_numbers(recipe, 2, 1, "ddp")  # 4 groups, of which each process gets equally many
    check_numbers(
        parse_recipe({**resolved(recipe), "components": {"reflection": {"max_share": 0.5}}}, "r"), 2, 1, "ddp"
    )
    with pytest.raises(ConfigError, match=r"recipe: components\.reflection\.max_share"):
        fixed = {"num_generations": 8, "per_device_train_batch_size": 8, "generation_batch_size": 16}
        parse_recipe({"components": {"reflection": True}, "trainer": fixed}, "recipe")


def shipped():
    """Every shipped recipe, and every cell of every shipped grid."""
    from r3bench import catalog
    from r3bench.config.load import load_recipe
    from r3bench.sweep.cells import enumerate_cells
    from r3bench.sweep.grid import load_grid

    for entry in catalog.entries("recipes"):
        yield entry.name, load_recipe(entry.name)
    for entry in catalog.entries("grids"):
        for cell in enumerate_cells(load_grid(entry.name))[0]:
            yield f"{entry.name}, {cell.name}", cell.recipe


def test_no_shipped_recipe_or_grid_has_a_component_that_can_never_act():
    from r3bench.config.load import check_recipe_components

    checked = 0
    for name, recipe in shipped():
        for processes in (1, 2, 4, 8):
            check_recipe_components(recipe, name, processes)
            checked += len(recipe.components)
    assert checked > 100


@pytest.mark.parametrize("text", ["a<start_of_turn>b", "a<start<bos>_of_turn>b", "<bos>a<bos>b"])
def test_no_special_token_of_any_spelling_comes_into_a_prompt(text):
    """A tokenizer reads special tokens in plain text, and drops them when it decodes."""
    special = {"<bos>": 1, "<start_of_turn>": 2}

    def encode(text):
        ids = []
        while text:
            found = next((s for s in special if text.startswith(s)), text[0])
            ids.append(special.get(found) or ord(found))
            text = text[len(found) :]
        return ids

    memory = Memory(stored("q0", 0, False), texts={("q0", 0): text})
    settings = {"max_share": 1.0, "template": "short", "context": "full"}
    plans, _ = planned(
        settings, memory, batch(1), encode=encode, decode=lambda ids: "".join(chr(i) for i in ids if i > 2)
    )
    shown = plans[0].prompt[0]["content"].split("Wrong: ")[1]
    assert not set(encode(shown)) & {1, 2} and shown == "ab"


def test_answers_that_spell_special_tokens_reach_no_prompt_as_such(tiny_model, tmp_path):
    """Every pair of rare signs is a special token here, which the model has no embedding for: it would stop the run."""
    import itertools
    import shutil
    import string

    from train_tools import batch_rows, train
    from transformers import AutoTokenizer

    signs = sorted(set(string.printable[:94]) - set("<|im_start|>user assistant\nWhat is plus 0123456789?Wrong:_"))
    pairs = {a + b for a, b in itertools.product(signs, repeat=2)}
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.add_special_tokens({"additional_special_tokens": sorted(pairs)})
    tokenizer.save_pretrained(folder)

    def wrong(completion_ids, **_):
        return [0.0] * len(completion_ids)

    settings = {"template": "short", "context": "full", "max_share": 1.0}
    trainer = train(str(folder), tmp_path / "out", {"reflection": settings}, wrong, steps=9)
    texts = [trainer._tokenizer.decode(row["completion"]) for record in trainer.records for row in batch_rows(record)]
    assert sum(any(pair in text for pair in pairs) for text in texts) > 20, "no answer spells one"
    assert trainer.evidence["reflection/groups"] == 12
