"""The policy named in a recipe: a built-in one, a local folder, or a hub id."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from r3bench import project
from r3bench.config.sections import ModelSection, WarmupSection
from r3bench.errors import ConfigError, nearest
from r3bench.training.models import embedded as embedded_model
from r3bench.training.models import smollm
from r3bench.training.models.cache import cached_folder
from r3bench.training.models.names import ADAPTER, BUILT_IN, check_model_name
from r3bench.training.questions import embedded

UNLOADABLE = (OSError, ValueError, KeyError, ImportError, SafetensorError)  # what transformers raises over files


def model_folder(name: str, revision: str | None = None, warmup: WarmupSection | None = None) -> str:
    """A folder or hub id that transformers can load; a built-in model is made on first use and cached.

    `warmup`: further supervised steps of an embedded model.

    Raises:
        ConfigError: for a missing folder, a missing package, an unknown name, or a revision of something local.
    """
    if warmup is not None and name not in embedded.CAPS:
        raise ConfigError(f"model.warmup: got one for '{name}', expected null: only {', '.join(embedded.CAPS)} take it")
    if name in embedded.CAPS:
        steps = "" if warmup is None else f" and {warmup.steps} further supervised steps"
        path = cached_folder(
            f"{name}-{embedded_model.fingerprint(name, warmup)}",
            lambda target: embedded_model.make(target, name, warmup),
            f"unpacking the model '{name}'{steps}",
        )
    elif name == smollm.NAME:
        path = smollm.folder()
    else:
        check_model_name(name)
        path = project.located(name)
        if not path.is_dir():
            return name
    if revision is not None:
        raise ConfigError(f"model.revision: got '{revision}', expected null: '{name}' is local and has no revisions")
    return str(path)


def check_folder(folder: Path, name: str) -> None:
    """Refuse a model's folder that can't be loaded: its configuration, tokenizer and the heads of its weights are read.

    Raises:
        ConfigError: naming the folder and what is wrong with it.
    """
    try:
        AutoConfig.from_pretrained(folder, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        weights = sorted(folder.glob("*.safetensors"))
        for path in weights:
            with safe_open(path, framework="pt") as file:
                list(file.keys())
    except Exception as error:  # whatever transformers meets in a broken file
        raise ConfigError(f"model.name: '{name}' can't be loaded: {_reason(error)}") from error
    if not weights and not list(folder.glob("pytorch_model*.bin")):
        raise ConfigError(
            f"model.name: '{name}' has no weights (*.safetensors), expected a folder saved with save_pretrained"
        )
    check_tokenizer(tokenizer, name)


def without_weights(section: ModelSection, **more: Any) -> PreTrainedModel:
    """The model of `section` as it would be loaded, with shapes and no weights. `more`: for transformers.

    Raises:
        ConfigError: as `load_model`, and for a configuration that describes no model.
    """
    source, options = _source(section)
    options |= more
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False, **options)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # whatever a class makes of odd numbers in its configuration
        raise ConfigError(f"model.name: '{section.name}' can't be loaded: {_reason(error)}") from error


def check_shapes(folder: Path, bare: PreTrainedModel, tokens: int, name: str) -> None:
    """Refuse weights of other shapes than the configuration says, and a tokenizer with more tokens than embeddings.

    Args:
        folder: of the model.
        bare: `without_weights` of it.
        tokens: of the tokenizer.
        name: for messages.

    Raises:
        ConfigError: naming the first one.
    """
    if getattr(bare.config, "quantization_config", None) is not None:
        return  # packed weights have shapes of their own
    expected = {key: tuple(value.shape) for key, value in bare.state_dict().items()}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118, no mapping
                shape = tuple(file.get_slice(key).get_shape())
                if shape != expected.get(key, shape):
                    raise ConfigError(
                        f"model.name: '{name}': {path.name}: {key} is {shape}, but by config.json it is {expected[key]}"
                    )
    embeddings: Any = bare.get_input_embeddings()
    rows = int(embeddings.weight.shape[0])
    if tokens > rows:
        raise ConfigError(
            f"model.name: '{name}': its tokenizer has {tokens} tokens and the model embeddings for {rows}: they don't "
            "belong together"
        )


def check_targets(targets: str | Sequence[str], bare: PreTrainedModel) -> None:
    """Refuse adapters for modules that the model lacks.

    Raises:
        ConfigError: naming the nearest module.
    """
    if isinstance(targets, str):  # 'all-linear', or a regular expression
        return
    known = {name.rpartition(".")[2] for name, module in bare.named_modules() if isinstance(module, torch.nn.Linear)}
    paths = [name for name, _ in bare.named_modules()]
    for target in targets:
        if not any(path == target or path.endswith(f".{target}") for path in paths):
            raise ConfigError(f"model.lora.target_modules: the model has no '{target}'{nearest(target, known)}")


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Refuse a tokenizer that can't make a chat or pad a batch.

    Raises:
        ConfigError: naming the model.
    """
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is None:
        raise ConfigError(f"model.name: '{name}': its tokenizer has neither a padding nor an end token")
    if tokenizer.chat_template is None:
        raise ConfigError(f"model.name: '{name}': its tokenizer has no chat template, expected a chat model")


