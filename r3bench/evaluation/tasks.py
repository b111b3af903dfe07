"""Evaluation tasks by name: the user's ./evals before the shipped ones, lm-eval's own switched off."""

from pathlib import Path
from typing import Any

from r3bench import catalog
from r3bench.errors import ConfigError, nearest


def check_tasks(names: tuple[str, ...]) -> None:
    """Raise a `ConfigError` for a task that is in no evals folder, or named twice."""
    known = catalog.names("evals", ".yaml")
    for name in names:
        if name not in known:
            raise ConfigError(
                f"eval.tasks: no task '{name}' in ./evals or among the shipped ones{nearest(name, known)}"
            )
    if len(set(names)) != len(names):
        raise ConfigError(f"eval.tasks: a task is named twice in {', '.join(names)}")


def manager(style: str = "boxed") -> Any:
    """lm-eval's task manager over the evals folders alone; prompts in `style`."""
    from lm_eval.tasks import TaskManager

    folders = [catalog.shipped("evals"), Path.cwd() / "evals"]  # a later folder wins
    return TaskManager(
        include_path=[str(folder) for folder in folders if folder.is_dir()],
        include_defaults=False,
        metadata={"style": style},  # type: ignore[dict-item]
    )


def load_task(name: str, style: str = "boxed") -> Any:
    """The lm-eval task `name`, its questions loaded and their prompts in `style`.

    Raises:
        ConfigError: there is no such task, or its file doesn't describe one that can be sampled.
        DataError: its questions can't be found or are not as many as expected.
    """
    check_tasks((name,))
    try:
        task = manager(style).load([name])["tasks"][name]
    except KeyError as error:
        path = catalog.names("evals", ".yaml")[name]
        raise ConfigError(f"{path}: expected a task called '{name}', like the file") from error
    if task.OUTPUT_TYPE != "generate_until":
        raise ConfigError(f"eval.tasks: '{name}' is a {task.OUTPUT_TYPE} task, expected generate_until")
    return task
