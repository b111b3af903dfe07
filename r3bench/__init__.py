"""r3bench: ablation grids for changes to GRPO on maths.

`R3Config` and `R3Trainer` are loaded on first use, because importing TRL takes seconds and most commands don't need it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from r3bench.training.args import R3Config
    from r3bench.training.trainer import R3Trainer

__version__ = "0.1.0"
__all__ = ["R3Config", "R3Trainer", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "R3Config":
        from r3bench.training.args import R3Config

        return R3Config
    if name == "R3Trainer":
        from r3bench.training.trainer import R3Trainer

        return R3Trainer
    raise AttributeError(f"module 'r3bench' has no attribute '{name}'")
