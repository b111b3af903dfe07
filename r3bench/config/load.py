"""Recipe YAML + `key=value` overrides -> a checked, fully resolved `Recipe`."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from r3bench import catalog, project, prompts, source
from r3bench.config.dotted import SHORTHAND, assign
from r3bench.config.paths import localised
from r3bench.config.precision import check_precision
from r3bench.config.sections import BUILT_IN, DataSection, EvalSection, ModelSection, Recipe
from r3bench.config.strict import build, inside, plain, show
from r3bench.config.trainer_fields import check_trainer, generation_batch, trainer_fields, trainer_value
from r3bench.config.yaml_file import read_value, read_yaml
from r3bench.errors import ConfigError, StateError, nearest
from r3bench.secrets import certain

RUN_SECTIONS = (
    "model",
    "data",
    "trainer",
    "budget",
    "reward",
    "components",
    "history",
    "sources",
    "seed",
)  # what a run's identity depends on
LISTS = {"reward": ("functions", "correctness"), "data": ("columns",)}  # where one text stands for a list of one
GENERATOR = "reasoning-gym:"  # how the name of generated questions with a scorer of their own begins
SILENT = ("report_to", "run_name")  # of `trainer`: where the figures go as well, not what they are
LATER = (
    "history",
    "sources",
    "data.solution",
    "model.compensation",
    "model.attention",
    "model.warmup",
    "reward.thinking",
    "reward.functions",
    "reward.weights",
    "reward.correctness",
    "reward.threshold",
    "data.system",
    "data.template",
    "data.columns",
    "data.options",
)  # newer than some runs: at their default they leave the identity alone


def apply_overrides(values: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """`values` with each `a.b=value` set (value read as YAML). The input is left as it is."""
    result: dict[str, Any] = json.loads(json.dumps(values)) if values else {}
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path.strip():
            raise ConfigError(f"override '{override}': expected key=value, such as trainer.learning_rate=1e-5")
        try:
            value = read_value(text)
        except ConfigError as error:
            raise ConfigError(f"override '{override}': {str(error).removeprefix('line 1: ')}") from error
        wrong = assign(result, path.strip(), localised(path.strip(), value, Path.cwd()))
        if wrong:
            raise ConfigError(f"override '{override}': {wrong}")
    return result


def parse_recipe(values: Mapping[str, Any], where: str) -> Recipe:
    """A checked `Recipe` from a mapping; component settings are filled in with their defaults.

    Raises:
        ConfigError: naming `where`, the key, the value and what was expected.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: got {show(values)}, expected a mapping of sections")
    values = dict(values)
    for section, key in SHORTHAND.items():
        if isinstance(values.get(section), str):
            values[section] = {key: values[section]}
    sections = {f.name for f in dataclasses.fields(Recipe)}
    for key in values:
        if key not in sections:
            raise ConfigError(f"{where}: {key}: unknown section{nearest(str(key), sections)}")
    values = {key: value for key, value in values.items() if value is not None or key not in sections}
    for section, keys in LISTS.items():
        if isinstance(values.get(section), Mapping):
            single = {key: [value] for key in keys if isinstance(value := values[section].get(key), str)}
            values[section] = {**values[section], **single}
    _check_no_secret(values, where)
    recipe = build(Recipe, values, where)
    if recipe.data.name.startswith(GENERATOR) and not recipe.reward.functions:
        recipe = dataclasses.replace(recipe, reward=dataclasses.replace(recipe.reward, functions=("reasoning_gym",)))
    components = resolve_components(recipe.components, where)
    recipe = dataclasses.replace(
        recipe,
        trainer=check_trainer(recipe.trainer, inside(where, "trainer")),
        components=components,
        eval=_with_prompt(recipe.eval, recipe.data, values.get("eval")),
    )
    if recipe.reward.weights and recipe.trainer.get("reward_weights"):
        raise ConfigError(
            f"{inside(where, 'reward')}.weights: given in trainer.reward_weights, too; expected one of them"
        )
    recipe = dataclasses.replace(recipe, sources=resolve_sources(recipe, where))
    for task in recipe.eval.tasks:
        catalog.task_path(task, inside(where, "eval.tasks"))
    check_recipe_components(recipe, where)
    check_precision(recipe, where)
    return recipe


