"""Hooks: who is told what, and that a failing, hanging, flooding or unreachable one costs no run."""

import http.server
import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from toy import run_toy
from typer.testing import CliRunner

from r3bench.cli import app
from r3bench.errors import ConfigError
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.executors.inline import InlineExecutor
from r3bench.sweep.grid import parse_grid
from r3bench.sweep.hooks import shown_address
from r3bench.sweep.opening import open_study

NAMES = ("EVENT", "CELL", "SEED", "FAILURE", "MESSAGE")
TELL = "printf '%s|%s|%s|%s|%s\\n' " + " ".join(f'"$R3BENCH_{name}"' for name in NAMES) + " >> told.txt"


def ran(home, values, notify, trouble=(), **more):
    """(report, lines) of a toy grid in which the runs `trouble` fail."""
    grid = parse_grid({**values, "notify": notify, "retries": {"bug": 0}}, "toy.yaml")
    for cell in open_study(grid, home / "runs").cells:
        if (cell.name, cell.seed) in trouble:
            folder = home / "runs" / "toy" / "trouble"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / cell.run_id).write_text("always")
    lines = []
    report = ablate(grid, home / "runs", run=run_toy, executor=InlineExecutor(), say=lines.append, **more)
    return report, lines


def told(home):
    file = home / "told.txt"
    return [line.split("|") for line in file.read_text().splitlines()] if file.exists() else []


def test_failures_and_the_end_are_told_with_facts(home, grid_values):
    report, _ = ran(home, grid_values, {"command": TELL}, [("bonus", 1)])
    assert len(report.failed) == 1
    (failed, end) = told(home)
    assert failed[:4] == ["run_failed", "bonus", "1", "bug"] and "ZeroDivisionError: a mistake" in failed[4]
    assert end[0] == "study_ended" and "8 of 9 runs have a record, 1 failed" in end[4]
    ran(home, grid_values, {"command": TELL, "events": ["run_finished", "study_ended"]})
    assert [line[0] for line in told(home)[2:]] == ["study_ended"], "runs that were finished before are no news"


def test_finished_runs_are_told_where_asked_for(home, grid_values):
    ran(home, grid_values, {"command": TELL, "events": ["run_finished"]})
    assert len(told(home)) == 9 and all("embedded" in line[4] for line in told(home))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("exit 3", "exit code 3"),
        ("no-such-program", "exit code 127"),
        ("sleep 60", "no end after 0.3 s; killed"),
        ("trap '' TERM INT HUP; while :; do sleep 1; done", "killed"),
        ("(sleep 60 &) ; yes | head -c 3000000; exit 1", "exit code 1"),
        ("kill -9 $$", "exit code -9"),
    ],
)
def test_a_failing_or_hanging_command_costs_a_line(home, grid_values, command, said):
    begun = time.monotonic()
    report, lines = ran(home, grid_values, {"command": command, "timeout": 0.3}, [("bonus", 1)])
    assert len(report.finished) == 8 and len(report.failed) == 1
    assert time.monotonic() - begun < 15
    assert any(said in line for line in lines), lines


def test_nothing_in_a_message_becomes_a_command(home, grid_values, monkeypatch):
    def hostile(work):
        raise ValueError("$(touch owned) `touch owned`; touch owned \x1b[31m\x00")

    grid = parse_grid({**grid_values, "notify": {"command": TELL}, "retries": {"bug": 0}, "seeds": [0]}, "toy.yaml")
    ablate(grid, home / "runs", run=hostile, executor=InlineExecutor(), say=lambda line: None)
    assert not (home / "owned").exists() and "touch owned" in told(home)[0][4]
    assert "\x1b" not in (home / "told.txt").read_text()


