"""The real vLLM, where it is installed (docs/vllm.md, "On a CPU"): offline, as a server, and killed.

VLLM_CPU_KVCACHE_SPACE=1 python -m pytest -m slow tests/serving/test_serving_real.py
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest
from test_serving_server import first_json, gone

from r3bench.config.sections import EvalSection
from r3bench.errors import ConfigError
from r3bench.evaluation import shards
from r3bench.evaluation.driver import evaluate
from r3bench.serving.server import below

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: docs/vllm.md"),
]
ENGINE = {"enforce_eager": True, "dtype": "float32", "max_model_len": 256}  # compiling takes minutes on a CPU


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A random Llama whose heads vLLM's kernels can take, with a real tokenizer."""
    import torch
    from trainer_tools import build_tiny_model
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("real") / "model"
    build_tiny_model(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=1024, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, tie_word_embeddings=True, initializer_range=0.2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, value in {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}.items():
        monkeypatch.setenv(name, os.environ.get(name, value))


def run(model, out, samples, **options):
    section = EvalSection(samples=samples, limit=5, engine=ENGINE, **options)
    return evaluate(f"vllm:{model}", section, out, default_max_tokens=12, quiet=True)["embedded"]


def records(out: Path):
    return {(row["question"], row["repeat"]): row for row in shards.read(out / "embedded")}


def test_more_samples_extend_the_ones_there_and_a_cap_is_said(model, tmp_path):
    run(model, tmp_path / "grown", 2)
    first = records(tmp_path / "grown")
    summary = run(model, tmp_path / "grown", 4)
    run(model, tmp_path / "fresh", 4)
    grown, fresh = records(tmp_path / "grown"), records(tmp_path / "fresh")
    assert grown == fresh and len(grown) == 20 and first.items() <= grown.items()
    assert len({row["response"] for row in grown.values()}) > 10  # each from a stream of its own
    assert summary["backend"] == "vllm" and 0 < summary["mean_tokens"] <= 12
    for row in grown.values():
        assert not row["truncated"] or row["tokens"] == 12
    with pytest.raises(ConfigError, match=r"300 tokens after a prompt of \d+ exceed the model's context of 256"):
        run(model, tmp_path / "long", 1, max_tokens=300)
    with pytest.raises(ConfigError, match=r"can't be loaded: .*no_such_argument"):
        evaluate(
            f"vllm:{model}", EvalSection(limit=1, engine={"no_such_argument": 1}), tmp_path / "x",
            default_max_tokens=8, quiet=True,
        )  # fmt: skip


def test_an_evaluation_that_is_killed_leaves_no_engine(model, tmp_path):
    words = [
        sys.executable, "-m", "r3bench.cli", "eval", f"vllm:{model}", "max_tokens=100", f"engine={json.dumps(ENGINE)}",
        "--samples", "64", "--quiet", "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    process = subprocess.Popen(words)
    while not list((tmp_path / "out").glob("*/*.parquet")):
        assert process.poll() is None
        time.sleep(0.1)
    family = below(process.pid)
    assert len(family) >= 3  # the evaluation, its sampling process, the engine
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert gone(family[1:])


def test_a_server_is_evaluated_and_leaves_nothing(model, tmp_path):
    try:
        assert "cpu" in metadata.version("vllm")
    except metadata.PackageNotFoundError:
        pytest.skip("no distribution called vllm, which `vllm serve` looks for: docs/vllm.md")
    options = ["--enforce-eager", "--dtype", "float32", "--max-model-len", "256"]
    process = subprocess.Popen(
        [sys.executable, "-m", "r3bench.cli", "serve", model, "--json", "--runs", str(tmp_path), "--", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    told = first_json(process)
    family = below(process.pid)
    for samples, out in ((2, "grown"), (4, "grown"), (4, "fresh")):
        section = EvalSection(samples=samples, limit=5)
        evaluate(told["url"], section, tmp_path / out, default_max_tokens=12, quiet=True)
    assert records(tmp_path / "grown") == records(tmp_path / "fresh")
    with pytest.raises(ConfigError, match="HTTP 400"):
        section = EvalSection(samples=1, limit=1, max_tokens=250)
        evaluate(told["url"], section, tmp_path / "long", default_max_tokens=12, quiet=True)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert gone(family[1:])


RECIPE = """
data: {name: embedded, limit: 4}
trainer:
  bf16: false
  max_steps: 3
  num_generations: 4
  per_device_train_batch_size: 8
  gradient_accumulation_steps: 2
  max_completion_length: 40
  learning_rate: 1.0e-4
  use_vllm: true
  vllm_mode: colocate
  vllm_importance_sampling_mode: token_truncate
  logging_steps: 1
components:
  replay: {warmup: 0}
  reflection: {warmup: 0, max_share: 0.5, threshold: 1.0, budget: 24}
  ranking: true
  retrospective: {value: monte_carlo, outcome: any, cuts: grid, gate_auc: 0.0}
eval: {tasks: [embedded], limit: 4, samples: 1, backend: hf}
"""


@pytest.fixture
def plain_weights(monkeypatch):
    """On a CPU with AVX-512 vLLM packs its weights and then takes no new ones: leave them as they are."""
    from vllm.model_executor.layers import linear, utils, vocab_parallel_embedding

    def unpacked(layer, remove_weight):
        layer.cpu_linear = utils.torch.nn.functional.linear

    for module in (utils, linear, vocab_parallel_embedding):
        if hasattr(module, "dispatch_cpu_unquantized_gemm"):
            monkeypatch.setattr(module, "dispatch_cpu_unquantized_gemm", unpacked)


def test_colocated_training_with_the_four_components(model, tmp_path, monkeypatch, plain_weights):
    """Three steps: the engine's context is what was computed, the correction's quantiles are logged by length."""
    import vllm

    from r3bench.cli import app

    seen = []
    start = vllm.LLM.__init__

    def watched(self, *args, **kwargs):
        seen.append(kwargs["max_model_len"])
        start(self, *args, **kwargs)

    monkeypatch.setattr(vllm.LLM, "__init__", watched)
    (tmp_path / "colocated.yaml").write_text(f"model: {{name: {model}}}\n{RECIPE}")
    app(["train", str(tmp_path / "colocated.yaml"), "--runs", str(tmp_path / "runs")], standalone_mode=False)
    (run_dir,) = (tmp_path / "runs").iterdir()
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert len(steps) == 3
    for line in steps:
        assert 0 < line["correction/1-512_tokens/q10"] <= line["correction/1-512_tokens/median"] <= 3
    assert sum(line.get("reflection/groups_planned", 0) for line in steps) > 0  # with its longer prompts
    assert sum(line.get("ranking/groups", 0) for line in steps) > 0
    assert sum(line.get("retrospective/tokens_given", 0) for line in steps) > 0
    record = json.loads((run_dir / "run.json").read_text())
    assert record["train"]["engine"] == "vllm colocate"
    assert record["train"]["engine_dtype"] in ("float32", "bfloat16")

    from r3bench.config.load import load_recipe
    from r3bench.training.context import engine_context
    from r3bench.training.models.load import load_model
    from r3bench.training.questions.load import load_questions

    recipe = load_recipe(str(tmp_path / "colocated.yaml"))
    tokenizer = load_model(recipe.model)[1]
    assert seen == [engine_context(recipe, load_questions(recipe.data), tokenizer, None)]
    print(json.dumps({"context": seen[0], "steps": steps}))
