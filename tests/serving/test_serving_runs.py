"""`train` and `ablate` with a recipe in TRL's server mode that names no server: they start their own."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from test_serving_server import gone

TRAINER = {
    "use_vllm": True, "vllm_mode": "server", "max_steps": 2, "per_device_train_batch_size": 8, "num_generations": 4,
    "max_completion_length": 8, "bf16": False, "gradient_checkpointing": False, "save_strategy": "no",
    "logging_steps": 1,
}  # fmt: skip


@pytest.fixture
def recipe(tiny, tmp_path, monkeypatch) -> dict:
    """Of a run of seconds, also saved as ./ablations/recipes/served.yaml."""
    values = {
        "model": tiny, "data": {"name": "embedded", "limit": 4}, "trainer": TRAINER,
        "eval": {"tasks": ["embedded"], "samples": 1, "limit": 2},
    }  # fmt: skip
    (tmp_path / "ablations" / "recipes").mkdir(parents=True)
    (tmp_path / "ablations" / "recipes" / "served.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.chdir(tmp_path)
    return values


def r3bench(*words: str, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "r3bench.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_a_run_has_a_server_of_its_own(standin, recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("STANDIN_FORK", str(tmp_path / "pids"))
    process = r3bench("train", "served", "--json")
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    (run,) = (tmp_path / "runs").iterdir()
    assert json.loads(output)["train"]["steps"] == 2
    assert json.loads((run / "config.json").read_text())["trainer"] == TRAINER  # where the server was is no part of it
    paths = [json.loads(line)["path"] for line in standin.read_text().splitlines()]
    assert paths.count("/v1/completions") == 2 and paths.count("/update_weights") == 2
    assert (run / "server.log").read_text().startswith("INFO: starting with devices")
    assert gone([int(pid) for pid in (tmp_path / "pids").read_text().split()])
    again = r3bench("train", "served", "--json")
    assert again.communicate(timeout=600)[0] == output  # finished: nothing is started
    assert standin.read_text().count("/health") == sum(path == "/health" for path in paths)


@pytest.mark.slow
def test_the_server_has_room_for_the_longest_planned_prompt(standin, recipe, tiny, tmp_path):
    """Its context is what a colocated engine would get, not the model's own; the stand-in refuses longer rows."""
    roomy = shutil.copytree(tiny, tmp_path / "roomy")
    config = json.loads((roomy / "config.json").read_text())
    (roomy / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
    settings = {"budget": 24, "warmup": 0, "max_share": 0.5, "placement": "replace"}
    shown = [f"components.reflection.{key}={value}" for key, value in settings.items()]
    process = r3bench("train", "served", *shown, "trainer.max_steps=3", "data.limit=2", f"model.name={roomy}")
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    (run,) = (tmp_path / "runs").iterdir()
    evidence = json.loads((run / "run.json").read_text())["train"]["evidence"]
    assert evidence["reflection/groups"], f"no reflection prompt was asked: {evidence}"
    lines = [json.loads(line) for line in standin.read_text().splitlines()]
    asked = [json.loads(line["body"])["prompt"] for line in lines if line["path"] == "/v1/completions"]
    longest = max(len(ids) for prompts in asked for ids in prompts)
    context = int(re.search(r"context (\d+)", (run / "server.log").read_text())[1])
    cap = TRAINER["max_completion_length"]
    assert longest + cap <= context < 1024


@pytest.mark.slow
def test_a_server_that_does_not_start_ends_the_run_with_its_reason(standin, recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("STANDIN_FAIL", "no such kernel")
    process = r3bench("train", "served")
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 3 and "Traceback" not in errors
    assert "r3bench: server: ended with exit code 1: ValueError: no such kernel; its log:" in errors
    assert "server: starting vLLM with" in errors


@pytest.mark.slow
def test_a_run_that_is_killed_takes_its_server_along_and_goes_on(standin, recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("STANDIN_FORK", str(tmp_path / "pids"))
    words = ("train", "served", "trainer.max_steps=6", "trainer.save_strategy=steps", "trainer.save_steps=1", "--json")
    process = r3bench(*words)
    while not list(tmp_path.glob("runs/*/checkpoints/checkpoint-2/*")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert gone([int(pid) for pid in (tmp_path / "pids").read_text().split()])
    output, errors = r3bench(*words).communicate(timeout=600)
    assert json.loads(output)["train"]["steps"] == 6, errors


@pytest.mark.slow
def test_a_server_that_dies_in_training_is_the_reason_given(standin, recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("STANDIN_FORK", str(tmp_path / "pids"))
    process = r3bench("train", "served", "trainer.max_steps=1000")
    while not standin.is_file() or standin.read_text().count("/v1/completions") < 2:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    os.kill(int((tmp_path / "pids").read_text().split()[0]), signal.SIGKILL)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 3, errors
    assert "r3bench: server: ended with exit code 137: see the end of its log above; its log:" in errors


@pytest.mark.slow
def test_cells_have_servers_of_their_own(standin, recipe, tmp_path):
    grid = {"recipe": "served", "factors": {"replay": ["off", "on"]}, "seeds": [0], "executor": {"slots": 2}}
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(grid))
    process = r3bench("ablate", "two.yaml", env={**os.environ})
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors + output
    logs = list(tmp_path.glob("runs/two/*/server.log"))
    assert len(logs) == 2 and len(list(tmp_path.glob("runs/two/*/run.json"))) >= 2
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path) in p.read_text(errors="replace")]


@pytest.mark.slow
def test_a_killed_server_costs_its_cell_an_attempt_and_nothing_else(standin, recipe, tmp_path, monkeypatch):
    """First the server itself, then the process that watches over it."""
    monkeypatch.setenv("STANDIN_FORK", str(tmp_path / "pids"))
    steps = {"trainer.max_steps": 8, "trainer.save_strategy": "steps", "trainer.save_steps": 1}
    grid = {
        "recipe": "served", "factors": {"replay": ["off", "on"]}, "seeds": [0], "base_model": False, "set": steps,
        "executor": {"slots": 1}, "retries": {"bug": 0, "preempted": 5}, "disk_floor_gb": 0.0,
    }  # fmt: skip
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(grid))
    process = r3bench("ablate", "two.yaml")
    for kill in (1, 2):
        seen = len(list(tmp_path.glob("runs/two/*/checkpoints/checkpoint-*")))
        old = (tmp_path / "pids").read_text() if kill == 2 else ""
        while True:
            assert process.poll() is None, process.stderr.read()
            text = (tmp_path / "pids").read_text() if (tmp_path / "pids").exists() else ""
            found = {str(path) for path in tmp_path.glob("runs/two/*/checkpoints/checkpoint-*")}
            if len(text.split()) == 2 and text != old and (len(found) > seen or (kill == 2 and found)):
                break
            time.sleep(0.05)
        server = int(text.split()[0])
        guard = int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(server if kill == 1 else guard, signal.SIGKILL)
    output, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors + output
    lines = [json.loads(line) for path in tmp_path.glob("runs/two/*/attempts.jsonl") for line in path.open()]
    assert {line["kind"] for line in lines if line["event"] == "failure"} <= {"preempted"}
    assert len(list(tmp_path.glob("runs/two/*/run.json"))) == 2
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path) in p.read_text(errors="replace")]
