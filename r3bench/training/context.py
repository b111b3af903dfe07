"""How long a row can get: the longest prompt of the data and of what components may plan, and the engine's context."""

import bisect
import json
from collections.abc import Callable, Mapping
from typing import Any

from datasets import Dataset

from r3bench import catalog
from r3bench.config.sections import Recipe
from r3bench.config.strict import build
from r3bench.config.trainer_fields import trainer_value
from r3bench.errors import ConfigError
from r3bench.training.models.load import load_positions, load_tokenizer
from r3bench.training.questions.load import load_questions

TEMPLATE = 4096  # tokens that a chat template adds at most, where it isn't asked


def longest_planned(
    components: Mapping[str, Mapping[str, Any]], prompt: int, cap: int, tokens: Callable[[str], int]
) -> int:
    """Tokens of the longest prompt that these components (name -> settings) may ask; at least `prompt`."""
    longest = prompt
    for name, settings in components.items():
        component = catalog.component(name)
        longest = max(longest, component.longest_prompt(build(component.Config, settings, name), prompt, cap, tokens))
    return longest


def prompt_lengths(questions: Dataset, tokenizer: Any, template: Mapping[str, Any] | None = None) -> list[int]:
    """Tokens of every prompt as the policy sees it, the chat template and the start of the answer included.

    Args:
        questions: the data.
        tokenizer: with a chat template.
        template: `trainer.chat_template_kwargs`, which may add to a prompt.
    """
    prompts = list(questions["prompt"])
    rendered = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, tokenize=False, **(template or {}))
    return [len(ids) for ids in tokenizer(rendered, add_special_tokens=False)["input_ids"]]


def template_arguments(trainer: Mapping[str, Any]) -> dict[str, Any]:
    """`chat_template_kwargs` of a `trainer` section, which may be given as JSON."""
    found = trainer_value(dict(trainer), "chat_template_kwargs") or {}
    return dict(json.loads(found) if isinstance(found, str) else found)


def engine_context(recipe: Recipe, questions: Dataset, tokenizer: Any, positions: int | None) -> int | None:
    """vLLM's `max_model_len` for a recipe: the cap on answers and the longest prompt that may be planned.

    An engine that is left at the model's own context must hold one row of that length (131,072 tokens for the R1
    distillations), for which there may be no room.

    Args:
        recipe: what is trained.
        questions: its data.
        tokenizer: its tokenizer.
        positions: tokens that the model can take; None where it doesn't say.

    Returns:
        The recipe's own `vllm_max_model_length` if it has one, else the smallest that always works; None without vLLM.

    Raises:
        ConfigError: the recipe's own value, or the model, is too small for the longest row; without vLLM, for that of
            the data (what components write into prompts is only bounded from above, and may never be so long).
    """
    trainer = recipe.trainer
    cap = int(trainer_value(trainer, "max_completion_length"))
    vllm = bool(trainer_value(trainer, "use_vllm"))
    if not vllm and (positions is None or positions >= cap + _longest_text(questions)):
        return None
    data = max(prompt_lengths(questions, tokenizer, template_arguments(trainer)))
    components = recipe.components if vllm else {}

    def longest(cap: int) -> int:
        return longest_planned(
            components, data, cap, lambda text: len(tokenizer.encode(text, add_special_tokens=False))
        )

    prompt = longest(cap)
    needed = cap + prompt
    parts = f"answers of {cap} tokens (max_completion_length) and prompts of up to {prompt}"
    if prompt > data:
        parts += f" ({data} in the data; the rest is what components put into one)"
    own = trainer_value(trainer, "vllm_max_model_length") if vllm else None
    if own is not None and own < needed:
        raise ConfigError(f"trainer.vllm_max_model_length: got {own}, expected at least {needed}: {parts}")
    if positions is not None and positions < needed:
        fits = bisect.bisect_right(range(1, cap + 1), positions, key=lambda cap: cap + longest(cap))
        raise ConfigError(
            f"trainer.max_completion_length: got {cap}, but the model takes {positions} tokens and a row may have "
            f"{needed}: {parts}; " + (f"nearest that works: {fits}" if fits else "no length works with such prompts")
        )
    if own is not None and positions is not None and own > positions:
        raise ConfigError(f"trainer.vllm_max_model_length: got {own}, but the model takes {positions} tokens")
    if not vllm:
        return None
    return int(own) if own is not None else needed


def served_context(recipe: Recipe) -> int | None:
    """`engine_context` of a recipe from its files alone, for a server that starts before the trainer is built.

    Raises:
        ConfigError: as `engine_context`; model or data can't be loaded.
    """
    questions, tokenizer = load_questions(recipe.data), load_tokenizer(recipe.model)
    return engine_context(recipe, questions, tokenizer, load_positions(recipe.model))


def _longest_text(questions: Dataset) -> int:
    """Bytes of the longest prompt and room for a chat template: more than it has tokens."""
    texts = (str(prompt) for prompt in questions["prompt"])
    return TEMPLATE + max(len(text.encode()) for text in texts)
