"""The vLLM backend's requests, against a stand-in for the library with vLLM's signatures (no GPU needed)."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from typer.testing import CliRunner

from r3bench.cli import app
from r3bench.config.sections import EvalSection
from r3bench.errors import ConfigError
from r3bench.evaluation import shards
from r3bench.evaluation.driver import evaluate
from r3bench.evaluation.settings import settings


@pytest.fixture
def calls(loaded, monkeypatch):
    found = {"requests": []}
    _, tokenizer = loaded

    class LLM:
        def __init__(self, *, model, seed, enable_prefix_caching):
            found["model"] = model
            self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=512))

        def get_tokenizer(self):
            return tokenizer

        def generate(self, prompts, sampling_params, *, use_tqdm):
            found["requests"] += zip(prompts, sampling_params, strict=True)
            return [
                SimpleNamespace(outputs=[SimpleNamespace(
                    text=rf"\boxed{{{p.seed % 10}}}", token_ids=[1] * (p.seed % 5 + 1),
                    finish_reason="length" if p.seed % 5 == 0 else "stop")])
                for p in sampling_params
            ]  # fmt: skip

    module = ModuleType("vllm")
    module.LLM, module.SamplingParams = LLM, SimpleNamespace
    monkeypatch.setitem(sys.modules, "vllm", module)
    return found


def test_requests_and_answers(calls, model_path, loaded, tmp_path):
    section = EvalSection(tasks=("embedded",), samples=3, limit=9, temperature=0.6, top_p=0.95)
    summary = evaluate(f"vllm:{model_path}", section, tmp_path, default_max_tokens=40, quiet=True)["embedded"]
    assert calls["model"] == str(model_path) and len(calls["requests"]) == 27
    for prompt, parameters in calls["requests"]:
        text = loaded[1].decode(prompt["prompt_token_ids"])
        assert "Start with" in text and text.count("boxed") == 1
        assert (parameters.temperature, parameters.top_p, parameters.max_tokens) == (0.6, 0.95, 40)
    assert len({parameters.seed for _, parameters in calls["requests"]}) == 27
    for row in shards.read(tmp_path / "embedded"):
        assert row["extracted"] == str(row["seed"] % 10) and row["tokens"] == row["seed"] % 5 + 1
        assert row["truncated"] == (row["seed"] % 5 == 0)
    assert summary["samples"] == 3
    assert summary["settings"] == settings(section, 40) and summary["settings"]["max_tokens"] == 40


def test_a_context_that_is_too_short(calls, model_path, tmp_path):
    with pytest.raises(ConfigError, match=r"600 tokens after a prompt of \d+ exceed the model's context of 512"):
        evaluate(f"vllm:{model_path}", EvalSection(limit=1), tmp_path, default_max_tokens=600, quiet=True)


def test_without_vllm(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match=r"vLLM is not installed; pip install r3bench\[vllm\]"):
        evaluate("vllm:x", EvalSection(), tmp_path, default_max_tokens=8, quiet=True)


def test_from_the_command_line(calls, model_path, tmp_path):
    words = [
        "eval",
        f"vllm:{model_path}",
        "limit=2",
        "max_tokens=40",
        "--samples",
        "1",
        "--quiet",
        "--runs",
        str(tmp_path),
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert calls["model"] == str(model_path) and len(calls["requests"]) == 2
