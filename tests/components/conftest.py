"""Settings of the component tests and the random tiny model of the trainer tests."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

settings.register_profile("no deadline", deadline=None)  # a busy machine is no failure
settings.load_profile("no deadline")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Folder with a 2-layer random Llama and its byte-level tokenizer."""
    from trainer_tools import build_tiny_model

    return build_tiny_model(tmp_path_factory.mktemp("tiny"))
