"""`push` through the real client to a stand-in hub: what arrives, that it is private, and what is refused."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub import TOKEN, Hub, serve
from json_page import documented
from synthetic import make_study
from typer.testing import Result

from r3bench.config.load import load_recipe, resolved

REPO = "someone/a-model"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as found:
        yield found


@pytest.fixture
def run(folder: Path) -> str:
    """A finished run with weights and adapters."""
    study = make_study(folder / "runs" / "toy")
    path = next(path.parent for path in sorted(study.glob("*/run.json")) if "base" not in path.parent.name)
    (path / "config.json").write_text(json.dumps(resolved(load_recipe("quickstart"))))
    (path / "environment.json").write_text("{}")
    (path / "model" / "adapter").mkdir(parents=True)
    (path / "model" / "model.safetensors").write_bytes(b"weights")
    (path / "model" / "adapter" / "adapter_model.safetensors").write_bytes(b"adapters")
    return path.name


def push(hub: Hub | None, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The program as a user runs it: the client reads its settings once, when it is imported."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    environment = {
        **clean,
        "HF_HOME": str(Path("hf").absolute()),
        "HF_ENDPOINT": hub.url if hub else "http://127.0.0.1:9",
    }
    command = [sys.executable, "-m", "r3bench.cli", "push", *arguments]
    return subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=False)


def test_a_model_arrives_with_its_card_and_is_private(hub: Hub, run: str, folder: Path) -> None:
    done = push(hub, run, REPO, HF_TOKEN=TOKEN)
    assert (done.returncode, done.stdout) == (0, f"{hub.url}/{REPO}\n"), done.stderr
    assert hub.repos == {REPO: True}
    files = hub.files[REPO]
    assert files["model.safetensors"] == b"weights"
    assert files["adapter/adapter_model.safetensors"] == b"adapters"
    record = json.loads((folder / "runs" / "toy" / run / "run.json").read_text())
    card = files["README.md"].decode()
    cell = ", ".join(f"{key}={level}" for key, level in sorted(record["factors"].items())) or "none"
    commit = record["commit"] or "not known"
    for line in (f"| Cell | {cell} |", f"| Seed | {record['seed']} |", f"| Commit | {commit} |"):
        assert line in card
    for task in record["eval"]:
        assert f"| {task} | pass@" in card
    assert hub.messages[0].startswith(f"{run}, code at ")

    again = push(hub, run, REPO, "--json", HF_TOKEN=TOKEN)  # the repository is there
    assert again.returncode == 0, again.stderr
    assert REPO in documented(again.stdout, "push")["made"][0]
    hub.repos[REPO] = False
    before = len(hub.messages)
    refused = push(hub, run, REPO, HF_TOKEN=TOKEN)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "is there and public; --public pushes to it" in refused.stderr
    assert len(hub.messages) == before
    assert push(hub, run, "someone/open", "--public", HF_TOKEN=TOKEN).returncode == 0
    assert hub.repos["someone/open"] is False


def test_without_a_token_nothing_is_asked(hub: Hub, run: str) -> None:
    done = push(hub, run, REPO)
    assert (done.returncode, done.stderr) == (
        2, "r3bench: no token for the hub: log in with `hf auth login`, or set HF_TOKEN to one that may write\n",
    )  # fmt: skip
    offline = push(hub, run, REPO, HF_TOKEN=TOKEN, HF_HUB_OFFLINE="1")
    assert (offline.returncode, offline.stderr) == (
        2, "r3bench: HF_HUB_OFFLINE is set, so nothing can be pushed; unset it\n",
    )  # fmt: skip
    for name in ("a-model", "a/b/c", "bad name/x"):
        assert push(hub, run, name, HF_TOKEN=TOKEN).returncode == 2
    assert not hub.requests


def test_what_the_hub_says_is_one_line(hub: Hub, run: str) -> None:
    wrong = push(hub, run, REPO, HF_TOKEN="hf_wrong")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (1, 1), wrong.stderr
    assert f"r3bench: '{REPO}': the hub refused: " in wrong.stderr
    away = push(None, run, REPO, HF_TOKEN=TOKEN)
    assert (away.returncode, away.stderr.count("\n")) == (1, 1), away.stderr
    assert f"r3bench: '{REPO}': the hub can't be reached: " in away.stderr


def test_a_run_without_a_model_is_refused(r3bench: Callable[..., Result], run: str, folder: Path) -> None:
    path = folder / "runs" / "toy" / run
    assert r3bench("push", "nothing", REPO).stderr == "r3bench: run 'nothing': no such folder, nor below runs\n"
    (path / "model").rename(path / "gone")
    assert (
        "has no model: diverged, its weights were not kept, or an archive left them out"
        in r3bench("push", str(path), REPO).stderr
    )
    (path / "run.json").unlink()
    refused = r3bench("push", str(path), REPO)
    assert (refused.exit_code, "expected a finished run" in refused.stderr) == (3, True)


def test_a_recipe_can_not_push(r3bench: Callable[..., Result]) -> None:
    for key in ("trainer.push_to_hub=true", "trainer.log_completions_hub_repo=a/b"):
        assert "but it can't be set here" in r3bench("validate", "quickstart", key).stderr