def load_model(section: ModelSection) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer of `section`, on the CPU, without adapters (`section.lora` is the trainer's part).

    The tokenizer pads on the left and has a padding token. Code from the hub is never run.

    Raises:
        ConfigError: as `model_folder`, and when the hub can't be reached or holds no such model.
    """
    source, options = _source(section)
    tokenizer = load_tokenizer(section)
    if section.attention is not None:
        options["attn_implementation"] = section.attention
    try:
        model = AutoModelForCausalLM.from_pretrained(source, trust_remote_code=False, dtype=_dtype(section), **options)
    except UNLOADABLE as error:
        raise ConfigError(f"model.name: '{section.name}' can't be loaded: {_reason(error)}") from error
    if section.lora is None and model.dtype == torch.float16:
        raise ConfigError(
            f"model.dtype: auto: '{section.name}' was saved in float16, whose gradients no loss scaler takes; expected "
            "float32, or float16 with trainer.fp16: true (which keeps the trained weights in float32)"
        )
    return model, tokenizer


def load_tokenizer(section: ModelSection, **more: Any) -> PreTrainedTokenizerBase:
    """The tokenizer of `section`, which pads on the left and has a padding token and a chat template.

    `more`: for transformers.

    Raises:
        ConfigError: as `load_model`.
    """
    source, options = _source(section)
    options |= more
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, padding_side="left", **options)
    except UNLOADABLE as error:
        raise ConfigError(f"model.name: '{section.name}' can't be loaded: {_reason(error)}") from error
    check_tokenizer(tokenizer, section.name)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_positions(section: ModelSection, **more: Any) -> int | None:
    """How many tokens the model of `section` can take; None where it doesn't say. Its weights aren't read.

    `more`: for transformers.

    Raises:
        ConfigError: as `load_model`.
    """
    source, options = _source(section)
    options |= more
    try:
        return positions(AutoConfig.from_pretrained(source, trust_remote_code=False, **options))
    except UNLOADABLE as error:
        raise ConfigError(f"model.name: '{section.name}' can't be loaded: {_reason(error)}") from error


def positions(config: PretrainedConfig) -> int | None:
    """How many tokens a model can take, by its configuration; None where that doesn't say."""
    found = getattr(config.get_text_config(), "max_position_embeddings", None)
    return None if found is None else int(found)


def _source(section: ModelSection) -> tuple[str, dict[str, Any]]:
    """Folder or hub id, and what to ask the hub for."""
    source = model_folder(section.name, section.revision, section.warmup)
    if (Path(source) / ADAPTER).is_file():
        raise ConfigError(
            f"model.name: '{section.name}' holds adapters alone, expected whole weights (`r3bench merge`)"
        )
    return source, {"revision": section.revision} if section.revision else {}


def _dtype(section: ModelSection) -> str:
    """What to load the weights in: those a loss scaler works on must be float32."""
    return "float32" if section.dtype == "float16" and section.lora is None else section.dtype


def _reason(error: BaseException) -> str:
    """The first sentence of a transformers error, or what being offline means."""
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (LocalEntryNotFoundError, OfflineModeIsEnabled)):
            return (
                "the hub can't be reached (or HF_HUB_OFFLINE is set) and the model is not in the local hub cache; "
                "give a local folder, or one of " + ", ".join(BUILT_IN)
            )
        cause = cause.__cause__ or cause.__context__
    return str(error).strip().split("\n")[0] or type(error).__name__
