"""The README's example files and commands work as they are printed; every page's commands are commands."""

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import Result

from r3bench import catalog
from r3bench.cli import app
from r3bench.config.load import load_recipe

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str, language: str) -> list[str]:
    """The contents of the fenced blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def program_lines(text: str) -> Iterator[list[str]]:
    """The arguments of every `r3bench ...` line in the shell blocks."""
    for block in blocks(text, "bash") + blocks(text, "sh") + blocks(text, "console"):
        for line in block.replace("\\\n", " ").splitlines():
            line = line.removeprefix("$ ")
            if line.startswith("r3bench "):
                yield shlex.split(line, comments=True)[1:]


@pytest.fixture
def saved(folder: Path) -> Path:
    """A directory with the README's grid and component saved where it says."""
    for sentence, suffix, language in (("ablations/mine", "yaml", "yaml"), ("components/brevity", "py", "python")):
        assert f"save this as `{sentence}.{suffix}`" in README
        (text,) = [b for b in blocks(README, language) if "seeds:" in b or "class Brevity" in b]
        path = folder / f"{sentence}.{suffix}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_on_a_page_is_one(page: Path) -> None:
    group = get_command(app)
    for words in program_lines(page.read_text()):
        name, *arguments = words
        if not name.startswith("-"):
            assert name in group.commands, words  # type: ignore[attr-defined]
            group.commands[name].make_context(name, arguments)  # type: ignore[attr-defined]


def test_the_index_leads_to_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert not {name for name in pages if f"]({name})" not in index}


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_cheap_commands_of_the_readme(r3bench: Callable[..., Result], saved: Path) -> None:
    done = 0
    for words in program_lines(README):
        if words[0] in ("list", "validate", "copy"):
            result = r3bench(*words)
            assert result.exit_code == 0, (words, result.stderr)
            done += 1
    assert done >= 5
    assert {e.name for e in catalog.entries("grids") if not e.shipped} == {"mine", "quickstart"}


def test_the_readmes_component_is_configured_as_it_says(saved: Path) -> None:
    assert load_recipe("quickstart", ["components.brevity=on"]).components == {"brevity": {"amount": 0.1}}


@pytest.mark.slow
def test_the_readmes_runs(r3bench: Callable[..., Result], saved: Path) -> None:
    """Its training commands, cut to a few steps and questions."""
    for words in program_lines(README):
        if words[0] == "train":
            result = r3bench(*words, "trainer.max_steps=2", "eval.limit=8", "--quiet")
            assert result.exit_code == 0, (words, result.stderr)
    grid = saved / "ablations" / "mine.yaml"
    grid.write_text(grid.read_text() + "budget: {steps: 2}\neval: {limit: 8}\n")
    for words in (["ablate", "mine"], ["tables", "mine"]):
        assert r3bench(*words).exit_code == 0
    assert list(saved.glob("runs/mine/tables/*.csv"))
