"""What the step uses of the trainer it runs in, GRPOTrainer's own attributes, as a type."""

from collections.abc import Sequence
from typing import Any, Protocol


class Host(Protocol):
    """A constructed `GRPOTrainer`, as the modules of a step see it; what is private of it is asked in trl_adapter."""

    args: Any  # GRPOConfig
    accelerator: Any  # of accelerate
    state: Any  # TrainerState
    train_dataset: Any  # Dataset, or a stream
    num_generations: Any  # G, rows per group (an int, which TRL declares optional)
    max_completion_length: int | None  # cap in tokens
    temperature: float  # of sampling
    scale_rewards: str  # 'group', 'batch' or 'none'
    reward_weights: Any  # (F,) float tensor, a weight per reward function
    loss_type: str  # 'grpo', 'dapo', ...
    importance_sampling_level: str  # 'token' or 'sequence'
    mask_truncated_completions: bool  # truncated rows are left out of the loss
    off_policy_mask_threshold: float | None  # of TRL's off-policy sequence mask
    eos_token_ids: Sequence[int]  # tokens that end an answer
    rollout_func: Any  # the user's own sampling, or None
