"""kill -9 at random moments, started again each time: the end equals a run that was never disturbed."""

import json
import os
import subprocess
import sys
from pathlib import Path

from safetensors.torch import load_file

HERE = Path(__file__).parent
TIMINGS = ("elapsed", "step_time", "crc32")  # and the line's checksum, which is over them too


def lines(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not any(t in k for t in TIMINGS)} for row in rows]


def test_killed_runs_end_like_undisturbed_ones(tiny_model, tmp_path):
    data = tmp_path / "sums.jsonl"
    data.write_text(
        "".join(json.dumps({"id": f"q{i}", "problem": f"{i}+{i}", "answer": str(i)}) + "\n" for i in range(6))
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
    command = [sys.executable, str(HERE / "kill_runs.py"), tiny_model, str(data), str(tmp_path / "runs"), "6"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.split("REPORT ")[1])
    assert len(report["killed_at"]) >= 3
    whole, cut = tmp_path / "runs" / "whole", tmp_path / "runs" / "cut"
    assert lines(cut) == lines(whole)
    assert len(lines(whole)) == 10
    assert any(row.get("replay/rows") for row in lines(whole)), "replay never acted"
    expected, found = (load_file(run / "model" / "model.safetensors") for run in (whole, cut))
    assert all((found[key] == value).all() for key, value in expected.items())
    records = [json.loads((run / "train.json").read_text()) for run in (whole, cut)]
    for record in records:
        for timed in ("train_seconds", "digest"):  # and so is the log of metrics, which holds seconds
            record.pop(timed)
        assert record["files"].pop("metrics.jsonl")["bytes"] > 0
        record["files"].pop("model/training_args.bin")  # names the run's own folder
    differ = {name for name, one in records[0]["files"].items() if one != records[1]["files"].get(name)}
    assert not differ and records[0]["files"].keys() == records[1]["files"].keys(), differ
    assert records[0] == records[1]
