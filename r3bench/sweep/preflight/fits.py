"""Do the model, its tokenizer, the prompts and the numbers of a recipe go together? Reads no weights."""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from r3bench import project
from r3bench.config.sections import Recipe
from r3bench.config.trainer_fields import generation_batch, trainer_value
from r3bench.errors import ConfigError, first_line
from r3bench.sweep.preflight.asked import spread
from r3bench.sweep.preflight.hub import model_options
from r3bench.training.models.names import ADAPTER, BUILT_IN
from r3bench.training.questions import embedded
from r3bench.training.questions.batches import check_questions, check_save_steps
from r3bench.training.tracking import check_tracker_names

READ = 2_000  # prompts at most whose length is counted


# ------------------------------------------------------------------------------------------------ numbers


def check_numbers(recipe: Recipe, questions: int | None) -> None:
    """Refuse numbers that a trainer would refuse with any number of processes.

    Args:
        questions: of the data; None: not known.

    Raises:
        ConfigError: naming the key and the nearest number that works.
    """
    trainer = recipe.trainer
    check_tracker_names(trainer)
    rows = generation_batch(trainer, 1)
    device = int(trainer_value(trainer, "per_device_train_batch_size"))
    arguments = SimpleNamespace(
        generation_batch_size=rows,
        steps_per_generation=rows // device,
        **{key: trainer_value(trainer, key) for key in ("num_generations", "num_iterations", "save_steps")},
        save_strategy=str(trainer_value(trainer, "save_strategy")).rpartition(".")[2].lower(),
        gradient_accumulation_steps=int(trainer_value(trainer, "gradient_accumulation_steps")),
    )
    if not trainer.get("generation_batch_size"):  # else it depends on how many processes share the batch
        check_save_steps(arguments)
    if questions is not None and rows % int(arguments.num_generations) == 0:
        check_questions(questions, arguments)
    if str(trainer_value(trainer, "eval_strategy")).rpartition(".")[2].lower() != "no":
        raise ConfigError(
            f"trainer.eval_strategy: got '{trainer['eval_strategy']}', expected 'no': a run has no evaluation set of "
            "TRL's; eval.tasks are measured when it is trained, checkpoints by `r3bench eval RUN --checkpoints N`"
        )


# ------------------------------------------------------------------------------------------------ the model


class Model:
    """What can be known of a recipe's model without its weights.

    `tokenizer` and `positions` are None where it can't be looked at before it is used: `smollm2-135m`, which is
    converted first.
    """

    def __init__(self, recipe: Recipe) -> None:
        """Look at it.

        Raises:
            ConfigError: it can't be loaded, or its parts don't go together.
            Unreachable: a hub model that is not in the cache, where the hub can't be reached.
        """
        self.name = recipe.model.name
        self.tokenizer: Any = None
        self.positions: int | None = None
        folder = project.located(self.name)
        local = folder.is_dir() and self.name not in BUILT_IN
        if recipe.model.revision is not None and (local or self.name in BUILT_IN):
            raise ConfigError(
                f"model.revision: got '{recipe.model.revision}', expected null: '{self.name}' is local and has no "
                "revisions"
            )
        if self.name in BUILT_IN and self.name not in embedded.CAPS:
            return
        if local and (folder / ADAPTER).is_file():
            return
        from r3bench.training.models import load as models

        options = {}
        if local:
            models.check_folder(folder, self.name)
        elif self.name not in BUILT_IN:
            options = model_options(self.name, recipe.model.revision)
        self.tokenizer = models.load_tokenizer(recipe.model, **options)
        self.positions = models.load_positions(recipe.model, **options)
        if recipe.model.lora is not None or local:
            bare = models.without_weights(recipe.model, **options)
            if local:
                models.check_shapes(folder, bare, len(self.tokenizer), self.name)
            if recipe.model.lora is not None:
                models.check_targets(recipe.model.lora.target_modules, bare)


# ------------------------------------------------------------------------------------------------ prompts


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' warning of a text longer than the context, which is what is looked for."""
    logger = logging.getLogger("transformers.tokenization_utils_base")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def check_training_prompts(recipe: Recipe, questions: Any, model: Model) -> None:
    """Refuse prompts that the chat template refuses, or that leave no room for an answer in the model's context.

    Raises:
        ConfigError: naming the key.
    """
    if model.tokenizer is None:
        return
    from r3bench.training.context import engine_context, template_arguments

    more = template_arguments(recipe.trainer)
    some = questions.select(spread(len(questions), READ))
    for prompt in some.select(spread(len(some)))["prompt"]:
        _rendered(model, prompt, "data.system" if recipe.data.system is not None else "data.template", more)
    with _quiet():
        engine_context(recipe, some, model.tokenizer, model.positions)


def check_evaluation_prompts(
    recipe: Recipe, task: Any, docs: Sequence[Mapping[str, Any]], system: str | None, model: Model
) -> None:
    """The same for the prompts of a task, with `eval.max_tokens`.

    Args:
        task: an lm-eval task.
        docs: its documents.
        system: the evaluation's system message.
        model: the recipe's.

    Raises:
        ConfigError: naming the key.
    """
    if model.tokenizer is None:
        return
    section = recipe.eval
    asked = list(docs[: section.limit])
    texts = [str(task.doc_to_text(asked[place])) for place in spread(len(asked), READ)]
    first = [{"role": "system", "content": system}] if system is not None else []
    chats = [[*first, {"role": "user", "content": text}] for text in texts]
    key = "eval.system" if system is not None else "eval.template"
    rendered = [_rendered(model, chat, key, {}) for chat in chats]
    room, cap = model.positions, section.max_tokens or int(trainer_value(recipe.trainer, "max_completion_length"))
    if room is None or section.engine or section.backend == "vllm" or _fits(rendered, room - cap):
        return
    with _quiet():
        longest = max(len(ids) for ids in model.tokenizer(rendered, add_special_tokens=False)["input_ids"])
    if longest + cap > room:
        given = "eval.max_tokens" if section.max_tokens else "trainer.max_completion_length, the cap in evaluation, too"
        nearest = f"expected at most {room - longest}" if longest < room else "no length works with such prompts"
        raise ConfigError(
            f"{given}: got {cap}, but with a prompt of {longest} tokens (task '{task.config.task}') that exceeds the "
            f"model's context of {room}; {nearest}"
        )


def _fits(texts: Iterable[str], room: int) -> bool:
    """Whether texts have room whatever the tokenizer: a token is at least a byte."""
    return all(len(text.encode()) <= room for text in texts)


def _rendered(model: Model, chat: Sequence[Mapping[str, str]], key: str, more: Mapping[str, Any]) -> str:
    try:
        return str(model.tokenizer.apply_chat_template(list(chat), tokenize=False, add_generation_prompt=True, **more))
    except Exception as error:  # jinja's errors, and whatever a template's expressions raise
        raise ConfigError(
            f"model.name: '{model.name}': its chat template refuses the prompt ({key}): {first_line(error)}"
        ) from error
