"""`R3Trainer` is called as `GRPOTrainer` is: its arguments, its exceptions, its command line, its second `train()`."""

import inspect
import json
import warnings
from functools import partial

import numpy as np
import pytest
import torch
import world
from trainer_tools import arguments, by_length, questions
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer, TrlParser

from r3bench import R3Config, R3Trainer
from r3bench.errors import ConfigError, StateError
from r3bench.training import checkpoint

SHAPING = {"ranking": {"scope": "failed", "order": "length"}, "replay": {"warmup": 0}}


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """A reward model and its tokenizer."""
    folder = world.build("llama", tmp_path_factory.mktemp("judge"))
    config = AutoConfig.from_pretrained(folder, num_labels=1)
    torch.manual_seed(1)
    return AutoModelForSequenceClassification.from_config(config), AutoTokenizer.from_pretrained(folder)


def never(completions, **_):
    return [0.0] * len(completions)


def test_the_parameters_are_trls_in_trls_order():
    stock, ours = (list(inspect.signature(cls.__init__).parameters) for cls in (GRPOTrainer, R3Trainer))
    assert ours == stock


def test_positional_arguments(tiny_model, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    args = arguments(tmp_path, components=SHAPING, max_steps=1)
    trainer = R3Trainer(tiny_model, by_length, args, questions(6), questions(4), tokenizer, None, [])
    assert trainer.eval_dataset.num_rows == 4
    trainer.train()


def test_no_arguments_and_plain_ones(tiny_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make = partial(GRPOConfig, use_cpu=True, bf16=False, report_to="none")  # TRL's default needs a GPU
    monkeypatch.setattr("trl.trainer.grpo_trainer.GRPOConfig", make)
    trainer = R3Trainer(model=tiny_model, reward_funcs=by_length, train_dataset=questions(6))
    stock = GRPOTrainer(model=tiny_model, reward_funcs=by_length, train_dataset=questions(6))
    assert trainer.args.output_dir == stock.args.output_dir
    assert trainer.components == []
    plain = arguments(tmp_path / "a", GRPOConfig, max_steps=1)
    trainer = R3Trainer(model=tiny_model, reward_funcs=by_length, args=plain, train_dataset=questions(6))
    trainer.train()
    with pytest.raises(ConfigError, match="args: got dict, expected an R3Config"):
        R3Trainer(model=tiny_model, reward_funcs=by_length, args={}, train_dataset=questions(6))


@pytest.mark.parametrize("value", [["replay"], "replay", "{replay: true", 3, True, '["replay"]'])
@pytest.mark.parametrize("key", ["components", "correctness", "history"])
def test_sections_that_are_no_mappings(tmp_path, key, value):
    with pytest.raises(ConfigError, match=rf"R3Config\.{key}: got .*, expected a mapping such as"):
        R3Trainer(model="x", reward_funcs=by_length, args=arguments(tmp_path, **{key: value}))


@pytest.mark.parametrize("key", ["components", "correctness", "history"])
def test_keys_of_a_section(tmp_path, key):
    for value in ({1: True}, {None: 1, "replay": True}):
        with pytest.raises(ConfigError, match=rf"R3Config\.{key}: got the key (1|None), expected a name"):
            R3Trainer(model="x", reward_funcs=by_length, args=arguments(tmp_path, **{key: value}))
    for text in ('{"replay": true, "replay": false}', '{"replay": {"replay": 1, "replay": 2}}'):
        with pytest.raises(ConfigError, match=rf"R3Config\.{key}: the key 'replay' stands there twice"):
            arguments(tmp_path, **{key: text})


def test_components_on_a_command_line(tmp_path):
    given = {"replay": True, "ranking": {"max_reward": 0.25}}
    rule = '{"functions": ["by_length"], "threshold": 0.5}'
    line = [
        "--output_dir",
        str(tmp_path),
        "--components",
        json.dumps(given),
        "--correctness",
        rule,
        "--use_cpu",
        "--bf16",
        "false",
    ]
    (args,) = TrlParser(R3Config).parse_args_and_config(line)
    assert args.components == given
    assert args.correctness == {"functions": ["by_length"], "threshold": 0.5}
    (tmp_path / "c.yaml").write_text("components: {replay: true}\nuse_cpu: true\nbf16: false\n")
    parser = TrlParser(R3Config)
    (args,) = parser.parse_args_and_config(["--config", str(tmp_path / "c.yaml"), "--output_dir", str(tmp_path)])
    assert args.components == {"replay": True}


def test_reward_models_beside_components(tiny_model, judge, tmp_path):
    model, tokenizer = judge
    for functions, classes in (([model, by_length], [tokenizer, None]), (model, tokenizer), ([model], [tokenizer])):
        trainer = R3Trainer(
            model=tiny_model, reward_funcs=functions, reward_processing_classes=classes, train_dataset=questions(6),
            args=arguments(tmp_path, components=SHAPING, max_steps=1, correctness={"threshold": 0.6}),
        )  # fmt: skip
        trainer.train()
        assert len(trainer.reward_processing_classes) == len(trainer.reward_funcs) == len(trainer.reward_func_names)
    with pytest.raises(ValueError, match="reward_processing_classes: got 1 for 2 reward functions"):
        R3Trainer(
            model=tiny_model, reward_funcs=[model, by_length], reward_processing_classes=[tokenizer],
            args=arguments(tmp_path, components=SHAPING), train_dataset=questions(6),
        )  # fmt: skip


def test_a_reward_model_that_gives_nan_is_divergence(tiny_model, judge, tmp_path):
    from r3bench.errors import Diverged

    model, tokenizer = judge
    broken = AutoModelForSequenceClassification.from_config(model.config)
    with torch.no_grad():
        next(broken.parameters()).fill_(float("nan"))
    trainer = R3Trainer(
        model=tiny_model, reward_funcs=[by_length, broken], reward_processing_classes=[None, tokenizer],
        args=arguments(tmp_path, components=SHAPING), train_dataset=questions(6),
    )  # fmt: skip
    with pytest.raises(Diverged, match="step 0: non-finite reward from"):
        trainer.train()


@pytest.mark.parametrize("functions", [None, [], [by_length]])
def test_rewards_of_an_environment(tmp_path, tmp_path_factory, functions):
    model = world.build("qwen2", tmp_path_factory.mktemp("qwen2"))
    settings = {"ranking": {"scope": "failed", "order": "length", "max_reward": 0.3}, "replay": {"warmup": 0}}

    def first(row, text):
        return world.call("guess", word="x") if row % 2 else "no"

    with world.scripted(first, lambda row, text: "done"):
        trainer = R3Trainer(
            model=model, reward_funcs=functions, train_dataset=questions(6), environment_factory=world.OwnReward,
            args=arguments(tmp_path, components=settings, max_steps=1, max_completion_length=200),
        )  # fmt: skip
        trainer.train()
    assert trainer.reward_func_names == [*(["by_length"] if functions else []), "ranking", "OwnReward"]
    if not functions:
        rows = [r for i in range(6) for r in trainer.history.open([f"q{i}"]).summaries(f"q{i}")]
        assert sorted(row.correct for row in rows) == [False] * 4 + [True] * 4
    with pytest.raises(ValueError, match="no reward source"):
        R3Trainer(
            model=model, train_dataset=questions(6), environment_factory=world.Guess,
            args=arguments(tmp_path, components=settings),
        )  # fmt: skip


def test_a_constructor_that_fails_leaves_the_arguments_alone(tiny_model, tmp_path):
    args = arguments(tmp_path, components=SHAPING, reward_weights=[1.0, 0.5])
    for _ in range(2):
        with pytest.raises(OSError, match="nowhere"):
            R3Trainer(model=str(tmp_path / "nowhere"), reward_funcs=[by_length, len], args=args)
        assert args.reward_weights == [1.0, 0.5]
    with pytest.raises(ValueError, match="reward_weights: got 2 numbers for 1 reward functions"):
        R3Trainer(model=tiny_model, reward_funcs=by_length, args=args, train_dataset=questions(6))
    R3Trainer(model=tiny_model, reward_funcs=[by_length, partial(by_length)], args=args, train_dataset=questions(6))
    assert args.reward_weights == [1.0, 0.5]


@pytest.mark.parametrize("resume", [True, "missing"])
def test_nothing_to_resume_from_is_a_value_error(tiny_model, tmp_path, resume):
    trainer = R3Trainer(
        model=tiny_model, reward_funcs=by_length, args=arguments(tmp_path / "a"), train_dataset=questions(6)
    )
    with pytest.raises(ValueError, match="checkpoint"):
        trainer.train(resume_from_checkpoint=resume if resume is True else str(tmp_path / resume))


def test_a_second_train_goes_on_with_the_history(tiny_model, tmp_path):
    trainer = R3Trainer(
        model=tiny_model, reward_funcs=never, train_dataset=questions(6),
        args=arguments(tmp_path, components={"replay": {"warmup": 1.0}}, max_steps=3),
    )  # fmt: skip
    trainer.train()
    assert trainer.evidence["replay/groups_waiting"] == 6
    trainer.train()
    steps = sorted({r.step for i in range(6) for r in trainer.history.open([f"q{i}"]).summaries(f"q{i}")})
    assert steps == [0, 1, 2, 3, 4, 5]
    assert trainer.evidence["replay/groups_waiting"] == 6, "the warm-up began again"


def test_resuming_with_other_components_says_so(tiny_model, tmp_path):
    def trainer(components, steps):
        return R3Trainer(
            model=tiny_model, reward_funcs=never, train_dataset=questions(6),
            args=arguments(
                tmp_path, components=components, max_steps=steps, save_strategy="steps", save_steps=3,
                learning_rate=1e-3,
            ),
        )  # fmt: skip

    first = trainer({"replay": {"warmup": 0}}, 3)
    first.train()
    assert any(key.startswith("replay/") for key in first.evidence)
    with pytest.warns(UserWarning, match="written with components replay; training goes on with ranking"):
        other = trainer({"ranking": {"scope": "failed", "order": "length"}}, 6)
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert not any(key.startswith("replay/") for key in other.evidence)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        trainer({"replay": {"warmup": 0}}, 6).train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert not [w for w in found if "components" in str(w.message)]


def test_resuming_with_other_settings_says_so(tiny_model, tmp_path):
    """Every section on which stored state rests: key, then and now; the same settings in other words say nothing."""

    def also(completions, **_):
        return [0.0] * len(completions)

    def trainer(components=None, steps=3, functions=(never,), **changes):
        settings = {"replay": {"warmup": 0, "labels": "both"}, "ranking": {"scope": "failed", "order": "length"}}
        return R3Trainer(
            model=tiny_model, reward_funcs=list(functions), train_dataset=questions(6),
            args=arguments(
                tmp_path, components={**settings, **(components or {})}, max_steps=steps, save_strategy="steps",
                save_steps=3, learning_rate=1e-3, **changes,
            ),
        )  # fmt: skip

    def said(**changes):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            trainer(steps=4, **changes).train(resume_from_checkpoint=str(folder))
        return [str(w.message) for w in found if "settings" in str(w.message)]

    trainer().train()
    folder = tmp_path / "checkpoint-3"
    assert said() == []
    assert said(components={"replay": {"warmup": 0.0, "from_provenance": ["fresh"]}}) == []
    for changes, expected in (
        ({"components": {"replay": {"warmup": 0, "rows": 2}}}, ["replay.rows was 1, is 2"]),
        (
            {"components": {"replay": {"warmup": 0, "from_provenance": ["fresh", "reflection"], "max_age": 5}}},
            ['replay.from_provenance was ["fresh"], is ["fresh", "reflection"]', "replay.max_age was null, is 5"],
        ),
        ({"components": {"ranking": "length"}}, []),
        ({"components": {"ranking": "shuffled"}}, ['ranking.order was "length", is "shuffled"']),
        ({"correctness": {"threshold": 0.75}}, ["correctness.threshold was 1.0, is 0.75"]),
        ({"history": {"per_question": 4}}, ["history.per_question was 32, is 4"]),
        ({"reward_weights": [2.0]}, ['rewards.functions and weights was [["never", 1.0]], is [["never", 2.0]]']),
        ({"functions": (never, also)}, ['is [["never", 1.0], ["also", 1.0]]']),
    ):
        messages = said(**changes)
        assert len(messages) == bool(expected), (changes, messages)
        assert all(text in messages[0] for text in expected), messages
        assert not expected or (str(folder) in messages[0] and "replay.labels" not in messages[0])

    state = json.loads((folder / "r3bench" / "state.json").read_text())
    del state["state"]["settings"]["replay"]["rows"]  # written before there was such a setting
    (folder / "r3bench" / "state.json").write_text(json.dumps(state))
    checkpoint.mark_complete(folder)
    assert said() == []
    assert "replay.rows was 1, is 2" in said(components={"replay": {"warmup": 0, "rows": 2}})[0]


def test_a_state_that_does_not_fit_its_component_is_refused(tiny_model, tmp_path):
    def trainer(steps):
        return R3Trainer(
            model=tiny_model, reward_funcs=never, train_dataset=questions(6),
            args=arguments(
                tmp_path, components={"exgrpo": True}, max_steps=steps, save_strategy="steps", save_steps=2
            ),
        )  # fmt: skip

    trainer(2).train()
    folder = tmp_path / "checkpoint-2"
    state = json.loads((folder / "r3bench" / "state.json").read_text())
    del state["state"]["components"]["exgrpo"]["accuracy"]
    (folder / "r3bench" / "state.json").write_text(json.dumps(state))
    checkpoint.mark_complete(folder)
    with pytest.raises(StateError, match=r"state of component 'exgrpo' doesn't fit it as it is now .*accuracy"):
        trainer(4).train(resume_from_checkpoint=str(folder))


def test_a_float_of_numpy_in_a_message(tiny_model, tmp_path):
    value = float(np.float64(0.75))
    with pytest.raises(ConfigError, match=r"max_reward: got 2\.0, expected below 0\.75"):
        R3Trainer(
            model=tiny_model, reward_funcs=by_length, train_dataset=questions(6),
            args=arguments(tmp_path, components={"ranking": {"max_reward": 2.0}}, correctness={"threshold": value}),
        )  # fmt: skip
