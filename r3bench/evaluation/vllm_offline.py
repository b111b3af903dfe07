"""Sampling with vLLM, in a process of its own (`r3bench.evaluation.sampler`): 'vllm:FOLDER'. Needs the extra `vllm`.

Every answer is a request with its own seed; prefix caching lets a question's repeats share their prompt.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from r3bench.errors import ConfigError
from r3bench.evaluation import fingerprint
from r3bench.evaluation.chat import ChatModel
from r3bench.evaluation.sampling import Completion, Draw, Sampling


class VLLMBackend(ChatModel):
    """Samples through `vllm.LLM.generate`, which schedules all requests of a shard together."""

    name = "vllm"

    def __init__(self, name: str, engine: Mapping[str, Any]) -> None:
        """From a folder or hub id. `engine`: arguments of `vllm.LLM` besides the model, the user's.

        Raises:
            ConfigError: vLLM is missing, or refuses the model or an argument.
        """
        import torch

        try:
            import vllm
        except ImportError as error:
            raise ConfigError(f"model 'vllm:{name}': vLLM is not installed; pip install r3bench[vllm]") from error
        self._parameters: Any = vllm.SamplingParams
        options: dict[str, Any] = {"seed": 0, "enable_prefix_caching": True, **memory_share(), **engine}
        try:
            self._llm: Any = vllm.LLM(model=name, **options)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"model 'vllm:{name}': can't be loaded: {_reason(error)}") from error
        self.tokenizer: Any = self._llm.get_tokenizer()
        config = self._llm.llm_engine.model_config
        self.context = int(config.max_model_len)
        self.details = {"dtype": str(config.dtype).removeprefix("torch.")}
        self.fingerprint = fingerprint.of_folder(name)
        scheduler = self._llm.llm_engine.vllm_config.scheduler_config
        self._budget = None if torch.cuda.is_available() else int(scheduler.max_num_batched_tokens)

    def generate(self, draws: Sequence[Draw], sampling: Sampling, progress: Callable[[int], None]) -> list[Completion]:
        """See `Backend.generate`."""
        ids = [self.encode(draw.prompt) for draw in draws]
        self.check_length(max(map(len, ids), default=0), sampling)
        ends = self.turn_ends()
        answers: list[Any] = []
        for part in together([len(row) for row in ids], self._budget):
            outputs = self._llm.generate(
                [{"prompt_token_ids": ids[i]} for i in part],
                [
                    self._parameters(
                        temperature=sampling.temperature,
                        top_p=sampling.top_p,
                        max_tokens=sampling.max_tokens,
                        stop_token_ids=ends,
                        seed=draws[i].seed,
                    )
                    for i in part
                ],
                use_tqdm=False,
            )
            progress(len(part))
            answers += [output.outputs[0] for output in outputs]
        return [Completion(a.text, len(a.token_ids), a.finish_reason == "length") for a in answers]


def together(lengths: Sequence[int], budget: int | None) -> list[range]:
    """Which requests are handed over at a time: stretches whose prompts have up to `budget` tokens; None: all at once.

    On a CPU vLLM 0.30 can't take back a random number, which it does after reading a prompt in parts, as it does beyond
    this many tokens.
    """
    if budget is None:
        return [range(len(lengths))]
    parts, first, tokens = [], 0, 0
    for index, length in enumerate(lengths):
        if tokens + length > budget and index > first:
            parts.append(range(first, index))
            first, tokens = index, 0
        tokens += length
    return [*parts, range(first, len(lengths))]


def memory_share() -> dict[str, float]:
    """vLLM's share of a GPU that something else, such as the training before it, still uses; {} to leave it to vLLM."""
    import torch

    if not torch.cuda.is_available():
        return {}
    free, total = torch.cuda.mem_get_info()
    return {"gpu_memory_utilization": round(min(0.9, free / total - 0.03), 2)}


def _reason(error: Exception) -> str:
    """pydantic's messages begin with a headline and end with an address; what is wrong stands in between."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] if lines else type(error).__name__
