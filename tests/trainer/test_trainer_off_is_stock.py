"""With every component off, R3Trainer is TRL's GRPOTrainer: equal sampled tokens, losses and weights, bit for bit.

All 26 set-ups: python -m pytest -m "slow or not slow" tests/trainer/test_trainer_off_is_stock.py
"""

import pytest
import torch
from peft import LoraConfig
from trainer_scenarios import build_models, play
from trainer_tools import Recorder, arguments, losses, questions
from trl import GRPOConfig, GRPOTrainer

from r3bench import R3Config, R3Trainer

SETTINGS = {
    "plain": {},
    "two_iterations": {"num_iterations": 2},
    "accumulation": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    "split_generation": {"per_device_train_batch_size": 4, "steps_per_generation": 2},
    "reference": {"beta": 0.1},
    "lora": {},
    **{loss: {"loss_type": loss} for loss in ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")},
}


def run(cls, config, model, folder, name, epochs=False):
    recorder = Recorder()
    changes = dict(SETTINGS[name]) | ({"max_steps": -1, "num_train_epochs": 3} if epochs else {})
    peft = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM") if name == "lora" else None
    trainer = cls(
        model=model, reward_funcs=recorder, args=arguments(folder, config, **changes),
        train_dataset=questions(6), peft_config=peft,
    )  # fmt: skip
    trainer.train()
    return recorder.seen, losses(trainer), {k: v.clone() for k, v in trainer.model.state_dict().items()}


@pytest.mark.parametrize("name", SETTINGS)
def test_off_is_stock(tiny_model, tmp_path, name):
    stock = run(GRPOTrainer, GRPOConfig, tiny_model, tmp_path / "stock", name)
    ours = run(R3Trainer, R3Config, tiny_model, tmp_path / "ours", name)
    assert stock[0], "the run sampled nothing"
    assert ours[0] == stock[0]
    assert ours[1] == stock[1]
    assert ours[2].keys() == stock[2].keys()
    assert all(torch.equal(ours[2][key], stock[2][key]) for key in stock[2])


def test_off_is_stock_over_epochs(tiny_model, tmp_path):
    stock = run(GRPOTrainer, GRPOConfig, tiny_model, tmp_path / "stock", "plain", epochs=True)
    ours = run(R3Trainer, R3Config, tiny_model, tmp_path / "ours", "plain", epochs=True)
    assert ours[:2] == stock[:2]
    assert ours[0][0] != ours[0][-1]


ODD = (  # of `scenarios.py`
    "beta_iterations_split",
    "lora_checkpointing",
    "padded_vocabulary",
    "model_qwen3_moe",
    "iterable",
    "two_workers",
    "bf16",
    "tools",
    "rollout_func",
    "images",
    "reward_model_mixed_async",
    "environment_and_function",
)


@pytest.mark.slow
def test_off_is_stock_in_twelve_odd_set_ups(tmp_path):
    models = build_models(tmp_path / "models")
    for name in ODD:
        found = []
        for cls, config in ((GRPOTrainer, GRPOConfig), (R3Trainer, R3Config)):
            trainer = play(name, cls, config, models, tmp_path / name / cls.__name__)
            found.append((str(losses(trainer)), {k: v.clone() for k, v in trainer.model.state_dict().items()}))
        assert found[0][0] == found[1][0], name
        assert all(torch.equal(found[0][1][key], found[1][1][key]) for key in found[0][1]), name
