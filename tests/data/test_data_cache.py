"""The model cache: built once by many, never torn by a kill."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from r3bench.errors import StateError
from r3bench.training.models.cache import cache_root, cached_folder

SCRIPT = Path(__file__).with_name("cache_process.py")


def start(journal: Path, seconds: float) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(journal), str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("R3BENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_processes_that_ask_at_once_build_once(tmp_path: Path, cache: Path) -> None:
    journal = tmp_path / "journal"
    outputs = [process.communicate()[0].strip() for process in [start(journal, 1.0) for _ in range(4)]]
    assert outputs == [str(cache / "thing")] * 4
    assert len(journal.read_text().splitlines()) == 1


def test_a_kill_in_the_middle_leaves_nothing_torn(tmp_path: Path, cache: Path) -> None:
    journal = tmp_path / "journal"
    process = start(journal, 600)
    while not list(cache.glob(".thing.*.tmp/first")):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (cache / "thing").exists()
    assert start(journal, 0).communicate()[0].strip() == str(cache / "thing")
    assert sorted(path.name for path in (cache / "thing").iterdir()) == ["first", "second"]
    assert not list(cache.glob(".thing.*")), "what the killed process left is cleared away"


def test_a_failed_build_leaves_nothing(cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cached_folder("bad", fail, "failing")
    assert [path.name for path in cache.iterdir() if not path.name.endswith(".lock")] == []
    assert cached_folder("bad", lambda folder: None, "trying again").is_dir()


def test_progress_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        cached_folder("x", lambda folder: None, "building x")
    assert capsys.readouterr().err.count("building x") == 1


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R3BENCH_CACHE", "/a")
    assert cache_root() == Path("/a")
    monkeypatch.delenv("R3BENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_root() == Path("/b/r3bench")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "r3bench"


def test_an_unusable_cache_folder_is_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("R3BENCH_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(StateError, match="set R3BENCH_CACHE to a writable folder"):
        cached_folder("x", lambda folder: None, "building x")
