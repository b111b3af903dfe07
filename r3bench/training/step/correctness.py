"""Which rows are right: a threshold on named reward functions, never the spread of the total."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from r3bench.errors import ConfigError, nearest


@dataclass(frozen=True)
class CorrectnessRule:
    """A row is right when every named function that gives it a reward gives at least `threshold`.

    A function abstains by None. A row on which all of them abstain is not judged: neither right nor wrong.
    """

    functions: str | tuple[str, ...] = ()  # names of reward functions; empty: the first one
    threshold: float = 1.0  # smallest reward of a right row

    def columns(self, names: Sequence[str], filled: Sequence[int] = ()) -> list[int]:
        """Places of the functions among the reward columns called `names`.

        Args:
            names: (F,) as TRL has them; they may repeat.
            filled: places that components fill, not allowed.

        Raises:
            ConfigError: no function has that name, or several have.
        """
        key = "R3Config.correctness.functions"
        task = [place for place in range(len(names)) if place not in filled]
        wanted = [self.functions] if isinstance(self.functions, str) else list(self.functions)
        found = []
        for name in dict.fromkeys(wanted):
            places = [place for place in task if names[place] == name]
            if not places:
                raise ConfigError(
                    f"{key}: no reward function '{name}'{nearest(name, {names[place] for place in task})}"
                )
            if len(places) > 1:
                numbers = " and ".join(str(place + 1) for place in places)
                raise ConfigError(
                    f"{key}: got '{name}', but reward functions {numbers} both have that name; expected one that "
                    "no other has (a partial has the name of what it wraps: define a function instead)"
                )
            found += places
        return found or task[:1]

    def lowest_total(self, columns: Sequence[int], weights: Sequence[float]) -> float:
        """Smallest total a right row can get from these columns: the threshold times their smallest weight."""
        return self.threshold * min((weights[place] for place in columns), default=1.0)

    def lowest_known(self, names: Sequence[str], weights: Sequence[float] | None) -> float:
        """`lowest_total` from the functions alone, before all columns are known; infinite where that isn't enough."""
        try:
            columns = self.columns(names)
        except ConfigError:
            return math.inf
        fits = weights is None or len(weights) == len(names)
        return self.lowest_total(columns, weights or [1.0] * len(names)) if columns and fits else math.inf

    def verdicts(self, rewards: torch.Tensor, columns: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """(correct, judged), two (N,) bool tensors, from the rewards (N, F), NaN where a function abstained."""
        given = rewards[:, list(columns)]
        silent = torch.isnan(given)
        judged = ~silent.all(dim=1)
        return judged & ((given >= self.threshold) | silent).all(dim=1), judged
