"""Every component moment through `train()`, with small components as a user would write them in `./components/`."""

import textwrap

import numpy as np
import pytest
import torch
from reference_grpo import token_logprobs
from trainer_tools import arguments, by_length, questions, spy_on
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from r3bench import R3Trainer
from r3bench.component import PlannedGroup
from r3bench.errors import ConfigError, Diverged
from r3bench.training.step.rollout import Layout, open_rollout, place

HEADER = """
from dataclasses import dataclass
from r3bench.component import Component, Mixture, PlannedGroup

@dataclass(frozen=True)
class Settings:
    \"\"\"None.\"\"\"
    value: float = 0.5  # a number
    max_rounds: int = 3  # rounds
"""

BODIES = {
    "bonus": """
class Bonus(Component):
    name = "bonus"
    Config = Settings
    def score(self, step, entropies):
        return {row: self.config.value for group in step.groups for row in list(group.rows)[:2]}
    def mix(self, step):
        self.count("groups", len(step.groups))
        return []
""",
    "other_prompt": """
class OtherPrompt(Component):
    name = "other_prompt"
    Config = Settings
    def plan(self, step):
        asked = [{"role": "user", "content": "Try again: What is 5 plus 5?"}]
        return [PlannedGroup("q5", "reflection", slot=0, prompt=asked), PlannedGroup("q4", "reflection", prompt=asked)]
""",
    "head_start": """
class HeadStart(Component):
    name = "head_start"
    Config = Settings
    observes_tokens = True
    seen = []
    def plan(self, step):
        return [PlannedGroup(step.groups[1].question, "continuation", slot=1, prefix_ids=(20, 21, 22))]
    def observe(self, step):
        HeadStart.seen.append(step.groups)
""",
    "picky": """
class Picky(Component):
    name = "picky"
    Config = Settings
    observes_tokens = True
    seen = []
    def keep(self, step):
        return [int(group.question[1:]) >= 4 for group in step.groups]
    def observe(self, step):
        Picky.seen.append([(g.question, [ids.tolist() for ids in g.completion_ids]) for g in step.groups])
""",
    "peek": """
class Peek(Component):
    name = "peek"
    Config = Settings
    observes_tokens = True
    seen = []
    def probe(self, step):
        return {step.groups[1].rows[2]: [0, 3], step.groups[0].rows[0]: [1]}
    def rescale(self, step, mixed):
        return {0: 0.0}
    def observe(self, step):
        Peek.seen.append({(g.index, n): h.shape for g in step.groups for n, h in g.hidden.items()})
""",
}


@pytest.fixture
def components(tmp_path, monkeypatch):
    """A working folder whose `./components/` holds the components above."""
    folder = tmp_path / "work" / "components"
    folder.mkdir(parents=True)
    for name, body in BODIES.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(HEADER) + body)
    monkeypatch.chdir(tmp_path / "work")
    return folder


class Seen:
    """A reward function that keeps what it was shown."""

    __name__ = "seen"

    def __init__(self):
        self.calls = []

    def __call__(self, prompts, completions, completion_ids, question_id, answer, **_):
        self.calls.append((prompts, question_id, answer, [list(ids) for ids in completion_ids]))
        return by_length(completion_ids)


def run(model, folder, components, **changes):
    reward = Seen()
    trainer = spy_on(R3Trainer)(
        model=model, reward_funcs=reward, train_dataset=questions(6),
        args=arguments(folder, components=components, **{"max_steps": 2, **changes}),
    )  # fmt: skip
    trainer.train()
    return trainer, reward


def seen_by(name):
    from r3bench import catalog

    cls = catalog.component(name)
    return cls.seen


def test_reward_column_joins_the_total(components, tiny_model, tmp_path):
    trainer, reward = run(tiny_model, tmp_path / "out", {"bonus": {"value": 0.25}}, scale_rewards="none")
    assert trainer.reward_func_names == ["seen", "bonus"]
    for record, call in zip(trainer.records, reward.calls, strict=True):
        task = np.array(by_length(call[3])).reshape(2, 4)
        total = task + np.array([0.25, 0.25, 0, 0])
        expected = (total - total.mean(1, keepdims=True)).ravel()
        assert np.allclose(record["batch"]["advantages"], expected, atol=1e-6)
    assert trainer.evidence == {"bonus/groups": 4}
    lines = trainer.state.log_history[:2]
    assert [line["bonus/groups"] for line in lines] == [2, 2]
    assert [line["rewards/bonus/mean"] for line in lines] == [0.25, 0.25]


