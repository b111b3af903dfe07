"""Do the weights move, and does the record say so: through the command line, against saved weights and arithmetic."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from r3bench.analysis.output.tables import render_tables
from r3bench.cli import app
from r3bench.config.load import parse_recipe
from r3bench.config.precision import movable_share, precision
from r3bench.records import RunPaths
from r3bench.training.models import weights
from r3bench.training.models.load import load_model, model_folder
from r3bench.training.models.optimizer import compensated_adamw
from r3bench.training.run import train

HERE = Path(__file__).parent
LIKE = {  # what the shipped recipes have in common, on a model that trains anywhere
    "model": "embedded",
    "data": {"name": "embedded", "limit": 64},
    "trainer": {
        "learning_rate": 1e-6, "lr_scheduler_type": "constant", "bf16": True, "max_steps": 20, "logging_steps": 5,
        "per_device_train_batch_size": 8, "num_generations": 8, "max_completion_length": 8, "save_steps": 20,
        "gradient_checkpointing": False,
    },
    "eval": {"tasks": ["embedded"], "samples": 1, "limit": 4},
}  # fmt: skip


def recipe_with(name="like", *, model=None, **trainer):
    values = json.loads(json.dumps(LIKE)) | {"name": name}
    values["trainer"] |= trainer
    values["model"] = {"name": "embedded", **(model or {})}
    return values


def run(folder, name="like", **changes):
    """The training record and paths of a run."""
    paths = RunPaths(folder / name)
    paths.root.mkdir()
    return train(parse_recipe(recipe_with(name, **changes), name), paths, quiet=True), paths


def command(folder, *arguments, **changes):
    """`r3bench train` on a recipe file; the result and the record."""
    name = arguments[0]
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(recipe_with(name, **changes)))
    result = CliRunner().invoke(app, ["train", str(folder / f"{name}.yaml"), "--quiet", "--runs", str(folder)])
    assert result.exit_code == 0, result.output
    (file,) = folder.glob(f"{name}-s0-*/run.json")
    return result, json.loads(file.read_text())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    return folder, *command(folder, "like")


@pytest.fixture(scope="module")
def frozen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frozen")
    return folder, *command(folder, "pure", model={"dtype": "bfloat16"})


def changed(folder, start, dtype=torch.float32):
    """Share of all weights of a saved model that differ from the start's, in a dtype."""
    after, before = load_file(folder / "model.safetensors"), load_file(Path(start) / "model.safetensors")
    differ = sum(int((after[k].to(dtype) != before[k].to(dtype)).sum()) for k in before)
    return differ / sum(v.numel() for v in before.values())


def test_float32_masters_move_and_the_record_says_how_they_were_made(trained):
    _, result, record = trained
    assert "warning" not in result.stderr
    made = record["train"]
    assert made["weights_changed"] > 0.99
    found = [made[key] for key in ("strategy", "weights_dtype", "compute_dtype", "engine", "engine_dtype")]
    assert found == ["single", "float32", "bfloat16", "transformers", "bfloat16"]


def test_the_shares_are_those_of_the_saved_weights(trained):
    folder, _, record = trained
    (model,) = folder.glob("like-s0-*/model")
    start = model_folder("embedded")
    made = record["train"]
    assert made["weights_changed"] == pytest.approx(changed(model, start), abs=0.005)
    assert made["weights_changed_sampled"] == pytest.approx(changed(model, start, torch.bfloat16), abs=0.005)
    (log,) = folder.glob("like-s0-*/metrics.jsonl")
    last = json.loads(log.read_text().splitlines()[-1])
    assert [last[key] for key in ("weights_changed", "weights_changed_sampled")] == [
        pytest.approx(made[key], abs=1e-6) for key in ("weights_changed", "weights_changed_sampled")
    ]


def test_pure_bfloat16_is_warned_about_recorded_and_named_in_its_table(frozen):
    folder, result, record = frozen
    expected, counted = [line for line in result.stderr.splitlines() if line.startswith("warning: model.dtype")]
    assert "about 1.9 % of them can move (expected of weights of size 0.02)" in expected
    share = float(counted.split("only about ")[1].split(" %")[0]) / 100
    moved = record["train"]["weights_changed"]
    assert 0 < moved < 0.01
    assert moved == pytest.approx(share, rel=0.3)
    (name,) = [path.name for path in folder.glob("pure-s0-*")]
    table = render_tables(folder / name)
    assert f"{name}: only" in table and "of its trained weights ever changed (bfloat16)" in table
    assert f"{100 * moved:.1f} %" in table


