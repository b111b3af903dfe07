"""TRL's world in small: models of several families, tools, an environment, a `rollout_func`, images. Built locally."""

import contextlib
import json
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import GRPOTrainer

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>", "<image>"]
SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 4096, "initializer_range": 0.2,
}  # fmt: skip
FAMILIES = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "qwen3_moe": {
        "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "decoder_sparse_step": 1,
    },
}  # fmt: skip


def tokenizer(template: str = "qwen2_5") -> Any:
    """Byte-level, with one of the chat templates that TRL brings along."""
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    plain.train_from_iterator(
        ["What is"], trainers.BpeTrainer(vocab_size=280, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<|pad|>", eos_token="<|im_end|>", padding_side="left"
    )
    fast.chat_template = (TEMPLATES / f"{template}.jinja").read_text()
    return fast


def build(family: str, folder: Path) -> str:
    """Save a random model of a family and its tokenizer; returns the folder as text."""
    fast = tokenizer()
    config = AutoConfig.for_model(
        family, vocab_size=len(fast), eos_token_id=fast.eos_token_id, pad_token_id=fast.pad_token_id,
        tie_word_embeddings=True, **SIZES, **FAMILIES[family],
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return str(folder)


def build_llava(folder: Path) -> str:
    """Save a random Llava with a 2-layer vision tower on 8 x 8 images of 4 patches; returns the folder as text."""
    from transformers import (
        CLIPImageProcessor,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )

    fast = tokenizer("llava_next")
    fast.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
        "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
        "{% for c in m['content'] %}{% if c['type'] == 'image' %}<image>{% else %}{{ c['text'] }}{% endif %}"
        "{% endfor %}"
        "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    text = LlamaConfig(vocab_size=len(fast), eos_token_id=fast.eos_token_id, pad_token_id=fast.pad_token_id, **SIZES)
    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=8, patch_size=4
    )
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(
        LlavaConfig(
            vision_config=vision, text_config=text, image_token_id=fast.convert_tokens_to_ids("<image>"),
            vision_feature_layer=-1, eos_token_id=fast.eos_token_id, pad_token_id=fast.pad_token_id,
        )
    )  # fmt: skip
    model.save_pretrained(folder)
    processor = LlavaProcessor(
        CLIPImageProcessor(size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8}), fast, patch_size=4,
        vision_feature_select_strategy="default", image_token="<image>", chat_template=fast.chat_template,
        num_additional_image_tokens=1,
    )  # fmt: skip
    processor.save_pretrained(folder)
    return str(folder)


def colours(count: int = 4) -> Dataset:
    """One text under `count` images of one colour each; `answer` is the colour."""
    from PIL import Image

    levels = [int(255 * i / max(1, count - 1)) for i in range(count)]
    prompt = [{"role": "user", "content": "What is in the picture?"}]
    return Dataset.from_list(
        [{"prompt": prompt, "image": Image.new("RGB", (8, 8), (v, v, v)), "answer": str(v)} for v in levels]
    )


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: the first number.
        b: the second number.

    Returns:
        The sum.
    """
    return int(a) + int(b)


class Guess:
    """An environment with a secret word from the data set's row."""

    def reset(self, answer: str = "?", **_: Any) -> str:
        self.answer, self.tries = answer, 0
        return " Guess it."

    def guess(self, word: str) -> str:
        """Guess the word.

        Args:
            word: the guess.

        Returns:
            Whether it was right.
        """
        self.tries += 1
        return "yes" if word == self.answer else "no"


class OwnReward(Guess):
    """The same, with a reward of its own."""

    def get_reward(self) -> float:
        return float(self.tries % 2)


def call(name: str, **arguments: Any) -> str:
    """A tool call as Qwen 2.5 writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@contextlib.contextmanager
def scripted(first: Any, later: Any):
    """TRL samples what is written: `first(row, prompt text)` in the first turn, `later(...)` in those after it.

    Yields the list of (turn is the first, ids given to the sampler).
    """
    sample = GRPOTrainer._generate_single_turn
    given: list[tuple[bool, list[int]]] = []
    counter = iter(range(10**6))

    def play(self, prompt_ids, *args, **kwargs):
        answers = []
        for ids in prompt_ids:
            text = self._tokenizer.decode(ids)
            opening = "</tool_response>" not in text
            given.append((opening, list(ids)))
            answer = (first if opening else later)(next(counter), text)
            answers.append([*self._tokenizer.encode(answer), self._tokenizer.eos_token_id])
        return answers, None

    GRPOTrainer._generate_single_turn = play
    try:
        yield given
    finally:
        GRPOTrainer._generate_single_turn = sample


def masked_rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
    """A `rollout_func`: per row 4 tokens of its own, 6 of an environment's, 3 of its own and the end."""
    fast = trainer._tokenizer
    asked = fast.apply_chat_template(prompts, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
    step = trainer.state.global_step
    rows = [
        [
            *fast.encode(f"a{step % 10}b{row % 10}"),
            *fast.encode("[envi]"),
            *fast.encode(f"c{row % 10}d"),
            fast.eos_token_id,
        ]
        for row in range(len(prompts))
    ]
    mask = [[1] * 4 + [0] * 6 + [1] * (len(ids) - 10) for ids in rows]
    return {"prompt_ids": asked, "completion_ids": rows, "logprobs": None, "env_mask": mask, "hint": ["x"] * len(rows)}
