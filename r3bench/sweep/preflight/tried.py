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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from r3bench import catalog, project, source
from r3bench.component import Component, Facts, check_declared
from r3bench.config.load import parse_recipe, resolved
from r3bench.config.sections import BUILT_IN, DataSection, Recipe
from r3bench.config.strict import build
from r3bench.config.trainer_fields import trainer_value
from r3bench.errors import ConfigError, R3BenchError, Unreachable, first_line
from r3bench.evaluation.task_file import check_file
from r3bench.files import read_json, write_json
from r3bench.prompts import fill, prompt_of
from r3bench.sweep.preflight import hub
from r3bench.sweep.preflight.asked import ask_components, ask_rewards, made_up, more, spread
from r3bench.sweep.preflight.fits import Model, check_evaluation_prompts, check_numbers, check_training_prompts
from r3bench.sweep.preflight.patience import within
from r3bench.training.models.names import check_names
from r3bench.training.questions import sources as data_sources
from r3bench.training.questions.columns import check_columns, further_columns

ROWS = 16  # of data on a hub or in a large file, that everything is tried on
WHOLE = 20_000_000  # bytes of a file of questions up to which all of it is read
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
            with within(f"{path}: {where}: making it"):
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
    """What a component is told of a trainer, without one: a token is a byte"""
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
        decode=_decoded,
        encode=_encoded,
    )


def _decoded(ids: Sequence[int]) -> str:
    return bytes(int(i) % 256 for i in ids).decode(errors="replace")


def _encoded(text: str) -> list[int]:
    return list(text.encode())


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
    with hub.as_found([*recipes, *untrained]):
        return _tried(recipes, untrained)


def _tried(recipes: Sequence[Recipe], untrained: Sequence[Recipe]) -> list[str]:
    unreachable: list[str] = []

    def each(part: Any, of: Sequence[Recipe], attempt: Callable[[Recipe], object]) -> None:
        for recipe in _distinct(of, part):
            try:
                attempt(recipe)
            except Unreachable as error:
                unreachable.append(str(error))

    models: dict[str, Model] = {}

    def model(recipe: Recipe) -> Model | None:
        """The recipe's model; None where it can't be reached, which is said once."""
        key = repr(recipe.model)
        if key not in models:
            try:
                models[key] = Model(recipe)
            except Unreachable as error:
                unreachable.append(str(error))
                return None
        return models[key]

    loaded: dict[str, Any] = {}

    def questions(recipe: Recipe) -> Any:
        key = repr(recipe.data)
        if key not in loaded:
            loaded[key] = _questions(recipe.data)
        return loaded[key]

    def rewards(recipe: Recipe) -> None:
        ask_rewards(recipe, questions(recipe))

    def components(recipe: Recipe) -> None:
        ask_components(recipe, questions(recipe), facts(recipe))

    def numbers(recipe: Recipe) -> None:
        known = _whole(recipe.data) or recipe.data.limit is not None
        check_numbers(recipe, len(questions(recipe)) if known else None)

    def prompts(recipe: Recipe) -> None:
        policy = model(recipe)
        if policy is not None:
            check_training_prompts(recipe, questions(recipe), policy)

    def tasks(recipe: Recipe) -> None:
        for name in recipe.eval.tasks:
            try:
                _try_task(name, recipe, model(recipe))
            except Unreachable as error:
                unreachable.append(str(error))

    everything = [*recipes, *untrained]
    each(lambda recipe: recipe.model, everything, model)
    each(lambda recipe: (recipe.trainer, recipe.data), recipes, numbers)
    each(lambda recipe: (recipe.data, recipe.reward), recipes, rewards)
    each(lambda recipe: (recipe.data, recipe.components, facts(replace(recipe, seed=0))), recipes, components)
    each(_lengths, recipes, prompts)
    each(lambda recipe: (recipe.model, *_prompted(recipe)), everything, tasks)
    return list(dict.fromkeys(unreachable))


def _lengths(recipe: Recipe) -> tuple[object, ...]:
    vllm = trainer_value(recipe.trainer, "use_vllm")
    asked = [trainer_value(recipe.trainer, key) for key in ("max_completion_length", "chat_template_kwargs")]
    return recipe.model, recipe.data, asked, (recipe.trainer, recipe.components) if vllm else None


