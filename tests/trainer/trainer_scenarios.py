"""What the tests of TRL's GRPO trainer try, by its behaviour: one entry per scenario, on models built locally.

An entry gives the trainer's arguments that differ from a plain run, what TRL is expected to raise (if it is a misuse),
and why the four components together refuse it (if they do).
"""

import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import world
from datasets import Dataset, IterableDataset
from peft import LoraConfig, get_peft_model
from trainer_tools import by_length, questions
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

ALL_FOUR = {
    "replay": {"warmup": 0}, "reflection": {"warmup": 0, "max_share": 0.5}, "ranking": {"scope": "failed"},
    "retrospective": {"value": "monte_carlo", "share": 0.5},
}  # fmt: skip
LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
HALF = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}


@dataclass(frozen=True)
class Scenario:
    """One way to train, or to misuse the trainer."""

    group: str  # row of the table
    args: dict[str, Any] = field(default_factory=dict)  # GRPOConfig fields that differ
    parts: Any = None  # (models: dict[str, str]) -> keyword arguments of the trainer that differ; made anew each time
    family: str = "qwen2"  # model
    script: Any = None  # (first turn, later turns) of `world.scripted`
    raises: type[Exception] | None = None  # TRL refuses it
    refused: str = ""  # with all four components: part of the reason


def never(completions, **_):
    return [None] * len(completions)


def some_none(completion_ids, **_):
    return [None if sum(ids) % 3 == 0 else float(len(ids)) for ids in completion_ids]


def on_text(prompts, completions, answer, **_):
    return [float(len(c) % 2) for c in completions]


def on_messages(prompts, completions, **_):
    return [float(len(c[0]["content"]) % 2) for c in completions]


async def later(completion_ids, **_):
    return [float(ids[0] % 2) for ids in completion_ids]


def by_state(completion_ids, trainer_state, **_):
    return [float((sum(ids) + trainer_state.global_step) % 2) for ids in completion_ids]


def logging_more(completion_ids, log_extra, log_metric, **_):
    log_extra("first", [ids[0] for ids in completion_ids])
    log_metric("rows", len(completion_ids))
    return by_length(completion_ids)


def texts(count: int = 6) -> Dataset:
    return Dataset.from_list([{"prompt": f"What is {i} plus {i}?", "answer": str(2 * i)} for i in range(count)])


def stream() -> IterableDataset:
    return IterableDataset.from_generator(lambda: iter(questions(24)))


def judge(models: dict[str, str], family: str = "llama") -> tuple[Any, Any]:
    torch.manual_seed(1)
    config = AutoConfig.from_pretrained(models[family], num_labels=1)
    return AutoModelForSequenceClassification.from_config(config), AutoTokenizer.from_pretrained(models[family])


def adapted(models: dict[str, str]) -> Any:
    torch.manual_seed(2)
    model = AutoModelForCausalLM.from_pretrained(models["qwen2"], dtype=torch.float32)
    return get_peft_model(model, LoraConfig(r=4, task_type="CAUSAL_LM"))


