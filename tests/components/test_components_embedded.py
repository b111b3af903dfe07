"""All sixteen subsets, every control and every rival for 20 steps on the embedded model, checked against their rows.

The harder arithmetic at a temperature above 1 and with a cap: answers are long enough, and cut off often enough, for
the ranking to find dominations. Every batch is checked row by row, every counter is counted again from the rows.
"""

import itertools
import json
import math

import pytest
from recording import recording
from recount import Recount, StateLog

from r3bench import catalog
from r3bench.config.load import parse_recipe
from r3bench.records import RunPaths
from r3bench.training import run as run_module

FOUR = ("ranking", "reflection", "replay", "retrospective")
RIVALS = ("dynamic_sampling", "exgrpo", "repo", "rescue")
MORE = {"retrospective": {"per_question": 64}}  # no state gives way to another, so that they can be counted


def settings(name, preset=None):
    return {**(catalog.component(name).presets[preset] if preset else {}), **MORE.get(name, {})}


SUBSETS = [names for size in range(5) for names in itertools.combinations(FOUR, size)]
CASES = {"+".join(names) or "none": {name: settings(name) for name in names} for names in SUBSETS}
for one in FOUR + RIVALS:
    CASES |= {f"{one}={preset}": {one: settings(one, preset)} for preset in catalog.component(one).presets}
CASES |= {name: {name: settings(name)} for name in RIVALS}


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Trains a recipe and returns (trainer, record, lines of metrics.jsonl)."""
    trainers = []

    class Noting(recording(run_module.R3Trainer)):
        def train(self, *args, **kwargs):
            trainers.append(self)
            StateLog().watch(self)
            return super().train(*args, **kwargs)

    monkeypatch.setattr(run_module, "R3Trainer", Noting)

    def train(components):
        recipe = parse_recipe(
            {
                "model": "embedded-20",
                "data": {"name": "embedded-20", "limit": 32},  # four steps an epoch
                "trainer": {
                    "max_steps": 20, "per_device_train_batch_size": 64, "num_generations": 8, "temperature": 1.2,
                    "max_completion_length": 20, "learning_rate": 2e-4, "lr_scheduler_type": "constant",
                    "logging_steps": 1, "save_strategy": "no", "gradient_checkpointing": False,
                },
                "components": components,
            },
            "embedded test",
        )  # fmt: skip
        paths = RunPaths(tmp_path / "run")
        record = run_module.train(recipe, paths, quiet=True)
        return trainers[-1], record, [json.loads(line) for line in paths.metrics.read_text().splitlines()]

    return train


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_twenty_steps(trained, case):
    components = CASES[case]
    trainer, record, lines = trained(components)
    assert record.outcome == "finished" and record.steps == len(trainer.batches) == 20
    assert all(math.isfinite(line["loss"]) and math.isfinite(line["grad_norm"]) for line in lines)
    assert set(record.acted) == set(components)
    assert all(record.acted.values()), f"{record.acted}: {record.evidence}"
    assert record.evidence == trainer.evidence
    for key, total in record.evidence.items():
        assert math.isclose(sum(line.get(key) or 0.0 for line in lines), total, abs_tol=1e-6), key
    if not components:
        assert record.evidence == {}
        return
    recount = Recount(trainer, components)
    recount.run()
    recount.check_evidence()
    if components.get("ranking", {"order": "random"}).get("order") not in ("random", "length"):
        assert record.evidence["ranking/dominations"] > 0
        assert record.evidence["ranking/groups_with_spread"] > 0
