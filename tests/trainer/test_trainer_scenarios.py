"""The scenarios of TRL's own GRPO tests with `R3Trainer`: off equal to stock bit for bit, on trained or refused.

python -m pytest -m slow tests/trainer/test_trainer_scenarios.py
"""

from pathlib import Path

import pytest
import torch
from trainer_scenarios import ALL_FOUR, SCENARIOS, build_models, finite, play
from trainer_tools import losses
from trl import GRPOConfig, GRPOTrainer

from r3bench import R3Config, R3Trainer
from r3bench.errors import ConfigError

DOCS = Path(__file__).parents[2] / "docs" / "training.md"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return build_models(tmp_path_factory.mktemp("models"))


def outcome(name, cls, config, models, folder, **changes):
    """The log and weights of a run, or the type of what it raised."""
    try:
        trainer = play(name, cls, config, models, folder, **changes)
    except Exception as error:  # whatever stock raises, off must raise too
        if SCENARIOS[name].raises is None:
            raise
        return type(error), None
    assert finite(trainer)
    return losses(trainer), {key: value.clone() for key, value in trainer.model.state_dict().items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_off_is_stock(models, tmp_path, name):
    stock = outcome(name, GRPOTrainer, GRPOConfig, models, tmp_path / "stock")
    ours = outcome(name, R3Trainer, R3Config, models, tmp_path / "ours")
    raises = SCENARIOS[name].raises
    if raises is not None:
        assert issubclass(stock[0], raises)
        assert issubclass(ours[0], raises)
        return
    assert str(ours[0]) == str(stock[0])  # as text, since nan differs from itself
    assert ours[1].keys() == stock[1].keys()
    assert all(torch.equal(ours[1][key], stock[1][key]) for key in stock[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_with_all_four_components(models, tmp_path, name):
    scenario = SCENARIOS[name]
    if scenario.refused:
        with pytest.raises(ConfigError) as found:
            play(name, R3Trainer, R3Config, models, tmp_path, components=ALL_FOUR)
        assert scenario.refused in str(found.value)
        assert not list(tmp_path.glob("checkpoint-*"))
    elif scenario.raises is not None:
        with pytest.raises(scenario.raises):
            play(name, R3Trainer, R3Config, models, tmp_path, components=ALL_FOUR)
    else:
        trainer = play(name, R3Trainer, R3Config, models, tmp_path, components=ALL_FOUR, max_steps=8)
        assert finite(trainer)
        assert trainer.evidence or name == "rewards_none_all"


def table():
    """The table of `docs/training.md`: by group, how many pass off and on, and which are refused why."""
    lines = ["| scenarios | off: as TRL, bit for bit | on: train | TRL refuses | refused with components | fails |"]
    lines.append("|---|---|---|---|---|---|")
    for group in dict.fromkeys(scenario.group for scenario in SCENARIOS.values()):
        names = [name for name, scenario in SCENARIOS.items() if scenario.group == group]
        refused = [name for name in names if SCENARIOS[name].refused]
        raised = [name for name in names if SCENARIOS[name].raises and name not in refused]
        passed = len(names) - len(refused) - len(raised)
        said = ", ".join(f"`{name}`" for name in refused) or "none"
        lines.append(f"| {group} | {len(names)} of {len(names)} | {passed} | {len(raised)} | {said} | none |")
    return "\n".join(lines)


def test_the_documented_table_is_the_one_that_is_tested():
    assert table() in DOCS.read_text()


if __name__ == "__main__":
    print(table())
