"""FSDP2 on two CPU processes: replay acts, checkpoints resume, the saved model is an ordinary folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

from transformers import AutoModelForCausalLM

HERE = Path(__file__).parent


def test_fsdp2_trains_resumes_and_saves(tiny_model, tmp_path):
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2",
        str(HERE / "fsdp_ranks.py"), tiny_model, str(tmp_path),
    ]  # fmt: skip
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE), "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP", "FSDP_TRANSFORMER_CLS_TO_WRAP": "LlamaDecoderLayer",
        "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT", "FSDP_RESHARD_AFTER_FORWARD": "true",
        "ACCELERATE_MIXED_PRECISION": "no",
    }  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2))
    assert first["sharded"]
    assert first["evidence"] == second["evidence"]
    assert first["evidence"]["replay/rows"] > 0
    assert first["digest"] == second["digest"]
    assert first["complete"]
    whole, cut = first["streams"]
    assert len(whole) == 6
    assert cut == whole, "the resumed run differs"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert all(p.isfinite().all() for p in model.parameters())
