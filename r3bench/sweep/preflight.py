"""Everything that a recipe needs, tried before anything is spent: a mistake costs seconds, and no trained run.

`look` reads files and loads no torch; `tried` loads every task, the first rows of the data, the rewards, the components
and the model's folder, grades gold answers, and asks every reward about made-up answers.
"""

import inspect
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from r3bench import catalog, project, source
from r3bench.config.load import parse_recipe, resolved
from r3bench.config.sections import BUILT_IN, DataSection, EvalSection, Recipe
from r3bench.config.strict import build
from r3bench.config.trainer_fields import trainer_value
from r3bench.errors import ConfigError, R3BenchError, Unreachable, first_line
from r3bench.evaluation.task_file import check_file
from r3bench.files import read_json, write_json
from r3bench.prompts import fill, prompt_of
from r3bench.training import data_sources
from r3bench.training.columns import check_columns, further_columns
from r3bench.training.component import Component, Facts, check_declared
from r3bench.training.names import check_names

ROWS = 8  # of the data, that templates and rewards are tried on
WHOLE = 20_000_000  # bytes of a file of questions up to which all of it is read
ALSO = {  # keyword arguments of a reward function besides the data's columns, as TRL gives them
    "trainer_state": None, "log_extra": lambda *_: None, "log_metric": lambda *_: None, "environments": None,
}  # fmt: skip
MOMENTS = (
    "plan", "entropy_rows", "score", "keep", "probe", "mix", "rescale", "observe", "state_dict", "load_state_dict",
)  # fmt: skip


def look(recipes: Iterable[Recipe]) -> None:
    """Refuse what files alone show: names, tasks, the first row of the data, prompts, rewards, components.

    Raises:
        ConfigError, DataError: the first fault that is found.
    """
    recipes = list(recipes)
    for recipe in _distinct(recipes, lambda recipe: (recipe.model, recipe.data)):
        check_names(recipe)
    for name in dict.fromkeys(task for recipe in recipes for task in recipe.eval.tasks):
        check_file(catalog.task_path(name), name)
    for recipe in _distinct(recipes, lambda recipe: recipe.eval):
        prompt_of(recipe.eval, "eval")
    for recipe in _distinct(recipes, lambda recipe: recipe.data):
        _first_row(recipe.data)
    for recipe in _distinct(recipes, lambda recipe: recipe.reward):
        for number, name in enumerate(recipe.reward.functions):
            if name not in BUILT_IN:
                source.check_defined(name, f"reward.functions[{number}]")
    for recipe in _distinct(recipes, lambda recipe: (recipe.components, recipe.trainer)):
        check_instances(recipe)


def _distinct(recipes: Sequence[Recipe], part: Any) -> list[Recipe]:
    return list({repr(part(recipe)): recipe for recipe in recipes}.values())


def _first_row(section: DataSection) -> None:
    prompt = prompt_of(section)
    if data_sources.kind_of(section) not in ("file", "embedded"):
        return
    rows, section, _ = data_sources.rows(section)
    for where, row in itertools.islice(rows, 1):
        check_columns(where, row, section)
        if prompt.template is not None:
            known = {name: row[name] for name in further_columns(section)}
            fill(prompt.template, {**known, "problem": ""}, f"{prompt.where}.template")


# ------------------------------------------------------------------------------------------------ components


def check_instances(recipe: Recipe) -> None:
    """Make every component that is on, and see that it can be asked what it offers.

    Raises:
        ConfigError: naming the component and what is wrong with it.
    """
    for name, settings in recipe.components.items():
        kind = catalog.component(name)
        where = f"component '{name}'"
        path = catalog.component_names()[name]
        try:
            instance = kind(build(kind.Config, settings, f"components.{name}"), facts(recipe))
            json.dumps(_plain(instance.state_dict()))
        except R3BenchError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError(f"{path}: {where} can't be made: {type(error).__name__}: {first_line(error)}") from error
        try:
            check_declared(instance)
            _check_moments(instance, where)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error


