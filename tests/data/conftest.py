"""Fixtures of the data and model tests: rows on disk, a stand-in for the hub, one embedded model for the session."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from r3bench.config.sections import DataSection


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with real problem sets."""
    folder = os.environ.get("R3BENCH_DATA")
    if not folder:
        pytest.skip("R3BENCH_DATA is not set: no real problem sets")
    return Path(folder)


@pytest.fixture
def no_local_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without local copies."""
    monkeypatch.delenv("R3BENCH_DATA", raising=False)


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., DataSection]:
    """Writes rows (or raw bytes) to a file and returns the section that names it."""

    def write(content: list[Any] | bytes, **section: Any) -> DataSection:
        path = tmp_path / "rows.jsonl"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in content))
        return DataSection(name=str(path), **section)

    return write


@pytest.fixture(scope="session")
def embedded_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The embedded model, built through the public function into a cache of this session's own."""
    from r3bench.training.models.load import model_folder

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("R3BENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        return model_folder("embedded")
