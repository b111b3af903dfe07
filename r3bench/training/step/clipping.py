"""Whether the loss's own mechanism acted: the share of what was clipped, update by update of a sampled batch."""

from collections.abc import Mapping
from typing import Any

from r3bench.training.step import trl_adapter
from r3bench.training.step.host import Host


class Clipping:
    """Counts over a run. In the first update on a batch the ratio is 1, so there nothing can be clipped.

    Shares are those TRL logs: of tokens, or of answers under `importance_sampling_level: sequence`; of CISPO's cap, of
    tokens whose weight it bounds.
    """

    def __init__(self, trainer: Host) -> None:
        accumulation = trainer.args.gradient_accumulation_steps
        window = trl_adapter.steps_per_window(trainer)
        self._accumulation = accumulation
        self._updates = max(1, window // accumulation)
        self._metric = trl_adapter.CLIP_METRICS.get(trainer.loss_type)
        sequence = trainer.importance_sampling_level == "sequence"
        # With one update a batch no clip can act; worth saying only where it is what the method is about.
        self.watched = self._metric is not None and (self._updates > 1 or trainer.loss_type == "cispo" or sequence)
        self.name = "cap" if trainer.loss_type == "cispo" else "clip"
        self._sums: dict[int, list[float]] = {}  # number of the update, from 1 -> sum of shares, micro-steps

    def note(self, trainer: Host) -> None:
        """After a micro-step: add its share."""
        if not self.watched or self._metric is None:
            return
        place = (trl_adapter.micro_step(trainer) - 1) // self._accumulation % self._updates
        found = self._sums.setdefault(place + 1, [0.0, 0.0])
        found[0] += trl_adapter.last_metric(trainer, self._metric)
        found[1] += 1

    @property
    def evidence(self) -> dict[str, float]:
        """Mean share by update, as `clip/share_update_1` and so on."""
        return {
            f"{self.name}/share_update_{update}": total / count for update, (total, count) in sorted(self._sums.items())
        }

    @property
    def acted(self) -> dict[str, bool]:
        """Whether it ever bound, by name; empty where there is nothing to say."""
        return {self.name: any(total > 0 for total, _ in self._sums.values())} if self.watched else {}

    def state(self) -> dict[str, list[float]]:
        """For the checkpoint."""
        return {str(update): list(values) for update, values in self._sums.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`."""
        self._sums = {int(update): list(values) for update, values in state.items()}
