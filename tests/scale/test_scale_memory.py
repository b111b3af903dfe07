"""Memory arithmetic: against real models, the formulas written out, and the sizes that recipes are named after."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import Adafactor, AutoModelForCausalLM, Qwen2Config
from typer.testing import Result

from r3bench import catalog
from r3bench.components.reflection import template_path
from r3bench.config.load import load_recipe, parse_recipe
from r3bench.config.sections import LoraSection
from r3bench.sweep.planning.cost import run_cost
from r3bench.sweep.planning.memory import (
    ASLEEP_GB,
    CARDS,
    KNOWN,
    Shape,
    adapter_parameters,
    memory,
    recipe_memory,
    shape_of,
)

SMALL = Shape(layers=3, hidden=64, kv_heads=2, head_dim=16, intermediate=96, vocabulary=500, tied=False, heads=4)


def build(shape: Shape) -> torch.nn.Module:
    """A model of that shape without storage."""
    config = Qwen2Config(
        num_hidden_layers=shape.layers, hidden_size=shape.hidden, num_key_value_heads=shape.kv_heads,
        num_attention_heads=shape.heads, intermediate_size=shape.intermediate, vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
    )  # fmt: skip
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def count(model: torch.nn.Module, trained: bool = False) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trained)


@pytest.mark.parametrize("shape", [*KNOWN.values(), SMALL])
def test_parameters_are_those_of_a_real_model(shape: Shape) -> None:
    assert shape.parameters == pytest.approx(count(build(shape)), rel=0.02 if shape is SMALL else 0.0005)


def test_adapter_parameters_are_pefts() -> None:
    for rank in (1, 8):
        adapted = get_peft_model(build(SMALL), LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM"))
        assert adapter_parameters(SMALL, rank) == count(adapted, trained=True)


def test_the_optimiser_is_what_adam_holds() -> None:
    for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float32, "float32")):
        weights = torch.nn.Parameter(torch.zeros(SMALL.parameters, dtype=dtype))
        weights.grad = torch.ones_like(weights)
        optimiser = torch.optim.AdamW([weights])
        optimiser.step()
        held = sum(
            v.numel() * v.element_size() for v in optimiser.state[weights].values() if v.numel() == weights.numel()
        )
        found = memory(SMALL, {}, dtype=name)
        assert found.optimiser * 1e9 == pytest.approx(held)
        assert found.gradients * 1e9 == pytest.approx(weights.grad.numel() * weights.grad.element_size())


def held_by(optimiser: torch.optim.Optimizer) -> int:
    """Bytes of an optimiser's states, numbers of steps left out."""
    states = [v for state in optimiser.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    return sum(v.numel() * v.element_size() for v in states if v.numel() > 1)


def test_other_optimisers_hold_what_is_planned() -> None:
    optimi = pytest.importorskip("optimi")
    cases: list[tuple[str, str, Any, bool]] = [
        ("sgd", "float32", torch.optim.SGD, False),
        ("adagrad", "float32", torch.optim.Adagrad, False),
        ("rmsprop", "float32", torch.optim.RMSprop, False),
        ("adafactor", "float32", Adafactor, False),
        ("adamw_torch", "bfloat16", lambda p: optimi.AdamW(p, lr=1e-3, kahan_sum=True), True),
        ("stable_adamw", "bfloat16", lambda p: optimi.StableAdamW(p, lr=1e-3), True),
        ("stable_adamw", "float32", lambda p: optimi.StableAdamW(p, lr=1e-3), True),
    ]
    for optim, dtype, make, compensated in cases:
        weights = torch.nn.Parameter(torch.ones(256, 512, dtype=getattr(torch, dtype)))
        weights.grad = torch.ones_like(weights)
        optimiser = make([weights])
        optimiser.step()
        found = memory(SMALL, {"optim": optim}, dtype=dtype, compensated=compensated).optimiser * 1e9
        planned = found / SMALL.parameters * weights.numel()
        assert held_by(optimiser) == pytest.approx(planned, abs=0.03 * weights.numel()), (optim, dtype)


def test_the_dtype_that_is_planned_is_the_one_that_is_loaded(folder: Path) -> None:
    config = build(SMALL).config.to_dict()
    for saved, width in (("bfloat16", 2), ("float32", 4)):
        (folder / "model").mkdir(exist_ok=True)
        (folder / "model" / "config.json").write_text(json.dumps({**config, "dtype": saved}))
        found = recipe_memory(parse_recipe({"model": {"name": "./model", "dtype": "auto"}}, "x"))
        assert found is not None and found.weights * 1e9 == width * SMALL.parameters
    half = {"model": {"name": "./model", "dtype": "float16"}, "trainer": {"fp16": True}}
    found = recipe_memory(parse_recipe(half, "x"))
    assert found is not None and found.weights * 1e9 == 4 * SMALL.parameters
    plain = memory(SMALL, {}, dtype="float32")  # TRL computes in bfloat16 unless told otherwise
    assert plain == memory(SMALL, {"bf16": True}, dtype="float32") != memory(SMALL, {"bf16": False}, dtype="float32")
    (folder / "model" / "config.json").write_text(json.dumps({**config, "num_experts": 8}))
    assert shape_of("./model") is None


def test_deepspeed_trains_a_cast_model_and_keeps_masters() -> None:
    found = memory(SMALL, {"beta": 0.1}, dtype="float32", processes=4, strategy="zero2")
    assert found.weights * 1e9 == found.reference * 1e9 == 2 * SMALL.parameters
    assert found.gradients * 1e9 == 2 * SMALL.parameters / 4
    assert found.optimiser * 1e9 == 12 * SMALL.parameters / 4
    sgd = memory(SMALL, {"optim": "sgd"}, dtype="float32", processes=4, strategy="zero3")
    assert sgd.optimiser * 1e9 == 4 * SMALL.parameters / 4


def test_a_plan_says_that_it_does_not_know(r3bench: Callable[..., Result], folder: Path) -> None:
    (folder / "mine.yaml").write_text("model: org/something-3B\n")
    assert "memory           unknown, as is the shape of 'org/something-3B'" in r3bench("plan", "./mine.yaml").stdout


def test_checkpoints_hold_what_the_optimiser_does() -> None:
    def checkpoint(*overrides: str) -> float:
        return run_cost(load_recipe("deepscaler_8k", list(overrides))).checkpoint_gb

    for overrides, width in (
        ((), 12), (("trainer.optim=sgd",), 4), (("model.dtype=bfloat16",), 6),
        (("model.dtype=bfloat16", "model.compensation=kahan"), 8),
    ):  # fmt: skip
        assert checkpoint(*overrides) == pytest.approx(2 * width * 1.78)
    assert checkpoint("model.lora={rank: 8}") < 0.3


def test_keys_and_values_are_what_a_model_caches() -> None:
    config = build(SMALL).config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    rows, length = 6, 40
    with torch.no_grad():
        cache = model(torch.ones(rows, length, dtype=torch.long), use_cache=True).past_key_values
    held = sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values))
    trainer = {
        "per_device_train_batch_size": 3, "gradient_accumulation_steps": 2, "max_completion_length": 30, "bf16": True,
    }  # fmt: skip
    assert memory(SMALL, trainer, prompt=10).generation * 1e9 == pytest.approx(held)
    assert memory(SMALL, {**trainer, "use_vllm": True}, prompt=10).generation == 0


