"""The site's reference of the commands is what the program has."""

import importlib.util
import re
from types import SimpleNamespace

from typer.main import get_command
from walk import DOCS

from r3bench.cli import app


def test_every_command_with_every_option_and_default_is_filled_in() -> None:
    spec = importlib.util.spec_from_file_location("commands_hook", DOCS / "make" / "commands.py")
    assert spec is not None and spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    page = (DOCS / "commands.md").read_text()
    made = hook.on_page_markdown(page, page=SimpleNamespace(file=SimpleNamespace(src_uri="commands.md")), config=None)
    assert hook.on_page_markdown(page, page=SimpleNamespace(file=SimpleNamespace(src_uri="cli.md"))) == page
    sections = dict(re.findall(r"^## r3bench (\S+)\n(.*?)(?=^## |\Z)", made, re.M | re.S))
    group = get_command(app)
    assert list(sections) == list(group.commands)  # type: ignore[attr-defined]
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        table = [line.split(" | ") for line in sections[name].splitlines() if line.startswith("| `")]
        assert len(table) == len([p for p in command.params if not p.hidden]), name
        for parameter in command.params:
            if parameter.opts[0].startswith("-"):
                (row,) = [row for row in table if re.search(rf"`{parameter.opts[0]}[ `]", row[0])]
                value = parameter.default
                nothing = value is None or value is False or value in ("", (), [])
                shown = "" if nothing else "on" if value is True else f"`{value}`"
                assert row[1].strip() == ("required" if parameter.required else shown), (name, parameter.name)
    assert "&lt;" not in sections["quickstart"]


def test_pictures_are_shown_described_and_small() -> None:
    pictures = {path.name: path for path in (DOCS / "pictures").iterdir()}
    shown = {}
    for page in [DOCS.parent / "README.md", *DOCS.glob("*.md")]:
        for words, name in re.findall(r"!\[([^]]*)\]\((?:docs/)?pictures/([^)]+)\)", page.read_text()):
            assert len(words) > 30, f"{page.name}: {name} is not described"
            shown[name] = page
    assert set(shown) == set(pictures)
    assert sum(path.stat().st_size for path in pictures.values()) < 600_000
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures.values())
