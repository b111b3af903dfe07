"""Adapters into the weights: a folder with adapters alone becomes an ordinary model."""

import tempfile
from pathlib import Path

from r3bench.errors import ConfigError, StateError
from r3bench.files import put_folder
from r3bench.training.models.names import ADAPTER


def merge(adapters: Path, target: Path, dtype: str = "auto") -> None:
    """Write the start model with the adapters in `adapters` merged in to the new folder `target`, with tokenizer.

    Args:
        adapters: folder with an adapter_config.json.
        target: folder to make.
        dtype: of the weights; `auto`: as the start model was saved.

    Raises:
        ConfigError: no adapters there, or the start model can't be loaded.
        StateError: `target` is there already.
    """
    from peft import AutoPeftModelForCausalLM
    from safetensors import SafetensorError
    from transformers import AutoTokenizer
    from transformers.utils import logging

    if not (adapters / ADAPTER).is_file():
        raise ConfigError(f"{adapters}: has no {ADAPTER}, expected a run with adapters or a folder of adapters")
    if target.exists():
        raise StateError(f"{target}: already there, expected a folder to make")
    logging.disable_progress_bar()
    try:
        model = AutoPeftModelForCausalLM.from_pretrained(str(adapters), dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(str(adapters))
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ConfigError(f"{adapters}: can't be loaded: {str(error).partition(chr(10))[0]}") from error
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    model.merge_and_unload().save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    put_folder(temporary, target)