def test_the_total_written_out() -> None:
    """DeepSeek-R1-Distill-Qwen-1.5B by hand: 8 rows of 1,024 + 8,192 tokens, vLLM on 30 % of 80 GB, asleep in training.

    A reflection prompt may hold the template (each byte counted as a token) and 512 tokens of an answer besides.

    To the 16 groups of 8 that a process samples, replay may append 16 rows and reflection 4 groups of 8: 3 rows for
    each of 16 micro-batches.
    """
    n = 1.776943104e9
    tokens = (8 + 3) * (1024 + len(template_path("retry").read_bytes()) + 512 + 8192)
    block = tokens * 1536 * 2
    head = tokens * 1536 * 4 + 151936 * 1536 * 8 + 4096 * 32768 * 2
    stays = 4 * n + 4 * n + 4 * n + 8 * n + 1e9  # weights, reference, gradients, two moments in float32; context
    training = 2 * n + (28 + 17) * block + head + ASLEEP_GB * 1e9  # autocast's copies of the weights in bfloat16
    recipe = load_recipe("r3_1.5b", ["model.dtype=float32", "trainer.vllm_enable_sleep_mode=true"])
    found = recipe_memory(recipe, device_gb=80)
    assert found is not None
    assert found.total == pytest.approx((stays + max(training, 0.3 * 80e9)) / 1e9)
    awake = recipe_memory(
        load_recipe("r3_1.5b", ["model.dtype=float32", "trainer.vllm_enable_sleep_mode=false"]), device_gb=80
    )
    assert awake is not None
    assert awake.total == pytest.approx((stays + training - ASLEEP_GB * 1e9 + 0.3 * 80e9) / 1e9)


