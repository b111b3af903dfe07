"""Trackers that TRL's `report_to` can name: is the package there, and where do files go?"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from r3bench.errors import ConfigError, nearest

PACKAGES = {  # tracker -> packages of which one is enough
    "tensorboard": ("tensorboard", "tensorboardX"),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
    "mlflow": ("mlflow",),
}


def check_trackers(values: dict[str, Any]) -> None:
    """Refuse a `report_to` that would fail when training starts; trackers not listed here are passed on as they are.

    Raises:
        ConfigError: a tracker whose package is missing, or a name close to a tracker's.
    """
    check_tracker_names(values)
    for name in _named(values):
        if name in PACKAGES and not any(find_spec(package) for package in PACKAGES[name]):
            raise ConfigError(
                f"trainer.report_to: got '{name}', but the package {' or '.join(PACKAGES[name])} is missing "
                f"(pip install {PACKAGES[name][0]})"
            )


def check_tracker_names(values: dict[str, Any]) -> None:
    """Refuse a name in `report_to` that is close to a tracker's, wherever it may run.

    Raises:
        ConfigError: with the tracker's name.
    """
    for name in _named(values):
        if name not in PACKAGES and "did you mean" in (hint := nearest(str(name), PACKAGES)):
            raise ConfigError(f"trainer.report_to: got '{name}'{hint}")


def _named(values: dict[str, Any]) -> list[Any]:
    found = values.get("report_to") or []
    return [found] if isinstance(found, str) else list(found)


def keep_in(folder: Path, trainer: Any) -> None:
    """Let TensorBoard write below `folder` unless TENSORBOARD_LOGGING_DIR says where.

    By default its files lie among the checkpoints, which are removed after a verified evaluation.
    """
    from transformers.integrations import TensorBoardCallback

    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            callback.logging_dir = str(folder / "tensorboard")
