"""Training through TRL's server mode, against a stand-in that speaks its protocol and takes its weights."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def found(tiny, tmp_path_factory):
    from standin import install

    folder = tmp_path_factory.mktemp("traffic")
    script = Path(__file__).with_name("trl_traffic.py")
    environment = {**os.environ, **install(folder / "standin")}
    done = subprocess.run(
        [sys.executable, str(script), tiny, str(folder)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads((folder / "found.json").read_text())


def test_all_off_sends_what_trl_sends(found):
    """Every request byte for byte, and the weights each of them met, which came over the weights' own channel."""
    stock, ours = found["stock"], found["ours"]
    paths = [request["path"] for request in stock["requests"]]
    assert paths.count("/v1/completions") == 4 and paths.count("/update_weights") == 4
    assert len({request["weights"] for request in stock["requests"]}) >= 4  # the model moved, and the server with it
    assert ours["requests"] == stock["requests"]
    assert ours["seen"] == stock["seen"] and ours["losses"] == stock["losses"] and ours["weights"] == stock["weights"]


@pytest.mark.parametrize("name", ["ours", "four", "repo", "rescue", "exgrpo", "resampling"])
def test_the_server_samples_what_the_trainer_scores(found, name):
    """Same weights, prompts and prefixes on both sides: sampling and training log-probs agree at every step."""
    lines = [line for line in found[name]["losses"] if "loss" in line]
    assert len(lines) >= 4
    for line in lines:
        assert line["sampling/sampling_logp_difference/mean"] < 1e-4
        assert line["sampling/importance_sampling_ratio/mean"] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("name", ["four", "repo", "rescue", "exgrpo", "resampling"])
def test_components_act_through_a_server(found, name):
    assert all(found[name]["acted"].values()), found[name]["evidence"]
    assert len(found[name]["losses"]) > 4


def test_planned_groups_reach_the_server_as_groups(found):
    bodies = [json.loads(r["body"]) for r in found["four"]["requests"] if r["path"] == "/v1/completions"]
    assert {body["n"] for body in bodies} == {4}
    sizes = [len(body["prompt"]) for body in bodies]
    assert min(sizes) == 12 and max(sizes) > 12  # the slots, and groups appended to them
    plain = {tuple(ids) for body in bodies[:1] for ids in body["prompt"]}
    others = {tuple(ids) for body in bodies for ids in body["prompt"]} - plain
    assert any(any(ids[: len(p)] == p for p in plain) for ids in others)  # continuations: prompt + given tokens
    assert any(not any(ids[: len(p)] == p for p in plain) for ids in others)  # reflections: other prompts