def test_planned_groups_change_what_the_policy_sees_only(components, tiny_model, tmp_path):
    trainer, reward = run(tiny_model, tmp_path / "out", {"other_prompt": True})
    for record, (prompts, ids, answers, _) in zip(trainer.records, reward.calls, strict=True):
        assert len(ids) == 12, "one slot taken, one group appended"
        assert ids[:4] == ["q5"] * 4
        assert ids[8:] == ["q4"] * 4
        assert answers[:4] == ["10"] * 4
        assert "Try again" not in str(prompts)
        texts = [trainer._tokenizer.decode(row) for row in record["batch"]["prompt_ids"]]
        assert all("Try again: What is 5 plus 5?" in text for text in texts[:4] + texts[8:])
        assert all("Try again" not in text for text in texts[4:8])
        advantages = record["batch"]["advantages"].view(3, 4)
        assert torch.allclose(advantages.sum(1), torch.zeros(3), atol=1e-4)
    assert [line["groups/planned"] for line in trainer.state.log_history[:2]] == [2, 2]


def test_given_prefix_is_kept_and_masked(components, tiny_model, tmp_path):
    trainer, reward = run(tiny_model, tmp_path / "out", {"head_start": True})
    for record, call in zip(trainer.records, reward.calls, strict=True):
        batch = record["batch"]
        assert all(ids[:3] == [20, 21, 22] for ids in call[3][4:])
        assert not all(ids[:3] == [20, 21, 22] for ids in call[3][:4])
        assert batch["tool_mask"][4:, :3].sum() == 0
        assert batch["tool_mask"][:4].all()
        assert all(len(ids) <= 8 for ids in call[3])
    groups = seen_by("head_start")[-1]
    assert [group.provenance for group in groups] == ["fresh", "continuation"]
    assert groups[1].prefix == 3
    assert all(len(p) == len(ids) for g in groups for p, ids in zip(g.logprobs, g.completion_ids, strict=True))


def test_unwanted_groups_are_sampled_again(components, tiny_model, tmp_path):
    trainer, reward = run(tiny_model, tmp_path / "out", {"picky": {"max_rounds": 5}}, max_steps=3)
    assert len(reward.calls) > 3, "nothing was sampled again"
    answered = {}
    for _, ids, _, completions in reward.calls:
        for question, completion in zip(ids, completions, strict=True):
            answered.setdefault(question, []).append(completion)
    for record, groups in zip(trainer.records, seen_by("picky")[-3:], strict=True):
        kept = [question for question, _ in groups]
        assert set(kept) == {"q4", "q5"}
        batch = record["batch"]
        for index, (question, completions) in enumerate(groups):
            for number, completion in enumerate(completions):
                row = index * 4 + number
                mask = batch["completion_mask"][row].bool()
                assert batch["completion_ids"][row][mask].tolist() == completion
                assert completion in answered[question]
                text = trainer._tokenizer.decode(batch["prompt_ids"][row])
                assert f"What is {question[1:]} plus" in text
        assert int(batch["num_items_in_batch"]) == int(batch["completion_mask"].sum())
    assert trainer.generated_tokens == sum(len(ids) for call in reward.calls for ids in call[3])


def test_hidden_states_and_rescaled_advantages(components, tiny_model, tmp_path):
    trainer, _ = run(tiny_model, tmp_path / "out", {"peek": True})
    assert seen_by("peek")[-1] == {(1, 2): (2, 32), (0, 0): (1, 32)}
    for record in trainer.records:
        assert not record["batch"]["advantages"][:4].any()
    assert any(record["batch"]["advantages"][4:].any() for record in trainer.records)


def test_components_leave_evaluation_alone(components, tiny_model, tmp_path):
    reward = Seen()
    trainer = R3Trainer(
        model=tiny_model, reward_funcs=reward, train_dataset=questions(6), eval_dataset=questions(4),
        args=arguments(
            tmp_path / "out", components={"bonus": True, "other_prompt": True, "head_start": True}, max_steps=2,
            eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=8,
        ),
    )  # fmt: skip
    trainer.train()
    evaluations = [line for line in trainer.state.log_history if "eval_reward" in line]
    assert len(evaluations) == 2
    assert all(line["eval_rewards/bonus/mean"] is None for line in evaluations)
    assert trainer.evidence["bonus/groups"] == 2 * 3


@pytest.mark.parametrize(
    ("components_", "message"),
    [
        ({"bonsu": True}, "no component 'bonsu'"),
        ({"bonus": {"valeu": 1}}, "valeu"),
        ({"bonus": "strong"}, "strong"),
    ],
)
def test_mistakes_are_named(components, tiny_model, tmp_path, components_, message):
    with pytest.raises(ConfigError, match=message):
        run(tiny_model, tmp_path / "out", components_)


