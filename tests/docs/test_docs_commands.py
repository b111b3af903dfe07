"""The pages of docs/ are walked: every file saved, every command run as printed, every output compared.

A page's blocks share one working directory, empty at first. The shipped `quickstart` recipe and grid are replaced
by smaller ones of the same names, so that a command needs no changes to be quick.
"""

import contextlib
import glob
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner
from walk import DOCS, NEEDS, Block, blocks, missing_line

from r3bench import catalog
from r3bench.cli import app
from r3bench.config.load import parse_recipe
from r3bench.sweep.grid import load_grid, parse_grid

ELSEWHERE = {  # pages whose commands need a prepared study, or that have none
    "design.md": None,  # sketches of the interface
    "sentences.md": None,  # what is printed, checked by tests/analysis/test_analysis_sentences.py
    "statistics.md": "tests/analysis/test_analysis_docs.py",
    "tables.md": "tests/analysis/test_analysis_docs.py",
}
SHELL = {"sweep.md": "tests/sweep/test_sweep_docs.py"}  # `sh` blocks: their cells are toys
SILENT = {"", "json", "text"}  # languages of what is shown and not done
WALKED = {page.name: blocks(page.read_text()) for page in sorted(DOCS.glob("*.md")) if page.name not in ELSEWHERE}
SMALL = {  # of the quickstart recipe: two questions a step, which come back at every step
    "data": {"limit": 2},
    "trainer": {"max_steps": 3, "save_steps": 1, "per_device_train_batch_size": 16},
    "eval": {"limit": 8, "samples": 2},
}
SMALL_GRID = {
    "budget": {"steps": 3}, "eval": {"limit": 8, "samples": 2}, "executor": {"kind": "inline"}, "seeds": [0, 1],
}  # fmt: skip


def runs_something(found: list[Block]) -> bool:
    return any(block.language in ("bash", "python", "yaml") or block.saved_as for block in found)