def test_a_compensated_optimiser_keeps_what_rounding_drops(tmp_path, frozen):
    pytest.importorskip("optimi")
    record, _ = run(tmp_path, "kahan", model={"dtype": "bfloat16", "compensation": "kahan"})
    assert record.weights_dtype == "bfloat16"
    assert record.weights_changed > 0.9
    assert record.weights_changed_sampled > 2 * frozen[2]["train"]["weights_changed"]  # sums reach the weights


def test_the_compensated_optimiser_goes_where_float32_goes():
    pytest.importorskip("optimi")
    settings = SimpleNamespace(
        learning_rate=1e-6, adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8, weight_decay=0.0
    )
    cls, values = compensated_adamw(settings)
    torch.manual_seed(0)
    start, gradients = torch.randn(4096).mul(0.02).bfloat16(), torch.randn(20, 4096)
    ends = {}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        weight = torch.nn.Parameter(start.to(dtype, copy=True))
        optimizer = (
            torch.optim.AdamW([weight], lr=1e-6, weight_decay=0.0) if name == "float32" else cls([weight], **values)
        )
        for gradient in gradients:
            weight.grad = gradient.to(dtype)
            optimizer.step()
        kept = optimizer.state[weight].get("kahan_comp", torch.zeros(()))
        ends[name] = weight.detach().float() + kept.float() - start.float()
    assert torch.nn.functional.cosine_similarity(ends["bfloat16"], ends["float32"], dim=0) > 0.99
    assert ends["bfloat16"].norm() == pytest.approx(ends["float32"].norm().item(), rel=0.05)


def test_adapters_and_the_weights_they_change_for_sampling(tmp_path):
    record, paths = run(tmp_path, "lora", model={"dtype": "bfloat16", "lora": {"rank": 4}}, learning_rate=1e-3)
    assert record.weights_dtype == "float32" and record.weights_changed > 0.95
    start = load_model(parse_recipe(recipe_with(model={"dtype": "bfloat16"}), "x").model)[0].state_dict()
    after = load_file(paths.model / "model.safetensors")
    linear = [k for k in after if k.endswith("_proj.weight")]
    differ = sum(int((after[k] != start[k]).sum()) for k in linear) / sum(after[k].numel() for k in linear)
    assert 0.01 < differ < 0.99
    assert record.weights_changed_sampled == pytest.approx(differ, abs=0.01)


