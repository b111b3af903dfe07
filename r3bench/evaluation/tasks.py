"""Evaluation tasks by name: the user's ./evals before the shipped ones, lm-eval's own switched off."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from r3bench import catalog
from r3bench.errors import ConfigError, R3BenchError, first_line
from r3bench.evaluation.task_file import check_file
from r3bench.files import no_room
from r3bench.out_of_memory import out_of_memory


def check_tasks(names: tuple[str, ...]) -> None:
    """Raise a `ConfigError` for a task that is in no evals folder."""
    for name in names:
        catalog.task_path(name, "eval.tasks")


def manager(style: str = "boxed", template: str | None = None, folder: str = "") -> Any:
    """lm-eval's task manager over the evals folders alone; prompts in `style`, or after `template`.

    `folder`: of the task's file, from which its paths start.
    """
    from lm_eval.tasks import TaskManager

    texts = {"style": style, **({"template": template} if template else {}), **({"folder": folder} if folder else {})}
    return TaskManager(
        include_path=[str(folder) for folder in catalog.task_folders()],  # a later folder wins
        include_defaults=False,
        metadata=texts,  # type: ignore[arg-type]
    )


def load_task(name: str, style: str = "boxed", template: str | None = None) -> Any:
    """The lm-eval task `name`, its questions loaded and their prompts in `style`, or after `template` (a text).

    Raises:
        ConfigError: there is no such task, or its file doesn't describe one that can be sampled.
        DataError: its questions can't be found or are not as many as expected.
    """
    check_tasks((name,))
    path = catalog.names("evals", ".yaml")[name]
    check_file(path, name)
    try:
        with quiet_loggers():
            task = manager(style, template, str(path.parent)).load([name])["tasks"][name]
    except R3BenchError:
        raise
    except KeyError as error:
        raise ConfigError(f"{path}: can't be loaded: lm-eval misses {error}") from error
    except (Exception, SystemExit) as error:  # lm-eval's own checks, and the functions that the file names
        if no_room(error) or out_of_memory(error):
            raise
        raise ConfigError(f"{path}: can't be loaded: {type(error).__name__}: {first_line(error)}") from error
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
