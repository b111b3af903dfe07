"""The settings that a task's scores were measured under, kept in its entry of `run.json`. No torch here."""

import json
from collections.abc import Mapping
from typing import Any

from r3bench.config.sections import EvalSection
from r3bench.files import expect
from r3bench.prompts import prompt_of

KEY = "settings"  # of a task's summary
HARMLESS = frozenset(  # arguments of vLLM's engine for memory and speed
    (
        "cpu_offload_gb", "disable_log_stats", "distributed_executor_backend", "enable_chunked_prefill",
        "enable_prefix_caching", "enforce_eager", "gpu_memory_utilization", "kv_cache_memory_bytes", "max_model_len",
        "max_num_batched_tokens", "max_num_seqs", "pipeline_parallel_size", "swap_space", "tensor_parallel_size",
    )
)  # fmt: skip


def deciding(engine: Mapping[str, Any]) -> str | None:
    """The engine arguments that may change an answer, such as a quantization, as JSON; None where there are none."""
    found = {name: value for name, value in engine.items() if name not in HARMLESS}
    return json.dumps(found, sort_keys=True) if found else None


def settings(section: EvalSection, default_max_tokens: int) -> dict[str, Any]:
    """What of `section` decides a task's scores, besides its samples: sampling, questions, prompt and grading.

    Args:
        section: what is asked for.
        default_max_tokens: response cap where the section has none.
    """
    return {
        "temperature": section.temperature,
        "top_p": section.top_p,
        "max_tokens": section.max_tokens if section.max_tokens is not None else default_max_tokens,
        "limit": section.limit,
        "seed": section.seed,
        "style": section.style,
        "prompt": prompt_of(section, "eval").digest,
        "require_boxed": section.require_boxed,
        "engine": deciding(section.engine),
    }


def measured(summaries: Mapping[str, Mapping[str, Any]], section: EvalSection, default_max_tokens: int) -> bool:
    """Whether every task of `section` has scores drawn the way it says, on as many questions and samples or more.

    Args:
        summaries: task -> summary with its settings. One without settings counts as not measured: measuring it again
            keeps the stored answers if they are what is asked for.
        section: what is asked for.
        default_max_tokens: see `settings`.

    Raises:
        StateError: a summary was edited into something else; names the task and the key.
    """
    wanted = settings(section, default_max_tokens)
    for task in section.tasks:
        summary = summaries.get(task, {})
        stored = summary.get(KEY)
        if not stored:
            return False
        expect(summary, f"run.json: eval.{task}", settings=dict, samples=int)
        if summary["samples"] < section.samples:
            return False
        if any(stored.get(key) != value for key, value in wanted.items() if key != "limit"):
            return False
        if section.backend not in ("auto", summary.get("backend", "hf")):
            return False
        limit = stored.get("limit")
        if limit is not None:
            expect(stored, f"run.json: eval.{task}.{KEY}", limit=int)
        if limit is not None and (section.limit is None or section.limit > limit):
            return False
    return True
