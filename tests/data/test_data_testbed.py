"""The testbed: do its dials do what they say, and have its presets the character they are named for?"""

import itertools
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from r3bench.config.load import load_recipe, parse_recipe, run_id
from r3bench.config.sections import DataSection, ModelSection, Recipe, WarmupSection
from r3bench.errors import ConfigError, DataError
from r3bench.evaluation.scorer import named_in
from r3bench.evaluation.tasks import load_task
from r3bench.training.models import embedded as embedded_model
from r3bench.training.models.load import load_model, model_folder
from r3bench.training.questions import embedded
from r3bench.training.questions.embedded import Chain, questions
from r3bench.training.questions.load import load_questions
from r3bench.training.testbed import worked

PRESETS = ("testbed_easy", "testbed_capped", "testbed_sparse", "testbed_deceptive", "testbed_long")


def preset(name: str) -> Recipe:
    return load_recipe(name)


def chain_of(text: str) -> Chain:
    """The numbers of a question, read on their own."""
    start, *steps = text.removeprefix("Start with ").rstrip(".").split(", ")
    return Chain(int(start), tuple((1 if s.startswith("add") else -1) * int(s.split()[1]) for s in steps))


# ------------------------------------------------------------------------------------------------ questions


@pytest.mark.parametrize("given, kept", [(4, {4}), ([1, 2], {1, 2}), ([3, 3], {3}), ([1, 4], {1, 2, 3, 4})])
def test_operations_are_those_asked_for(given: Any, kept: set[int]) -> None:
    rows = load_questions(DataSection(options={"operations": given}, limit=150))
    chains = [chain_of(row["problem"]) for row in rows]
    assert {len(chain.changes) for chain in chains} == kept
    assert all(chain.split == "train" for chain in chains)
    assert [chain.answer for chain in chains] == rows["answer"]
    assert len(set(rows["question_id"])) == len(rows) == 150 if kept != {1} else True


def test_a_narrow_range_gives_every_question_there_is() -> None:
    every = {
        chain.problem
        for start, changes in itertools.product(range(10), range(-9, 10))
        if changes and 0 <= start + changes <= 9 and (chain := Chain(start, (changes,))).split == "train"
    }
    assert {row["problem"] for row in questions("train", operations=(1, 1))} == every


def test_the_whole_range_is_the_data_set_it_was() -> None:
    assert questions("test", operations=(1, 4)) == questions("test")
    assert questions("test", limit=1)[0]["id"] == "embedded-9-test-0000"


@pytest.mark.parametrize(
    "options, said",
    [
        ({"operations": 5}, "operations: got 5"),
        ({"operations": 0}, "operations: got 0"),
        ({"operations": [3, 2]}, "operations: got"),
        ({"operations": [1]}, "operations: got"),
        ({"operations": "2"}, "operations: got '2'"),
        ({"operations": True}, "operations: got True"),
        ({"operations": [True, 2]}, "operations: got"),
        ({"operation": 2}, "did you mean 'operations'"),
        ({"cap": 2}, "has no 'cap'"),
    ],
)
def test_other_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=r"data\.options") as error:
        load_questions(DataSection(options=options))
    assert said in str(error.value)


# ------------------------------------------------------------------------------------------------ what is right


def test_right_is_an_answer_with_its_working() -> None:
    """Against a check that does the sums itself, over answers that are right, wrong in one place, or odd."""
    rng = random.Random(4)
    seen = {True: 0, False: 0}
    for _ in range(300):
        chain = embedded.draw(rng, 9)
        equations, answer = chain.working.split(" "), chain.answer
        match rng.randrange(6):
            case 0:
                equations[rng.randrange(len(equations))] = "1+1=3"
            case 1:
                answer = str(int(answer) + 1)
            case 2:
                equations = []
            case 3:
                equations = equations[:-1]
        gap = rng.choice([" ", "  ", "\n"])
        text = f"{gap.join(equations)} Answer: \\boxed{{{answer}}}" + rng.choice(["", " \\boxed{3}"])
        expected = equations == chain.working.split(" ") and answer == chain.answer
        gold = f"{chain.working} Answer: \\boxed{{{chain.answer}}}"
        for completion in (text, [{"role": "assistant", "content": text}]):
            assert worked([completion], [gold]) == [float(expected)]
        seen[expected] += 1
    assert min(seen.values()) > 50


ODD = ["", "Answer:", "7-1=6", "7-1=6 Answer: \\boxed{6", "\\boxed{6} Answer: 7-1=6", "\x00"]


@pytest.mark.parametrize("text", ODD)
def test_odd_answers_are_wrong(text: str) -> None:
    assert worked([text], ["7-1=6 Answer: \\boxed{6}"]) == [0.0]


@pytest.mark.parametrize("task, count", [("testbed-worked", 400), ("testbed-long", 400), ("testbed-long-answer", 400)])
def test_tasks_judge_by_what_is_right_in_training(task: str, count: int) -> None:
    docs = list(load_task(task, "boxed").test_docs())
    assert len(docs) == count and all(chain_of(doc["problem"]).split == "test" for doc in docs)
    long = {"testbed-worked": {1, 2, 3, 4}, "testbed-long": {4}, "testbed-long-answer": {3, 4}}[task]
    assert {len(chain_of(doc["problem"]).changes) for doc in docs} == long
    judge = named_in(docs, task)
    assert (judge is None) == (task == "testbed-long-answer")
    if judge is not None:
        chains = [chain_of(doc["problem"]) for doc in docs[:20]]
        full = [f"{chain.working} Answer: \\boxed{{{chain.answer}}}" for chain in chains]
        bare = [f"Answer: \\boxed{{{chain.answer}}}" for chain in chains]
        assert all(verdict.correct for verdict in judge.grade_docs(full, docs[:20]))
        assert not any(verdict.correct for verdict in judge.grade_docs(bare, docs[:20]))


