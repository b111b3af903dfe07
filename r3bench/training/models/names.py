"""Do the model and the questions that a recipe names exist? Looks at names and files only and loads nothing."""

from pathlib import Path

from r3bench import project
from r3bench.config.sections import Recipe
from r3bench.errors import ConfigError, nearest
from r3bench.files import expect, read_json
from r3bench.training.models import smollm
from r3bench.training.questions import embedded
from r3bench.training.questions import sources as data_sources

BUILT_IN = (*embedded.CAPS, smollm.NAME)
ADAPTER = "adapter_config.json"  # of a folder with low-rank adapters alone, as peft saves them


def start_revision(folder: Path) -> str | None:
    """The revision of the start model that the adapters in `folder` name; None without one, or without adapters."""
    settings = folder / ADAPTER
    return expect(read_json(settings), settings).get("revision") if settings.is_file() else None  # type: ignore[no-any-return]


def check_names(recipe: Recipe) -> None:
    """Refuse a model or data set that can't exist. A hub id is only checked for its form.

    Raises:
        ConfigError, DataError: naming the key, the name and the nearest one that exists.
    """
    check_model_name(recipe.model.name)
    if data_sources.kind_of(recipe.data) == "file":
        data_sources.check_file(project.located(recipe.data.name))


def check_model_name(name: str) -> None:
    """Refuse what is neither built in, nor a folder with a model or adapters, nor a hub id.

    Raises:
        ConfigError: naming the nearest name.
    """
    folder = project.located(name)
    if name in BUILT_IN:
        return
    if folder.is_dir():
        if not ((folder / "config.json").is_file() or (folder / ADAPTER).is_file()):
            raise ConfigError(f"model.name: '{name}' has no config.json, expected a folder saved with save_pretrained")
        return
    parts = name.split("/")
    if name.startswith((".", "/", "~")) or len(parts) > 2:
        raise ConfigError(f"model.name: '{name}': no such folder")
    if len(parts) == 1:
        raise ConfigError(
            f"model.name: '{name}' is neither built in nor a folder nor a hub id 'org/name'{nearest(name, BUILT_IN)}"
        )
    if not all(parts):
        raise ConfigError(f"model.name: got '{name}', expected a hub id 'org/name'")
