"""The commands and Python of docs/statistics.md and docs/tables.md run as printed."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from synthetic import Spec, make_study
from typer.testing import CliRunner

from r3bench.analysis.declared import declared_from
from r3bench.cli import app

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory with the study and the table the pages speak of."""
    root = tmp_path_factory.mktemp("docs")
    factors = {"replay": ["off", "on"], "length_bonus": ["off", "on"]}
    make_study(root / "runs" / "quickstart", Spec(factors=factors, metrics=True))
    (example,) = re.findall(r"```\n(run,.*?)```", (DOCS / "tables.md").read_text(), re.S)
    (root / "results.csv").write_text(example)
    return root


COMMANDS = [line for page in ("statistics.md", "tables.md") for b in blocks(page, "bash") for line in b.splitlines()]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_run(folder, monkeypatch, line):
    words = shlex.split(line, comments=True)
    assert words[0] == "r3bench"
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, words[1:])
    assert done.exit_code == 0, done.output
    if words[1] == "report":
        assert (folder / ("report.html" if words[2].endswith(".csv") else "runs/quickstart/report.html")).exists()
    if words[1] == "trace":
        assert done.output.count("config_hash") >= 3


@pytest.mark.parametrize("page", ["statistics.md", "tables.md"])
def test_python_runs(folder, monkeypatch, capsys, page):
    monkeypatch.chdir(folder)
    found = blocks(page, "python")
    assert found
    for code in found:
        exec(compile(code, page, "exec"), {})
        for comment in re.findall(r"print\(.*\)  # (.+)", code):
            assert comment in capsys.readouterr().out


def test_declared_example_is_valid():
    (text,) = blocks("statistics.md", "yaml")
    declared = declared_from(yaml.safe_load(text), "docs")
    assert declared.primary == ("replay", "ranking") and declared.margin == 0.01
