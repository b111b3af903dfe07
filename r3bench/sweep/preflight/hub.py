"""Does the Hugging Face hub answer? Its clients ask one that doesn't again and again, half a minute for each set."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from r3bench import catalog, project
from r3bench.config.sections import Recipe
from r3bench.errors import ConfigError, Unreachable
from r3bench.evaluation import task_file
from r3bench.training.models.names import BUILT_IN
from r3bench.training.questions import sources as data_sources
from r3bench.training.questions.sources import OFFLINE

PATIENCE = 5.0  # seconds for an answer


def needed(recipes: Iterable[Recipe]) -> bool:
    """Whether a model, the questions or a task of these recipes would be asked of the hub."""
    folder = os.environ.get("R3BENCH_DATA")
    for recipe in recipes:
        model, data = recipe.model.name, recipe.data
        if model not in BUILT_IN and not project.located(model).is_dir():
            return True
        kind = data_sources.kind_of(data)
        known = data_sources.KNOWN[data.name].file if kind == "known" else ""
        if kind == "hub" or (known and not (folder and Path(folder, known).is_file())):
            return True
        for task in recipe.eval.tasks:
            details = task_file.read(catalog.task_path(task)).get("dataset_kwargs") or {}
            if details.get("hub") and not (folder and Path(folder, f"{details.get('name')}.jsonl").is_file()):
                return True
    return False


@contextlib.contextmanager
def as_found(recipes: Iterable[Recipe]) -> Iterator[None]:
    """While recipes are tried: if the hub doesn't answer, its clients look into their cache alone."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or not needed(recipes) or _answers():
        yield
        return
    import datasets

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _answers() -> bool:
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE)
    except Exception:  # noqa: BLE001, of the client's HTTP library, which changes with its version
        return False
    return True


def model_options(name: str, revision: str | None) -> dict[str, Any]:
    """How to load a hub model's small files: from the cache where they are.

    Raises:
        ConfigError: the hub has no such model or revision.
        Unreachable: it isn't in the cache, and the hub can't be asked.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str):
        return {"local_files_only": True}
    try:
        HfApi().model_info(name, revision=revision, timeout=PATIENCE)
    except RevisionNotFoundError as error:
        raise ConfigError(f"model.revision: '{name}' has no '{revision}'") from error
    except RepositoryNotFoundError as error:
        raise ConfigError(f"model.name: the hub has no '{name}', or shows it to others only (hf auth login)") from error
    except Exception as error:  # as in `_answers`
        raise Unreachable(f"model.name: '{name}' can't be looked at: {OFFLINE}") from error
    return {}