def _with_prompt(section: EvalSection, data: DataSection, said: Any) -> EvalSection:
    """The evaluation's prompt: its own, else the training's, so that a gain is never a change of prompt.

    `said`: the section as it was given; what isn't in it was left to us.
    """
    if section.template is None and "style" not in (said or {}):
        section = dataclasses.replace(section, style=data.style)
    template = data.template if section.template is None and section.style == "boxed" else section.template
    return dataclasses.replace(
        section, template=template, system=data.system if section.system is None else section.system
    )


def _check_no_secret(value: Any, where: str) -> None:
    """Refuse a token or an address with a password anywhere in a recipe: `config.json` and archives hold all of it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_no_secret(inner, inside(where, str(key)))
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_no_secret(inner, where)
    elif isinstance(value, str) and certain(value):
        raise ConfigError(
            f"{where}: holds what looks like a password or token; a recipe is recorded and shared with its runs: give "
            "it in the environment, or log in with the service's own tool"
        )


def check_recipe_components(recipe: Recipe, where: str, processes: int | None = None) -> None:
    """`check_components` on a recipe; with the number of processes also of what depends on it."""
    weights = recipe.trainer.get("reward_weights")  # of the reward functions in their order
    lowest = recipe.reward.lowest_right
    if weights and len(weights) == len(recipe.reward.all_weights):
        lowest = dataclasses.replace(
            recipe.reward, functions=recipe.reward.used, weights=tuple(weights[: len(recipe.reward.used)])
        ).lowest_right
    elif weights:
        lowest = float(weights[0])
    trainer = {**recipe.trainer, "history": plain(recipe.history)}
    if processes is not None:
        rows = generation_batch(recipe.trainer, processes)
        local = int(trainer_value(recipe.trainer, "per_device_train_batch_size")) * processes
        trainer |= {"generation_batch_size": rows, "steps_per_generation": rows // local}
    check_components(recipe.components, trainer, lowest, where)


def check_components(
    components: Mapping[str, Any], trainer: Mapping[str, Any], lowest_correct: float, where: str
) -> None:
    """Let each component refuse settings that contradict the trainer's (`Component.check`)."""
    full = {key: field["default"] for key, field in trainer_fields().items()} | dict(trainer)
    for name, settings in components.items():
        component = catalog.component(name)
        spot = inside(inside(where, "components"), name)
        component.check(build(component.Config, settings, spot), full, lowest_correct, spot)


def resolve_components(components: Mapping[str, Any], where: str) -> dict[str, Any]:
    """name -> true | preset | settings, as written, to name -> complete settings; those switched off are left out."""
    resolved = {}
    for name, value in sorted(components.items()):
        spot = inside(inside(where, "components"), name)
        component = catalog.component(name, spot)
        if value is False or value is None:
            continue
        if isinstance(value, str):
            if value not in component.presets:
                raise ConfigError(
                    f"{spot}: got {show(value)}, expected true, false, settings, or a preset"
                    f"{nearest(value, component.presets)}"
                )
            value = component.presets[value]
        resolved[name] = plain(build(component.Config, {} if value is True else value, spot))
    return resolved


def resolve_sources(recipe: Recipe, where: str) -> dict[str, str]:
    """What of a recipe is the user's code or text -> hash of its file: as a resolved recipe has it, else of now.

    Components are there by name, reward functions and prompts as the recipe names them.

    Raises:
        ConfigError: a file that isn't there.
    """
    given = recipe.sources
    sources = {}
    for name in source_names(recipe):
        key = "data.template" if name == recipe.data.template else "data.system"
        found = given[name] if name in given else _source(name, where, key)
        if found is not None and not isinstance(found, str):
            raise ConfigError(f"{inside(where, 'sources')}.{name}: got {show(found)}, expected the hash of a file")
        if found is not None:
            sources[name] = found
    return sources


