"""Tool calls, environments, `rollout_func` and images: masks, turns and what is refused. Through `train()`."""

import json
import textwrap

import numpy as np
import pytest
import torch
import world
from component_tools import group, make
from component_tools import step as one_step
from datasets import IterableDataset
from trainer_tools import arguments, by_length, questions, spy_on

from r3bench import R3Trainer
from r3bench.errors import ConfigError
from r3bench.training.step.history import HistoryBounds, TrajectoryHistory

HISTORIC = -1


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return world.build("qwen2", tmp_path_factory.mktemp("qwen2"))


class Waves:
    """Right and wrong by visit: the first row of each group in the first 3 batches, nothing after."""

    __name__ = "waves"

    def __init__(self):
        self.calls = 0

    def __call__(self, completions, **_):
        self.calls += 1
        rows = [1.0, 0.0, 0.0, 0.0] if self.calls <= 3 else [0.0] * 4
        return rows * (len(completions) // 4)


def train(model, folder, components, reward=None, data=None, max_steps=6, **world_of):
    changes = world_of.pop("changes", {})
    trainer = spy_on(R3Trainer)(
        model=model, reward_funcs=reward or Waves(), train_dataset=data or questions(6),
        args=arguments(
            folder, components=components,
            **{"max_steps": max_steps, "max_completion_length": 200, "max_tool_calling_iterations": 3, **changes},
        ),
        **world_of,
    )  # fmt: skip
    trainer.train()
    return trainer


def masks(trainer):
    """Completion -> masks it had, of fresh rows and of historic ones."""
    fresh, historic = {}, {}
    for record in trainer.records:
        for part in record["parts"]:
            for i in range(len(part["prompt_ids"])):
                length = int(part["completion_mask"][i].sum())
                key = tuple(part["completion_ids"][i][:length].tolist())
                mask = tuple(part["tool_mask"][i][:length].int().tolist()) if "tool_mask" in part else None
                number = int(part["r3_row"][i])
                if length and number >= HISTORIC:
                    (fresh if number >= 0 else historic).setdefault(key, set()).add(mask)
    return fresh, historic


def tool_first(row, text):
    return f"n{row} " + world.call("add", a=row, b=1)


def guess_first(row, text):
    return f"n{row} " + world.call("guess", word=f"w{row}")


def answer(row, text):
    return f"so {row}"


WORLDS = {
    "tools": ({"tools": [world.add]}, tool_first),
    "environment": ({"environment_factory": world.Guess}, guess_first),
    "rollout_func": ({"rollout_func": world.masked_rollout}, tool_first),
}


@pytest.mark.parametrize(
    ("name", "mode", "weight"),
    [
        ("tools", "append", "ppo"),
        ("tools", "replace", "decoupled"),
        ("environment", "append", "none"),
        ("rollout_func", "append", "none"),
        ("rollout_func", "replace", "decoupled"),
    ],
)
def test_what_a_tool_said_is_masked_in_replayed_answers(qwen, tmp_path, name, mode, weight):
    parts, first = WORLDS[name]
    settings = {"replay": {"warmup": 0, "mode": mode, "weight": weight}}
    with world.scripted(first, answer):
        trainer = train(qwen, tmp_path / "a", settings, **parts)
    fresh, historic = masks(trainer)
    assert historic, "nothing was replayed"
    for key, found in historic.items():
        assert found == fresh[key], "another mask than when it was sampled"
        assert 0 < sum(next(iter(found))) < len(key)
    for record in trainer.records:
        batch = record["batch"]
        assert int(batch["num_items_in_batch"]) == int((batch["completion_mask"] * batch["tool_mask"]).sum())


def test_tool_text_counts_nowhere_in_history(qwen, tmp_path):
    with world.scripted(tool_first, answer):
        trainer = train(qwen, tmp_path / "a", {"replay": {"warmup": 0}}, tools=[world.add], max_steps=3)
    view = trainer.history.open([f"q{i}" for i in range(6)])
    stored = view.fetch([s for i in range(6) for s in view.summaries(f"q{i}")])
    assert len(stored) == 24
    for one in stored:
        assert one.mask is not None
        assert one.summary.length == int(one.mask.sum()) < len(one.completion_ids) == one.summary.tokens
    assert trainer.history.tokens == sum(len(one.completion_ids) for one in stored)
    arrays, metadata = trainer.history.state()
    metadata = json.loads(json.dumps(metadata))
    again = TrajectoryHistory(HistoryBounds())
    again.load([(arrays, metadata)])
    assert again.digest() == trainer.history.digest()


COMPONENT = """
from dataclasses import dataclass
from r3bench.component import Component, PlannedGroup

@dataclass(frozen=True)
class Settings:
    \"\"\"None.\"\"\"
    prefix: bool = True  # give it

class Opening(Component):
    name = "opening"
    Config = Settings
    gives_prefixes = True
    def plan(self, step):
        ids = tuple(self.facts.encode("So, ")) if self.config.prefix else ()
        return [PlannedGroup(step.groups[0].question, "continuation", slot=0, prefix_ids=ids)]
"""


def test_a_prefix_is_given_in_the_first_turn_and_to_its_own_group(qwen, tmp_path, monkeypatch):
    (tmp_path / "components").mkdir()
    (tmp_path / "components" / "opening.py").write_text(textwrap.dedent(COMPONENT))
    monkeypatch.chdir(tmp_path)

    def some(row, text):  # the other group's second row doesn't call, so that later turns have other row numbers
        return "none" if row % 8 in (0, 5) else world.call("add", a=row % 8, b=1)

    found = {}
    for prefix in (True, False):
        with world.scripted(some, lambda row, text: "done") as given:
            trainer = train(
                qwen, tmp_path / f"{prefix}", {"opening": {"prefix": prefix}}, tools=[world.add], max_steps=1
            )
        fast = trainer._tokenizer
        later = [fast.decode(ids) for opening, ids in given if not opening]
        assert len(later) == 6
        assert not any(text.endswith("So, ") for text in later), "the prefix was put in again"
        batch = trainer.records[0]["batch"]
        found[prefix] = [batch["tool_mask"][i][: int(batch["completion_mask"][i].sum())].tolist() for i in range(8)]
        texts = [fast.decode(batch["completion_ids"][i]) for i in range(8)]
        assert [text.startswith("So, ") for text in texts] == [prefix] * 4 + [False] * 4
    assert found[True][4:] == found[False][4:], "the other group's masks changed"
    size = len(fast.encode("So, "))
    assert [row[size:] for row in found[True][:4]] == found[False][:4]
    assert all(row[:size] == [0] * size for row in found[True][:4])
    assert any(0 in row for row in found[False][4:])


def test_ranking_reads_only_what_the_policy_wrote():
    one, alone = (make("ranking", {"scope": "failed"}) for _ in range(2))
    tool = [True] * 3 + [False] * 2 + [True]
    texts = ["abcxxd", "efgxxh", "ijkxxl", "mnoxxp"]
    rng = np.random.default_rng(0)
    figures = [rng.random(6) for _ in texts]
    whole = group(0, [0] * 4, texts=texts, masks=[np.array(tool)] * 4)
    cut = group(0, [0] * 4, texts=[t.replace("xx", "") for t in texts])
    for values in figures:
        values[3:5] = rng.random() * 50  # what the tool said
    with_tool = one.score(one_step([whole]), dict(enumerate(figures)))
    without = alone.score(one_step([cut]), {i: values[tool] for i, values in enumerate(figures)})
    assert with_tool == pytest.approx(without)


def test_retrospective_cuts_in_the_first_turn():
    component = make("retrospective", {"value": "random", "cuts": "grid", "spacing": 1, "max_cuts": 64})
    mask = np.array([True] * 6 + [False] * 8 + [True] * 6)
    one = group(0, [0, 0], texts=["abcdefTTTTTTTTghijkl"] * 2, masks=[mask] * 2)
    assert [max(cuts) for cuts in component._cuts(one)] == [5, 5]
    plain = group(0, [0, 0], texts=["abcdefghijklmnopqrst"] * 2)
    assert [max(cuts) for cuts in component._cuts(plain)] == [14, 14]


class Secret:
    """An environment that has the data: its words are nowhere in the data set."""

    def reset(self, **_):
        return " Guess."

    def guess(self, word: str) -> str:
        """Guess.

        Args:
            word: the guess.
        """
        return word


def streamed():
    return IterableDataset.from_generator(lambda: iter(questions(8)))


SETTINGS = {"reflection": {"max_share": 0.5}}
REFUSED = {
    "prefix": ("retrospective", {"rollout_func": world.masked_rollout}, {}, "rollout_func"),
    "own_data": ("replay", {"environment_factory": Secret}, {"data": None}, "environment makes the questions"),
    "rewritten": ("reflection", {"environment_factory": world.Guess}, {}, r"reset\(\) adds"),
    "stream": ("reflection", {}, {"data": streamed}, "map-style train_dataset"),
    "stream_resampled": ("dynamic_sampling", {}, {"data": streamed}, "map-style train_dataset"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_before_training(qwen, tmp_path, name):
    component, parts, changes, message = REFUSED[name]
    data = questions(6) if "data" not in changes else changes["data"] and changes["data"]()
    with pytest.raises(ConfigError, match=rf"components\.{component}: .*{message}"):
        R3Trainer(
            model=qwen, reward_funcs=by_length, train_dataset=data,
            args=arguments(tmp_path, components={component: SETTINGS.get(component, True)}), **parts,
        )  # fmt: skip


def test_a_mask_of_another_length_is_refused(qwen, tmp_path):
    def short(prompts, trainer):
        output = world.masked_rollout(prompts, trainer)
        output["env_mask"] = [mask[:-1] for mask in output["env_mask"]]
        return output

    with pytest.raises(ConfigError, match=r"env_mask of row 0 has .* expected one per token"):
        train(qwen, tmp_path / "a", {"replay": True}, rollout_func=short)


def test_an_environment_that_words_a_question_anew_gets_no_old_answers(qwen, tmp_path):
    class Changing(world.Guess):
        count = 0

        def reset(self, **columns):
            super().reset(**columns)
            Changing.count += 1
            return f" Guess ({(Changing.count - 1) // 24})."

    with world.scripted(guess_first, answer):
        trainer = train(qwen, tmp_path / "a", {"replay": {"warmup": 0}}, environment_factory=Changing)
    assert "replay/groups_mixed" not in trainer.evidence
    assert trainer.evidence["replay/groups_no_history"] == 6


def test_a_question_is_more_than_its_prompt(qwen, tmp_path):
    """One prompt, two answers: 'dog' is never right, so its group gets nothing."""
    rows = [{"prompt": questions(1)[0]["prompt"], "answer": answer} for answer in ("cat", "dog")]
    data = type(questions(1)).from_list(rows)

    class Cats:
        __name__ = "cats"
        calls = 0

        def __call__(self, completions, answer, **_):
            Cats.calls += 1
            first = [float(a == "cat" and Cats.calls == 1 and i % 4 == 0) for i, a in enumerate(answer)]
            return first

    trainer = train(qwen, tmp_path / "a", {"replay": {"warmup": 0}}, Cats(), data, max_steps=3)
    assert trainer.evidence["replay/groups_mixed"] == 2
    assert trainer.evidence["replay/groups_no_history"] == 3


def test_one_id_for_rows_that_differ_is_refused(qwen, tmp_path):
    rows = [{"question_id": f"q{i % 3}", "prompt": f"What is {i}?", "answer": str(i)} for i in range(4)]
    data = type(questions(1)).from_list(rows)
    with pytest.raises(
        ConfigError, match=r"rows 0 and 3 have one question_id, 'q0', but differ in 'answer': '0' and '3'"
    ):
        R3Trainer(
            model=qwen, reward_funcs=by_length, train_dataset=data,
            args=arguments(tmp_path, components={"replay": True}),
        )  # fmt: skip
    same = type(questions(1)).from_list([rows[0], rows[1], rows[2], rows[0]])
    trainer = train(qwen, tmp_path / "a", {"replay": True}, by_length, same, max_steps=2)
    assert set(trainer.moments.row_index) == {"q0", "q1", "q2"}


def test_removed_columns_make_no_question(qwen, tmp_path):
    data = questions(6).add_column("line", list(range(6))).remove_columns("question_id")
    trainer = train(
        qwen, tmp_path / "a", {"reflection": {"warmup": 0, "max_share": 0.5}, "replay": {"warmup": 0}},
        lambda completions, **_: [0.0] * len(completions), data, changes={"remove_unused_columns": True},
    )  # fmt: skip
    assert trainer.evidence["reflection/groups"] > 0


# ------------------------------------------------------------------ images


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    pytest.importorskip("PIL")
    return world.build_llava(tmp_path_factory.mktemp("llava"))


@pytest.mark.parametrize(("mode", "changes"), [
    ("append", {}), ("replace", {}),
    ("append", {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_iterations": 2, "beta": 0.05}),
])  # fmt: skip
def test_images_go_with_their_rows(llava, tmp_path, mode, changes):
    trainer = train(
        llava, tmp_path / "a", {"replay": {"warmup": 0, "mode": mode}}, data=world.colours(6),
        max_steps=6 * changes.get("num_iterations", 1), changes={"max_completion_length": 8, **changes},
    )  # fmt: skip
    assert trainer.evidence["replay/groups_mixed"] >= 4
    shown = {}  # completion -> images it was sampled under
    seen = 0
    for record in trainer.records:
        for part in record["parts"]:
            images = part["pixel_values"]
            assert len(images) == len(part["prompt_ids"])
            for i, number in enumerate(part["r3_row"].tolist()):
                key = tuple(part["completion_ids"][i][part["completion_mask"][i].bool()].tolist())
                if number >= 0:
                    shown.setdefault(key, []).append(images[i])
                elif number == HISTORIC:
                    seen += 1
                    assert any(torch.equal(images[i], image) for image in shown[key]), "another question's image"
    assert seen


@pytest.mark.parametrize(
    ("component", "message"),
    [("reflection", "images in them"), ("retrospective", "image models"), ("ranking", "without the images"),
     ("dynamic_sampling", "joined by rows")],
)  # fmt: skip
def test_components_that_would_not_see_the_images_are_refused(llava, tmp_path, component, message):
    with pytest.raises(ConfigError, match=message):
        R3Trainer(
            model=llava, reward_funcs=by_length, train_dataset=world.colours(),
            args=arguments(tmp_path, components={component: SETTINGS.get(component, True)}),
        )  # fmt: skip