def test_appending_needs_whole_groups():
    layout = Layout(rank=0, ranks=2, local_rows=4, group_rows=8)
    row = {"question_id": "q", "prompt": "?"}
    rollout = open_rollout([row] * 4, layout, [row])
    with pytest.raises(ConfigError, match="4 rows per process and num_generations=8; use placement 'replace'"):
        place(rollout, [PlannedGroup("q", "reflection")], lambda _: row, 1)


@pytest.mark.parametrize("value", [float("inf"), float("-inf")])
def test_infinite_reward_ends_the_run(tiny_model, tmp_path, value):
    def broken(completions, **_):
        return [value] + [0.0] * (len(completions) - 1)

    trainer = R3Trainer(
        model=tiny_model, reward_funcs=broken, train_dataset=questions(6), args=arguments(tmp_path / "out")
    )
    with pytest.raises(Diverged, match="step 0: non-finite reward from broken"):
        trainer.train()


def test_non_finite_loss_ends_the_run_and_saves_the_batch(tiny_model, tmp_path):
    trainer = R3Trainer(
        model=tiny_model, reward_funcs=by_length, train_dataset=questions(6),
        args=arguments(tmp_path / "out", learning_rate=1e30, max_grad_norm=0.0),
    )  # fmt: skip
    with pytest.raises(Diverged, match=r"step \d+: (loss|gradient norm) is"):
        trainer.train()
    folder = next((tmp_path / "out").glob("diverged-*"))
    assert (folder / "part-0.safetensors").exists()
    assert "What is" in (folder / "texts.json").read_text()


def test_tokens_thrown_away_after_a_prefix_are_counted(components, tiny_model, tmp_path):
    trainer = R3Trainer(
        model=tiny_model, reward_funcs=Seen(), train_dataset=questions(6),
        args=arguments(tmp_path / "out", components={"head_start": True}, max_steps=1, temperature=1.0),
    )  # fmt: skip
    sampled = []
    generate = GRPOTrainer._generate_single_turn

    def counting(self, *args, **kwargs):
        completions, logprobs = generate(self, *args, **kwargs)
        sampled.extend(len(ids) for ids in completions)
        return completions, logprobs

    GRPOTrainer._generate_single_turn = counting
    try:
        trainer.train()
    finally:
        GRPOTrainer._generate_single_turn = generate
    assert trainer.generated_tokens == sum(sampled)


def test_a_group_taken_by_one_component_is_not_mixed_by_the_next(components, tiny_model, tmp_path):
    for name in ("first", "second"):
        body = f"""
class Mixing(Component):
    name = "{name}"
    Config = Settings
    uses_history = True
    def mix(self, step):
        free = [g for g in step.groups if g.index not in step.taken and step.history.summaries(g.question)]
        self.count("used", len(free))
        return [
            Mixture(group=g.index, historic=tuple(step.history.summaries(g.question)[:1]), replaced=(0,),
                    fresh_advantages=g.rewards * 0, historic_advantages=g.rewards[:1] * 0,
                    weight="none", clip=(0.0, 2.0))
            for g in free
        ]
"""
        (components / f"{name}.py").write_text(textwrap.dedent(HEADER) + body)
    trainer, _ = run(tiny_model, tmp_path / "out", {"first": True, "second": True}, max_steps=6)
    assert trainer.evidence["first/used"] == 6
    assert trainer.evidence["second/used"] == 0
    assert sum(int((record["batch"]["r3_row"] < 0).sum()) for record in trainer.records) == 6


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo"])
def test_padding_rows_change_neither_loss_nor_kl(components, tiny_model, tmp_path, loss_type):
    """One appended row over 8 parts: 16 rows, 9 real. The mean must be over the real ones, the KL term's too."""
    body = """
class OneRow(Component):
    name = "one_row"
    Config = Settings
    uses_history = True
    def mix(self, step):
        stored = [(g, s) for g in step.groups for s in step.history.summaries(g.question)[:1]]
        return [
            Mixture(group=g.index, historic=(s,), replaced=(), fresh_advantages=np.linspace(-1, 1, len(g.rewards)),
                    historic_advantages=np.ones(1), weight="none", clip=(0.0, 2.0))
            for g, s in stored[:1]
        ]
"""
    (components / "one_row.py").write_text("import numpy as np\n" + textwrap.dedent(HEADER) + body)
    changes = {
        "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8, "beta": 0.5, "max_steps": 4,
        "loss_type": loss_type, "max_grad_norm": 0.0,
    }  # fmt: skip
    trainer, _ = run(tiny_model, tmp_path / "out", {"one_row": True}, **changes)
    record = trainer.records[-1]
    rows = [row for part in record["parts"] for row in _unmasked(part)]
    assert len(rows) == 9
    assert sum(len(part["prompt_ids"]) for part in record["parts"]) == 16
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    reference = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    model.load_state_dict(record["weights"])
    expected = []
    for prompt, completion, advantage in rows:
        now = token_logprobs(model, prompt, completion)
        apart = token_logprobs(reference, prompt, completion) - now
        per_token = -torch.tensor(advantage) + 0.5 * (torch.exp(apart) - apart - 1)
        expected.append(per_token.mean() if loss_type == "grpo" else per_token.sum() / 8)
    assert np.isclose(sum(record["losses"]), float(torch.stack(expected).mean()), atol=1e-5)


