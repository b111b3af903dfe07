"""Shared study folders. `synthetic` and `simulate` are importable as modules of this folder."""

from pathlib import Path

import pytest
from synthetic import Spec, make_study


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 x 2 cells, 3 seeds, base model, two benchmarks, training logs."""
    spec = Spec(benchmarks={"embedded": 40, "amc": 30}, metrics=True)
    return make_study(tmp_path_factory.mktemp("runs") / "demo", spec)


@pytest.fixture(scope="session")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a diverged run, one that was given up, and a cell that was never run."""
    spec = Spec(diverged=[(1, 0)], gave_up=[(2, 1)], missing=[3])
    return make_study(tmp_path_factory.mktemp("runs") / "troubled", spec)