def test_a_split_model_takes_its_share() -> None:
    trainer = {"beta": 0.1, "bf16": False}
    whole = memory(SMALL, trainer, dtype="float32")
    for strategy, split in (("zero2", 2), ("fsdp2", 4), ("ddp", 0)):
        found = memory(SMALL, trainer, dtype="float32", processes=4, strategy=strategy)  # type: ignore[arg-type]
        shared = [name for name in ("weights", "reference", "gradients") if getattr(found, name) < getattr(whole, name)]
        assert len(shared) + (found.optimiser < whole.optimiser) == split
    assert memory(SMALL, trainer, lora=LoraSection()).reference == 0
    assert memory(SMALL, {**trainer, "gradient_checkpointing": False}).activations > memory(SMALL, trainer).activations


def test_recipes_named_after_a_size_fit_it(r3bench: Callable[..., Result]) -> None:
    names = [name for name in catalog.names("ablations", ".yaml", "recipes") if name.endswith("gb")]
    assert {int(re.findall(r"(\d+)gb$", name)[0]) for name in names} == {24, 80}
    for name in names:
        card = re.sub(r".*_(\d+)gb$", r"\1 GB", name)
        found = recipe_memory(load_recipe(name), device_gb=CARDS[card])
        assert found is not None
        assert found.total < 0.95 * CARDS[card], (name, found)
        assert f"{card} fits" in r3bench("plan", name).stdout
        one = load_recipe(name).trainer
        eight = load_recipe(re.sub(r"(_lora)?_\d+gb$", "", name)).trainer  # the same batches on eight GPUs
        for key in ("steps_per_generation", "gradient_accumulation_steps"):
            rows = one["per_device_train_batch_size"] * one[key]
            assert rows == 8 * eight["per_device_train_batch_size"] * eight[key]


def test_plan_of_a_grid_and_of_a_recipe(r3bench: Callable[..., Result], folder: Path) -> None:
    eight, many = (json.loads(r3bench("plan", "r3", "--gpus", n, "--json").stdout) for n in ("8", "64"))
    assert eight["training_tokens"] == pytest.approx(many["training_tokens"], rel=0.01)  # the same epochs
    assert "ddp on 8 GPUs" in eight["memory"]
    found = json.loads(r3bench("plan", "r3_7b", "--gpus", "8", "--strategy", "fsdp2", "--json").stdout)
    assert found["memory_gb"]["total"] == pytest.approx(sum(
        value for key, value in found["memory_gb"].items() if key != "total"
    ))  # fmt: skip
    assert "seeds 0, 1" in r3bench("plan", "quickstart").stdout  # a grid goes first
    (folder / "mine.yaml").write_text("model: embedded\n")
    assert r3bench("plan", "mine.yaml").stdout.startswith("mine: one run, mine-s0-")
    assert r3bench("plan", "r3", "--gpus", "0").stderr == "r3bench: --gpus: got 0, expected at least 1\n"


@pytest.mark.parametrize(("gpus", "updates"), [(8, int(40309 / 64 * 3)), (64, int(40309 / 512 * 3))])
def test_the_cost_of_r3_written_out(r3bench: Callable[..., Result], gpus: int, updates: int) -> None:
    """48 trained runs and the untrained model, three epochs of 40,309 questions, five benchmarks x 16 answers."""
    found = json.loads(r3bench("plan", "r3", "--gpus", str(gpus), "--json").stdout)
    tokens = updates * 8 * 8 * gpus * 0.5 * 8192
    evaluation = (30 + 500 + 83 + 272 + 675) * 16 * 0.5 * 32768
    assert found["training_tokens"] == pytest.approx(48 * tokens)
    assert found["evaluation_tokens"] == pytest.approx(49 * evaluation)
    hours = (48 * tokens / 13000 + 49 * evaluation / 10000) / 3600
    assert found["device_hours"]["H100"] == pytest.approx(hours)
    width = {"float32": 4, "bfloat16": 2}[load_recipe("r3_1.5b").model.dtype]
    kept = 49 * (1.78e9 * width + evaluation * 2) / 1e9
    assert found["kept_disk_gb"] == pytest.approx(kept)
    assert found["peak_disk_gb"] == pytest.approx(kept + 2 * (1.78e9 * 3 * width + 5e8 * 8) / 1e9)
    text = r3bench("plan", "r3", "--gpus", str(gpus)).stdout
    assert f"H100 {hours / gpus:,.1f}, H200" in text.partition("  hours  ")[2].partition("\n")[0]


