"""Rewards, scorers and components asked about made-up answers to some of the questions, before anything is started."""

import inspect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from r3bench import catalog
from r3bench.component import Component, Facts, Group, Step, Summary, Trajectory
from r3bench.config.sections import Recipe
from r3bench.config.strict import build
from r3bench.errors import ConfigError, R3BenchError, first_line
from r3bench.sweep.preflight.patience import within

ROWS = 16  # questions that rewards, scorers and components are asked about, spread evenly over the data
QUICK, MANY = 2.0, 5_000  # ... up to MANY of them where that takes no more than QUICK seconds
ALSO = {  # keyword arguments of a reward function besides the data's columns, as TRL gives them
    "trainer_state": None, "log_extra": lambda *_: None, "log_metric": lambda *_: None, "environments": None,
}  # fmt: skip
ODD = ("", "I can't say.", "Let \\boxed{", "\N{GREEK SMALL LETTER PI} \N{CJK UNIFIED IDEOGRAPH-4E2D} \\boxed{-}")


def spread(count: int, most: int = ROWS) -> list[int]:
    """Up to `most` places of `count`, evenly spread, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [round(place * (count - 1) / (most - 1)) for place in range(most)]


def made_up(golds: Sequence[str]) -> list[str]:
    """(N,) answers: mostly the gold one; every third, and the second of two, is empty, cut, or holds no answer."""
    every = 3 if len(golds) > 2 else 2
    said = [f"The answer is \\boxed{{{gold}}}." for gold in golds]
    return [ODD[n // every % len(ODD)] if n % every == every - 1 else text for n, text in enumerate(said)]


# ------------------------------------------------------------------------------------------------ rewards


def ask_rewards(recipe: Recipe, questions: Any) -> None:
    """Grade every gold answer that was loaded, and call the reward functions on made-up answers to some questions.

    Raises:
        ConfigError: a function can't be called, raises, takes too long, or gives something else than a number per
            answer; or a gold answer isn't right by what decides.
    """
    from r3bench.grading import Grader
    from r3bench.training.rewards import Correctness, reward_functions

    some = questions.select(spread(len(questions)))
    with Grader(recipe.reward.timeout, 1, recipe.reward.require_boxed) as grader:
        with within("reward.functions: importing them"):
            functions = reward_functions(recipe.reward, grader)
        names = recipe.reward.used
        for number, function in enumerate(functions):
            said = names[number] if number < len(names) else "length_bonus"
            if isinstance(function, Correctness):
                _grade_golds(recipe, questions, function, grader)
                function(made_up(some["answer"]), list(some["answer"]))
            elif said == "length_bonus":
                function([[0]] * len(some))
            else:
                where = f"reward.functions[{number}]: '{said}'"
                more(len(questions), partial(_ask, function, where, questions))


def _grade_golds(recipe: Recipe, questions: Any, function: Any, grader: Any) -> None:
    thought = "<think>\n</think>\n" if recipe.reward.thinking == "required" else ""
    golds = list(questions["answer"])
    verdicts = function([f"{thought}The answer is \\boxed{{{gold}}}." for gold in golds], golds)
    wrong = [place for place, verdict in enumerate(verdicts) if verdict != 1]
    if wrong:
        gold = golds[wrong[0]]
        reason = grader.grade([f"\\boxed{{{gold}}}"], [gold])[0].reason
        more = f" ({len(wrong)} of {len(golds)} like it)" if len(wrong) > 1 else ""
        raise ConfigError(
            f"{recipe.data.name}: data.answer: the gold answer {gold!r:.80} of question "
            f"'{questions[wrong[0]]['question_id']}' can't be graded as right ({reason}){more}"
        )


def more(count: int, ask: Callable[[list[int]], object]) -> None:
    """Ask about a few of `count` questions, and where that was quick about many: what is odd may be in any row."""
    few = spread(count)
    began = time.monotonic()
    ask(few)
    taken = time.monotonic() - began
    many = spread(count, min(MANY, int(QUICK / max(taken, 1e-3) * len(few))))
    if len(many) > len(few):
        ask(many)


def _ask(function: Any, where: str, questions: Any, places: list[int]) -> None:
    from r3bench.evaluation.scorer import awaited, checked

    rows = list(questions.select(places))
    answers = made_up([row["answer"] for row in rows])
    columns = {key: [row[key] for row in rows] for key in rows[0] if key != "prompt"}
    arguments = {
        "prompts": [row["prompt"] for row in rows],
        "completions": [[{"role": "assistant", "content": answer}] for answer in answers],
        "completion_ids": [list(answer.encode()) for answer in answers],
        **columns,
        **ALSO,
    }
    check_callable(function, where, arguments, f"columns {', '.join(columns)} (others are named in data.columns)")
    with within(where):
        try:
            given = awaited(function(**arguments))
        except (Exception, SystemExit) as error:  # whatever the user's function raises
            raise ConfigError(f"{where} raised {type(error).__name__}: {first_line(error)}") from error
        try:
            values = list(given)
        except TypeError as error:
            raise ConfigError(
                f"{where} gave {given!r:.80}, expected a list with a number or None per answer"
            ) from error
    checked(values, len(answers), where)


def check_callable(function: Any, where: str, arguments: Mapping[str, Any], columns: str) -> None:
    """Refuse a function that can't take these keyword arguments.

    Raises:
        ConfigError: naming `where`, what is wrong and what it is called with.
    """
    try:
        signature = inspect.signature(getattr(function, "__wrapped__", function))
    except (TypeError, ValueError):
        return
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"{where} can't be called: {error}; it is called with prompts, completions, completion_ids, the {columns} "
            "and more, so it takes **kwargs"
        ) from error


# ------------------------------------------------------------------------------------------------ components


class _Nothing:
    """A history in which nothing is stored yet, as in a run's first batch."""

    def summaries(self, question: str) -> Sequence[Summary]:
        """See `History`."""
        return ()

    def fetch(self, wanted: Sequence[Summary]) -> list[Trajectory]:
        """See `History`."""
        return []


