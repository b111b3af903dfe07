"""Where stored answers are: a run directory, or the folder of answers itself."""

from pathlib import Path
from typing import Any

from r3bench.errors import ConfigError, StateError, nearest
from r3bench.evaluation import shards


def answer_folder(run: Path) -> Path:
    """The folder with one folder of shards per task: `run/eval` of a run directory, or `run` itself.

    Raises:
        StateError: there are no stored answers.
    """
    for folder in (run / "eval", run):
        if any(folder.glob("*/*.parquet")):
            return folder
    raise StateError(f"{run}: no stored answers (expected eval/<task>/*.parquet); evaluate it first")


def task_names(run: Path, wanted: tuple[str, ...] | None = None) -> list[str]:
    """The tasks with stored answers, or `wanted` after checking that they have some."""
    stored = sorted({path.parent.name for path in answer_folder(run).glob("*/*.parquet")})
    for name in wanted or ():
        if name not in stored:
            raise ConfigError(f"{run}: no stored answers for task '{name}'{nearest(name, stored)}")
    return list(wanted) if wanted else stored


def task_settings(run: Path, task: str) -> dict[str, Any]:
    """What the first shard of a task was sampled under."""
    return shards.read_shard(shards.files(answer_folder(run) / task)[0])[1]


def answers(run: Path, task: str) -> list[dict[str, Any]]:
    """The stored answers of one task, each (question, repeat) once."""
    return shards.read(answer_folder(run) / task)
