"""Sampling with vLLM inside this process: a model given as 'vllm:FOLDER'. Needs the extra `vllm`.

Every answer is a request with its own seed; prefix caching lets a question's repeats share their prompt. For several
GPUs start `vllm serve FOLDER --data-parallel-size N` and evaluate its address (`r3bench.evaluation.server`).
"""

from collections.abc import Callable, Sequence
from typing import Any

from r3bench.errors import ConfigError
from r3bench.evaluation import fingerprint
from r3bench.evaluation.chat import ChatModel
from r3bench.evaluation.sampling import Completion, Draw, Sampling


class VLLMBackend(ChatModel):
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
        self.fingerprint = fingerprint.of_folder(name)

    def generate(self, draws: Sequence[Draw], sampling: Sampling, progress: Callable[[int], None]) -> list[Completion]:
        """See `Backend.generate`."""
        ids = [self.encode(draw.prompt) for draw in draws]
        self.check_length(max(map(len, ids), default=0), sampling)
        outputs = self._llm.generate(
            [{"prompt_token_ids": row} for row in ids],
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
