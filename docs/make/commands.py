"""The reference of every command, from the program: a hook of mkdocs that fills the page docs/commands.md.

`python docs/make/commands.py` prints it.
"""

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from r3bench.cli import app

PAGE, MARK = "commands.md", "<!-- the commands -->"


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """mkdocs' hook: the commands in place of the page's mark."""
    return markdown.replace(MARK, commands()) if page.file.src_uri == PAGE else markdown


def commands() -> str:
    """Every command in a section of Markdown."""
    found = get_command(app).commands  # type: ignore[attr-defined]
    return "".join(text for name, command in found.items() if not command.hidden for text in _section(name, command))


def _section(name: str, command: Any) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    usage = command.get_usage(context).removeprefix("Usage:").split()
    yield f"\n## r3bench {name}\n\n```text\nr3bench {' '.join(usage)}\n```\n\n{_prose(command.help)}\n"
    rows = [_row(p, context) for p in command.get_params(context) if not p.hidden and "--help" not in p.opts]
    yield "\n| argument or option | default | what it is |\n|---|---|---|\n" + "".join(rows)


def _row(parameter: Any, context: Any) -> str:
    names = [*parameter.opts, *parameter.secondary_opts]
    metavar = parameter.metavar or ""
    if not names[0].startswith("-"):
        shown = f"`{metavar or names[0].upper()}`"
    else:
        shown = ", ".join(f"`{name}{f' {metavar}' if metavar else ''}`" for name in names)
    default = "required" if parameter.required else _default(parameter.default)
    return f"| {_cell(shown)} | {default} | {_cell(_prose(parameter.help or ''))} |\n"


def _default(value: Any) -> str:
    """In code style; nothing for what is off or unset."""
    value = value() if callable(value) else value
    if value is None or value is False or value in ("", (), []):
        return ""
    return "on" if value is True else f"`{value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _prose(text: str) -> str:
    """One paragraph a line, nothing in it read as markup but code."""
    lines = [" ".join(part.split()) for part in text.split("\n\n")]
    return "\n\n".join(lines).replace("<", "&lt;").replace("*", "\\*")


if __name__ == "__main__":
    print(commands())
