"""What all tests share: offline and single-threaded, and the command line in this process, in an empty directory."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from typer.testing import CliRunner, Result

from r3bench.cli import app


class Refuses:
    """Stands before Python's own finders: `make check` is quick because it loads no torch."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "torch":
            raise AssertionError("a test of tests/check.txt loads torch: take its file out of the list")


if os.environ.get("R3BENCH_WITHOUT_TORCH"):
    sys.meta_path.insert(0, Refuses())  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory: nothing of the user's, only what is shipped."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def r3bench(folder: Path) -> Callable[..., Result]:
    """`r3bench(*arguments)` as the console script would run it; any exception but `SystemExit` is a failure."""
    runner = CliRunner()

    def run(*arguments: str) -> Result:
        result = runner.invoke(app, list(arguments))
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run
