"""Measures a model on tasks: lm-eval loads and prompts, our backends sample, answers are stored shard by shard."""

import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from r3bench.config.sections import EvalSection
from r3bench.evaluation import shards
from r3bench.evaluation.backends.sampling import Backend, Sampling
from r3bench.evaluation.choose_backend import open_backend
from r3bench.evaluation.grading import using
from r3bench.evaluation.regrade import regrade_shard
from r3bench.evaluation.scorer import named_in
from r3bench.evaluation.settings import KEY, deciding, settings
from r3bench.evaluation.summary import summarise
from r3bench.evaluation.tasks import check_tasks, load_task, quiet_loggers
from r3bench.evaluation.tied import trained_weights
from r3bench.files import write_json
from r3bench.grading import Grader
from r3bench.lock import exclusive
from r3bench.prompts import prompt_of
from r3bench.records import ASKED


def evaluate(
    model: str | Path | tuple[Any, Any],
    section: EvalSection,
    out: Path,
    *,
    default_max_tokens: int,
    quiet: bool = False,
    gpus: int = 1,
    tensor_parallel: int = 1,
) -> dict[str, dict[str, Any]]:
    """Sample, grade and store `section.samples` answers to every question of `section.tasks`.

    Idempotent and resumable: stored answers are kept, so an interrupted evaluation loses at most one shard, and more
    samples, questions or tasks are added to what is there. Stored answers graded by another grader, or under another
    `require_boxed`, get new verdicts. An in-memory model's training flags and the global random
    states are as before afterwards.

    Args:
        model: a folder, a hub id, the address of an OpenAI-compatible server ('http://host:8000/v1', '#name' behind it
            for one of several models), 'vllm:FOLDER' for vLLM, or (model, tokenizer).
        section: tasks and sampling; its backend `auto` is transformers, see `choose_backend.resolve`.
        out: answers go to `out/<task>/<shard>.parquet`, columns `records.ANSWER_COLUMNS`.
        default_max_tokens: response cap where the section has none.
        quiet: no progress bar.
        gpus: sampling processes times the GPUs of each; without GPUs they share the CPU. Changes no answer.
        tensor_parallel: GPUs over which vLLM spreads one copy of the model.

    Returns:
        Task -> summary, see `r3bench.evaluation.summary.summarise`; its `settings` say what it was measured under, its
        `backend` what sampled, `version` and `digest` which task and questions.

    Raises:
        ConfigError: an unknown task or model, or answers longer than the model's context.
        DataError: a task's questions can't be found.
        StateError: stored answers come from another model or other settings, or another evaluation is running there.
    """
    check_tasks(section.tasks)
    cap = section.max_tokens if section.max_tokens is not None else default_max_tokens
    sampling = Sampling(section.temperature, section.top_p, cap)
    out.mkdir(parents=True, exist_ok=True)
    with exclusive(out / ".lock", means="another evaluation is writing there"), random_states_kept(), quiet_loggers():
        for leftover in out.glob("*/.*.parquet.*.tmp"):
            leftover.unlink()
        backend = open_backend(model, section, gpus, tensor_parallel)
        asked = {KEY: settings(section, default_max_tokens), "backend": backend.name}
        counts: dict[str, int] = {}

        def begun(task: str, answers: int) -> None:
            """For `r3bench status`: how much a task asks for."""
            if counts.get(task) != answers:
                counts[task] = answers
                write_json(out / ASKED, counts)

        try:
            return {
                name: asked
                | _evaluate_task(
                    name,
                    model=model,
                    backend=backend,
                    section=section,
                    sampling=sampling,
                    folder=out / name,
                    quiet=quiet,
                    begun=begun,
                )
                for name in section.tasks
            }
        finally:
            backend.close()
            (out / ASKED).unlink(missing_ok=True)


def _evaluate_task(
    name: str,
    *,
    model: object,
    backend: Backend,
    section: EvalSection,
    sampling: Sampling,
    folder: Path,
    quiet: bool,
    begun: Callable[[str, int], None],
) -> dict[str, Any]:
    import lm_eval

    from r3bench.evaluation.lm import StoredLM, digest

    prompt = prompt_of(section, "eval")
    task = load_task(name, section.style, prompt.template)
    task.set_config("repeats", section.samples)
    if task.get_config("num_fewshot") is None:
        task.set_config("num_fewshot", 0)
    greedy = sampling.temperature == 0
    task.set_config("generation_kwargs", {"do_sample": not greedy, "max_gen_toks": sampling.max_tokens, "until": []})
    template = backend.chat([{"role": "user", "content": "?"}])
    weights = trained_weights(model)
    settings = {
        **({"weights": weights} if weights else {}),
        "task": name,
        "version": str(task.VERSION),
        "questions": digest(list(task.test_docs())),
        "model": backend.fingerprint,
        "backend": backend.name,
        "template": hashlib.sha256(template.encode()).hexdigest()[:12],
        "style": section.style,
        **({"prompt": prompt.digest} if prompt.digest else {}),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "seed": section.seed,
        "engine": deciding(section.engine) if backend.name == "vllm" else None,
        **backend.details,
    }
    docs = list(task.test_docs())
    judge = named_in(docs, f"task {name}") or Grader(require_boxed=section.require_boxed)
    with using(judge) as grader, progress_bar(name, quiet) as progress:

        def told(done: int, total: int) -> None:
            begun(name, total)
            progress(done, total)

        for path in _graded_otherwise(folder, settings, grader.name):
            regrade_shard(path, grader, {doc["id"]: doc for doc in docs})
        lm = StoredLM(
            backend=backend,
            folder=folder,
            sampling=sampling,
            seed=section.seed,
            settings=settings,
            grader=grader,
            progress=told,
        )
        lm_eval.evaluate(
            lm=lm,
            task_dict={"tasks": {name: task}, "groups": {}, "group_map": {}},
            limit=section.limit,
            apply_chat_template=True,
            system_instruction=prompt.system,
            bootstrap_iters=0,
            log_samples=False,
        )
    asked = {doc["id"] for doc in docs[: section.limit]}
    rows = [row for row in shards.read(folder, settings) if row["question"] in asked]
    return {"version": settings["version"], "digest": settings["questions"]} | summarise(rows, section.samples)


def _graded_otherwise(folder: Path, settings: dict[str, Any], grader: str) -> list[Path]:
    """The shards with verdicts of another grader, once all are known to be sampled under `settings`."""
    shards.read(folder, settings)
    return [path for path in shards.files(folder) if any(r["grader"] != grader for r in shards.read_shard(path)[0])]


@contextlib.contextmanager
def progress_bar(name: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A function (done, total) that draws a bar on stderr."""
    from tqdm import tqdm

    with tqdm(desc=name, unit="answer", disable=True if quiet else None, leave=False) as bar:  # None: off a terminal

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    """Put the global random states of Python, NumPy and torch back as they were."""
    import numpy as np
    import torch

    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if devices is not None:
            torch.cuda.set_rng_state_all(devices)
