"""`R3Config`: TRL's GRPOConfig with components."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from trl import GRPOConfig

from r3bench.config.strict import show
from r3bench.errors import ConfigError

SECTIONS = ("components", "correctness", "history")  # the fields below; each a mapping, or one as JSON


@dataclass
class R3Config(GRPOConfig):
    """Arguments of `R3Trainer`: every GRPOConfig field, and these. On a command line each is given as JSON.

    Args:
        components: name -> `True`, a preset's name, or a mapping of settings. Names are files in `./components/`
            and then the shipped ones. Absent or `False`: off.
        correctness: which reward functions decide right or wrong: `{"functions": [names], "threshold": 1.0}`. A row is
            right when every named function that gives it a reward gives at least the threshold; one that all of them
            leave out (None) is neither right nor wrong. Default: the first function, threshold 1.
        history: bounds of the trajectory history, see `r3bench.training.step.history.HistoryBounds`.
        tokens_per_forward: most tokens, padding included, of one forward pass of the training; rows are sorted by
            length and go through in as many parts as that takes. `None`: TRL's own forwards, all rows of a
            micro-batch as wide as its longest.

    Raises:
        ConfigError: `tokens_per_forward` is no whole number above 0.
    """

    components: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Components to switch on, by name."}
    )
    correctness: dict[str, Any] | str | None = field(default=None, metadata={"help": "What counts as a right answer."})
    history: dict[str, Any] | str | None = field(default=None, metadata={"help": "Bounds of the trajectory history."})

    tokens_per_forward: int | None = field(
        default=None, metadata={"help": "Most tokens of one forward, padding included; rows are sorted by length."}
    )

    def __post_init__(self) -> None:
        tokens = self.tokens_per_forward
        if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1):
            raise ConfigError(f"R3Config.tokens_per_forward: got {show(tokens)}, expected an integer of at least 1")
        for key in SECTIONS:  # as TRL does with its own mappings; what can't be read is refused by `section`
            text = getattr(self, key)
            if isinstance(text, str):
                try:
                    setattr(self, key, json.loads(text, object_pairs_hook=partial(_once, key)))
                except ValueError:
                    continue
        super().__post_init__()


def _once(section_key: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object as a mapping; JSON itself lets a key stand twice, and the last one wins."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ConfigError(f"R3Config.{section_key}: the key {show(twice)} stands there twice, expected it once")
    return found


def section(args: Any, key: str) -> dict[str, Any]:
    """One of `SECTIONS` as a mapping; empty where `args` (a GRPOConfig or None) has none.

    Raises:
        ConfigError: it is something else.
    """
    value = getattr(args, key, None)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        example = {"components": "{'replay': True}", "correctness": "{'threshold': 1.0}"}.get(key, "{'max_age': 100}")
        raise ConfigError(f"R3Config.{key}: got {show(value)}, expected a mapping such as {example}")
    for name in value:
        if not isinstance(name, str):
            raise ConfigError(f"R3Config.{key}: got the key {show(name)}, expected a name")
    return dict(value)
