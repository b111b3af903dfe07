import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def grid_values():
    """A 2 x 2 grid with 2 seeds on the embedded model."""
    return {
        "name": "toy",
        "recipe": "quickstart",
        "factors": {
            "replay": ["off", "on"],
            "bonus": {"off": {"reward.length_bonus": False}, "on": {"reward.length_bonus": True}},
        },
        "seeds": [0, 1],
        "eval": {"samples": 2},
        "disk_floor_gb": 0.0,
        "retries": {"bug": 1, "out_of_memory": 2, "preempted": 2, "timeout": 1},
    }


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty working directory, so that no user files of the caller are found."""
    monkeypatch.chdir(tmp_path)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return tmp_path
