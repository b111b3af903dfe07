"""What is logged of exploration, against a recount of the answers that the reward function saw. Through `train()`."""

import numpy as np
import pytest
from trainer_tools import Recorder, arguments, questions

from r3bench import R3Trainer
from r3bench.training.step.exploration import Exploration, Sampled

EVERY = {"newly_solved", "solved", "solved_per_million", "pass", "dead", "distinct"}


class Asked(Recorder):
    """Keeps the questions as well, and finds few answers right, so that groups differ."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def __call__(self, completions, completion_ids, question_id, **columns):
        self.asked.append(list(question_id))
        self.seen.append([list(ids) for ids in completion_ids])
        return [float(sum(ids) % 7 == 0) for ids in completion_ids]


def recount(asked, seen, total, size=4):
    """The figures of every batch by the words of their definitions, one dict a batch."""
    solved, tokens, lines = set(), 0, []
    for names, answers in zip(asked, seen, strict=True):
        tokens += sum(map(len, answers))
        right = [sum(ids) % 7 == 0 for ids in answers]
        groups = [range(first, first + size) for first in range(0, len(names), size)]
        new = {names[i] for i in range(len(names)) if right[i]} - solved
        solved |= new
        counts = [sum(right[i] for i in group) for group in groups]
        lines.append(
            {
                "newly_solved": len(new), "solved": len(solved) / total,
                "solved_per_million": 1e6 * len(solved) / tokens,
                "pass": sum(count > 0 for count in counts) / len(groups),
                "dead": sum(count in (0, size) for count in counts) / len(groups),
                "distinct": np.mean([len({tuple(answers[i]) for i in group}) / size for group in groups]),
            }
        )  # fmt: skip
    return lines


def logged(trainer):
    lines = [line for line in trainer.state.log_history if "loss" in line]
    return [{key.removeprefix("exploration/"): v for key, v in line.items() if "exploration" in key} for line in lines]


def trained(model, folder, reward, **changes):
    data = changes.pop("data", questions(6))
    trainer = R3Trainer(model=model, reward_funcs=reward, args=arguments(folder, **changes), train_dataset=data)
    trainer.train()
    return trainer


@pytest.mark.parametrize("components", [{}, {"replay": {"warmup": 0.0}}])
def test_the_log_is_a_recount_of_the_answers(tiny_model, tmp_path, components):
    reward = Asked()
    trainer = trained(tiny_model, tmp_path, reward, components=components, max_steps=6)
    found, expected = logged(trainer), recount(reward.asked, reward.seen, 6)
    assert len(found) == 6
    for ours, plain in zip(found, expected, strict=True):
        assert ours == {key: pytest.approx(value, rel=1e-6) for key, value in plain.items()}
        assert ours.keys() == EVERY
    assert any(line["newly_solved"] for line in expected)
    assert {line["dead"] for line in expected} != {0}


def test_rows_without_an_id_are_left_alone(tiny_model, tmp_path):
    data = questions(6).remove_columns("question_id")
    trainer = trained(tiny_model, tmp_path, Recorder(), max_steps=1, data=data)
    assert logged(trainer) == [{}]


def test_what_was_solved_outlives_a_checkpoint(tiny_model, tmp_path):
    saved = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    expected = logged(trained(tiny_model, tmp_path, Asked(), **saved))
    arguments_ = arguments(tmp_path, **saved)
    again = R3Trainer(model=tiny_model, reward_funcs=Asked(), args=arguments_, train_dataset=questions(6))
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert sum(line["newly_solved"] for line in expected[:2]) > 0
    assert logged(again)[-2:] == expected[-2:]


def test_other_prompts_and_rows_without_a_verdict_do_not_count():
    def sampled(**changes):
        rows = {
            "questions": ["a"] * 2 + ["b"] * 2, "correct": np.array([True, False, True, True]),
            "judged": np.ones(4, bool), "answers": [1, 2, 3, 3], "bare": np.ones(4, bool),
        }  # fmt: skip
        return Sampled(**{**rows, **changes})

    short = {"solved": 1.0, "pass": 1.0, "dead": 0.5, "distinct": 0.75, "newly_solved": 2.0}
    found = Exploration(2).observe(sampled(), 2, 0)
    assert found == {f"exploration/{key}": value for key, value in short.items()}
    found = Exploration(2).observe(sampled(bare=np.array([True, True, False, False])), 2, 10)
    assert (found["exploration/solved"], found["exploration/distinct"]) == (0.5, 1.0)
    assert found["exploration/solved_per_million"] == pytest.approx(1e5)
    found = Exploration(2).observe(sampled(judged=np.array([False, False, True, True])), None, 10)
    assert found["exploration/pass"] == 1.0
    assert "exploration/solved" not in found
    nobody = Exploration(2).observe(sampled(judged=np.zeros(4, bool)), 2, 10)
    assert nobody == {"exploration/distinct": 0.75}
    kept = Exploration(2)
    kept.load({"solved": ["a"]})
    assert kept.observe(sampled(), 2, 0)["exploration/newly_solved"] == 1.0
    assert kept.state() == {"solved": ["a", "b"]}
