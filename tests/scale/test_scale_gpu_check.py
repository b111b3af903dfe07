"""The GPU check's own code, on the CPU: its table, a row that fails, rows that need what isn't there."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def check() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"
    spec = importlib.util.spec_from_file_location("gpu_check", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

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
    assert "not run: needs 1 GPU" in out[-1]

    monkeypatch.setattr(check, "scripted", lambda completion_ids, **_: [float("inf")] * len(completion_ids))
    assert check.main(["--cpu", "--steps", "1", "--only", "off"]) == 1
    assert "failed: Diverged" in capsys.readouterr().out


def test_it_says_what_it_can_not_do(check: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        check.main(["--cpu", "--only", "of"])
    assert ended.value.code == 2
    assert "no row 'of'; rows: stock, off, " in capsys.readouterr().err