def _prompted(recipe: Recipe) -> tuple[object, ...]:
    section = recipe.eval
    cap = section.max_tokens or trainer_value(recipe.trainer, "max_completion_length")
    return section.tasks, section.style, section.system, section.template, section.require_boxed, section.limit, cap


def _whole(section: DataSection) -> bool:
    """Whether all of the data is loaded: a generator's, and a file that isn't large."""
    kind = data_sources.kind_of(section)
    return kind == "generator" or (kind == "file" and project.located(section.name).stat().st_size <= WHOLE)


def _questions(section: DataSection) -> Any:
    from r3bench.training.questions.load import load_questions

    return load_questions(section if _whole(section) else replace(section, limit=min(section.limit or ROWS, ROWS)))


def _try_task(name: str, recipe: Recipe, model: Model | None) -> None:
    """Load a task and its prompts, and grade its gold answers."""
    from r3bench.evaluation.scorer import named_in
    from r3bench.evaluation.tasks import load_task

    section = recipe.eval
    path = catalog.task_path(name)
    prompt = prompt_of(section, "eval")
    task = load_task(name, section.style, prompt.template)
    docs = list(task.test_docs())
    if not docs:
        raise ConfigError(f"{path}: it has no questions")
    texts, problems = set(), set()
    for doc in (docs[place] for place in spread(len(docs))):
        for key in ("id", "problem", "answer"):
            if not isinstance(doc.get(key), str):
                raise ConfigError(
                    f"{path}: its questions' column '{key}' holds {doc.get(key)!r:.60}, expected a text; what a task's "
                    "questions need is id, problem, answer, and what doc_to_text names"
                )
        text = task.doc_to_text(doc)
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(f"{path}: doc_to_text: gives {text!r:.60} for question '{doc['id']}', expected a text")
        texts.add(text)
        problems.add(doc["problem"])
    if len(texts) == 1 < len(problems):
        raise ConfigError(
            f"{path}: doc_to_text: gives {texts.pop()!r:.60} for every question; expected a column's name, such as "
            "'prompt', or a template such as '{{prompt}}'"
        )
    with within(f"{path}: scorer: importing it"):
        own = named_in(docs, str(path))
    (_grade if own is None else _judge)(path, docs, own or section.require_boxed)
    if model is not None:
        check_evaluation_prompts(recipe, task, docs, prompt.system, model)


def _grade(path: Path, docs: Sequence[Mapping[str, Any]], require_boxed: Any) -> None:
    """Grade every gold answer as if a model had given it."""
    from r3bench.grading import Grader

    golds = [doc["answer"] for doc in docs]
    with Grader(workers=1, require_boxed=require_boxed) as grader:
        found = grader.grade([f"\\boxed{{{gold}}}" for gold in golds], golds)
    wrong = [place for place, verdict in enumerate(found) if not verdict.correct]
    if wrong:
        doc, more = docs[wrong[0]], f" ({len(wrong)} of {len(docs)} like it)" if len(wrong) > 1 else ""
        raise ConfigError(
            f"{path}: the gold answer of question '{doc['id']}', {doc['answer']!r:.60}, can't be graded as right "
            f"({found[wrong[0]].reason}){more}"
        )


def _judge(path: Path, docs: Sequence[Mapping[str, Any]], own: Any) -> None:
    """Let a task's own scorer judge gold answers, and odd ones."""
    more(len(docs), lambda places: _judge_some(path, [docs[place] for place in places], own))


def _judge_some(path: Path, some: Sequence[Mapping[str, Any]], own: Any) -> None:
    with within(f"{path}: scorer"):
        found = own.grade_docs([doc["answer"] for doc in some], some)
        own.values(made_up([doc["answer"] for doc in some]), some)
    for doc, verdict in zip(some, found, strict=True):
        if not verdict.correct:
            raise ConfigError(
                f"{path}: the gold answer of question '{doc['id']}', {doc['answer']!r:.60}, isn't right by the "
                f"task's scorer ({verdict.reason})"
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
            [sys.executable, "-m", "r3bench.sweep.preflight.tried", folder],
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
    """`python -m r3bench.sweep.preflight.tried FOLDER`, started by `tried_apart`."""
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
