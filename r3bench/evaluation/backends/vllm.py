"""Sampling with vLLM, in a process of its own (`r3bench.evaluation.sampler`): 'vllm:FOLDER'. Needs the extra `vllm`.

Every answer is a request with its own seed; prefix caching lets a question's repeats share their prompt.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from r3bench.errors import ConfigError
from r3bench.evaluation.backends import fingerprint
from r3bench.evaluation.backends.chat import ChatModel
from r3bench.evaluation.backends.sampling import Answered, Completion, Draw, Sampling
from r3bench.installation import install_line

AHEAD = 2  # requests given to the engine, as a multiple of those it works on at a time


class VLLMBackend(ChatModel):
    """Samples through vLLM's engine, a step at a time, so that answers end and others begin while it runs."""

    name = "vllm"
    slots: int  # answers that the engine is given at a time: those that it works on and as many that wait in it

    def __init__(self, name: str, engine: Mapping[str, Any]) -> None:
        """From a folder or hub id. `engine`: arguments of `vllm.LLM` besides the model, the user's.

        Raises:
            ConfigError: vLLM is missing, or refuses the model or an argument.
        """
        import torch

        try:
            import vllm
            from vllm.sampling_params import RequestOutputKind
        except ImportError as error:
            raise ConfigError(f"model 'vllm:{name}': vLLM is not installed; {install_line('vllm')}") from error
        self._parameters: Any = vllm.SamplingParams
        self._final = RequestOutputKind.FINAL_ONLY
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
        self.slots = AHEAD * int(scheduler.max_num_seqs)
        self._budget = None if torch.cuda.is_available() else int(scheduler.max_num_batched_tokens)
        self._ends = self.turn_ends()
        self._waiting: deque[tuple[str, list[int], int, Sampling]] = deque()
        self._running: dict[str, int] = {}  # request -> tokens of its prompt

    def add(self, number: int, draw: Draw, sampling: Sampling) -> None:
        """Ask for an answer, to be known by `number`; `step` gives it."""
        self._waiting.append((str(number), self.encode(draw.prompt), draw.seed, sampling))

    @property
    def busy(self) -> bool:
        """Whether an answer that was asked for has not been given."""
        return bool(self._waiting or self._running)

    def step(self) -> dict[int, Completion]:
        """One token for every answer under way, the next ones taken up before; answers that ended, by their number."""
        while self._waiting and self._room(len(self._waiting[0][1])):
            number, ids, seed, sampling = self._waiting.popleft()
            self._running[number] = len(ids)
            parameters = self._parameters(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_tokens,
                stop_token_ids=self._ends,
                seed=seed,
                output_kind=self._final,
            )
            self._llm.llm_engine.add_request(number, {"prompt_token_ids": ids}, parameters)
        found = {}
        for output in self._llm.llm_engine.step():
            if output.finished:
                answer = output.outputs[0]
                cut = answer.finish_reason == "length"
                found[int(output.request_id)] = Completion(answer.text, len(answer.token_ids), cut)
                del self._running[output.request_id]
        return found

    def _room(self, length: int) -> bool:
        """Whether the engine may be given another prompt, of so many tokens.

        On a CPU vLLM 0.30 can't take back a random number, which it does after reading a prompt in parts, as it does
        beyond `max_num_batched_tokens` at a time; an answer under way takes one of them.
        """
        if not self._running:
            return True
        if self._budget is not None and sum(self._running.values()) + length > self._budget:
            return False
        return len(self._running) < self.slots

    def generate(
        self,
        draws: Sequence[Draw],
        sampling: Sampling,
        progress: Callable[[int], None],
        answered: Answered | None = None,
    ) -> list[Completion]:
        """See `Backend.generate`."""
        self.check((draw.prompt for draw in draws), sampling)
        for number, draw in enumerate(draws):
            self.add(number, draw, sampling)
        done: dict[int, Completion] = {}
        while self.busy:
            for number, answer in self.step().items():
                done[number] = answer
                if answered is not None:
                    answered(number, answer)
                progress(1)
        return [done[i] for i in range(len(draws))]


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
