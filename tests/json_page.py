"""What docs/json.md promises of a `--json` document, held against one."""

import json
import re
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "json.md").read_text()
ROWS = {m[1]: m[2] for m in re.finditer(r"^\| `[^`]+` \| `([a-z-]+)/1` \| (.*) \|$", PAGE, re.MULTILINE)}
ANALYSIS = re.findall(r"`(\w+)`", ROWS["analyze"])


def documented(text: str, name: str) -> dict[str, Any]:
    """The document that a command printed, after it has the keys of the page and nothing else is on stdout."""
    document: dict[str, Any] = json.loads(text)
    assert document.pop("schema") == f"r3bench.{name}/1"
    promised = ROWS[name]
    keys = set(re.findall(r"`(\w+)`", promised)) - {"analyze"}
    if promised.startswith("one for each"):  # task or checkpoint; the keys are those of its values
        assert document and all(isinstance(value, dict) and keys <= set(value) for value in document.values()), name
    else:
        also = set(ANALYSIS) if "as `analyze`" in promised else set()
        optional = set(re.findall(r"of a grid also `(\w+)`", promised))
        assert (keys | also) - optional <= set(document) <= keys | also, (name, set(document) ^ (keys | also))
    return document
