"""How OpenMP's threads wait: asleep under `r3bench`, unless the user says otherwise."""

import os
import subprocess
import sys

import pytest

from r3bench.threads import wait_asleep

SCRIPT = """
import os, sys
sys.argv = ["r3bench", "--version"]
from r3bench.cli import main
try:
    main()
except SystemExit:
    pass
assert "torch" not in sys.modules
print({name: value for name, value in os.environ.items() if name.startswith(("OMP_WAIT", "GOMP_SPIN", "KMP_BLOCK"))})
"""


@pytest.mark.parametrize(
    "given", [{"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "100"}, {"KMP_BLOCKTIME": "0"}, {"GOMP_SPINCOUNT": ""}]
)
def test_the_users_choice_stays(given):
    environment = dict(given)
    wait_asleep(environment)
    assert environment == given


def test_threads_sleep_by_default():
    environment = {"OMP_NUM_THREADS": "2"}
    wait_asleep(environment)
    assert environment == {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}


@pytest.mark.parametrize(
    ("given", "seen"),
    [({}, {"OMP_WAIT_POLICY": "PASSIVE"}), ({"GOMP_SPINCOUNT": "100"}, {"GOMP_SPINCOUNT": "100"})],
)
def test_the_program_sets_it_before_torch_is_loaded(given, seen):
    waiting = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    environment = {name: value for name, value in os.environ.items() if name not in waiting} | given
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(seen)
