"""What a study fixes before its runs are made, so that the analysis can't be chosen after the results are seen."""

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from r3bench.errors import ConfigError, nearest

FAILED_SCORES = ("base", "zero", "drop")
VARIANCES = ("per_cell", "pooled")


@dataclass(frozen=True)
class Declared:
    """A grid's `analysis` section; it stands in `study.json` below `grid`."""

    primary: tuple[str, ...] | None = None  # factors whose main effects are the primary family; null: all
    macro: tuple[str, ...] | None = None  # benchmarks in the macro average; null: all of them
    margin: float = 0.01  # equivalence margin in accuracy; an effect shown to be inside it is called negligible
    failed_score: str = "base"  # a run that diverged scores as 'base' (untrained model), 'zero', or 'drop'
    confidence: float = 0.95  # level of every interval
    variance: str = "per_cell"  # noise between runs: each cell's own, or 'pooled' over cells that are known to be alike
    blocks: str | None = None  # 'seed': runs that share a seed (same order of data) are compared with each other
    question: str | None = None  # what the study asks, in the author's words

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1:
            raise ValueError(f"margin: got {self.margin}, expected a difference of accuracies such as 0.01")
        if not 0.5 <= self.confidence < 1:
            raise ValueError(f"confidence: got {self.confidence}, expected a number in [0.5, 1), such as 0.95")
        if self.failed_score not in FAILED_SCORES:
            raise ValueError(f"failed_score: got '{self.failed_score}', expected {', '.join(FAILED_SCORES)}")
        if self.variance not in VARIANCES:
            raise ValueError(f"variance: got '{self.variance}', expected {' or '.join(VARIANCES)}")
        if self.blocks not in (None, "seed"):
            raise ValueError(f"blocks: got '{self.blocks}', expected seed, or null for none")


def declared_from(
    values: Mapping[str, Any],
    where: str,
    factors: Collection[str] | None = None,
    benchmarks: Collection[str] | None = None,
) -> Declared:
    """A checked `Declared` from a mapping.

    Args:
        values: the `analysis` section.
        where: what errors call it.
        factors: names that `primary` may have; null: not checked.
        benchmarks: names that `macro` may have; null: not checked.

    Raises:
        ConfigError: naming `where`, the key, the value and what was expected.
    """
    fields = {f.name for f in dataclasses.fields(Declared)}
    checked: dict[str, Any] = {}
    for key, value in values.items():
        if key not in fields:
            raise ConfigError(f"{where}.{key}: unknown key{nearest(str(key), fields)}")
        checked[key] = tuple(str(v) for v in value) if isinstance(value, list | tuple) else value
        if key in ("margin", "confidence") and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ConfigError(f"{where}.{key}: got {value!r}, expected a number")
        if key in ("primary", "macro") and value is not None and not isinstance(value, list | tuple):
            raise ConfigError(f"{where}.{key}: got {value!r}, expected a list of names")
    for key, kind, known in (("primary", "factor", factors), ("macro", "benchmark", benchmarks)):
        for name in checked.get(key) or ():
            if known is not None and name not in known:
                raise ConfigError(f"{where}.{key}: no {kind} '{name}' in this study{nearest(name, known)}")
    try:
        return Declared(**checked)
    except ValueError as error:
        raise ConfigError(f"{where}.{error}") from error
