"""Questions of Reasoning Gym's generators (https://github.com/open-thought/reasoning-gym), graded by their own scorers.

The package is an extra: `pip install 'r3bench[reasoning-gym]'`. The same options give the same questions.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from r3bench.errors import ConfigError, DataError, first_line, nearest

ENTRY = "entry"  # the column with all that a generator gave, as JSON


def _package(where: str) -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        raise ConfigError(
            f"{where}: needs the package reasoning-gym, which isn't installed: pip install 'r3bench[reasoning-gym]'"
        ) from error
    return reasoning_gym


def gym_rows(generator: str, options: Mapping[str, Any], where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, row) of a generator's questions, columns problem, answer, id, entry.

    Args:
        generator: a name of Reasoning Gym's, such as 'word_sorting'.
        options: `size` (1,000), `seed` (0), and its own settings.
        where: key of the options, for messages.

    Raises:
        ConfigError: the package is missing, there is no such generator, or it refuses its options.
        DataError: a row without a reference answer.
    """
    package = _package(where)
    known = package.factory.DATASETS
    if generator not in known:
        raise ConfigError(
            f"{where.rpartition('.')[0] or where}.name: Reasoning Gym has no '{generator}'{nearest(generator, known)}"
        )
    settings = {"size": 1000, "seed": 0, **options}
    try:
        questions = package.create_dataset(generator, **settings)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"{where}: '{generator}' refuses {dict(settings)}: {first_line(error)}") from error
    return _rows(generator, settings["seed"], questions)


def _rows(generator: str, seed: Any, questions: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for number in range(len(questions)):
        found = questions[number]
        where = f"reasoning-gym:{generator} row {number + 1}"
        if found["answer"] is None:
            raise DataError(f"{where}: the generator gives no reference answer")
        entry = json.dumps({**found, "metadata": {**found["metadata"], "source_dataset": generator}}, default=str)
        yield (
            where,
            {
                "id": f"{generator}-{seed}-{number}",
                "problem": str(found["question"]).strip(),
                "answer": str(found["answer"]),
                ENTRY: entry,
            },
        )


def answer_in(text: str) -> str:
    """The answer of a response: in the last box, between <answer> tags, else all that follows a thought."""
    from r3bench.grading.extract import last_boxed  # loads the grader, which plans need not

    boxed = last_boxed(text)
    if boxed is not None:
        return boxed.strip()
    _, tag, rest = text.rpartition("<answer>")
    if tag and "</answer>" in rest:
        return rest.partition("</answer>")[0].strip()
    return text.rpartition("</think>")[2].strip()


@cache
def _scorer(generator: str) -> Any:
    return _package("reward.functions").get_score_answer_fn(generator)


def score(prompts: Sequence[Any], completions: Sequence[Any], entry: Sequence[str], **_: Any) -> list[float]:
    """The generator's own score of every answer, 0 to 1, as a reward function."""
    found = []
    for completion, text in zip(completions, entry, strict=True):
        said = completion if isinstance(completion, str) else str(completion[-1].get("content") or "")
        question = json.loads(text)
        try:
            value = float(_scorer(question["metadata"]["source_dataset"])(answer_in(said), question))
        except (
            ValueError,
            TypeError,
            KeyError,
            IndexError,
            SyntaxError,
            ArithmeticError,
            AttributeError,
            RecursionError,
        ):
            value = 0.0  # a scorer that trips over what the model wrote
        found.append(value)
    return found


score.__name__ = "reasoning_gym"
