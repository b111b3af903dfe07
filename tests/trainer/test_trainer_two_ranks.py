"""Two processes (gloo): off is stock there too, replay acts on both, nobody waits for the other, FSDP2 shards."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def ranks(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2",
        str(HERE / "two_ranks.py"), tiny_model, str(folder),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    reports = [json.loads((folder / f"rank-{rank}-of-2.json").read_text()) for rank in range(2)]
    return [{**report, "folder": folder} for report in reports]


@pytest.mark.parametrize("name", ["whole", "split"])
def test_off_is_stock(ranks, name):
    for rank in ranks:
        assert rank[f"{name}-stock"][1], "nothing was sampled"
        assert rank[f"{name}-ours"] == rank[f"{name}-stock"]
    assert ranks[0][f"{name}-ours"][1] != ranks[1][f"{name}-ours"][1]


@pytest.mark.parametrize("mode", ["append", "replace"])
def test_replay_acts_and_ranks_agree(ranks, mode):
    first, second = (rank[f"replay-{mode}"] for rank in ranks)
    assert first[1]["replay/rows"] > 0
    assert first[1] == second[1]
    assert first[2] == second[2], "weights differ between the ranks"
    assert first[3] == second[3], "the history differs between the ranks"
    shares = [rank[f"share-{mode}"] for rank in ranks]
    assert sum(shares) == 6 * 8
    assert all(shares)


def test_replay_replaces_rows_of_groups_split_over_ranks(ranks):
    assert ranks[0]["replay-split"] == ranks[1]["replay-split"]
    assert ranks[0]["replay-split"][1]["replay/rows"] > 0


def test_fsdp2_trains_resumes_and_saves_with_all_components(ranks):
    first, second = (rank["fsdp"] for rank in ranks)
    assert first["sharded"]
    assert first == second, "the ranks differ"
    for key in ("ranking/rows", "reflection/groups", "replay/rows", "retrospective/groups"):
        assert first["evidence"][0].get(key, 0) > 0, key
    assert first["complete"]
    for key in ("streams", "evidence", "digest", "critic"):
        whole, cut = first[key]
        assert cut == whole, f"the resumed run differs in {key}"
    assert len(first["streams"][0]) == 6
    assert any(first["critic"][0])
    model = AutoModelForCausalLM.from_pretrained(ranks[0]["folder"] / "fsdp" / "model")
    assert all(p.isfinite().all() for p in model.parameters())
