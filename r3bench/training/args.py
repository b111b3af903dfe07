"""`R3Config`: TRL's GRPOConfig with components."""

from dataclasses import dataclass, field
from typing import Any

from trl import GRPOConfig


@dataclass
class R3Config(GRPOConfig):
    """Arguments of `R3Trainer`: every GRPOConfig field, and these.

    Args:
        components: name -> `True`, a preset's name, or a mapping of settings. Names are files in `./components/`
            and then the shipped ones. Absent or `False`: off.
        correctness: which reward functions decide right or wrong: `{"functions": [names], "threshold": 1.0}`. A row is
            right when every named function gives at least the threshold. Default: the first function, threshold 1.
        history: bounds of the trajectory history, see `r3bench.training.history.HistoryBounds`.
    """

    components: dict[str, Any] | None = field(default=None, metadata={"help": "Components to switch on, by name."})
    correctness: dict[str, Any] | None = field(default=None, metadata={"help": "What counts as a right answer."})
    history: dict[str, Any] | None = field(default=None, metadata={"help": "Bounds of the trajectory history."})
