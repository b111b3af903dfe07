"""Evaluation tasks by name: the user's ./evals before the shipped ones, lm-eval's own switched off."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from r3bench import catalog
from r3bench.errors import ConfigError, nearest


def check_tasks(names: tuple[str, ...]) -> None:
    """Raise a `ConfigError` for a task that is in no evals folder."""
    known = catalog.names("evals", ".yaml")
    for name in names:
        if name not in known:
            raise ConfigError(
                f"eval.tasks: no task '{name}' in ./evals or among the shipped ones{nearest(name, known)}"
            )


def manager(style: str = "boxed") -> Any:
    """lm-eval's task manager over the evals folders alone; prompts in `style`."""
    from lm_eval.tasks import TaskManager

    shipped, own = catalog.shipped("evals"), Path.cwd() / "evals"
    folders = [shipped, own] if own.is_dir() and not own.samefile(shipped) else [shipped]  # a later folder wins
    return TaskManager(
        include_path=[str(folder) for folder in folders],
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
        with quiet_loggers():
            task = manager(style).load([name])["tasks"][name]
    except KeyError as error:
        path = catalog.names("evals", ".yaml")[name]
        raise ConfigError(f"{path}: expected a task called '{name}', like the file") from error
    if task.OUTPUT_TYPE != "generate_until":
        raise ConfigError(f"eval.tasks: '{name}' is a {task.OUTPUT_TYPE} task, expected generate_until")
    return task


@contextlib.contextmanager
def quiet_loggers() -> Iterator[None]:
    """lm-eval's informational messages and its bar for building prompts held back; its errors still show."""
    import lm_eval.api.task as task_module

    logger = logging.getLogger("lm_eval")
    level, bar = logger.level, task_module.tqdm
    logger.setLevel(logging.ERROR)
    task_module.tqdm = lambda rows, **_: rows
    try:
        yield
    finally:
        logger.setLevel(level)
        task_module.tqdm = bar
