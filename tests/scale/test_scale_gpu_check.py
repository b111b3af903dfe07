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
    arguments = ["--cpu", "--steps", "2", "--only", "stock,off,replay,vllm"]
    assert check.main(arguments) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("CPU, embedded, torch ")
    assert re.split(r"\s{2,}", out[1].strip()) == ["s/step", "x stock", "peak GB", "tokens"]
    rows = {line.split()[0]: line.split() for line in out[2:]}
    assert list(rows) == ["stock", "off", "replay", "vllm"]
    assert rows["stock"][2] == "1.00"
    assert rows["stock"][4] == rows["off"][4], "the same answers"
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
    code, out, err = check.finished([sys.executable, "-c", script], dict(os.environ), patience=10.0)
    assert (code, out, err) == (1, "1\n", "TimeoutError: no answer in 10 s")  # and not when `sleep` lets go of the pipe


def test_every_row_the_check_is_for(check: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        check.main(["--cpu", "--only", "?"])
    rows = capsys.readouterr().err.partition("rows: ")[2].strip().split(", ")
    assert rows[:6] == ["stock", "off", "float32", "vllm", "vllm+four", "fsdp2"]
    assert set(rows[6:]) == set(catalog.component_names())
    assert set(check.FOUR) < set(rows)
