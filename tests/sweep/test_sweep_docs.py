"""What docs/sweep.md says can be typed works."""

import dataclasses
import re
import shlex
from pathlib import Path

import pytest
import yaml
from toy import run_toy
from typer.testing import CliRunner

from r3bench.sweep.cells import enumerate_cells
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.executors.inline import InlineExecutor
from r3bench.sweep.grid import Grid, RetrySection, load_grid, parse_grid
from r3bench.sweep.opening import open_study

PAGE = (Path(__file__).parents[2] / "docs" / "sweep.md").read_text()


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.S)


@pytest.mark.parametrize("text", blocks("yaml"))
def test_every_grid_on_the_page_is_valid(home, text):
    grid = parse_grid({"name": "page", **yaml.safe_load(text)}, "page.yaml")
    assert open_study(grid, home / "runs").cells


@pytest.mark.parametrize("line", [line for block in blocks("sh") for line in block.splitlines()])
def test_every_command_on_the_page_works(home, line):
    from r3bench.cli import app

    program, command, name, *options = shlex.split(line)
    assert program == "r3bench"
    if command == "ablate":  # with toy cells, the options as the command parses them
        shown = CliRunner().invoke(app, ["ablate", "--help"], env={"COLUMNS": "200"}).output
        assert all(option in shown for option in options if option.startswith("--"))
        assert enumerate_cells(load_grid(name))[0]
        return
    if command == "status":
        ablate(name, home / "runs", run=run_toy, executor=InlineExecutor(), say=lambda line: None)
    result = CliRunner().invoke(app, [command, name, *options])
    assert result.exit_code == 0, result.output


def test_the_defaults_on_the_page_are_the_real_ones():
    retries = RetrySection()
    for kind, number in re.findall(r"`retries\.(\w+)`, (\d+)", PAGE):
        assert getattr(retries, kind) == int(number)
    fields = {f.name: f for f in dataclasses.fields(Grid)}
    assert f"`hang_after` seconds ({fields['hang_after'].default:.0f})" in PAGE
