"""What a fork server does before it forks."""

import json
import random
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from preloaded import look

from r3bench.sweep.executors.local import ALLOCATOR, PRELOAD, ForkExecutor
from r3bench.training.environment import environment
from r3bench.training.warm import warm


def found(executor, folder):
    return executor.submit(look, {"directory": str(folder)}).result(120)


def test_preloaded_functions_are_called_once_for_all_children(tmp_path, monkeypatch):
    for name in ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    with ForkExecutor(preload=("preloaded:warm",)) as executor:
        first, second = found(executor, tmp_path / "a"), found(executor, tmp_path / "b")
    assert first["warmed_by"] == second["warmed_by"] == [first["server"]] == [second["server"]]
    assert first["frozen"] > 0
    assert first["threshold"] == ALLOCATOR["MALLOC_TRIM_THRESHOLD_"]


def test_the_users_allocator_settings_stay(tmp_path, monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")
    with ForkExecutor(preload=("preloaded",)) as executor:
        assert found(executor, tmp_path)["threshold"] == "1000000"


def test_the_server_starts_on_entry_and_ends_with_nothing_to_do(tmp_path, monkeypatch):
    (tmp_path / "slow.py").write_text("import time\nopen(__file__ + '.begun', 'w')\ntime.sleep(1000)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with ForkExecutor(preload=("slow",)) as executor:
        server = executor._server
        while not (tmp_path / "slow.py.begun").exists():
            assert server.poll() is None
            time.sleep(0.01)
    assert server.poll() is not None


def test_a_failing_preload_is_said(tmp_path):
    with ForkExecutor(preload=("preloaded:absent",)) as executor, pytest.raises(Exception, match="can't import"):
        found(executor, tmp_path)


def test_warming_up_leaves_randomness_threads_and_settings_alone():
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()
    threads = torch.get_num_threads()
    warm()
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()) == states
    assert torch.get_num_threads() == threads


FORKED = """
import importlib, json, os, sys
from r3bench.sweep.executors.local import PRELOAD
for entry in PRELOAD[:-1]:
    importlib.import_module(entry)
before = len(os.listdir("/proc/self/task"))
from r3bench.training import warm
warm.warm()
print(json.dumps([before, len(os.listdir("/proc/self/task"))]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_warming_up_starts_no_thread():
    assert PRELOAD[-1] == "r3bench.training.warm:warm"
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)
    before, after = json.loads(done.stdout.splitlines()[-1])
    assert after == before


def test_environment_is_looked_up_once_and_handed_out_as_a_copy(monkeypatch):
    first = environment()
    monkeypatch.setattr("r3bench.training.environment.git", lambda *_: pytest.fail("asked again"))
    first["packages"]["torch"] = "changed"
    assert environment()["packages"]["torch"] != "changed"
