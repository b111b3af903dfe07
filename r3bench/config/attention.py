"""Whether the attention implementation that a recipe names is there. Looks for packages and loads none."""

from importlib.util import find_spec

from r3bench.config.sections import Recipe

PACKAGES = {  # implementation -> (module it needs, distribution that has it)
    "flash_attention_2": ("flash_attn", "flash-attn"),
    "flash_attention_3": ("flash_attn_interface", "flash-attn-3"),
    "flash_attention_4": ("flash_attn", "flash-attn-4"),
}


def attention_problem(recipe: Recipe, gpus: int | None = None) -> str | None:
    """Why `model.attention` can't be used here, or None.

    Args:
        recipe: checked.
        gpus: that this machine offers; None: not asked, since it may be another machine that trains.
    """
    name = recipe.model.attention
    if name not in PACKAGES:
        return None
    module, package = PACKAGES[name]
    if find_spec(module) is None:  # transformers would fetch code from the hub in its place
        return f"model.attention: '{name}' needs the package {package}, which is not installed here; 'sdpa' needs none"
    if gpus == 0:
        return f"model.attention: '{name}' needs a GPU and none is visible; 'sdpa' runs anywhere"
    return None