class Server(http.server.BaseHTTPRequestHandler):
    """Keeps what is posted; /hang never answers, /broken says no."""

    posted: ClassVar[list] = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "hang" in self.path:
            time.sleep(5)
        self.posted.append(json.loads(body))
        self.send_response(500 if "broken" in self.path else 200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    """Its address, and what was posted to it."""
    handler = type("Own", (Server,), {"posted": []})  # a hanging request of another test ends whenever it likes
    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield SimpleNamespace(url=f"http://127.0.0.1:{found.server_port}", posted=handler.posted)
    found.shutdown()


def everything(folder: Path) -> str:
    return "".join(path.read_bytes().decode("latin1") for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("path", ["ok", "broken", "hang"])
def test_an_address_gets_json_and_stands_nowhere(home, grid_values, server, path):
    url = f"{server.url}/{path}/T0S3CR3T"
    report, lines = ran(home, grid_values, {"url": url, "timeout": 0.5}, [("bonus", 1)])
    assert len(report.finished) == 8
    if path == "ok":
        assert [post["event"] for post in server.posted] == ["run_failed", "study_ended"]
        assert server.posted[0]["failure"] == "bug" and "mistake" in server.posted[0]["text"]
        assert server.posted[1]["finished"] == "8"
    else:
        assert any("hooks: the address failed" in line or "not waited" in line for line in lines)
    assert "T0S3CR3T" not in everything(home) + "\n".join(lines)
    assert f"{server.url.rpartition(':')[0]}/***" in (home / "runs/toy/study.json").read_text()


def test_apprise_takes_other_addresses(home, grid_values, server):
    pytest.importorskip("apprise", reason="no apprise here (pip install apprise)")
    ran(home, grid_values, {"url": server.url.replace("http://", "json://") + "/T0S3CR3T"}, [("bonus", 1)])
    assert len(server.posted) == 2 and "mistake" in server.posted[0]["message"]
    assert "T0S3CR3T" not in everything(home)


def test_an_address_that_cannot_be_used_is_refused_before_anything_runs(home, grid_values):
    with pytest.raises(ConfigError, match="scheme"):
        ran(home, grid_values, {"url": "hooks.example.org"})
    with pytest.raises(ConfigError, match="notify"):
        ran(home, grid_values, {"url": "nosuchthing://TOKEN/x"})
    assert shown_address("slack://TOKEN/x") == "slack://***"
    assert shown_address("https://user:pw@h.org/a?b=c") == "https://h.org/***"


def test_from_the_command_line(home, grid_values, monkeypatch):
    import yaml

    Path("toy.yaml").write_text(yaml.safe_dump({**grid_values, "executor": {"kind": "inline"}}))
    seen = {}

    def instead(grid, runs, **options):
        seen.update(options)
        raise ConfigError("enough")

    monkeypatch.setattr("r3bench.sweep.dispatch.ablate.ablate", instead)
    words = ["ablate", "./toy.yaml", "trainer.learning_rate=1e-5", "--hook", "true"]
    CliRunner().invoke(app, words, env={"R3BENCH_NOTIFY": "https://h/T"})
    assert (seen["hook"], seen["notify"]) == ("true", "https://h/T")
    assert seen["overrides"] == ["trainer.learning_rate=1e-5"]


def test_overrides_change_the_recipe_of_every_cell(home, grid_values):
    import yaml

    from r3bench.sweep.grid import load_grid

    Path("toy.yaml").write_text(yaml.safe_dump(grid_values))
    grid = load_grid("./toy.yaml", ["trainer.learning_rate=1e-5", "eval.samples=3"])
    cells = open_study(grid, home).cells
    assert {cell.recipe.trainer["learning_rate"] for cell in cells} == {1e-5}
    assert {cell.recipe.eval.samples for cell in cells} == {3}
    plain = CliRunner().invoke(app, ["plan", "./toy.yaml", "--json"])
    other = CliRunner().invoke(app, ["plan", "./toy.yaml", "trainer.max_steps=5", "--json"])
    assert json.loads(other.stdout)["training_tokens"] < json.loads(plain.stdout)["training_tokens"]
    for bad in ("seed=3", "trainer.learning_rat=1", "nonsense"):
        result = CliRunner().invoke(app, ["plan", "./toy.yaml", bad])
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), bad
    assert os.listdir(home) == ["toy.yaml"]
