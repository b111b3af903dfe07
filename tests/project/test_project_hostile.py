"""Names and paths that can't be: every command answers in one line."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

LONG = "x" * 300


@pytest.mark.parametrize(
    "command",
    [
        ("status", LONG),
        ("tables", LONG),
        ("report", LONG),
        ("trace", LONG, "base"),
        ("analyze", LONG),
        ("plan", "quickstart", "--from", LONG),
        ("plan", f"{LONG}.yaml"),
        ("validate", f"{LONG}.yaml"),
        ("eval", LONG),
        ("grade", LONG),
        ("compare", LONG, "x"),
        ("status", "--runs", LONG, "x"),
        ("ablate", "quickstart", "--runs", LONG),
        ("train", "quickstart", "--runs", LONG),
        ("compare", "a**b", "x"),
        ("compare", "", "x"),
        ("grade", "**x"),
        ("grade", "[x"),
        ("ablate", "quickstart", "--runs", "file"),
        ("train", "quickstart", "--runs", "file"),
        ("status", "x", "--runs", "file"),
        ("ablate", "quickstart", "--runs", "dangling"),
        ("train", "quickstart", "--runs", "dangling"),
        ("ablate", "quickstart", "--study", "../../evil"),
        ("ablate", "quickstart", "--study", ""),
        ("copy", "quickstart", "file", "--kind", "grids"),
        ("copy", "quickstart", "file/deeper", "--kind", "grids"),
    ],
    ids=lambda words: " ".join(words).replace(LONG, "LONG"),
)
def test_a_name_that_cannot_be_is_one_line(
    r3bench: Callable[..., Result], folder: Path, command: tuple[str, ...]
) -> None:
    (folder / "file").write_text("kept")
    (folder / "dangling").symlink_to(folder / "nowhere" / "deeper")
    result = r3bench(*command)
    assert result.exit_code in (1, 2, 3)
    assert result.stderr.startswith("r3bench: ") and result.stderr.count("\n") == 1
    assert (folder / "file").read_text() == "kept"
    assert not (folder.parent / "evil").exists()


@pytest.mark.parametrize(
    "command", [("compare", "nowhere", "x"), ("grade", "nowhere"), ("grade", "nowhere", "--regrade")]
)
def test_a_run_that_is_not_there_is_said_to_be_that(
    r3bench: Callable[..., Result], folder: Path, command: tuple[str, ...]
) -> None:
    result = r3bench(*command)
    assert result.exit_code == 3
    assert result.stderr == "r3bench: run 'nowhere': no such folder, nor a run below runs\n"


def test_copy_to_a_file_without_an_ending_asks_for_force(r3bench: Callable[..., Result], folder: Path) -> None:
    (folder / "file").write_text("kept")
    result = r3bench("copy", "quickstart", "file", "--kind", "grids")
    assert result.stderr == "r3bench: file: already there; --force replaces it\n"
    assert r3bench("copy", "quickstart", "file", "--kind", "grids", "--force").stdout == "file\n"
    assert "factors" in (folder / "file").read_text()
