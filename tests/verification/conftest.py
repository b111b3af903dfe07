"""A finished study in which everything agrees, made by the real sweep from toy cells."""

import shutil
from pathlib import Path

import pytest
from toy import run_honest
from typer.testing import CliRunner

from r3bench.cli import app
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.executors.inline import InlineExecutor
from r3bench.sweep.grid import parse_grid

VALUES = {
    "name": "honest",
    "recipe": "quickstart",
    "factors": {"replay": ["off", "on"], "trainer.learning_rate": ["1e-3", "1e-4"]},
    "seeds": [0],
    "eval": {"samples": 2},
    "disk_floor_gb": 0.0,
    "keep": "all",
}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`honest`: 2 x 2 cells, one seed, the untrained model, tables."""
    runs = tmp_path_factory.mktemp("runs")
    report = ablate(
        parse_grid(VALUES, "honest.yaml"), runs, run=run_honest, executor=InlineExecutor(), say=lambda line: None
    )
    assert report.complete
    assert CliRunner().invoke(app, ["tables", str(runs / "honest")]).exit_code == 0
    return runs / "honest"


@pytest.fixture
def study(made: Path, folder: Path) -> Path:
    """A copy of it to spoil, in runs/honest."""
    return Path(shutil.copytree(made, folder / "runs" / "honest"))
