"""One and two processes (gloo) on the same sampled answers: equal history, evidence and gradients; nobody hangs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
SCRIPT = str(HERE / "components_two_ranks.py")


@pytest.fixture(scope="module")
def results(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    path = os.pathsep.join([str(HERE), str(HERE.parent / "trainer")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    for launcher in ([sys.executable], torchrun):
        command = [*launcher, SCRIPT, tiny_model, str(folder)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    names = ("rank-0-of-1", "rank-0-of-2", "rank-1-of-2")
    return [json.loads((folder / f"{name}.json").read_text()) for name in names]


@pytest.mark.parametrize("case", ["four", "split", "rivals", "idle", "one-sided"])
def test_the_number_of_ranks_changes_nothing(results, case):
    alone, first, second = (result[case] for result in results)
    assert alone["history"] == first["history"] == second["history"]
    assert alone["history"][1] > 0
    assert set(alone["evidence"]) == set(first["evidence"])
    for key, value in alone["evidence"].items():
        assert first["evidence"][key] == second["evidence"][key] == pytest.approx(value, abs=1e-3), key
    np.testing.assert_allclose(first["stream"], alone["stream"], rtol=2e-3, atol=1e-5)
    assert max(norm for norm, _ in alone["stream"]) > 1e-3


@pytest.mark.parametrize(
    ("case", "keys"),
    [
        ("four", ["ranking/rows", "reflection/groups", "replay/rows", "retrospective/groups"]),
        ("split", ["ranking/rows", "reflection/groups", "replay/rows", "retrospective/groups"]),
        ("rivals", ["repo/rows", "exgrpo/rows"]),
        ("one-sided", ["ranking/rows"]),
    ],
)
def test_every_component_acted(results, case, keys):
    assert all(results[1][case]["evidence"].get(key, 0) > 0 for key in keys), results[1][case]["evidence"]