def _plain(value: Any) -> Any:
    """State as JSON, its arrays left out."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return None if hasattr(value, "dtype") else value


def _check_moments(instance: Component, where: str) -> None:
    for moment in MOMENTS:
        method, base = getattr(instance, moment), getattr(Component, moment)
        count = len(inspect.signature(base).parameters) - 1
        try:
            inspect.signature(method).bind(*range(count))
        except TypeError as error:
            asked = ", ".join(list(inspect.signature(base).parameters)[1:])
            raise ConfigError(f"{where}: {moment}() can't be asked with ({asked}): {error}") from error


def facts(recipe: Recipe) -> Facts:
    """What a component is told of a trainer, without one: a token is a byte."""
    rows = int(trainer_value(recipe.trainer, "per_device_train_batch_size"))
    generations = int(trainer_value(recipe.trainer, "num_generations"))
    return Facts(
        seed=recipe.seed,
        num_generations=generations,
        groups=max(1, rows // generations),
        questions=recipe.data.limit or 1,
        max_completion_length=int(trainer_value(recipe.trainer, "max_completion_length")),
        temperature=float(trainer_value(recipe.trainer, "temperature")),
        scale_rewards=str(trainer_value(recipe.trainer, "scale_rewards")),
        decode=lambda ids: bytes(i % 256 for i in ids).decode(errors="replace"),
        encode=lambda text: list(text.encode()),
    )


# ------------------------------------------------------------------------------------------------ the whole of it


def tried(recipes: Iterable[Recipe], *, measured_only: Iterable[Recipe] = ()) -> list[str]:
    """Load and try all that the recipes need; what couldn't be, because a network is out of reach, as lines.

    Args:
        recipes: that are trained and measured.
        measured_only: of the model before training: their tasks and model alone are tried.

    Raises:
        ConfigError, DataError: the first mistake that is found, with file and key.
    """
    recipes, untrained = list(recipes), list(measured_only)
    look([*recipes, *untrained])
    unreachable: list[str] = []
    for recipe in _distinct([*recipes, *untrained], lambda recipe: recipe.model):
        _try_model(recipe)
    for recipe in _distinct(recipes, lambda recipe: (recipe.data, recipe.reward)):
        try:
            _try_data(recipe)
        except Unreachable as error:
            unreachable.append(str(error))
    for recipe in _distinct([*recipes, *untrained], lambda recipe: _prompted(recipe.eval)):
        for name in recipe.eval.tasks:
            try:
                _try_task(name, recipe.eval)
            except Unreachable as error:
                unreachable.append(str(error))
    return list(dict.fromkeys(unreachable))


def _prompted(section: EvalSection) -> tuple[object, ...]:
    return section.tasks, section.style, section.system, section.template, section.require_boxed


def _try_model(recipe: Recipe) -> None:
    name = recipe.model.name
    folder = project.located(name)
    if not folder.is_dir() or (folder / "adapter_config.json").is_file():
        return
    from r3bench.training.models import check_folder

    check_folder(folder, name)


def _try_data(recipe: Recipe) -> None:
    from r3bench.training.data import load_questions

    section = recipe.data
    kind = data_sources.kind_of(section)
    path = project.located(section.name)
    whole = kind in ("file", "generator") and not (kind == "file" and path.stat().st_size > WHOLE)
    if not whole:
        section = replace(section, limit=min(section.limit or ROWS, ROWS))
    questions = load_questions(section)
    ask_rewards(recipe, questions.select(range(min(ROWS, len(questions)))))


def ask_rewards(recipe: Recipe, questions: Any) -> None:
    """Call every reward function on made-up answers to the first questions, and grade a gold one.

    Raises:
        ConfigError: a function can't be called, raises, or gives something else than a number per answer; or the gold
            answer isn't right by what decides.
    """
    from r3bench.grading import Grader
    from r3bench.training.rewards import Correctness, reward_functions

    rows = list(questions)
    answers = [f"The answer is \\boxed{{{row['answer']}}}." for row in rows]
    with Grader(recipe.reward.timeout, 1, recipe.reward.require_boxed) as grader:
        for number, function in enumerate(reward_functions(recipe.reward, grader)):
            names = recipe.reward.used
            said = names[number] if number < len(names) else "length_bonus"
            where = f"reward.functions[{number}]: '{said}'"
            if isinstance(function, Correctness):
                thought = "<think>\n</think>\n" if recipe.reward.thinking == "required" else ""
                verdict = function([thought + answers[0]], [rows[0]["answer"]])[0]
                if verdict != 1:
                    reason = grader.grade([answers[0]], [rows[0]["answer"]])[0].reason
                    raise ConfigError(
                        f"{recipe.data.name}: data.answer: the gold answer {rows[0]['answer']!r:.80} of question "
                        f"'{rows[0]['question_id']}' can't be graded as right ({reason})"
                    )
                function(answers, [row["answer"] for row in rows])
            elif said == "length_bonus":
                function([[0]] * len(rows))
            else:
                made_up = [*answers[:-1], ""] if len(answers) > 1 else answers
                _ask(function, where, rows, made_up)


def _ask(function: Any, where: str, rows: Sequence[Mapping[str, Any]], answers: Sequence[str]) -> None:
    from r3bench.evaluation.scorer import awaited, checked

    columns = {key: [row[key] for row in rows] for key in rows[0] if key != "prompt"}
    arguments = {
        "prompts": [row["prompt"] for row in rows],
        "completions": [[{"role": "assistant", "content": answer}] for answer in answers],
        "completion_ids": [list(answer.encode()) for answer in answers],
        **columns,
        **ALSO,
    }
    try:
        signature = inspect.signature(getattr(function, "__wrapped__", function))
    except (TypeError, ValueError):
        signature = None
    if signature is not None:
        try:
            signature.bind(**arguments)
        except TypeError as error:
            missing = str(error)
            raise ConfigError(
                f"{where} can't be called: {missing}; it is called with prompts, completions, completion_ids, the "
                f"columns {', '.join(columns)} (others are named in data.columns) and more, so it takes **kwargs"
            ) from error
    try:
        given = awaited(function(**arguments))
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where} raised {type(error).__name__}: {first_line(error)}") from error
    try:
        values = list(given)
    except TypeError as error:
        raise ConfigError(f"{where} gave {given!r:.80}, expected a list with a number or None per answer") from error
    checked(values, len(answers), where)


def _try_task(name: str, section: EvalSection) -> None:
    """Load a task and grade every gold answer of it."""
    from r3bench.evaluation.scorer import named_in
    from r3bench.evaluation.tasks import load_task
    from r3bench.grading import Grader

    path = catalog.task_path(name)
    task = load_task(name, section.style, prompt_of(section, "eval").template)
    docs = list(task.test_docs())
    if not docs:
        raise ConfigError(f"{path}: it has no questions")
    for key in ("id", "problem", "answer"):
        if not isinstance(docs[0].get(key), str):
            raise ConfigError(
                f"{path}: its questions' column '{key}' holds {docs[0].get(key)!r:.60}, expected a text; what a task's "
                "questions need is id, problem, answer, and what doc_to_text names"
            )
    text = task.doc_to_text(docs[0])
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{path}: doc_to_text: gives {text!r:.60} for question '{docs[0]['id']}', expected a text")
    own = named_in(docs, str(path))
    if own is not None:
        first = own.grade_docs([docs[0]["answer"]], docs[:1])[0]
        own.values([""], docs[:1])
        if not first.correct:
            raise ConfigError(
                f"{path}: the gold answer of question '{docs[0]['id']}', {docs[0]['answer']!r:.60}, isn't right by the "
                f"task's scorer ({first.reason})"
            )
        return
    with Grader(workers=1, require_boxed=section.require_boxed) as grader:
        found = grader.grade([f"\\boxed{{{doc['answer']}}}" for doc in docs[:1]], [doc["answer"] for doc in docs[:1]])
    for doc, verdict in zip(docs[:1], found, strict=True):
        if not verdict.correct:
            raise ConfigError(
                f"{path}: the gold answer of question '{doc['id']}', {doc['answer']!r:.60}, can't be graded as right "
                f"({verdict.reason})"
            )


# ------------------------------------------------------------------------------------------------ in another process


def tried_apart(recipes: Iterable[Recipe], *, measured_only: Iterable[Recipe] = ()) -> list[str]:
    """`tried` in a process of its own where torch isn't loaded yet: a dispatcher that waits for days stays small."""
    if "torch" in sys.modules and "lm_eval" in sys.modules:
        return tried(recipes, measured_only=measured_only)
    wanted, untrained = _needed(recipes), _needed(measured_only)
    with tempfile.TemporaryDirectory(prefix="r3bench-") as folder:
        work = {"home": str(project.home()), "recipes": wanted, "measured_only": untrained}
        write_json(Path(folder, "work.json"), work)
        done = subprocess.run(
            [sys.executable, "-m", "r3bench.sweep.preflight", folder],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        reply = Path(folder, "reply.json")
        if not reply.exists():
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise R3BenchError(f"the check before the start ended without a result: {last}")
        found = read_json(reply)
    if found["error"] is not None:
        error = ConfigError(found["error"])
        error.exit_code = found["exit_code"]
        raise error
    return list(found["unreachable"])


def _needed(recipes: Iterable[Recipe]) -> list[dict[str, Any]]:
    """The recipes that differ in what is tried."""
    return [resolved(recipe) for recipe in _distinct(list(recipes), lambda recipe: replace(recipe, seed=0, name="run"))]


def main(folder: str) -> int:
    """`python -m r3bench.sweep.preflight FOLDER`, started by `tried_apart`."""
    work = read_json(Path(folder, "work.json"))
    project.enter(work["home"])
    reply: dict[str, Any] = {"error": None, "exit_code": 0, "unreachable": []}
    try:
        recipes, untrained = (
            [parse_recipe(values, "preflight") for values in work[key]] for key in ("recipes", "measured_only")
        )
        reply["unreachable"] = tried(recipes, measured_only=untrained)
    except R3BenchError as error:
        reply |= {"error": str(error), "exit_code": error.exit_code}
    write_json(Path(folder, "reply.json"), reply)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
