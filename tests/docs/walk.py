"""Reads a page of docs/ as a user would: the files it says to save, the commands it says to type, what they print.

A fenced block does something by its language:
    bash     commands, one a line, run in order in the page's working directory
    text     right after a bash block: what that block prints (a line `...` stands for anything)
    python   run as it is
    yaml     a recipe or grid, checked
Text before a block that ends in "save this as `PATH`:" (or "save it as") makes it a file. A comment on the line before
a block says more: `<!-- needs: gpu -->` (cluster, network, checkout), `<!-- slow -->`, `<!-- exit: 2 -->`.
"""

import re
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
NEEDS = ("gpu", "cluster", "network", "checkout")

_BLOCK = re.compile(r"^(?P<comment>(?:<!-- [^\n]* -->\n)*)```(?P<language>\w*)\n(?P<text>.*?)^```", re.M | re.S)
_SAVED = re.compile(r"\bsave (?:this|it)\s+as\s+`([^`]+)`:?\s*\Z", re.I)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    line: int  # in the page, for messages
    language: str
    text: str
    saved_as: str | None = None  # path to write it to, instead of running it
    needs: str | None = None  # what a machine must have for it
    slow: bool = False
    exit_code: int = 0
    output: str | None = None  # what a bash block prints

    @property
    def commands(self) -> list[str]:
        """A bash block's lines without comments and prompts, continued lines joined."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def blocks(text: str) -> list[Block]:
    """The blocks of a page in order; a `text` block that follows a bash block becomes its output."""
    found: list[Block] = []
    end = 0
    for match in _BLOCK.finditer(text):
        comments = dict(re.findall(r"<!-- (\w+)(?:: ([^ ]+))? -->", match["comment"]))
        saved = _SAVED.search(text[end : match.start()])
        between, end = text[end : match.start()], match.end()
        line = text[: match.start()].count("\n") + 1
        if match["language"] == "text" and found and found[-1].language == "bash" and not between.strip():
            found[-1] = Block(**{**vars(found[-1]), "output": match["text"]})
            continue
        found.append(
            Block(
                line=line,
                language=match["language"],
                text=match["text"],
                saved_as=saved[1] if saved else None,
                needs=comments.get("needs"),
                slow="slow" in comments,
                exit_code=int(comments.get("exit", 0)),
            )
        )
    return found


def missing_line(expected: str, printed: str) -> str | None:
    """The first line of `expected` that does not follow the ones before it in `printed`; None if all are there."""
    rest = [" ".join(line.split()) for line in printed.splitlines()]
    skipping = True
    for line in (" ".join(line.split()) for line in expected.splitlines()):
        if line == "...":
            skipping = True
        elif line:
            place = next((i for i, other in enumerate(rest) if other == line), None)
            if place is None or (not skipping and any(rest[:place])):
                return line
            rest, skipping = rest[place + 1 :], False
    return None