def source_names(recipe: Recipe) -> list[str]:
    """Components, reward functions and prompt files that a recipe trains with."""
    texts = [text for text in (recipe.data.system, recipe.data.template) if text is not None and prompts.is_file(text)]
    functions = [name for name in recipe.reward.functions if name not in BUILT_IN]
    return [*recipe.components, *functions, *texts]


def _source(name: str, where: str, prompt: str = "data") -> str | None:
    """The hash of a source as it is now; None for a shipped component, or a file that is gone."""
    if prompts.is_file(name):
        prompts.text_of(name, inside(where, prompt))
        return source.digest(project.located(name))
    if ":" in name:
        return source.digest(source.file_of(name, inside(where, "reward.functions")))
    return catalog.component_source(name)


def check_sources(recipe: Recipe) -> None:
    """Refuse to train with another component, reward or prompt file than the recipe was resolved with.

    Raises:
        StateError: a file has changed since.
    """
    for name, before in recipe.sources.items():
        try:
            found = _source(name, "recipe")
        except ConfigError:
            found = None
        if found != before:
            what = "prompt" if prompts.is_file(name) else "reward" if ":" in name else "component"
            gone = "is a shipped one now" if what == "component" else "is gone"
            now = f"is {found} now" if found else gone
            raise StateError(
                f"{what} '{name}': its file was {before} when this run was resolved and {now}; restore it, or start "
                "again from the recipe, which is another run"
            )


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe called `name` (or at that path) with overrides applied. See `catalog.recipe_path`."""
    project.enter(None)
    path = catalog.recipe_path(name)
    catalog.enter_project(path)
    written = {"name": path.stem, **localised("", read_yaml(path), path.parent)}
    values = apply_overrides(written, overrides)
    try:
        return parse_recipe(values, str(path))
    except ConfigError:
        if not overrides:
            raise
        parse_recipe(written, str(path))  # raises if the file itself is at fault
        return parse_recipe(values, "command line")


def resolved(recipe: Recipe) -> dict[str, Any]:
    """The recipe as JSON-ready data, every default written out; `parse_recipe` reads it back unchanged."""
    result = plain(recipe)
    assert isinstance(result, dict)
    return result


def config_hash(recipe: Recipe) -> str:
    """12 hex digits over what a run's outcome depends on: all sections but `eval` and `name`."""
    values, defaults = resolved(recipe), resolved(Recipe())
    for path in LATER:
        *section, key = path.split(".")
        node, default = (values[section[0]], defaults[section[0]]) if section else (values, defaults)
        if node[key] == default[key]:
            del node[key]
    for name, settings in values["components"].items():
        component = catalog.component(name)
        for key in component.later:
            if settings[key] == plain(getattr(component.Config(), key)):
                del settings[key]
    if values["model"]["lora"] is not None:
        del values["model"]["lora"]["merge"]  # how it is saved
    values["trainer"] = {key: value for key, value in values["trainer"].items() if key not in SILENT}
    identity = json.dumps({key: values[key] for key in RUN_SECTIONS if key in values}, sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


def run_id(recipe: Recipe) -> str:
    """`<name>-s<seed>-<hash>`: readable, unique, a valid folder name."""
    slug = re.sub(r"[^a-zA-Z0-9_.+-]+", "-", recipe.name).strip("-.") or "run"
    return f"{slug[:60]}-s{recipe.seed}-{config_hash(recipe)}"


__all__ = [
    "DataSection", "EvalSection", "ModelSection", "Recipe", "apply_overrides", "config_hash", "load_recipe",
    "parse_recipe", "read_yaml", "resolved", "run_id",
]  # fmt: skip
