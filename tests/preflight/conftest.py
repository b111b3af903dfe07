"""A project of one's own in a folder, with everything that can be broken in it; the working directory is another."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from project_tools import COMPONENT, GRID, RECIPE, REWARD, TASK

from r3bench import catalog


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project's folder; the working directory is another one. The model lies ready, so that nothing tells of it."""
    from r3bench.training.models.load import model_folder

    model_folder("embedded")
    home = tmp_path / "project"
    for folder in ("ablations/recipes", "components", "evals", "data", "prompts"):
        (home / folder).mkdir(parents=True)
    for name in ("train", "heldout"):
        rows = [
            {"uid": f"{name}-{n}", "question": f"Start with {n}, add 1.", "gold": n + 1, "level": n} for n in range(8)
        ]
        (home / f"data/{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (home / "prompts/ask.txt").write_text("{problem}\nThe level is {level}. Answer within \\boxed{}.")
    (home / "rewards.py").write_text(REWARD)
    (home / "components/nudge.py").write_text(COMPONENT.lstrip())
    (home / "ablations/recipes/mine.yaml").write_text(yaml.safe_dump(RECIPE))
    (home / "ablations/grid.yaml").write_text(yaml.safe_dump(GRID, sort_keys=False))
    (home / "evals/own.yaml").write_text(TASK)
    for name in ("_maths.yaml", "utils.py"):
        shutil.copy(catalog.shipped("evals") / name, home / "evals" / name)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    return home
