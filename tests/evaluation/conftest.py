"""A small model that answers some generated questions rightly, built once per test session."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model_path(tmp_path_factory) -> Path:
    """The embedded model after a fifth of its warm-up: quick to make, mostly wrong, not always."""
    from r3bench.training.models import embedded as embedded_model

    folder = tmp_path_factory.mktemp("model") / "embedded"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(embedded_model.WARMUPS, 9, embedded_model.Warmup(worked=40, mixed=60))
        embedded_model.build(folder, 9)
    return folder


@pytest.fixture(scope="session")
def loaded(model_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(model_path), AutoTokenizer.from_pretrained(model_path)


@pytest.fixture
def real_data() -> Path:
    folder = os.environ.get("R3BENCH_DATA")
    if not folder:
        pytest.skip("R3BENCH_DATA is not set")
    return Path(folder)


@pytest.fixture
def standin(tmp_path, monkeypatch) -> Path:
    """A stand-in for vLLM in the place of the package; the file with what was asked of it."""
    from standin import install

    for key, value in install(tmp_path / "standin").items():
        monkeypatch.setenv(key, value)
    monkeypatch.syspath_prepend(tmp_path / "standin")
    return tmp_path / "standin" / "requests.jsonl"
