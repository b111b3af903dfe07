"""Stops a run when it has sampled as many tokens as it was given, so that cells can be compared at equal cost."""

from typing import Any

from transformers import TrainerCallback


class StopAtTokens(TrainerCallback):
    """Ends training after the first update at which `trainer.generated_tokens` (the same on all ranks) is enough."""

    def __init__(self, trainer: Any, tokens: int) -> None:
        self._trainer = trainer
        self._tokens = tokens

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if self._trainer.generated_tokens >= self._tokens:
            control.should_training_stop = True
        return control
