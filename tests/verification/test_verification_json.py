"""`--json`: one document with its schema, and the keys that docs/json.md says it has."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from json_page import ROWS, documented
from typer.testing import Result

from r3bench.commands.options import SCHEMAS

ELSEWHERE = {  # documents that need a model, a hub or a server: `documented` is asked where these are
    "ablate", "agreement", "calibrate", "compare", "eval", "eval-checkpoints", "explain", "merge", "push", "quickstart",
    "regrade", "serve", "train",
}  # fmt: skip
COMMANDS = {
    "analyze": ["analyze", "runs/honest"],
    "answers": ["answers", "honest", "--sample", "2"],
    "check": ["check", "replay"],
    "compare-studies": ["compare", "honest", "honest"],
    "convert": ["convert", "runs/honest", "--out", "long.parquet"],
    "copy": ["copy", "gsm8k", "--kind", "tasks"],
    "env": ["env"],
    "exclude": ["exclude", "honest"],
    "export": ["export", "honest", "honest.tar.gz"],
    "plan": ["plan", "quickstart"],
    "plan-recipe": ["plan", "r3_1.5b"],
    "plot": ["plot", "honest", "accuracy", "--out", "plots", "--format", "svg"],
    "plot-kinds": ["plot", "honest", "--list"],
    "prompts": ["prompts"],
    "report": ["report", "honest", "--no-figures"],
    "status": ["status", "honest"],
    "studies": ["status"],
    "tables": ["tables", "honest"],
    "trace": ["trace", "honest", "replay"],
    "validate": ["validate", "quickstart"],
    "verify": ["verify", "honest", "--sample", "1"],
}


def test_the_page_has_every_document() -> None:
    assert set(ROWS) == set(SCHEMAS) and set(SCHEMAS.values()) == {1}


def test_a_document_has_the_keys_of_the_page(study: Path, r3bench: Callable[..., Result]) -> None:
    for name, words in COMMANDS.items():
        result = r3bench(*words, "--json")
        assert result.exit_code == 0, (words, result.stderr, result.stdout[-500:])
        documented(result.stdout, name)


def test_every_document_is_held_against_the_page_somewhere() -> None:
    assert set(SCHEMAS) == {*COMMANDS, *ELSEWHERE, "import", "list"}
    tests = Path(__file__).resolve().parents[1]
    asked = set()
    for path in tests.glob("*/test_*.py"):
        asked |= set(re.findall(r'documented\([^\n]*"([a-z-]+)"\)', path.read_text()))
    assert asked >= ELSEWHERE, ELSEWHERE - asked


def test_what_was_exported_is_imported_as_json(study: Path, r3bench: Callable[..., Result]) -> None:
    r3bench("export", "honest", "honest.tar.gz")
    document = documented(r3bench("import", "honest.tar.gz", "--study", "again", "--json").stdout, "import")
    assert document["made"] == ["runs/again"] and document["faults"] == []


@pytest.mark.parametrize("words", [["list"], ["list", "tasks"]])
def test_lists_are_under_their_kind(r3bench: Callable[..., Result], words: list[str]) -> None:
    document = json.loads(r3bench(*words, "--json").stdout)
    assert document.pop("schema") == "r3bench.list/1"
    assert set(document) == ({"tasks"} if len(words) > 1 else {"recipes", "grids", "components", "tasks"})
    assert all({"name", "path", "about"} <= set(entry) for entries in document.values() for entry in entries)
