"""The command line itself: what it lists and copies, how it fails, and that its page names all of it."""

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from r3bench import __version__, catalog
from r3bench.cli import LESS_MEMORY, PANELS, app
from r3bench.errors import ConfigError, DataError, Diverged, R3BenchError, StateError

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [name for commands in PANELS.values() for name in commands]


def test_the_installed_program_fails_in_one_line_without_a_traceback(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("r3bench")
    (tmp_path / "bad.yaml").write_text("sead: 1\n")
    done = subprocess.run([program, "validate", "bad.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == "r3bench: bad.yaml: sead: unknown section; did you mean 'seed'?\n"
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("a\nb"), 2, "a b"),
        (DataError("row 3"), 2, "row 3"),
        (StateError("torn"), 3, "torn"),
        (Diverged("loss is nan"), 4, "loss is nan"),
        (R3BenchError("other"), 1, "other"),
        (MemoryError(), 1, f"out of memory; {LESS_MEMORY}"),
        (
            RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nMore"),
            1,
            f"out of memory: CUDA out of memory. Tried to allocate 2 GiB; {LESS_MEMORY}",
        ),
        (OSError(errno.ENOSPC, "No space left on device", "runs/x"), 3, "runs/x: No space left on device"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_error_meant_for_the_user_is_one_line(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, line: str
) -> None:
    def fail(kind: str) -> None:
        raise error

    monkeypatch.setattr(catalog, "entries", fail)
    result = CliRunner().invoke(app, ["list"])
    assert (result.stderr, result.exit_code) == (f"r3bench: {line}\n", code)


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(kind: str) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(catalog, "entries", fail)
    assert isinstance(CliRunner().invoke(app, ["list"]).exception, KeyError)


def test_version_and_unknown_command(r3bench: Callable[..., Result]) -> None:
    assert r3bench("--version").stdout == f"r3bench {__version__}\n"
    assert r3bench("lst").exit_code == 2
    assert "'list'" in r3bench("lst").stderr


def test_every_command_says_what_it_does_and_takes(r3bench: Callable[..., Result]) -> None:
    listed = r3bench("-h").stdout
    assert listed == r3bench("--help").stdout and "<bool>" not in listed
    for command in COMMANDS:
        shown = r3bench(command, "-h")
        assert shown.exit_code == 0 and command in listed
        text = shown.stdout
        usage = text.partition("Usage: ")[2].partition("\n")[0]
        assert f" {command} [OPTIONS]" in usage and "{" not in usage, text
        for odd in ("<bool>", "[[", "]]"):
            assert odd not in text, f"{command}: {odd}"
        for parameter in get_command(app).commands[command].params:  # type: ignore[attr-defined]
            named = parameter.metavar is not None or (parameter.param_type_name == "option" and parameter.is_flag)
            assert named, f"{command}: {parameter.name} has no word for its value"


def test_tab_completes_commands_options_and_names(folder: Path) -> None:
    (folder / "runs" / "mine").mkdir(parents=True)
    (folder / "runs" / "mine" / "study.json").write_text("{}")
    for run in ("mine/replay-s0-1", "alone-s0-2"):
        (folder / "runs" / run).mkdir()
        (folder / "runs" / run / "config.json").write_text("{}")
    (folder / "elsewhere" / "other").mkdir(parents=True)
    (folder / "elsewhere" / "other" / "study.json").write_text("{}")

    def offered(*words: str) -> list[str]:
        environment = {
            "_R3BENCH_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(["r3bench", *words]),
            "COMP_CWORD": str(len(words)),
        }
        return CliRunner().invoke(app, [], prog_name="r3bench", env=environment).stdout.split()

    assert offered("ab") == ["ablate"] and offered("an") == ["answers", "analyze"]
    assert "--power" in offered("plan", "quickstart", "--p") and "--price" in offered("plan", "quickstart", "--p")
    assert offered("ablate", "quick") == ["quickstart"] and "r3_7b" in offered("train", "r3")
    assert {"r3", "r3_7b"} <= set(offered("plan", "r3")) and "r3_7b" not in offered("ablate", "r3")
    assert offered("tables", "") == offered("status", "m") == ["mine"] and offered("trace", "x") == []
    assert offered("trace", "--runs", "elsewhere", "") == ["other"]
    assert offered("eval", "") == ["alone-s0-2", "replay-s0-1"] and offered("compare", "m") == ["mine"]
    assert offered("eval", "alone-s0-2", "--tasks", "amc23,aime24") == ["amc23,aime24"]
    (folder / "evals").mkdir()
    (folder / "evals" / "broken.yaml").write_text("a: [")
    assert isinstance(offered("eval", "x", "--tasks", "am"), list)
    shown = CliRunner().invoke(app, ["--show-completion", "bash"], prog_name="r3bench")
    assert "_R3BENCH_COMPLETE" in shown.stdout or shown.exit_code != 0


def test_the_page_names_every_command_and_option_and_no_other() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    sections = {
        head.split("`")[1].split()[1]: body for head, body in re.findall(r"^### (.*)\n((?:(?!^##).*\n?)*)", page, re.M)
    }
    assert list(sections) == COMMANDS
    group = get_command(app)
    for name in COMMANDS:
        options = {
            option
            for parameter in group.commands[name].params  # type: ignore[attr-defined]
            for option in parameter.opts[:1]
            if option.startswith("--") and option != "--help"
        }
        assert set(re.findall(r"`(--[a-z-]+)", sections[name])) == options, name


def test_list_knows_its_kinds(r3bench: Callable[..., Result]) -> None:
    kinds = {"recipes", "grids", "components", "tasks"}
    assert set(json.loads(r3bench("list", "--json").stdout)) == {*kinds, "schema"}
    assert set(json.loads(r3bench("list", "tasks", "--json").stdout)) == {"tasks", "schema"}
    assert r3bench("list", "task").stderr == "r3bench: 'task': unknown kind; did you mean 'tasks'?\n"


def test_everything_shipped_is_described_in_one_line(folder: Path) -> None:
    bare = [f"{kind}: {e.name}" for kind in catalog.KINDS for e in catalog.entries(kind) if not 10 < len(e.about) < 130]
    assert not bare


def test_copy_puts_a_file_where_it_is_found(r3bench: Callable[..., Result], folder: Path) -> None:
    assert r3bench("copy", "replay").stdout == "components/replay.py\n"
    assert (folder / "components" / "replay.py").read_bytes() == (ROOT / "components" / "replay.py").read_bytes()
    mine = next(e for e in catalog.entries("components") if e.name == "replay")
    assert not mine.shipped
    (folder / "components" / "replay.py").write_text("# mine\n")
    result = r3bench("copy", "replay")
    assert result.stderr == "r3bench: components/replay.py: already there; --force replaces it\n"
    assert (folder / "components" / "replay.py").read_text() == "# mine\n"


def test_copy_of_a_name_used_twice_asks_which(r3bench: Callable[..., Result], folder: Path) -> None:
    assert r3bench("copy", "quickstart").stderr == (
        "r3bench: 'quickstart': used by several kinds; say --kind recipes or --kind grids\n"
    )
    assert r3bench("copy", "quickstart", "--kind", "grids").stdout == "ablations/quickstart.yaml\n"
    assert r3bench("copy", "quickstart", "--kind", "recipes").stdout == "ablations/recipes/quickstart.yaml\n"
    assert r3bench("copy", "quickstart", "other/name.yaml", "--kind", "recipes").stdout == "other/name.yaml\n"
    assert r3bench("validate", "other/name.yaml").exit_code == 0
    assert r3bench("copy", "replya").stderr == "r3bench: 'replya': not found; did you mean 'replay'?\n"


def test_a_copied_task_brings_what_it_needs(r3bench: Callable[..., Result], folder: Path) -> None:
    r3bench("copy", "embedded", "--kind", "tasks")
    assert {path.name for path in (folder / "evals").iterdir()} == {"embedded.yaml", "_maths.yaml", "utils.py"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_one_line(r3bench: Callable[..., Result], folder: Path) -> None:
    folder.chmod(0o500)
    assert r3bench("copy", "replay").stderr == "r3bench: components: Permission denied\n"


def test_results_that_are_not_there(r3bench: Callable[..., Result], folder: Path) -> None:
    assert r3bench("tables", "none").stderr == (
        "r3bench: study 'none': no such folder with a study.json, nor below runs\n"
    )
    (folder / "runs" / "quick").mkdir(parents=True)
    (folder / "runs" / "quick" / "study.json").write_text("{}")
    assert "did you mean 'quick'?" in r3bench("tables", "quik").stderr
    assert r3bench("tables", "quik").exit_code == 3
