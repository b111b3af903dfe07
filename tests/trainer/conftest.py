"""A random tiny model and scripted rewards: every trainer test runs real `train()` calls on them."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from trainer_tools import build_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Folder with a 2-layer random Llama and its byte-level tokenizer."""
    return build_tiny_model(tmp_path_factory.mktemp("tiny"))