def _unmasked(part):
    for i in range(len(part["prompt_ids"])):
        mask = part["completion_mask"][i].bool()
        if mask.any():
            advantages = part["advantages"][i]
            advantages = advantages[mask] if advantages.ndim else advantages.expand(int(mask.sum()))
            prompt = part["prompt_ids"][i][part["prompt_mask"][i].bool()].tolist()
            yield prompt, part["completion_ids"][i][mask].tolist(), advantages.tolist()


def test_masked_truncated_rows_have_unknown_logprobs(tiny_model, tmp_path):
    trainer = R3Trainer(
        model=tiny_model, reward_funcs=by_length, train_dataset=questions(6),
        args=arguments(
            tmp_path / "out", components={"replay": True}, max_steps=3, mask_truncated_completions=True,
            num_iterations=1,
        ),
    )  # fmt: skip
    trainer.train()
    view = trainer.history.open([f"q{i}" for i in range(6)])
    stored = view.fetch([s for i in range(6) for s in view.summaries(f"q{i}")])
    assert any(t.summary.truncated for t in stored)
    for trajectory in stored:
        assert np.isnan(trajectory.logprobs).all() == trajectory.summary.truncated


def test_weighted_reward_bounds_the_ranking_reward(tiny_model, tmp_path):
    with pytest.raises(ConfigError, match=r"max_reward: got 0\.5"):
        R3Trainer(
            model=tiny_model, reward_funcs=by_length, train_dataset=questions(6),
            args=arguments(tmp_path, components={"ranking": {"max_reward": 0.5}}, reward_weights=[0.4]),
        )  # fmt: skip


def test_correctness_mistakes_are_named(tiny_model, tmp_path):
    with pytest.raises(ConfigError, match=r"R3Config\.correctness.*treshold.*threshold"):
        R3Trainer(
            model=tiny_model, reward_funcs=by_length, train_dataset=questions(6),
            args=arguments(tmp_path, correctness={"treshold": 0.5}),
        )  # fmt: skip


FAULTY = {
    "silent": (
        "shapes_reward = False\n    def score(self, step, entropies):\n        return {}",
        "score.. and shapes_reward = False",
    ),
    "endless": ("def keep(self, step):\n        return [False] * len(step.groups)", "max_rounds in its Config"),
    "infinite": (
        "def score(self, step, entropies):\n        return {0: float('inf')}",
        "inf",
    ),
    "stray": ("def score(self, step, entropies):\n        return {-1: 1.0}", "row -1"),
    "greedy": (
        "def plan(self, step):\n        return [PlannedGroup('q1', 'continuation', 0, None, (5,) * 8)]",
        "8 tokens",
    ),
    "beyond": ("def plan(self, step):\n        return [PlannedGroup('q1', 'reflection', 99)]", "slot 99"),
    "unknown": ("def plan(self, step):\n        return [PlannedGroup('q77', 'reflection', 0)]", "question 'q77'"),
    "picky_init": ("def __init__(self, config, facts):\n        raise ValueError('no luck')", "picky_init: no luck"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_component_is_named(components, tiny_model, tmp_path, name):
    body, message = FAULTY[name]
    header = textwrap.dedent(HEADER)
    if name == "endless":
        header = header.replace("    max_rounds: int = 3  # rounds\n", "")
    text = f'{header}\nclass Faulty(Component):\n    name = "{name}"\n    Config = Settings\n    {body}\n'
    (components / f"{name}.py").write_text(text)
    with pytest.raises(ConfigError, match=message):
        run(tiny_model, tmp_path / "out", {name: True})


def test_weights_gone_bad_are_divergence_also_while_sampling(tiny_model, tmp_path):
    trainer = R3Trainer(
        model=tiny_model, reward_funcs=by_length, train_dataset=questions(6), args=arguments(tmp_path / "out")
    )
    with torch.no_grad():
        next(trainer.model.parameters()).fill_(float("nan"))
    with pytest.raises(Diverged, match="step 0: sampling met non-finite probabilities"):
        trainer.train()