def padded(models: dict[str, str]) -> dict[str, Any]:
    """No pad token, and an embedding with 64 rows more than the tokenizer has tokens."""
    model = AutoModelForCausalLM.from_pretrained(models["qwen2"], dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(models["qwen2"], padding_side="left")
    model.resize_token_embeddings(len(tokenizer) + 64, mean_resizing=False)
    tokenizer.pad_token = None
    return {"model": model, "processing_class": tokenizer}


def lora(**changes: Any) -> LoraConfig:
    return LoraConfig(**{"r": 4, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **changes})


class Other(world.Guess):
    def other(self, text: str) -> str:
        """Says something.

        Args:
            text: what.
        """
        return text


class OwnData(world.OwnReward):
    def reset(self, **_: Any) -> str:
        return super().reset(answer="w1")


async def add_later(a: int, b: int) -> int:
    """Adds two numbers, later.

    Args:
        a: the first number.
        b: the second number.
    """
    return world.add(a, b)


def calls(tool: str, **arguments: Any) -> Any:
    def first(row: int, text: str) -> str:
        return f"n{row % 7} " + world.call(tool, **arguments) if row % 3 else f"none {row % 5}"

    return first, lambda row, text: f"so {row % 9}"


def broken_calls() -> Any:
    return (
        lambda row, text: "<tool_call>\n{not json\n</tool_call>" if row % 2 else world.call("nosuch"),
        calls("add")[1],
    )


def routed() -> Dataset:
    names = ["guess", "other"]
    return Dataset.from_list([{**row, "environment": names[i % 2]} for i, row in enumerate(questions(6))])


def two_images() -> Dataset:
    data = world.colours(4)
    return Dataset.from_list([
        {"prompt": row["prompt"], "images": [row["image"], data[(i + 1) % 4]["image"]]} for i, row in enumerate(data)
    ])  # fmt: skip


def no_keys(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    output = world.masked_rollout(prompts, trainer)
    del output["logprobs"]
    return output


NO_IMAGES = "images"
STREAM = "map-style"
TRUNCATED = "mask_truncated_completions"
S = Scenario
GUESS = calls("guess", word="w1")
ADD = calls("add", a=1, b=2)
SCENARIOS: dict[str, Scenario] = {
    **{f"model_{family}": S("models", family=family) for family in world.FAMILIES},
    "text_prompts": S("data", parts=lambda m: {"train_dataset": texts(), "reward_funcs": on_text}),
    "extra_columns": S("data", parts=lambda m: {"train_dataset": questions(6).add_column("more", list(range(6)))}),
    "iterable": S("data", parts=lambda m: {"train_dataset": stream()}, refused=STREAM),
    "iterable_dispatched": S(
        "data", {"accelerator_config": {"dispatch_batches": True}}, lambda m: {"train_dataset": stream()},
        raises=ValueError,
    ),
    "two_workers": S("data", {"dataloader_num_workers": 2}),
    "no_data": S("data", parts=lambda m: {"train_dataset": None}, raises=ValueError),
    "epochs": S("data", {"max_steps": -1, "num_train_epochs": 2}),
    **{f"loss_{loss}": S("losses", {"loss_type": loss}) for loss in LOSSES},
    "delta": S("losses", {"delta": 1.5, "num_iterations": 2}),
    "sequence_level": S("losses", {"importance_sampling_level": "sequence", "num_iterations": 2}),
    "two_iterations": S("losses", {"num_iterations": 2}),
    "beta": S("losses", {"beta": 0.1}),
    "beta_biased": S("losses", {"beta": 0.1, "use_bias_correction_kl": False}),
    "synced_reference": S("losses", {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 2}),
    "off_policy_mask": S("losses", {"off_policy_mask_threshold": 0.5, "num_iterations": 2}),
    "entropy_bonus": S("losses", {"entropy_coef": 0.01}),
    "entropy_adaptive": S("losses", {"use_adaptive_entropy": True, **HALF}),
    "entropy_filter": S("losses", {"top_entropy_quantile": 0.2}),
    "head_fp32": S("losses", {"cast_lm_head_to_fp32": True, "bf16": False}),
    "mask_truncated": S("losses", {"mask_truncated_completions": True}, refused=TRUNCATED),
    "beta_iterations_split": S("losses", {
        "beta": 0.05, "num_iterations": 2, "steps_per_generation": 2, "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
    }),
    "bf16": S("losses", {"bf16": True}),
    "evaluation": S("evaluation", {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4},
                    lambda m: {"eval_dataset": questions(4)}),
    "evaluation_first": S("evaluation", {
        "eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True, "per_device_eval_batch_size": 4,
        "num_generations_eval": 2,
    }, lambda m: {"eval_dataset": questions(2)}),
    "evaluation_sets": S("evaluation", {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4},
                         lambda m: {"eval_dataset": {"one": questions(2), "two": questions(3)}}),
    "evaluation_streamed": S("evaluation", {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4},
                             lambda m: {"eval_dataset": stream().take(4)}),
    "lora": S("adapters", parts=lambda m: {"peft_config": lora()}),
    "lora_checkpointing": S("adapters", {"gradient_checkpointing": True}, lambda m: {"peft_config": lora()}),
    "lora_beta": S("adapters", {"beta": 0.1}, lambda m: {"peft_config": lora()}),
    "lora_head": S("adapters", parts=lambda m: {"peft_config": lora(target_modules=["q_proj", "lm_head"])},
                   raises=ValueError),
    "peft_model": S("adapters", {"beta": 0.1}, lambda m: {"model": adapted(m)}),
    "lora_moe": S("adapters", parts=lambda m: {"peft_config": lora(target_modules=["q_proj", "v_proj"])},
                  family="qwen3_moe"),
    "checkpointing": S("adapters", {"gradient_checkpointing": True}),
    "reward_model": S("rewards", parts=lambda m: dict(
        zip(("reward_funcs", "reward_processing_classes"), judge(m), strict=True))),
    "reward_models_listed": S("rewards", parts=lambda m: {
        "reward_funcs": [judge(m)[0], judge(m, "qwen3")[0]], "reward_processing_classes": [judge(m)[1]] * 2}),
    "reward_model_mixed_async": S("rewards", parts=lambda m: {
        "reward_funcs": [by_length, judge(m)[0], later], "reward_processing_classes": [None, judge(m)[1], None]}),
    "reward_classes_mismatched": S("rewards", parts=lambda m: {
        "reward_funcs": [judge(m)[0], by_length], "reward_processing_classes": [judge(m)[1]] * 3}, raises=ValueError),
    "reward_messages": S("rewards", parts=lambda m: {"reward_funcs": on_messages}),
    "rewards_several": S("rewards", parts=lambda m: {"reward_funcs": [by_length, on_messages]}),
    "rewards_weighted": S("rewards", {"reward_weights": [1.0, 0.5]}, lambda m: {"reward_funcs": [by_length, later]}),
    "rewards_weights_mismatched": S("rewards", {"reward_weights": [1.0, 0.5]}, raises=ValueError),
    "rewards_partial": S("rewards", parts=lambda m: {"reward_funcs": [partial(by_length), partial(later)]}),
    "rewards_none_some": S("rewards", parts=lambda m: {"reward_funcs": [some_none, by_length]}),
    "rewards_none_all": S("rewards", parts=lambda m: {"reward_funcs": never}),
    "rewards_by_state": S("rewards", parts=lambda m: {"reward_funcs": by_state}),
    "rewards_that_log": S("rewards", parts=lambda m: {"reward_funcs": logging_more}),
    "rewards_none_given": S("rewards", parts=lambda m: {"reward_funcs": None}, raises=ValueError),
    "normalize_then_sum": S("rewards", {"multi_objective_aggregation": "normalize_then_sum"},
                            lambda m: {"reward_funcs": [by_length, later]}, refused="sum_then_normalize"),
    **{f"scale_{kind}": S("rewards", {"scale_rewards": kind}) for kind in ("group", "batch", "none")},
    "pad_to_multiple": S("sampling", {"pad_to_multiple_of": 8}),
    "group_over_batches": S("sampling", {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}),
    "generation_kwargs": S("sampling", {"generation_kwargs": {"top_k": 20}, "top_p": 0.9, "repetition_penalty": 1.1}),
    "chat_template_kwargs": S("sampling", {"chat_template_kwargs": {"enable_thinking": False}}),
    "tools": S("tools", parts=lambda m: {"tools": [world.add]}, script=ADD),
    "tools_async": S("tools", parts=lambda m: {"tools": [add_later]}, script=calls("add_later", a=1, b=2)),
    "tools_malformed": S("tools", parts=lambda m: {"tools": [world.add]}, script=broken_calls()),
    "rollout_func": S("tools", parts=lambda m: {"rollout_func": world.masked_rollout}, refused="rollout_func"),
    "rollout_func_keys": S("tools", parts=lambda m: {"rollout_func": no_keys}, raises=ValueError,
                           refused="rollout_func"),
    "environment": S("tools", parts=lambda m: {"environment_factory": world.Guess}, script=GUESS, refused="reset()"),
    "environment_rewards": S("tools", parts=lambda m: {
        "environment_factory": world.OwnReward, "reward_funcs": None}, script=GUESS, refused="reset()"),
    "environment_and_function": S("tools", parts=lambda m: {"environment_factory": world.OwnReward}, script=GUESS,
                                  refused="reset()"),
    "environments": S("tools", parts=lambda m: {
        "environment_factory": {"guess": world.OwnReward, "other": Other}, "train_dataset": routed()}, script=GUESS,
        refused="reset()"),
    "environment_unknown": S("tools", parts=lambda m: {
        "environment_factory": {"guess": world.Guess}, "train_dataset": routed()}, raises=ValueError,
        refused="reset()"),
    "environment_data": S("tools", parts=lambda m: {
        "environment_factory": OwnData, "reward_funcs": None, "train_dataset": None}, script=GUESS,
        refused="makes the questions"),
    "environment_data_endless": S("tools", {"max_steps": -1}, lambda m: {
        "environment_factory": OwnData, "train_dataset": None}, raises=ValueError),
    "environments_without_data": S("tools", parts=lambda m: {
        "environment_factory": {"guess": OwnData}, "train_dataset": None}, raises=ValueError),
    "images": S("vision", parts=lambda m: {"train_dataset": world.colours()}, family="llava", refused=NO_IMAGES),
    "images_padded": S("vision", {"pad_to_multiple_of": 8}, lambda m: {"train_dataset": world.colours()},
                       family="llava", refused=NO_IMAGES),
    "images_beta": S("vision", {"beta": 0.1, "num_iterations": 2}, lambda m: {"train_dataset": world.colours()},
                     family="llava", refused=NO_IMAGES),
    "images_two": S("vision", parts=lambda m: {"train_dataset": two_images()}, family="llava", refused=NO_IMAGES),
    "images_lora": S("vision", parts=lambda m: {
        "train_dataset": world.colours(), "peft_config": lora(target_modules=["q_proj", "v_proj"])}, family="llava",
        refused=NO_IMAGES),
    "images_not_logged": S("vision", {"log_multimodal": False}, lambda m: {"train_dataset": world.colours()},
                           family="llava", refused=NO_IMAGES),
    "padded_vocabulary": S("models", parts=padded),
    "text_on_image_model": S("vision", family="llava"),
}  # fmt: skip


def build_models(folder: Path) -> dict[str, str]:
    """A model of each family, by name."""
    models = {family: world.build(family, folder / family) for family in world.FAMILIES}
    return models | {"llava": world.build_llava(folder / "llava")}


def play(name: str, cls: Any, config: Any, models: dict[str, str], folder: Path, **changes: Any) -> Any:
    """The trained trainer of a scenario; raises what it raises."""
    from trainer_tools import arguments

    scenario = SCENARIOS[name]
    torch.manual_seed(3)
    parts = scenario.parts(models) if scenario.parts else {}
    length = 120 if scenario.script or "rollout_func" in parts else 8
    args = arguments(folder, config, **{"max_steps": 4, "max_completion_length": length, **scenario.args, **changes})
    standard = {"model": models[scenario.family], "reward_funcs": by_length, "train_dataset": questions(6)}
    trainer = cls(args=args, **{**standard, **parts})
    if scenario.script is None:
        trainer.train()
        return trainer
    with world.scripted(*scenario.script):
        trainer.train()
    return trainer


def finite(trainer: Any) -> bool:
    """Whether all weights are numbers and some step had a loss."""
    weights = all(bool(torch.isfinite(p).all()) for p in trainer.model.parameters())
    return weights and any(math.isfinite(line.get("loss", math.nan)) for line in trainer.state.log_history)
