"""What an evaluation task's YAML file says, read for plans: no include is followed and no function loaded."""

from functools import cache
from typing import Any

import yaml

from r3bench import catalog


class _Loose(yaml.SafeLoader):
    """Reads lm-eval's task files for their plain values; `!function` and other tags are taken as text."""


_Loose.add_multi_constructor("!", lambda loader, suffix, node: str(node.value))


def task_values(task: str) -> dict[str, Any]:
    """The values of a task's file; none where there is no file of that name."""
    path = catalog.names("evals", ".yaml").get(task)
    return {} if path is None else _parsed(path.read_text())


@cache
def _parsed(text: str) -> dict[str, Any]:
    return dict(yaml.load(text, Loader=_Loose) or {})


def is_validation(task: str) -> bool:
    """Whether a task's file reads a split called 'validation'."""
    values = task_values(task)
    return "validation" in (values.get("test_split"), (values.get("dataset_kwargs") or {}).get("split"))
