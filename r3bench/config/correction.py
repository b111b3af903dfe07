"""TRL's correction for an engine that samples with slightly other probabilities than training computes."""

from r3bench.config.sections import Recipe
from r3bench.config.trainer_fields import trainer_value

FIELDS = ("vllm_importance_sampling_correction", "vllm_importance_sampling_mode")  # what a recipe should state


def correction_warning(recipe: Recipe) -> str | None:
    """What to say of a vLLM recipe whose correction multiplies over a whole answer; None where it doesn't."""
    values = recipe.trainer
    if not trainer_value(values, "use_vllm") or not trainer_value(values, FIELDS[0]):
        return None
    mode = str(trainer_value(values, FIELDS[1]))
    if not mode.startswith("sequence"):
        return None
    stated = "" if FIELDS[1] in values else " (TRL's default)"
    return (
        f"trainer.{FIELDS[1]}: {mode}{stated} weighs an answer by the product of its tokens' ratios, which takes most "
        "of the weight of long answers; token_truncate weighs each token by itself, and "
        f"{FIELDS[0]}: false leaves the correction out"
    )
