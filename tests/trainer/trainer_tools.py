"""Building blocks of the trainer tests, importable by the two-process scripts too."""

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tiny_model(folder: Path) -> str:
    """Save a random model and tokenizer in `folder`; returns the folder as text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        ["What is 1 plus 2? Answer: 3"],
        trainers.BpeTrainer(vocab_size=280, special_tokens=special, initial_alphabet=alphabet),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|im_end|>", padding_side="left"
    )
    fast.chat_template = CHATML
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(fast),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            eos_token_id=fast.eos_token_id,
            pad_token_id=fast.pad_token_id,
            tie_word_embeddings=True,
            initializer_range=0.2,
        )
    )
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return str(folder)


def questions(count: int) -> Dataset:
    """`count` rows with a chat prompt and an id."""
    return Dataset.from_list(
        [
            {
                "question_id": f"q{i}",
                "prompt": [{"role": "user", "content": f"What is {i} plus {i}?"}],
                "answer": str(2 * i),
            }
            for i in range(count)
        ]
    )


def arguments(folder: Path, cls: Any = None, **changes: Any) -> Any:
    """Arguments of a short CPU run: 2 groups of 4 rows, 8 tokens."""
    from r3bench import R3Config

    values: dict[str, Any] = {
        "output_dir": str(folder), "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "max_steps": 4,
        "per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 8, "logging_steps": 1,
        "save_strategy": "no", "report_to": "none", "learning_rate": 1e-2, "disable_tqdm": True, "seed": 7,
        "logging_nan_inf_filter": False,
    }  # fmt: skip
    return (cls or R3Config)(**{**values, **changes})


def by_length(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """1 for rows whose token sum is even: about half the rows, from the tokens alone."""
    return [float(sum(ids) % 2 == 0) for ids in completion_ids]


class Recorder:
    """A reward function that also keeps every batch of completions it saw."""

    __name__ = "recorder"

    def __init__(self, rule: Any = by_length) -> None:
        self.rule = rule
        self.seen: list[list[list[int]]] = []

    def __call__(self, completion_ids: list[list[int]], **columns: Any) -> list[float]:
        self.seen.append([list(ids) for ids in completion_ids])
        return self.rule(completion_ids=completion_ids, **columns)


def losses(trainer: Any) -> list[dict[str, float]]:
    """The log lines of a run without its timings, and what r3bench adds to any run's log."""
    timings = ("runtime", "per_second", "step_time", "flos", "exploration/")
    return [{k: v for k, v in line.items() if not any(t in k for t in timings)} for line in trainer.state.log_history]


def spy_on(trainer_class: type) -> type:
    """A subclass that keeps, per optimiser step: weights before it, the batches its loss saw, losses and gradients."""

    class Spy(trainer_class):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.records: list[dict[str, Any]] = []
            super().__init__(*args, **kwargs)

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            batch = super()._generate_and_score_completions(inputs)
            if self.model.training:
                weights = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
                self.records.append({"weights": weights, "rows": inputs, "batch": batch, "parts": [], "losses": []})
            return batch

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            loss = super()._compute_loss(model, inputs)
            if self.model.training:
                self.records[-1]["parts"].append(
                    {k: v.clone() if hasattr(v, "clone") else v for k, v in inputs.items()}
                )
                self.records[-1]["losses"].append(float(loss.detach()))
            return loss

        def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
            grads = {n: p.grad.detach().clone() for n, p in self.model.named_parameters() if p.grad is not None}
            self.records[-1].setdefault("grads", []).append(grads)
            return super()._get_grad_norm(model, grad_norm=grad_norm)

    return Spy