QUICKSTART: list[Path] = []  # a copy of the study that the first page makes, for those that only use it
PAGES = sorted((name for name, found in WALKED.items() if runs_something(found)), key="first-grid.md".__ne__)
SLOW = [name for name in PAGES if any(block.slow for block in WALKED[name])]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a page; what is shipped is as shipped, apart from a small quickstart."""
    shipped = tmp_path / "shipped"
    shutil.copytree(catalog.shipped("ablations"), shipped)
    recipe = shipped / "recipes" / "quickstart.yaml"
    values = yaml.safe_load(recipe.read_text())
    for section, changes in SMALL.items():
        values[section].update(changes)
    recipe.write_text(yaml.safe_dump(values))
    shrink(shipped / "quickstart.yaml", {"set": {"data.limit": 2}})
    original = catalog.shipped
    monkeypatch.setattr(catalog, "shipped", lambda name: shipped if name == "ablations" else original(name))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "120")
    return work


def shrink(grid: Path, more: dict | None = None) -> None:
    values = yaml.safe_load(grid.read_text())
    grid.write_text(yaml.safe_dump({**values, **SMALL_GRID, **(more or {})}, sort_keys=False))


@pytest.mark.parametrize("page", PAGES)
def test_page(folder: Path, page: str) -> None:
    walk(page, [block for block in WALKED[page] if not block.slow])


@pytest.mark.slow
@pytest.mark.parametrize("page", SLOW)
def test_page_with_its_slow_commands(folder: Path, page: str) -> None:
    walk(page, WALKED[page])


def walk(page: str, found: list[Block]) -> None:
    """Do what the blocks of a page say, in the current directory."""
    for block in found:
        where = f"docs/{page}:{block.line}"
        if block.needs:
            assert block.needs in NEEDS, where
        elif block.saved_as:
            save(block, where)
        elif block.language == "bash":
            printed = "".join(run(command, block, where) for command in block.commands)
            if block.output is not None:
                assert (line := missing_line(block.output, printed)) is None, f"{where}: {line!r} not in\n{printed}"
        elif block.language == "python":
            exec(compile(block.text, where, "exec"), {"__name__": "docs"})
        elif block.language == "yaml":
            check_yaml(block.text, where)


def save(block: Block, where: str) -> None:
    assert block.saved_as is not None
    path = Path(block.saved_as)
    assert not path.is_absolute(), where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text)
    if path.suffix == ".yaml" and re.search(r"^factors:", block.text, re.M):
        load_grid(str(path))  # as it is printed
        shrink(path)


def check_yaml(text: str, where: str) -> None:
    values = yaml.safe_load(text)
    if "factors" in values:
        parse_grid({"name": "page", **values}, where)
    else:
        parse_recipe(values, where)


def run(command: str, block: Block, where: str) -> str:
    """Output of a command; r3bench and pytest run in this process, since importing TRL takes seconds."""
    words = [name for word in shlex.split(command, comments=True) for name in sorted(glob.glob(word)) or [word]]
    environment = {}
    while re.match(r"[A-Z][A-Z0-9_]*=", words[0]):
        key, _, environment[key] = words.pop(0).partition("=")
    made = Path("runs/quickstart")
    again = words[0] == "r3bench" and words[1:] in (["quickstart", "--quiet"], ["ablate", "quickstart", "--quiet"])
    if again and QUICKSTART and not made.exists():  # an earlier page's: the command finds every run finished
        shutil.copytree(QUICKSTART[0], made)
    if words[:3] == ["python", "-m", "pytest"]:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            code = int(pytest.main([*words[3:], "--rootdir=.", "-p", "no:cacheprovider", "-p", "no:xdist"]))
        printed = out.getvalue()
    elif words[0] == "r3bench" and not set(words) & {"|", ">", "&", "&&", ";"}:
        result = CliRunner(env=environment).invoke(app, words[1:])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        code, printed = result.exit_code, result.output
    else:
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        code, printed = done.returncode, done.stdout + done.stderr
    if made.exists() and words[:2] == ["r3bench", "quickstart"] and not QUICKSTART:
        QUICKSTART.append(Path(shutil.copytree(made, Path.cwd().parent / "quickstart")))
    assert code == block.exit_code, f"{where}: {command}: exit code {code}\n{printed}"
    return printed


# ------------------------------------------------------------------------------------------------ every page


def test_every_block_is_run_or_marked() -> None:
    """A block is walked here, run by the test file that is named for it, or shows something and holds no command."""
    for page in sorted(DOCS.glob("*.md")):
        for block in blocks(page.read_text()):
            where = f"docs/{page.name}:{block.line}"
            if page.name in ELSEWHERE:
                runner = ELSEWHERE[page.name]
                assert runner is not None or block.language not in ("bash", "sh"), where
            elif block.language == "sh":
                runner = SHELL.get(page.name)
                assert runner is not None, f"{where}: say bash, so that it is walked"
            else:
                runner = None
                assert block.language in {"bash", "python", "yaml", *SILENT}, f"{where}: {block.language}"
            if runner is not None:
                assert page.name in (DOCS.parent / runner).read_text(), f"{runner} doesn't read {page.name}"
            hidden = block.language in SILENT and not block.saved_as and re.search(r"^\$? ?r3bench ", block.text, re.M)
            assert not hidden or block.language == "text", f"{where}: a command that nothing runs"


def test_every_fence_is_a_block() -> None:
    """The reader of blocks skips none: every opening fence of a page is one that it found."""
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text()
        outputs = len(re.findall(r"^```\n(?:<!-- [^\n]* -->\n)*```text\n", text, re.M))
        assert len(re.findall(r"^ *(?:```|~~~)", text, re.M)) == 2 * (len(blocks(text)) + outputs), page.name


def test_commands_in_running_text_exist() -> None:
    from typer.main import get_command

    known = get_command(app).commands  # type: ignore[attr-defined]
    for page in (DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))):
        for text in re.findall(r"(?<!`)`r3bench ([^`]+)`(?!`)", page.read_text()):
            name, *words = text.replace("\n", " ").split()
            if name == "COMMAND" or name.startswith("-"):
                continue
            assert name in known, f"{page.name}: r3bench {text}"
            options = {option for parameter in known[name].params for option in parameter.opts}
            wrong = [word for word in words if word.startswith("--") and word not in {*options, "--help"}]
            assert not wrong, f"{page.name}: r3bench {text}"


def test_links_lead_to_pages_and_headings() -> None:
    headings = {page.name: anchors(page.read_text()) for page in DOCS.glob("*.md")}
    for page in sorted(DOCS.glob("*.md")):
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]+))?\)", page.read_text()):
            path = (page.parent / target) if target else page
            assert path.exists(), f"{page.name}: {target}"
            if anchor:
                assert anchor in headings[path.name], f"{page.name}: {target}#{anchor}"


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings, as GitHub and mkdocs make them."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_the_site_shows_every_page() -> None:
    class Loose(yaml.SafeLoader):
        """mkdocs.yml names Python objects; here they are only text."""

    Loose.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda loader, suffix, node: suffix)
    site = yaml.load((DOCS.parent / "mkdocs.yml").read_text(), Loose)
    shown = re.findall(r"[\w-]+\.md", str(site["nav"]))
    assert sorted(shown) == sorted(page.name for page in DOCS.glob("*.md"))


# ------------------------------------------------------------------------------------------------ the walk itself

PAGE = """
Then save this as `a/b.txt`:

```
hello
```

<!-- exit: 3 -->
```bash
cat a/b.txt && exit 3  # a comment
```

```bash
echo one; echo two; echo three
```
```text
one
...
three
```

<!-- needs: gpu -->
```bash
false
```
"""


def test_a_walk_saves_runs_and_compares(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walk("made-up.md", blocks(PAGE))
    assert (folder / "a" / "b.txt").read_text() == "hello\n"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("exit: 3", "exit: 4"),
        lambda text: text.replace("...\n", ""),
        lambda text: text.replace("...\nthree", "...\nfour"),
        lambda text: text.replace("<!-- needs: gpu -->\n", ""),
        lambda text: text.replace("save this as", "this is"),
    ],
)
def test_a_walk_fails_where_a_page_is_wrong(folder: Path, change: Callable[[str], str]) -> None:
    assert change(PAGE) != PAGE
    with pytest.raises(AssertionError):
        walk("made-up.md", blocks(change(PAGE)))
