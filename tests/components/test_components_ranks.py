"""1, 2 and 4 processes (gloo, DDP and FSDP2) on the same answers: equal losses, gradients, history and critic."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
SAME = ["four", "fsdp", "split", "lora", "iterations", "rivals", "idle", "one-sided"]  # whatever the number of ranks
FOUR = ["ranking/rows", "reflection/groups", "replay/rows", "retrospective/groups"]
ACTED = {
    "four": FOUR, "fsdp": FOUR, "split": FOUR, "lora": FOUR, "iterations": FOUR, "rivals": ["repo/rows", "exgrpo/rows"],
    "one-sided": ["ranking/rows", "replay/rows"], "resampling": ["dynamic_sampling/groups_dead", "replay/rows"],
}  # fmt: skip


def start(model, folder, ranks, cases):
    """What each of `ranks` processes reports."""
    path = os.pathsep.join([str(HERE), str(HERE.parent / "trainer")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *torchrun, str(HERE / "components_ranks.py"), model, str(folder), *cases]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"rank-{rank}-of-{ranks}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def two(tiny_model, folder):
    return start(tiny_model, folder, 2, [*SAME, "resampling"])


@pytest.fixture(scope="module")
def alone(tiny_model, folder, two):
    (result,) = start(tiny_model, folder, 1, [*SAME, "resume:four-2/checkpoint-3"])
    return result


@pytest.fixture(scope="module")
def four(tiny_model, folder, alone):
    return start(tiny_model, folder, 4, [*SAME, "resampling", "resume:resumed-1/checkpoint-6"])


def check_same(one, other):
    """The same batches, and what was computed from them equal to float tolerance."""
    assert one["history"][0] == other["history"][0]
    assert set(one["evidence"]) == set(other["evidence"])
    for key, value in one["evidence"].items():
        assert other["evidence"][key] == pytest.approx(value, abs=1e-3), key
    for key, values in one["stream"].items():  # loss and gradient norm of every step, and the reward
        np.testing.assert_allclose(other["stream"][key], values, rtol=1e-4, atol=2e-6, err_msg=key)
    for key in ("weights", "critic", "measured"):  # `measured`: behaviour log-probs and entropies in the history
        a, b = (np.array(result[key], float) for result in (one, other))
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=2e-5, err_msg=key)


def check_case(case, alone, ranks):
    for result in ranks:
        check_same(alone[case], result[case])
        assert result[case]["sharded"] == (case == "fsdp")
    assert sum(result[case]["history"][1] for result in ranks) == alone[case]["history"][1] > 0
    assert max(map(abs, alone[case]["stream"]["loss"])) > 1e-3
    assert max(alone[case]["stream"]["grad_norm"]) > 1e-2
    if case in ("four", "fsdp", "lora", "iterations", "idle"):
        assert np.any(alone[case]["critic"]), "the critic learnt nothing"


@pytest.mark.parametrize("case", SAME)
def test_two_ranks_train_as_one(alone, two, case):
    check_case(case, alone, two)


@pytest.mark.slow
@pytest.mark.parametrize("case", SAME)
def test_four_ranks_train_as_one(alone, four, case):
    check_case(case, alone, four)


@pytest.mark.parametrize("case", ACTED)
def test_every_component_acted(two, case):
    assert all(two[1][case]["evidence"].get(key, 0) > 0 for key in ACTED[case]), two[1][case]["evidence"]


def test_groups_sampled_again_are_the_same_on_both_ranks(two):
    check_same(two[0]["resampling"], two[1]["resampling"])


def test_resumed_on_one_process_after_two(alone):
    """History, critic, losses and weights are those of a run that was never cut."""
    check_same(alone["four"], alone["resume"])


@pytest.mark.slow
def test_resumed_on_four_processes_after_two_and_one(alone, four):
    for result in four:
        check_same(alone["four"], result["resume"])
        check_same(four[0]["resampling"], result["resampling"])
    assert sum(result["resume"]["history"][1] for result in four) == alone["four"]["history"][1]
    assert all(result["resume"]["history"][1] for result in four)
