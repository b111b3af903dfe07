"""How long a row can get: vLLM's context, and the worst batch that the memory probe runs."""

import pytest

from r3bench.config.load import parse_recipe
from r3bench.errors import ConfigError
from r3bench.training.context import engine_context, prompt_lengths
from r3bench.training.models.load import load_model
from r3bench.training.probe import probe
from r3bench.training.questions.load import load_questions
from r3bench.training.trainer import R3Trainer

CAP = 48


@pytest.fixture(scope="module")
def loaded():
    """Questions and tokenizer of the embedded recipe."""
    recipe = parse_recipe({"model": "embedded", "data": {"name": "embedded", "limit": 40}}, "recipe")
    return load_questions(recipe.data), load_model(recipe.model)[1]


def recipe(components=None, **trainer):
    return parse_recipe(
        {"trainer": {"use_vllm": True, "max_completion_length": CAP, **trainer}, "components": components or {}},
        "recipe",
    )


def test_the_context_is_the_cap_and_the_longest_prompt(loaded) -> None:
    questions, tokenizer = loaded
    lengths = [
        len(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=False))
        for prompt in questions["prompt"]
    ]
    assert prompt_lengths(questions, tokenizer) == lengths
    assert engine_context(recipe(), questions, tokenizer, None) == CAP + max(lengths)
    assert engine_context(recipe(use_vllm=False), questions, tokenizer, None) is None


def test_what_components_write_into_a_prompt_counts(loaded) -> None:
    questions, tokenizer = loaded
    bare = engine_context(recipe(), questions, tokenizer, None)
    few = engine_context(recipe({"reflection": {"budget": 8}}), questions, tokenizer, None)
    more = engine_context(recipe({"reflection": {"budget": 40}}), questions, tokenizer, None)
    full = engine_context(recipe({"reflection": {"context": "full"}}), questions, tokenizer, None)
    assert bare and few and more and full
    assert bare < few and more == few + 32 and full == few - 8 + CAP
    assert engine_context(recipe({"replay": True, "ranking": True}), questions, tokenizer, None) == bare


def test_too_small_a_context_is_refused_with_the_number_that_works(loaded) -> None:
    questions, tokenizer = loaded
    needed = engine_context(recipe({"reflection": True}), questions, tokenizer, None)
    assert needed is not None
    assert engine_context(
        recipe({"reflection": True}, vllm_max_model_length=needed + 5), questions, tokenizer, None
    ) == (needed + 5)
    with pytest.raises(ConfigError, match=f"vllm_max_model_length: got {needed - 1}, expected at least {needed}"):
        engine_context(recipe({"reflection": True}, vllm_max_model_length=needed - 1), questions, tokenizer, None)
    with pytest.raises(ConfigError, match=f"the model takes {needed - 1} tokens and a row may have {needed}"):
        engine_context(recipe({"reflection": True}), questions, tokenizer, needed - 1)
    with pytest.raises(ConfigError, match="expected more than max_completion_length=48"):
        recipe(vllm_max_model_length=CAP)


def test_the_nearest_cap_is_the_largest_that_works(loaded) -> None:
    questions, tokenizer = loaded
    for components in ({}, {"reflection": {"context": "full"}}, {"reflection": {"budget": 20}}):
        needed = engine_context(recipe(components), questions, tokenizer, None)
        assert needed is not None
        assert engine_context(recipe(components), questions, tokenizer, needed) == needed  # the exact bound
        for missing in (1, 7, CAP // 2):
            with pytest.raises(ConfigError, match=r"nearest that works: \d+") as caught:
                engine_context(recipe(components), questions, tokenizer, needed - missing)
            best = int(str(caught.value).rsplit(" ", 1)[1])
            fitting = recipe(components, max_completion_length=best)
            assert engine_context(fitting, questions, tokenizer, needed - missing)
            with pytest.raises(ConfigError):
                more = recipe(components, max_completion_length=best + 1)
                engine_context(more, questions, tokenizer, needed - missing)
    with pytest.raises(ConfigError, match="no length works"):
        engine_context(recipe(), questions, tokenizer, 3)
    with pytest.raises(ConfigError, match="vllm_max_model_length: got 4000, but the model takes 2000"):
        engine_context(recipe(vllm_max_model_length=4000), questions, tokenizer, 2000)


def test_a_model_with_few_positions_is_refused_without_vllm_too(loaded) -> None:
    questions, tokenizer = loaded
    longest = CAP + max(prompt_lengths(questions, tokenizer))
    for components in ({}, {"reflection": {"context": "full"}}):
        plain = recipe(components, use_vllm=False)
        assert engine_context(plain, questions, tokenizer, longest) is None
        with pytest.raises(ConfigError, match=f"takes {longest - 1} tokens and a row may have {longest}"):
            engine_context(plain, questions, tokenizer, longest - 1)


def test_arguments_of_the_chat_template_count(loaded) -> None:
    questions, tokenizer = loaded
    bare = engine_context(recipe(), questions, tokenizer, None)
    template = tokenizer.chat_template
    tokenizer.chat_template = template + "{{ note if note else '' }}"
    try:
        for given in ({"note": "1 + 1"}, '{"note": "1 + 1"}'):
            found = engine_context(recipe(chat_template_kwargs=given), questions, tokenizer, None)
            assert bare is not None and found == bare + len(tokenizer("1 + 1", add_special_tokens=False)["input_ids"])
    finally:
        tokenizer.chat_template = template


def test_the_probe_runs_what_components_append_later(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []  # rows and prompt tokens of every loss forward
    loss = R3Trainer._compute_loss

    def watched(self, model, inputs):
        seen.append((inputs["completion_ids"].shape[0], int(inputs["prompt_mask"].sum(1).max())))
        return loss(self, model, inputs)

    monkeypatch.setattr(R3Trainer, "_compute_loss", watched)
    trainer = {
        "per_device_train_batch_size": 8, "num_generations": 4, "gradient_accumulation_steps": 2,
        "max_completion_length": 24, "bf16": False,
    }  # fmt: skip

    def figures(**components) -> dict:
        seen.clear()
        data = {"name": "embedded", "limit": 16}
        return probe(
            parse_recipe({"model": "embedded", "data": data, "trainer": trainer, "components": components}, "recipe")
        )

    off = figures()
    assert off["appended"] == 0 and off["rows"] == 8 and "2 updates of 8 rows a process" in off["text"]
    # Two micro-batches of 8 rows are 4 groups of 4: reflection may append two of them, replay a row to each.
    on = figures(reflection={"max_share": 0.5, "budget": 30}, replay=True)
    assert on["appended"] == (2 * 4 + 4) // 2 and on["prompt"] > off["prompt"] + 30
    assert len(seen) == 4 and {rows for rows, _ in seen} == {14}
    assert on["prompt"] - 2 <= max(tokens for _, tokens in seen) <= on["prompt"]
    assert on["answer"] == 24 and "2 updates of 8 + 6 appended rows" in on["text"]
    slot = figures(reflection={"max_share": 0.5, "budget": 30, "placement": "replace"})
    assert {rows for rows, _ in seen} == {8} and max(tokens for _, tokens in seen) >= on["prompt"] - 2
    assert slot["appended"] == 0 and slot["prompt"] == on["prompt"]