def test_weights_saved_in_bfloat16_and_dtype_auto(tmp_path, capsys):
    folder = tmp_path / "half"
    shutil.copytree(model_folder("embedded"), folder)
    values = load_file(folder / "model.safetensors")
    save_file({k: v.bfloat16() for k, v in values.items()}, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text()) | {"dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    changes = {"model": {"name": str(folder), "dtype": "auto"}}
    (tmp_path / "auto.yaml").write_text(yaml.safe_dump(recipe_with("auto", **changes)))
    found = CliRunner().invoke(app, ["validate", str(tmp_path / "auto.yaml"), "--json"])
    (warning,) = json.loads(found.stdout)["warnings"]
    assert warning.startswith("model.dtype: bfloat16 weights under adamw_torch_fused at a learning rate of 1e-06")
    record, _ = run(tmp_path, "auto", **changes, max_steps=4, save_steps=4)
    assert "warning: model.dtype: bfloat16 weights" in capsys.readouterr().err
    assert record.weights_dtype == "bfloat16" and record.weights_changed < 0.01


def test_without_sampling_everything_a_larger_model_is_looked_at_in_part(tmp_path, monkeypatch, trained):
    monkeypatch.setattr(weights.WeightsWatch.__init__, "__defaults__", (2000,))
    record, _ = run(tmp_path, "part", max_steps=20)
    full = trained[2]["train"]["weights_changed_sampled"]
    assert record.weights_changed_sampled == pytest.approx(full, abs=4 * math.sqrt(full / 2000))
    assert record.weights_changed_sampled != full


def test_frozen_and_tied_weights_are_counted_as_they_are(tiny_model, tmp_path):
    from trainer_tools import arguments, by_length, questions

    from r3bench import R3Trainer

    args = arguments(tmp_path, max_steps=1)
    trainer = R3Trainer(model=tiny_model, reward_funcs=by_length, train_dataset=questions(6), args=args)
    trainer.model.get_input_embeddings().weight.requires_grad_(False)
    watch = weights.WeightsWatch(trainer, torch.float32)
    own = [p for p in trainer.model.parameters() if p.requires_grad]
    assert len(watch.start_magnitudes) == sum(p.numel() for p in own)
    assert watch.measure() == weights.Shares(0.0, 0.0)
    with torch.no_grad():
        own[0].add_(1.0)
        trainer.model.get_input_embeddings().weight.add_(1.0)
    assert watch.measure().trained == pytest.approx(own[0].numel() / sum(p.numel() for p in own))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("scale", [0.02, 0.2])
@pytest.mark.parametrize("rate", [1e-7, 1e-6, 1e-5, 1e-4])
def test_the_expected_share_is_that_of_adding_such_an_update(dtype, scale, rate):
    values = torch.from_numpy(np.random.default_rng(0).normal(0, scale, 400_000)).to(getattr(torch, dtype))
    signs = torch.from_numpy(np.random.default_rng(1).choice([-1.0, 1.0], 400_000))
    # as an optimiser in this dtype does: the exact sum, rounded to it
    moved = ((values.double() + signs * rate).to(values.dtype) != values).double().mean().item()
    # half of the updates shrink a weight: below a power of two the grid is finer, so a few more of those move
    assert movable_share(dtype, "adamw_torch", rate, scale=scale) == pytest.approx(moved, rel=0.05, abs=0.002)


@pytest.mark.parametrize(
    ("trainer", "model", "share"),
    [
        ({}, {"dtype": "float32"}, 1.0),
        ({"optim": "adafactor"}, {"dtype": "bfloat16"}, 0.0195),
        ({"optim": "adamw_torch_8bit"}, {"dtype": "bfloat16"}, 0.0195),
        ({"optim": "sgd", "max_grad_norm": 0.1}, {"dtype": "bfloat16"}, 2.97e-7),
        ({"optim": "sgd", "max_grad_norm": 0.0}, {"dtype": "bfloat16"}, 2.38e-6),
        ({"optim": "stable_adamw"}, {"dtype": "bfloat16"}, 1.0),
        ({"optim": "stable_adamw", "optim_args": "kahan_sum="}, {"dtype": "bfloat16"}, 0.0195),
        ({}, {"dtype": "bfloat16", "compensation": "kahan"}, 1.0),
        ({}, {"dtype": "bfloat16", "lora": {}}, 1.0),
        ({"learning_rate": 1e-3}, {"dtype": "bfloat16"}, 1.0),
        ({"fp16": True, "bf16": False}, {"dtype": "float16"}, 1.0),
        ({}, {"name": "org/model", "dtype": "auto"}, None),
    ],
)
def test_the_expected_share_of_a_recipe(trainer, model, share):
    found = precision(parse_recipe(recipe_with(model=model, **trainer), "x")).share()
    assert found == (None if share is None else pytest.approx(share, rel=0.05))


@pytest.mark.slow
@pytest.mark.parametrize("optim", ["adafactor", "sgd", "adamw_torch"])
@pytest.mark.parametrize("iterations", [1, 2])
def test_other_optimisers_and_iterations(tmp_path, optim, iterations):
    still, _ = run(tmp_path, "still", model={"dtype": "bfloat16"}, optim=optim, num_iterations=iterations)
    moved, _ = run(tmp_path, "moved", optim=optim, num_iterations=iterations, bf16=False)
    assert still.weights_changed < 0.02
    assert moved.weights_changed > 5 * still.weights_changed


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_processes_move_and_count_the_same(tmp_path, strategy):
    """Through the command line under torchrun (gloo), with what both ranks gather counted in full beside it."""
    model_folder("embedded")
    (tmp_path / "like.yaml").write_text(yaml.safe_dump(recipe_with()))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    launch += [str(HERE / "weights_ranks.py"), strategy, str(tmp_path / "like.yaml"), str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
    done = subprocess.run(launch, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = tmp_path.glob("like-s0-*/run.json")
    made = json.loads(file.read_text())["train"]
    assert (made["strategy"], made["processes"], made["weights_dtype"]) == (strategy, 2, "float32")
    assert made["weights_changed"] > 0.99
    start = model_folder("embedded")
    assert made["weights_changed"] == pytest.approx(changed(file.parent / "model", start), abs=0.005)
    assert made["weights_changed_sampled"] == pytest.approx(
        changed(file.parent / "model", start, torch.bfloat16), abs=0.01
    )