def ask_components(recipe: Recipe, questions: Any, facts: Facts) -> None:
    """Ask the user's components that shape the reward about a first batch of made-up answers, as a trainer does.

    Shipped components are left out: what they do is tested, and they are asked for each run of a grid.

    Raises:
        ConfigError: a component raises, takes too long, or gives no finite rewards by row.
    """
    for name, settings in recipe.components.items():
        if catalog.component_source(name) is None:
            continue
        kind, path = catalog.component(name), catalog.component_names()[name]
        where = f"{path}: component '{name}': score()"
        if not kind.shapes_reward or not len(questions):
            continue
        instance = kind(build(kind.Config, settings, f"components.{name}"), facts)
        with within(where):
            try:
                found = _scored(instance, questions, facts)
            except R3BenchError:
                raise
            except (Exception, SystemExit) as error:  # whatever the user's component raises
                raise ConfigError(f"{where} raised {type(error).__name__}: {first_line(error)}") from error
        _check_scores(found, where, facts.groups * facts.num_generations)


def _scored(instance: Component, questions: Any, facts: Facts) -> Any:
    groups = _groups(questions, facts)
    step = Step(0, 0.0, groups, _Nothing())
    wanted = list(instance.entropy_rows(step))
    for group in groups:
        seen = [instance.reads_answers or row in wanted for row in group.rows]
        ids = [np.frombuffer(text.encode(), np.uint8).astype(np.int32) for text in group.texts]
        group.completion_ids = [ids[place] if shown else np.zeros(0, np.int32) for place, shown in enumerate(seen)]
        group.texts = group.texts if instance.reads_answers else []
    lengths = {row: int(n) for group in groups for row, n in zip(group.rows, group.lengths, strict=True)}
    return instance.score(step, {row: np.full(lengths[row], 0.5, np.float32) for row in wanted})


def _groups(questions: Any, facts: Facts) -> list[Group]:
    """A batch of the first questions, every answer made up; a token is a byte, as in the facts."""
    size, groups = facts.num_generations, []
    for index in range(facts.groups):
        row = questions[index % len(questions)]
        texts = made_up([row["answer"]] * size)
        correct = np.array([text.startswith("The answer is") for text in texts])
        texts = [text or " " for text in texts]  # a model that says nothing still ends its answer
        groups.append(
            Group(
                index=index, question=row["question_id"], prompt=row["prompt"], provenance="fresh",
                rows=range(index * size, (index + 1) * size), columns=row, correct=correct,
                truncated=np.zeros(size, bool), lengths=np.array([len(text.encode()) for text in texts]),
                rewards=correct.astype(float), task_rewards=correct.astype(float), texts=texts,
            )
        )  # fmt: skip
    return groups


def _check_scores(found: Any, where: str, rows: int) -> None:
    expected = f"expected finite rewards for rows 0 to {rows - 1}"
    if not isinstance(found, Mapping):
        raise ConfigError(f"{where} gave {found!r:.60}, expected a mapping of rows to rewards")
    for row, value in found.items():
        try:
            good = 0 <= row < rows and math.isfinite(value)
        except TypeError:
            good = False
        if not good:
            raise ConfigError(f"{where} gave {value!r:.60} for row {row!r:.60}, {expected}")
