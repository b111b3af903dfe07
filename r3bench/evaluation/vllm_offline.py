"""Sampling with vLLM inside this process: a model given as 'vllm:FOLDER'. Needs the extra `vllm`.

Every answer is a request with its own seed; prefix caching lets a question's repeats share their prompt. For several
GPUs start `vllm serve FOLDER --data-parallel-size N` and evaluate its address (`r3bench.evaluation.server`).
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from r3bench.errors import ConfigError
from r3bench.evaluation.sampling import Completion, Draw, Sampling

HEAD = 1 << 20  # bytes of each weight file that enter the fingerprint


class VLLMBackend:
    """Samples through `vllm.LLM.generate`, which schedules all requests of a shard together."""

    name = "vllm"

    def __init__(self, name: str) -> None:
        try:
            import vllm
        except ImportError as error:
            raise ConfigError(f"model 'vllm:{name}': vLLM is not installed; pip install r3bench[vllm]") from error
        self._parameters: Any = vllm.SamplingParams
        try:
            self._llm: Any = vllm.LLM(model=name, seed=0, enable_prefix_caching=True)
        except (OSError, ValueError) as error:
            raise ConfigError(f"model 'vllm:{name}': can't be loaded: {str(error).splitlines()[0]}") from error
        self.tokenizer: Any = self._llm.get_tokenizer()
        self.context = int(self._llm.llm_engine.model_config.max_model_len)
        self.fingerprint = folder_fingerprint(name)

    @property
    def template(self) -> str | None:
        """The tokenizer's chat template."""
        return getattr(self.tokenizer, "chat_template", None)

    def chat(self, messages: Sequence[dict[str, str]]) -> str:
        """See `Backend.chat`."""
        if self.template is None:
            return messages[-1]["content"]
        return str(self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))

    def generate(self, draws: Sequence[Draw], sampling: Sampling, progress: Callable[[int], None]) -> list[Completion]:
        """See `Backend.generate`."""
        # a chat template writes its special tokens itself
        ids = [self.tokenizer(text=d.prompt, add_special_tokens=self.template is None)["input_ids"] for d in draws]
        longest = max(map(len, ids), default=0)
        if longest + sampling.max_tokens > self.context:
            raise ConfigError(
                f"eval.max_tokens: {sampling.max_tokens} tokens after a prompt of {longest} exceed the model's context "
                f"of {self.context}; expected at most {self.context - longest}"
            )
        outputs = self._llm.generate(
            [{"prompt_token_ids": list(row)} for row in ids],
            [
                self._parameters(
                    temperature=sampling.temperature,
                    top_p=sampling.top_p,
                    max_tokens=sampling.max_tokens,
                    seed=draw.seed,
                )
                for draw in draws
            ],
            use_tqdm=False,
        )
        progress(len(draws))
        answers = [output.outputs[0] for output in outputs]
        return [Completion(a.text, len(a.token_ids), a.finish_reason == "length") for a in answers]


def folder_fingerprint(name: str) -> str:
    """12 hex digits over the weight files of a folder (names, sizes, first megabyte), or over a hub id."""
    digest = hashlib.sha256()
    files = sorted(Path(name).glob("*.safetensors")) if Path(name).is_dir() else []
    if not files:
        digest.update(name.encode())
    for path in files:
        with path.open("rb") as file:
            digest.update(f"{path.name}{path.stat().st_size}".encode() + file.read(HEAD))
    return digest.hexdigest()[:12]
