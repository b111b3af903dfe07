"""The compensated optimiser that `model.compensation: kahan` asks for."""

from typing import Any

from r3bench.errors import ConfigError


def compensated_adamw(arguments: Any) -> tuple[type, dict[str, Any]]:
    """Class and settings of an AdamW that keeps what rounding drops from bfloat16 weights, for transformers' Trainer.

    torch-optimi's: beside each weight it stores the part of the update that didn't fit (Kahan summation), 2 bytes a
    weight, and adds it to the next one.

    Args:
        arguments: the trainer's, of which it takes the rate, the moments' decay and epsilon.

    Raises:
        ConfigError: the package is missing.
    """
    try:
        from optimi import AdamW
    except ImportError as error:
        raise ConfigError(
            "model.compensation: kahan needs the package torch-optimi (pip install torch-optimi)"
        ) from error
    return AdamW, {
        "lr": arguments.learning_rate,
        "betas": (arguments.adam_beta1, arguments.adam_beta2),
        "eps": arguments.adam_epsilon,
        "weight_decay": arguments.weight_decay,
        "kahan_sum": True,
    }
