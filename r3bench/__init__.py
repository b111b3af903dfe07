"""r3bench: ablation grids for changes to GRPO on maths.

`Grid` runs a grid, `load` reads a study or anyone's results as DataFrames, `analyze` returns the numbers of its tables,
`R3Config` and `R3Trainer` train as TRL's do, `Component` is what an own component extends. Every name is loaded on
first use: importing TRL takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from r3bench.analysis.output.external import analyze
    from r3bench.api.grid import Grid
    from r3bench.api.study import Study, load
    from r3bench.component import Component
    from r3bench.errors import ConfigError, DataError, Interrupted, R3BenchError, StateError
    from r3bench.training.args import R3Config
    from r3bench.training.trainer import R3Trainer

__version__ = "0.1.0"
__all__ = [
    "Component", "ConfigError", "DataError", "Grid", "Interrupted", "R3BenchError", "R3Config", "R3Trainer",
    "StateError", "Study", "__version__", "analyze", "load",
]  # fmt: skip
_WHERE = {
    "Grid": "r3bench.api.grid",
    "Study": "r3bench.api.study",
    "load": "r3bench.api.study",
    "analyze": "r3bench.analysis.output.external",
    "Component": "r3bench.component",
    "R3Config": "r3bench.training.args",
    "R3Trainer": "r3bench.training.trainer",
    **dict.fromkeys(("ConfigError", "DataError", "Interrupted", "R3BenchError", "StateError"), "r3bench.errors"),
}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'r3bench' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
