"""Every counter of every shipped component is said in words, and nothing else is."""

import ast
import re
from pathlib import Path

import pytest

from r3bench import catalog
from r3bench.component import SHARED_COUNTERS

ROOT = Path(__file__).resolve().parents[2]
COMPONENTS = sorted(path.stem for path in (ROOT / "components").glob("[!_]*.py"))


def counted(path: Path) -> set[str]:
    """Keys that a file's `....count(key)` may get; of an f-string, its beginning with '*'."""
    keys: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "count":
            if not isinstance(node.func.value, ast.Name) or node.func.value.id not in ("self", "component"):
                continue
            for part in ast.walk(node.args[0]):
                if isinstance(part, ast.JoinedStr):
                    assert isinstance(part.values[0], ast.Constant)
                    keys.add(f"{part.values[0].value}*")
                elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                    keys.add(part.value)
    return keys - {key.removesuffix("*") for key in keys if key.endswith("*")}


@pytest.mark.parametrize("name", COMPONENTS)
def test_every_counter_is_said_in_words(name: str) -> None:
    words = catalog.component(name).counters
    keys = counted(ROOT / "components" / f"{name}.py")
    for key in keys:
        known = [k for k in words if re.fullmatch(key.replace("*", ".+"), k)]
        assert known, f"{name}.counters says nothing of {key}"
    for key in words:
        assert any(re.fullmatch(k.replace("*", ".+"), key) for k in keys), f"{name} never counts {key}"
    assert all(len(text) > 10 and "_" not in text for text in words.values())


def test_what_components_share_is_said_too() -> None:
    training = ROOT / "r3bench" / "training"
    keys = {key for file in ("toolkit/mixed_groups.py", "step/mixture_check.py") for key in counted(training / file)}
    assert keys == set(SHARED_COUNTERS)
    assert catalog.component(COMPONENTS[0]).counted("groups_taken") == SHARED_COUNTERS["groups_taken"]
    assert catalog.component(COMPONENTS[0]).counted("nothing") is None
