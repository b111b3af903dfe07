"""1, 2 and 4 processes (gloo, DDP and FSDP2) on the same answers: equal losses, gradients, history and critic."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import world

HERE = Path(__file__).parent
SAME = ["four", "rivals", "silent", "silent-split", "tools"]  # whatever the number of ranks
REST = ["fsdp", "split", "lora", "iterations", "idle", "one-sided"]  # likewise, in the slow tests
MORE = ["fsdp-split", "fsdp-lora", "fsdp-saved", "lora-iterations", "accumulated", "odd"]  # as well, in the slow tests
FOUR = ["ranking/rows", "reflection/groups", "replay/rows", "retrospective/groups"]
ACTED = {
    "four": FOUR, "fsdp": FOUR, "split": FOUR, "lora": FOUR, "iterations": FOUR, "rivals": ["repo/rows", "exgrpo/rows"],
    "one-sided": ["ranking/rows", "replay/rows"], "silent": FOUR[:3], "silent-split": ["ranking/rows", "replay/rows"],
    "tools": ["replay/rows", "retrospective/groups"], "resampling": ["dynamic_sampling/groups_dead", "replay/rows"],
}  # fmt: skip


def start(model, folder, ranks, cases, torchrun=False, refused=False):
    """What each of `ranks` processes reports; with `refused` what they say on stderr."""
    path = os.pathsep.join([str(HERE), str(HERE.parent / "trainer")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    agent = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    agent = agent if torchrun or ranks > 1 else []
    command = [sys.executable, *agent, str(HERE / "components_ranks.py"), model, str(folder), *cases]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert (done.returncode == 0) != refused, done.stderr[-3000:]
    if refused:
        return done.stderr
    return [json.loads((folder / f"rank-{rank}-of-{ranks}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("ranks")
    world.build("qwen2", made / "qwen")
    return made


@pytest.fixture(scope="module")
def two(tiny_model, folder):
    return start(tiny_model, folder, 2, [*SAME, "resampling"])


@pytest.fixture(scope="module")
def alone(tiny_model, folder, two):
    (result,) = start(tiny_model, folder, 1, [*SAME, "four:four-2/checkpoint-3"])
    return result


@pytest.fixture(scope="module")
def four(tiny_model, folder, alone):
    return start(tiny_model, folder, 4, [*SAME, *REST, "resampling", "four:resumed-four-1/checkpoint-6"])


@pytest.fixture(scope="module")
def rest_two(tiny_model, folder):
    return start(tiny_model, folder, 2, REST)


@pytest.fixture(scope="module")
def rest_alone(tiny_model, folder, rest_two):
    (result,) = start(tiny_model, folder, 1, REST)
    return result


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
        assert result[case]["sharded"] == ("fsdp" in case)
    assert sum(result[case]["history"][1] for result in ranks) == alone[case]["history"][1] > 0
    assert max(map(abs, alone[case]["stream"]["loss"])) > 1e-3
    assert max(alone[case]["stream"]["grad_norm"]) > 1e-2
    if case in ("four", "fsdp", "lora", "iterations", "idle", *MORE):
        assert np.any(alone[case]["critic"]), "the critic learnt nothing"


@pytest.mark.parametrize("case", SAME)
def test_two_ranks_train_as_one(alone, two, case):
    check_case(case, alone, two)


@pytest.mark.slow
@pytest.mark.parametrize("case", REST)
def test_two_ranks_train_as_one_in_other_settings(rest_alone, rest_two, case):
    check_case(case, rest_alone, rest_two)
    acted = rest_two[1][case]["evidence"]
    assert all(acted.get(key, 0) > 0 for key in ACTED.get(case, [])), acted


@pytest.mark.slow
@pytest.mark.parametrize("case", [*SAME, *REST])
def test_four_ranks_train_as_one(alone, rest_alone, four, case):
    check_case(case, rest_alone if case in REST else alone, four)


@pytest.mark.parametrize("case", [*SAME, "resampling"])
def test_every_component_acted(two, case):
    assert all(two[1][case]["evidence"].get(key, 0) > 0 for key in ACTED[case]), two[1][case]["evidence"]


def test_groups_sampled_again_are_the_same_on_both_ranks(two):
    check_same(two[0]["resampling"], two[1]["resampling"])


def test_resumed_on_one_process_after_two(alone):
    """History, critic, losses and weights are those of a run that was never cut."""
    check_same(alone["four"], alone["four:four-2/checkpoint-3"])


@pytest.mark.slow
def test_resumed_on_four_processes_after_two_and_one(alone, four):
    resumed = [result["four:resumed-four-1/checkpoint-6"] for result in four]
    for result in resumed:
        check_same(alone["four"], result)
    for result in four:
        check_same(four[0]["resampling"], result["resampling"])
    assert sum(result["history"][1] for result in resumed) == alone["four"]["history"][1]
    assert all(result["history"][1] for result in resumed)


LORA, SHARDED, ADAPTERS = "lora-iterations", "fsdp-saved", "fsdp-lora"


@pytest.fixture(scope="module")
def more_two(tiny_model, folder):
    return start(tiny_model, folder, 2, [*MORE, *(f"{name}:{name}-2/checkpoint-3" for name in (SHARDED, ADAPTERS))])


@pytest.fixture(scope="module")
def more_alone(tiny_model, folder, more_two):
    (result,) = start(tiny_model, folder, 1, [*MORE, f"{LORA}:{LORA}-2/checkpoint-12"])
    return result


@pytest.fixture(scope="module")
def more_sharded_alone(tiny_model, folder, more_two):
    cases = [f"{name}:{name}-2/checkpoint-3" for name in (SHARDED, ADAPTERS)]
    (result,) = start(tiny_model, folder, 1, cases, torchrun=True)
    return result


@pytest.fixture(scope="module")
def more_four(tiny_model, folder, more_sharded_alone):
    resumed = [f"{name}:resumed-{name}-1/checkpoint-6" for name in (SHARDED, ADAPTERS)]
    return start(tiny_model, folder, 4, [*MORE, *resumed, f"{LORA}:{LORA}-2/checkpoint-12"])


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE)
def test_combinations_train_alike_on_one_two_and_four_ranks(more_alone, more_two, more_four, case):
    """Sharded adapters and split groups; several batches an update, several updates a batch, batches cut by updates."""
    for ranks in (more_two, more_four):
        check_case(case, more_alone, ranks)
    assert all(more_alone[case]["evidence"].get(key, 0) > 0 for key in FOUR), more_alone[case]["evidence"]


@pytest.mark.slow
@pytest.mark.parametrize("case", [SHARDED, ADAPTERS])
def test_sharded_runs_resumed_on_two_one_and_four_ranks(more_two, more_sharded_alone, more_four, case):
    """FSDP2 with Adam: history, critic, optimiser and the order of the data are those of a run that was never cut."""
    results = [
        [result[f"{case}:{case}-2/checkpoint-3"] for result in more_two],
        [more_sharded_alone[f"{case}:{case}-2/checkpoint-3"]],
        [result[f"{case}:resumed-{case}-1/checkpoint-6"] for result in more_four],
    ]
    for ranks in results:
        for result in ranks:
            check_same(more_two[0][case], result)
            assert result["sharded"]
        assert (
            sum(result["history"][1] for result in ranks)
            == more_two[0][case]["history"][1] + (more_two[1][case]["history"][1])
        )


@pytest.mark.slow
def test_adapters_and_several_updates_a_batch_resumed_on_one_and_four_ranks(more_alone, more_four):
    for result in (more_alone, *more_four):
        check_same(more_alone[LORA], result[f"{LORA}:{LORA}-2/checkpoint-12"])


@pytest.mark.slow
def test_a_checkpoint_of_another_strategy_is_refused_on_every_rank(tiny_model, folder, more_two):
    """transformers would fail on one rank, with the others waiting for it, or go on with a new optimizer."""
    said = start(tiny_model, folder, 1, [f"{SHARDED}:{SHARDED}-2/checkpoint-3"], refused=True)
    assert "StateError: " in said
    assert "checkpoint-3: was written by FSDP (--strategy fsdp2), and this run trains with DDP" in said
    said = start(tiny_model, folder, 2, [f"{SHARDED}:{LORA}-2/checkpoint-12"], refused=True)
    assert "checkpoint-12: was written by DDP (--strategy ddp, or one process), and this run trains with FSDP" in said
    assert said.count("StateError: ") == 2


@pytest.mark.parametrize("case", ["silent", "silent-split", "tools"])
def test_masks_of_replayed_rows_from_either_rank(two, case):
    """What an environment or tool wrote is masked wherever a row is replayed, on the rank that sampled it or not."""
    seen = [rank[case]["masks"] for rank in two]
    fresh = [{tuple(ids): mask for ids, mask, replayed in rows if not replayed} for rows in seen]
    elsewhere = 0
    for rank, rows in enumerate(seen):
        for ids, mask, replayed in rows:
            if replayed:
                own, other = (fresh[at].get(tuple(ids)) for at in (rank, 1 - rank))
                if case == "tools":
                    assert mask in (own, other)
                else:  # as the rollout_func gave it; a row that gave way was never seen in a batch
                    assert mask == [int(place == 0 or (token + place) % 3 > 0) for place, token in enumerate(ids)]
                elsewhere += own is None and other is not None
    assert elsewhere > 0, "no row was replayed on a rank that had not sampled it"
    assert any(not all(mask) for rows in seen for _, mask, replayed in rows if replayed)


@pytest.mark.parametrize("case", ["silent", "silent-split"])
def test_nothing_of_unjudged_rows_is_stored_on_either_rank(two, case):
    """Two questions are never judged and of others every other row; the ranks still agree on everything else."""
    stored = two[0][case]["stored"]
    assert stored == two[1][case]["stored"]
    assert {"q5", "q11"}.isdisjoint(stored)
    assert {"q0", "q1", "q4", "q7"} <= set(stored)
    for number in (1, 4, 7, 10):
        assert all(total % 2 == 0 for total in stored.get(f"q{number}", []))
