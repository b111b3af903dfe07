"""What is odd about a recipe without being wrong: it runs, but perhaps not as its reader thinks."""

from r3bench.config.attention import attention_problem
from r3bench.config.clipping import clip_warning
from r3bench.config.correction import correction_warning
from r3bench.config.precision import precision_warnings
from r3bench.config.sections import Recipe


def warnings_of(recipe: Recipe, processes: int = 1) -> list[str]:
    """A line for each, for `validate`, `plan` and `train`; `processes`: that train it together."""
    more = (attention_problem(recipe), clip_warning(recipe, processes), correction_warning(recipe))
    return [*precision_warnings(recipe), *(line for line in more if line is not None)]
