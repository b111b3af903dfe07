"""The settings tables of docs/components.md, from the components' own source.

Rewrite the page after a change: `python tests/components/settings_table.py`.
"""

import dataclasses
import inspect
import re
import typing
from pathlib import Path

from r3bench import catalog

PAGE = Path(__file__).parents[2] / "docs" / "components.md"
MARK = re.compile(r"<!-- settings (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def rows(name: str) -> list[tuple[str, str, str]]:
    """(setting, default, comment) of a component; a comment on the following line counts as well."""
    config = catalog.component(name).Config
    kinds = typing.get_type_hints(config)
    lines = inspect.getsource(config).splitlines()
    found = []
    for field in dataclasses.fields(config):
        at = next(i for i, line in enumerate(lines) if re.match(rf"    {field.name}: ", line))
        end = at
        while "#" not in lines[end]:
            end += 1
        comment = lines[end].split("#", 1)[1].strip()
        found.append((field.name, spelled(field.default) + others(kinds[field.name], field.default), comment))
    return found


def spelled(value: object) -> str:
    """A default as YAML has it."""
    if isinstance(value, tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value) or "(empty)"


def others(kind: object, default: object) -> str:
    """The other values of a choice."""
    if typing.get_origin(kind) is not typing.Literal:
        return ""
    return " (or " + ", ".join(str(choice) for choice in typing.get_args(kind) if choice != default) + ")"


def table(name: str) -> str:
    """The Markdown table of a component's settings."""
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    lines += [
        f"| `{setting}` | {default} | {comment.replace('|', chr(92) + '|')} |"
        for setting, default, comment in rows(name)
    ]
    presets = ", ".join(f"`{preset}`" for preset in catalog.component(name).presets)
    return "\n".join([*lines, "", f"Presets: {presets}."])


def filled(page: str) -> str:
    """`page` with every settings table rewritten."""
    return MARK.sub(lambda match: f"<!-- settings {match[1]} -->\n{table(match[1])}\n<!-- end -->", page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
