"""TRL's defaults that published recipes lean on, and the value each recipe ends up with.

A new TRL that changes a default fails the first test here, by name, before it changes what a recipe trains.
"""

import pytest

from r3bench.config.load import load_recipe
from r3bench.config.trainer_fields import grpo_fields

DEFAULTS = {  # what TRL 1.16 does where a recipe says nothing
    "loss_type": "dapo", "beta": 0.0, "use_bias_correction_kl": True, "epsilon": 0.2, "epsilon_high": None,
    "delta": None, "importance_sampling_level": "token", "scale_rewards": "group", "num_iterations": 1,
    "mask_truncated_completions": False, "top_entropy_quantile": 1.0, "entropy_coef": 0.0,
    "off_policy_mask_threshold": None, "multi_objective_aggregation": "sum_then_normalize", "sync_ref_model": False,
    "vllm_importance_sampling_correction": True, "vllm_importance_sampling_mode": "sequence_mask",
    "vllm_importance_sampling_clip_max": 3.0, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None,
    "repetition_penalty": 1.0, "max_grad_norm": 1.0, "weight_decay": 0.0, "adam_beta1": 0.9, "adam_beta2": 0.999,
    "adam_epsilon": 1e-8, "lr_scheduler_type": "linear", "warmup_steps": 0, "shuffle_dataset": True,
    "disable_dropout": False, "cast_lm_head_to_fp32": False,
}  # fmt: skip
CONSTANT = {"lr_scheduler_type": "constant"}
CORRECTED = {"vllm_importance_sampling_correction": True, "vllm_importance_sampling_mode": "token_truncate"}
R3 = {
    **CONSTANT, **CORRECTED, "loss_type": "grpo", "beta": 0.001, "use_bias_correction_kl": False, "temperature": 0.6,
    "weight_decay": 0.01,
}  # fmt: skip
EXPECTED = {  # recipe -> where it departs from the defaults above
    "dapo": {**CONSTANT, "epsilon_high": 0.28, "mask_truncated_completions": True, "weight_decay": 0.1},
    "forking_tokens": {
        **CONSTANT, "epsilon_high": 0.28, "mask_truncated_completions": True, "weight_decay": 0.1,
        "top_entropy_quantile": 0.2,
    },
    "entropy_bonus": {**CONSTANT, "entropy_coef": 0.001},
    "dr_grpo": {**CONSTANT, "loss_type": "dr_grpo", "scale_rewards": "none"},
    "gspo": {
        **CONSTANT, "loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.006,
        "epsilon_high": 0.008,
    },
    "cispo": {**CONSTANT, "loss_type": "cispo", "epsilon_high": 1.1, "adam_beta2": 0.95, "adam_epsilon": 1e-15},
    "deepscaler_8k": {
        **CONSTANT, "loss_type": "bnpo", "beta": 0.001, "use_bias_correction_kl": False, "entropy_coef": 0.001,
        "vllm_importance_sampling_correction": False, "temperature": 0.6, "weight_decay": 0.01,
    },
    "r3_1.5b": R3, "r3_1.5b_80gb": R3, "r3_1.5b_lora_24gb": R3, "r3_7b": R3, "r3_7b_lora_80gb": R3,
    "rrl_math": {**CONSTANT, **CORRECTED},
}  # fmt: skip


def test_the_defaults_published_recipes_lean_on_are_those_they_were_checked_with() -> None:
    installed = {key: grpo_fields()[key]["default"] if key in grpo_fields() else "gone" for key in DEFAULTS}
    changed = {key: (value, installed[key]) for key, value in DEFAULTS.items() if installed[key] != value}
    assert not changed, f"(when checked, now): {changed}; which recipes lean on it is in EXPECTED"


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recipe_trains_with_the_values_it_was_checked_for(name: str) -> None:
    trainer = load_recipe(name).trainer
    found = {key: trainer.get(key, default) for key, default in DEFAULTS.items()}
    assert found == {**DEFAULTS, **EXPECTED[name]}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_trl_has_changed_before_is_stated_where_it_matters(name: str) -> None:
    trainer = load_recipe(name).trainer
    assert "beta" in trainer
    assert "use_bias_correction_kl" in trainer or trainer["beta"] == 0
    assert "vllm_importance_sampling_correction" in trainer or not trainer.get("use_vllm")
