"""Which rows are right: a threshold on named reward functions, never the spread of the total."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from r3bench.errors import ConfigError, nearest


@dataclass(frozen=True)
class CorrectnessRule:
    """A row is right when every named function gives at least `threshold`."""

    functions: str | tuple[str, ...] = ()  # names of reward functions; empty: the first one
    threshold: float = 1.0  # smallest reward of a right row

    def lowest_total(self, functions: Sequence[Any], weights: Sequence[float] | None) -> float:
        """Smallest total a right row can get from these functions: the threshold times their smallest weight."""
        wanted = [self.functions] if isinstance(self.functions, str) else list(self.functions)
        names = [getattr(function, "__name__", "") for function in functions]
        chosen = [place for place, name in enumerate(names) if name in wanted] or [0]
        return self.threshold * min((weights[place] for place in chosen), default=1.0) if weights else self.threshold

    def columns(self, names: Sequence[str], shaping: set[str]) -> tuple[list[int], float]:
        """Reward columns of the functions, and the threshold. `shaping`: columns filled by components, not allowed."""
        wanted = [self.functions] if isinstance(self.functions, str) else list(self.functions)
        task = [name for name in names if name not in shaping]
        for name in wanted:
            if name not in task:
                raise ConfigError(f"R3Config.correctness.functions: no reward function '{name}'{nearest(name, task)}")
        return [list(names).index(name) for name in wanted or task[:1]], self.threshold