def test_rows_that_fit_in_vllms_share(r3bench: Callable[..., Result]) -> None:
    """DeepSeek-R1-Distill-Qwen-1.5B: 28 layers, 2 key/value heads of 128, bfloat16; 8,192 + 1,024 tokens a row,
    and a reflection's template and 512 tokens of an answer."""
    row = 2 * 2 * 28 * 2 * 128 * (9216 + 512 + len(template_path("retry").read_bytes()))
    rows = int((0.3 * CARDS["80 GB"] * 1e9 - 2 * 1.776943104e9) / row)
    text = r3bench("plan", "r3_1.5b").stdout
    assert f"keys and values, {row / 1e9:.2f} of an answer in full length" in text
    assert f"{rows} on 80 GB" in text
    text = r3bench("plan", "r3_7b").stdout
    assert "0 on 24 GB" in text and "24 GB does not" in text


def test_an_unknown_shape_is_left_out(folder: Path) -> None:
    assert shape_of("nobody/knows-3B") is None
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    assert shape_of(str(folder / "model")) is None
    build(SMALL).config.save_pretrained(folder / "model")
    assert shape_of(str(folder / "model")) == SMALL


def test_plan_takes_overrides_of_a_recipe_and_warns_of_a_tight_fit(r3bench: Callable[..., Result]) -> None:
    wide = ["model.dtype=float32", "trainer.vllm_enable_sleep_mode=false"]
    text = r3bench("plan", "r3_1.5b", *wide, "--gpus", "8").stdout
    assert "80 GB fits, 2 % spare" in text and "warning: less than 10 % spare on 80 GB" in text
    asleep = r3bench("plan", "r3_1.5b", wide[0], "trainer.vllm_enable_sleep_mode=true", "--gpus", "8").stdout
    assert "80 GB fits, 27 % spare" in asleep and "warning" not in asleep and "sleep mode" in asleep
    grid = r3bench("plan", "r3", "model.dtype=bfloat16")  # of every cell
    assert grid.exit_code == 0 and "model.dtype: bfloat16" in grid.stderr + grid.stdout
    assert r3bench("plan", "r3_1.5b", "seed=7").stdout.startswith("r3_1.5b: one run, r3_1.5b-s7-")


def test_an_engine_that_sleeps_is_counted_while_it_is_awake() -> None:
    trainer = {"use_vllm": True, "vllm_gpu_memory_utilization": 0.5, "max_completion_length": 8}
    awake = memory(SMALL, trainer, device_gb=80)
    asleep = memory(SMALL, {**trainer, "vllm_enable_sleep_mode": True}, device_gb=80)
    names = ("weights", "gathered", "gradients", "optimiser", "activations", "head", "context", "reference")
    assert awake.total == pytest.approx(40 + sum(getattr(awake, name) for name in names))
    assert 40 < asleep.total <= awake.total  # it has its share while it samples, whatever training needs


@pytest.mark.parametrize(("name", "strategy"), [("r3_1.5b", "ddp"), ("r3_7b", "fsdp2"), ("deepscaler_8k", "ddp")])
def test_the_papers_recipes_fit_eight_cards_of_80_gb_with_a_tenth_to_spare(name: str, strategy: str) -> None:
    recipe = load_recipe(name)
    assert recipe.model.dtype == "float32"
    found = recipe_memory(recipe, processes=8, strategy=strategy, device_gb=85.0)  # type: ignore[arg-type]
    assert found is not None
    assert found.total <= 0.9 * 85.0  # what an H100 shows as its memory
