"""A tiny model and a stand-in for vLLM."""

from pathlib import Path

import pytest
from standin import install


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> str:
    """A random model with a tokenizer and a chat template."""
    from trainer_tools import build_tiny_model

    return build_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def standin(tmp_path, monkeypatch) -> Path:
    """A stand-in for vLLM in the place of the package and its program; the file with what was asked of it."""
    for key, value in install(tmp_path / "standin").items():
        monkeypatch.setenv(key, value)
    monkeypatch.syspath_prepend(tmp_path / "standin")
    return tmp_path / "standin" / "requests.jsonl"
