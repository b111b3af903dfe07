"""The command that makes a run once more: the same configuration, on as many processes and threads."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

AGAIN = "again"  # folder for what is made once more, so that the first stays


def repeat_command(root: Path, config: Any, environment: Any, processes: int, strategy: str | None) -> str | None:
    """`r3bench train` with a run's own configuration; None where that isn't there to be read.

    Args:
        root: the run's directory, as it is to be written in the command.
        config: content of its `config.json`.
        environment: content of its `environment.json`.
        processes: that trained it; 0: the untrained model, which is only measured.
        strategy: how the model was spread over them.
    """
    if not isinstance(config, Mapping) or not isinstance(config.get("model"), Mapping):
        return None
    threads = environment.get("threads") if isinstance(environment, Mapping) else None
    on_cpu = isinstance(environment, Mapping) and not environment.get("gpus")
    before = f"OMP_NUM_THREADS={threads} " if on_cpu and isinstance(threads, int) else ""
    if processes < 1:
        words = ["r3bench", "eval", str(config["model"].get("name")), *_measured(config), "--out", AGAIN]
        return before + shlex.join(words)
    words = ["r3bench", "train", str(root / "config.json")]
    if processes > 1:
        words += ["--gpus", str(processes)]
        words += ["--strategy", strategy] if strategy not in (None, "single", "ddp") else []
    return before + shlex.join([*words, "--runs", AGAIN])


def _measured(config: Mapping[str, Any]) -> list[str]:
    """The settings of the evaluation that aren't the defaults, as KEY=VALUE."""
    import json

    from r3bench.config.sections import EvalSection
    from r3bench.config.strict import plain

    section = config.get("eval")
    if not isinstance(section, Mapping):
        return []
    defaults = plain(EvalSection())
    changed = {key: value for key, value in section.items() if key in defaults and value != defaults[key]}
    trainer = config.get("trainer")
    if changed.get("max_tokens") is None and isinstance(trainer, Mapping) and "max_completion_length" in trainer:
        changed["max_tokens"] = trainer["max_completion_length"]
    return [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in changed.items()]
