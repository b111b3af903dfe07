"""The GPU check's own code, on the CPU: its table, a row that fails, rows that need what isn't there."""

import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from r3bench import catalog


@pytest.fixture(scope="module")
def check() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"
    spec = importlib.util.spec_from_file_location("gpu_check", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_one_table(
    check: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--cpu", "--steps", "2", "--only", "stock,off,bfloat16,replay,vllm"]
    assert check.main(arguments) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("CPU, embedded, torch ")
    assert re.split(r"\s{2,}", out[1].strip()) == ["s/step", "x stock", "peak GB", "busy GB", "changed %", "tokens"]
    rows = {line.split()[0]: line.split() for line in out[2:]}
    assert list(rows) == ["stock", "off", "bfloat16", "replay", "vllm"]
    assert rows["stock"][2] == "1.00"
    assert rows["stock"][5:9] == rows["off"][5:9], "the same weights changed, the same answers"
    moved = {name: float(row[5]) for name, row in rows.items() if name != "vllm"}
    assert moved["off"] > 99 and moved["bfloat16"] < 5, "bfloat16 rounds the updates away"
    assert all(float(rows[name][1]) > 0 for name in ("stock", "off", "replay"))
    assert "not run: needs a GPU" in out[-1]

    monkeypatch.setattr(check, "scripted", lambda completion_ids, **_: [float("inf")] * len(completion_ids))
    assert check.main(["--cpu", "--steps", "1", "--only", "off"]) == 1
    assert "failed: Diverged" in capsys.readouterr().out


def test_it_says_what_it_can_not_do(check: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        check.main(["--cpu", "--only", "of"])
    assert ended.value.code == 2
    assert "no row 'of'; rows: stock, off, " in capsys.readouterr().err


def test_it_ends_in_time(check: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """No row starts late, and one in other processes that hangs is killed with all of them."""
    assert check.main(["--cpu", "--only", "off,replay", "--minutes", "-1"]) == 0
    assert capsys.readouterr().out.count("not run: out of time") == 2
    script = "import subprocess; print(1, flush=True); subprocess.run(['sleep', '999'])"
    code, out, err = check.finished([sys.executable, "-c", script], dict(os.environ), patience=3.0)
    assert (code, out, err) == (1, "1\n", "TimeoutError: no answer in 3 s")  # and not when `sleep` lets go of the pipe


def test_every_row_the_check_is_for(check: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        check.main(["--cpu", "--only", "?"])
    rows = capsys.readouterr().err.partition("rows: ")[2].strip().split(", ")
    alone = ["vllm", "vllm asleep", "vllm+four", "8k", "8k product", "fsdp2"]
    kinds = rows[4 : rows.index("vllm")]
    assert rows[:4] == ["stock", "off", "float32", "bfloat16"] and "eager" in kinds
    assert rows[4 + len(kinds) :][:6] == alone
    assert set(rows[4 + len(kinds) + 6 :]) == set(catalog.component_names())
    assert set(check.FOUR) < set(rows)


def test_what_the_correction_leaves_of_the_longest_answers(check: ModuleType) -> None:
    history = [
        {"correction/1-512_tokens/median": 0.9, "correction/2049-8192_tokens/median": 0.2, "loss": 0.0},
        {"correction/2049-8192_tokens/median": 0.4, "correction/2049-8192_tokens/q10": 0.1},
        {"train_runtime": 3.0},
    ]
    assert check.weights_left(history) == "weight left of answers of 2049-8192 tokens: q10 0.100, median 0.300"
    assert check.weights_left([{"loss": 1.0}]) == "no correction"
