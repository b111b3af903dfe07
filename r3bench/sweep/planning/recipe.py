"""What one run of a recipe costs, for `plan` of a recipe: tokens, hours, disk, memory."""

import dataclasses
from typing import Any

from r3bench.config.load import run_id
from r3bench.config.sections import Recipe
from r3bench.sweep.planning.cost import run_cost
from r3bench.sweep.planning.memory import memory_text, recipe_memory
from r3bench.sweep.planning.text import hours_text, millions, wall_hours
from r3bench.sweep.strategy import Strategy, check_numbers
from r3bench.training.models.names import BUILT_IN


def recipe_plan(
    recipe: Recipe,
    *,
    gpus: int = 1,
    strategy: Strategy = "ddp",
    mean_length: float = 0.5,
    tokens_per_second: float | None = None,
    nodes: int = 1,
    price: float | None = None,
) -> tuple[dict[str, Any], str]:
    """(JSON-ready data, text) on one run of `gpus` GPUs on each of `nodes`; other arguments as in `plan`.

    Raises:
        ConfigError: the recipe's numbers don't fit so many processes.
    """
    check_numbers(recipe, gpus, nodes, strategy)
    gpus *= nodes
    cost = run_cost(recipe, mean_length=mean_length, processes=gpus, rate=tokens_per_second)
    needed = recipe_memory(recipe, processes=gpus, strategy=strategy)
    spent = None if price is None else {kind: value * price for kind, value in cost.device_hours.items()}
    data = {
        "cost": spent,
        "run_id": run_id(recipe),
        **dataclasses.asdict(cost),
        "memory_gb": {**needed.parts, "total": needed.total} if needed else None,
    }
    tokens = millions(cost.training_tokens)
    lines = [
        f"{recipe.name}: one run, {run_id(recipe)}",
        f"  tokens           {tokens} sampled in training, {millions(cost.evaluation_tokens)} in evaluation "
        f"(answers at {100 * mean_length:.0f} % of the cap)",
    ]
    if cost.device_hours:
        hours = ", ".join(f"{kind} {hours_text(value)}" for kind, value in cost.device_hours.items())
        lines.append(f"  device-hours     {hours}")
        if gpus > 1:
            lines.append(wall_hours(cost.device_hours, gpus))
    if spent:
        money = ", ".join(f"{kind} {value:,.2f}" for kind, value in spent.items())
        lines.append(f"  price            {money}, at {price:g} for an hour of a device")
    lines.append(f"  disk             {cost.checkpoint_gb:,.1f} GB of checkpoints, {cost.kept_gb:,.1f} GB kept")
    if needed is None and recipe.model.name not in BUILT_IN:
        lines.append(
            f"  memory           unknown, as is the shape of '{recipe.model.name}'; `train --probe` measures it"
        )
    text = memory_text(recipe, processes=gpus, strategy=strategy)
    return data, "\n".join([*lines, *(["", text] if text else [])])
