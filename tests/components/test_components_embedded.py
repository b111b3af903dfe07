"""All sixteen subsets and every control for 20 steps on the embedded model, with a cap that cuts answers off."""

import itertools
import json
import math

import pytest

from r3bench import catalog
from r3bench.config.load import parse_recipe
from r3bench.records import RunPaths
from r3bench.training.run import train

FOUR = ("ranking", "reflection", "replay", "retrospective")
SUBSETS = [dict.fromkeys(names, True) for size in range(5) for names in itertools.combinations(FOUR, size)]
CONTROLS = [{name: preset} for name in FOUR for preset in catalog.component(name).presets]


@pytest.mark.slow
@pytest.mark.parametrize("components", SUBSETS + CONTROLS, ids=lambda c: "+".join(f"{k}={v}" for k, v in c.items()))
def test_twenty_steps(tmp_path, components):
    recipe = parse_recipe(
        {
            "model": "embedded",
            "data": {"name": "embedded", "limit": 32},  # four steps an epoch
            "trainer": {
                "max_steps": 20, "per_device_train_batch_size": 64, "num_generations": 8, "max_completion_length": 20,
                "learning_rate": 2e-4, "lr_scheduler_type": "constant", "logging_steps": 1, "save_strategy": "no",
                "gradient_checkpointing": False,
            },
            "components": components,
        },
        "embedded test",
    )  # fmt: skip
    paths = RunPaths(tmp_path / "run")
    record = train(recipe, paths, quiet=True)
    assert record.outcome == "finished"
    assert record.steps == 20
    assert set(record.acted) == set(components)
    idle = {name for name, did in record.acted.items() if not did}
    if "ranking" in idle:  # it scored groups, and no answer of theirs dominated another: equal rewards change nothing
        assert record.evidence["ranking/groups"] > 0
        assert record.evidence["ranking/groups_with_spread"] == 0
    assert idle <= {"ranking"}, f"{idle} never acted: {record.evidence}"
    lines = [json.loads(line) for line in paths.metrics.read_text().splitlines()]
    assert all(math.isfinite(line["loss"]) and math.isfinite(line["grad_norm"]) for line in lines)
    for key, total in record.evidence.items():
        assert math.isclose(sum(line.get(key) or 0.0 for line in lines), total, abs_tol=1e-6), key
