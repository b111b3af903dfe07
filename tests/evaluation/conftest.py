"""A small model that answers some generated questions rightly, built once per test session."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model_path(tmp_path_factory) -> Path:
    from r3bench.training.embedded_model import build

    folder = tmp_path_factory.mktemp("model") / "embedded"
    build(folder, 9)
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