# ------------------------------------------------------------------------------------------------ start weights


def test_the_presets_start_from_weights_that_are_shipped() -> None:
    for name in PRESETS:
        model = preset(name).model
        file = model.name if model.warmup is None else embedded_model.FURTHER[model.name, model.warmup]
        assert (embedded_model.SHIPPED / f"{file}.safetensors").is_file()
        assert file in embedded_model.DIGESTS


def test_warmup_is_part_of_a_runs_identity_and_none_is_not() -> None:
    plain = parse_recipe({"model": "embedded"}, "test")
    assert run_id(plain) == run_id(parse_recipe({"model": {"name": "embedded", "warmup": None}}, "test"))
    made = [parse_recipe({"model": {"name": "embedded", "warmup": w}}, "t") for w in ({}, {"direct": 0.9})]
    assert len({run_id(recipe) for recipe in (plain, *made)}) == 3


@pytest.mark.parametrize("values", [{"steps": 0}, {"direct": 1.1}, {"learning_rate": 0.0}, {"step": 3}])
def test_impossible_warmups_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"model\.warmup"):
        parse_recipe({"model": {"name": "embedded", "warmup": values}}, "test")


def test_only_the_embedded_models_take_a_warmup(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.warmup.*embedded"):
        model_folder(str(tmp_path), None, WarmupSection())


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("R3BENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def sampled(model: ModelSection, data: DataSection, cap: int) -> list[list[tuple[str, str, bool]]]:
    """By question, 8 answers as (text, worked solution, cut off)."""
    policy, tokenizer = load_model(model)
    rows = list(load_questions(replace(data, limit=48)))
    texts = [tokenizer.apply_chat_template(r["prompt"], add_generation_prompt=True, tokenize=False) for r in rows]
    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    torch.manual_seed(1)
    with torch.no_grad():
        found = policy.generate(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], do_sample=True, top_k=0,
            max_new_tokens=cap, num_return_sequences=8,
        )[:, inputs["input_ids"].shape[1] :]  # fmt: skip
    cut = (found != tokenizer.eos_token_id).all(1).tolist()
    said = tokenizer.batch_decode(found, skip_special_tokens=True)
    return [[(said[i], row["solution"], cut[i]) for i in range(8 * n, 8 * n + 8)] for n, row in enumerate(rows)]


def character(name: str) -> dict[str, float]:
    """Shares of direct answers, of answers that are cut off, of right ones, and of groups without contrast."""
    recipe = preset(name)
    groups = sampled(recipe.model, recipe.data, recipe.trainer["max_completion_length"])
    needs_working = "worked" in str(recipe.reward.functions)

    def right(text: str, gold: str) -> bool:
        boxed = text.rpartition("\\boxed{")[2].partition("}")[0] if "\\boxed{" in text else ""
        return worked([text], [gold]) == [1.0] if needs_working else boxed == gold.rpartition("{")[2].strip("}")

    rows = [row for group in groups for row in group]
    verdicts = [[right(text, gold) for text, gold, _ in group] for group in groups]
    return {
        "direct": sum(text.startswith("Answer:") for text, _, _ in rows) / len(rows),
        "cut": sum(cut for _, _, cut in rows) / len(rows),
        "right": sum(map(sum, verdicts)) / len(rows),
        "dead": sum(len(set(group)) == 1 for group in verdicts) / len(verdicts),
    }


def test_the_presets_have_their_character_at_the_start(cache: None) -> None:
    easy, capped, sparse, deceptive, long = (character(name) for name in PRESETS)
    assert easy["dead"] < 0.35 and 0.2 < easy["right"] < 0.5 and easy["cut"] < 0.05
    assert capped["cut"] > 0.1 > easy["cut"]
    assert sparse["direct"] > 0.95 and sparse["dead"] > 0.85 and sparse["right"] < 0.02
    assert deceptive["right"] > 0.15 and deceptive["direct"] > 0.95  # the shortcut pays
    assert long["dead"] > 0.85 and long["right"] < 0.02


def test_direct_sets_the_share_of_answers_without_working(cache: None) -> None:
    """The dial is turned all the way, with dials that aren't shipped, so the steps are taken here."""
    shares = []
    for direct in (0.0, 1.0):
        model = ModelSection(warmup=WarmupSection(steps=15, direct=direct))
        rows = [row for group in sampled(model, DataSection(), 4) for row in group]
        shares.append(sum(text.startswith("Answer:") for text, _, _ in rows) / len(rows))
    assert shares[0] < 0.4 and shares[1] > 0.9


def test_further_steps_are_the_same_each_time(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        torch.manual_seed(hash(name) % 1000)
        embedded_model.make(tmp_path / name, "embedded", WarmupSection(steps=2, direct=0.5))
        made.append((tmp_path / name / "model.safetensors").read_bytes())
    assert made[0] == made[1]
    shutil.rmtree(tmp_path / "one")
