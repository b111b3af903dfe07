"""Which backend samples: from how a model is given, the `eval` section, stored answers and the GPUs at hand."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from r3bench.config.sections import EvalSection
from r3bench.errors import ConfigError, StateError
from r3bench.evaluation.backends.sampling import Backend
from r3bench.training.models.names import ADAPTER

VLLM = "vllm:"  # in front of a model that is to be sampled with vLLM


def resolve(section: EvalSection, out: Path, *, use_vllm: bool) -> EvalSection:
    """`section` with its backend chosen: what `auto` stands for in a run.

    Answers that are stored are extended with the backend that sampled them. Otherwise vLLM samples where training did
    (`trainer.use_vllm`) and there is a GPU, transformers elsewhere.

    Args:
        section: with any backend.
        out: folder of the run's answers.
        use_vllm: whether training samples with vLLM.
    """
    if section.backend != "auto":
        return section
    chosen = _stored(section, out)
    if chosen is None:
        chosen = "vllm" if use_vllm and _gpu() else "hf"
    return dataclasses.replace(section, backend=chosen)


def _stored(section: EvalSection, out: Path) -> Any:
    from r3bench.evaluation.shards import files, stored_settings

    for task in section.tasks:
        for path in files(out / task):
            try:
                name = stored_settings(path).get("backend")
            except (StateError, json.JSONDecodeError):
                continue  # said when the answers are read
            if name in ("hf", "vllm"):
                return name
    return None


def _gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def open_backend(model: str | Path | tuple[Any, Any], section: EvalSection, gpus: int, tensor_parallel: int) -> Backend:
    """The backend for `model`, see `r3bench.evaluation.driver.evaluate`.

    Raises:
        ConfigError: the model can't be loaded, or the number of GPUs doesn't fit it or the backend.
    """
    if isinstance(model, str) and model.startswith(("http://", "https://")):
        from r3bench.evaluation.backends.server import ServerBackend

        if gpus > 1:
            raise ConfigError("--gpus: a server's GPUs are its own; give them to `r3bench serve` or `vllm serve`")
        return ServerBackend(model, section.batch_size)
    if isinstance(model, tuple):
        from r3bench.evaluation.backends.hf import HFBackend

        if gpus > 1:
            raise ConfigError("--gpus: a model in memory is sampled in this process, expected 1")
        return HFBackend(*model, section.batch_size)
    vllm = str(model).startswith(VLLM) or section.backend == "vllm"
    if vllm and tensor_parallel == 1:
        tensor_parallel = int(section.engine.get("tensor_parallel_size", 1))
        gpus = max(gpus // tensor_parallel, 1) * tensor_parallel
    if not vllm and tensor_parallel > 1:
        raise ConfigError("--tensor-parallel: only vLLM spreads a model over GPUs, expected 1 or a model 'vllm:...'")
    if gpus % tensor_parallel:
        raise ConfigError(
            f"--tensor-parallel: got {tensor_parallel}, expected a divisor of the {gpus} GPUs given by --gpus"
        )
    name = str(model).removeprefix(VLLM)
    if vllm and (Path(name) / ADAPTER).is_file():
        raise ConfigError(f"model 'vllm:{name}': holds adapters alone; `r3bench merge` makes whole weights of them")
    if vllm or gpus > 1:
        from r3bench.evaluation.backends.pool import Pool

        release()
        return Pool(name, section, workers=gpus // tensor_parallel, tensor_parallel=tensor_parallel, vllm=vllm)
    return load(name, section, tensor_parallel, vllm=vllm)


def release() -> None:
    """Give GPU memory that nothing uses any more, such as a finished training's, back to the device."""
    import gc

    import torch

    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


def load(name: str, section: EvalSection, tensor_parallel: int, *, vllm: bool) -> Backend:
    """A backend in this process, for a folder or hub id."""
    if vllm:
        from r3bench.evaluation.backends.vllm import VLLMBackend

        return VLLMBackend(name, {**section.engine, "tensor_parallel_size": tensor_parallel})
    from r3bench.evaluation.backends.hf import HFBackend

    return HFBackend.load(name, section.batch_size)
