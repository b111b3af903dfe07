"""A cell that trains nothing but writes every file a real one does, in microseconds; deterministic in its recipe."""

import hashlib
import os
import random
import signal
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from r3bench.config.load import config_hash
from r3bench.errors import Diverged
from r3bench.evaluation.settings import KEY, settings
from r3bench.files import append_jsonl, replacing
from r3bench.records import TrainRecord
from r3bench.sweep.cell_run import Steps, run_job

QUESTIONS = 6


def toy_train(recipe, paths, quiet=False):
    """Two steps, a checkpoint and a model; what goes wrong is told by files `<run>/fail`."""
    append_jsonl(paths.root.parent / "executions.jsonl", {"run": paths.root.name, "what": "train"})
    trouble = paths.root.parent / "trouble" / paths.root.name
    if trouble.exists():
        _go_wrong(trouble, recipe, paths)
    for step in (1, 2):
        append_jsonl(paths.metrics, {"step": step, "loss": 1 / step, "generated_tokens": 100 * step})
    (paths.checkpoints / "checkpoint-2").mkdir(parents=True, exist_ok=True)
    with replacing(paths.checkpoints / "checkpoint-2" / "weights") as file:
        file.write_text("weights")
    with replacing(paths.model / "weights") as file:
        file.write_text(config_hash(recipe))
    return TrainRecord("finished", None, 2, 200, 1.0, "toy", 1)


def _go_wrong(trouble: Path, recipe, paths):
    """`trouble` holds one word per attempt."""
    kinds = trouble.read_text().split()
    if kinds == ["always"]:
        raise ZeroDivisionError("a mistake")
    kind, rest = kinds[0], kinds[1:]
    if rest:
        trouble.write_text(" ".join(rest))
    else:
        trouble.unlink()
    if kind == "bug":
        raise ZeroDivisionError("a mistake")
    if kind == "oom":
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if kind == "diverged":
        raise Diverged("loss is nan at step 1")
    if kind == "disk":
        raise OSError(28, "No space left on device")
    if kind == "die":
        os.kill(os.getpid(), 9)
    if kind == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if kind in ("hang", "stubborn"):
        time.sleep(600)


def toy_evaluate(model, section, out, *, default_max_tokens, quiet=False):
    """One shard per task and repeat, answers drawn from the model's name."""
    summaries = {}
    for task in section.tasks:
        right = 0
        for repeat in range(section.samples):
            shard = out / task / f"repeat-{repeat}.parquet"
            rows = [_answer(str(Path(model).parent.name), task, question, repeat) for question in range(QUESTIONS)]
            right += sum(row["correct"] for row in rows)
            if not shard.exists():
                with replacing(shard) as file:
                    pq.write_table(pa.Table.from_pylist(rows), file)
        share = right / (QUESTIONS * section.samples)
        summaries[task] = {
            "questions": QUESTIONS,
            "samples": section.samples,
            f"avg@{section.samples}": share,
            "mean_tokens": 10.0,
            "truncated": 0.0,
            "no_answer": 0.0,
            "timeouts": 0,
            "grader": "toy",
            KEY: settings(section, default_max_tokens),
        }
    return summaries


def honest_evaluate(model, section, out, *, default_max_tokens, quiet=False):
    """Answers, verdicts, seeds, settings and scores as an evaluation leaves them; one shard per repeat."""
    from r3bench.evaluation import shards
    from r3bench.evaluation.backends.sampling import draw_seed
    from r3bench.evaluation.summary import summarise
    from r3bench.evaluation.tied import trained_weights
    from r3bench.grading import Grader

    name, summaries = str(Path(model).parent.name), {}
    for task in section.tasks:
        asked = settings(section, default_max_tokens)
        weights = trained_weights(model)
        told = (
            ({"weights": weights} if weights else {})
            | {"task": task, "version": "1", "questions": "0123456789ab", "model": config_digest(name)}
            | {key: asked[key] for key in ("style", "temperature", "top_p", "max_tokens", "seed")}
        )
        rows = []
        for repeat in range(section.samples):
            draws = [_answer(name, task, question, repeat) for question in range(QUESTIONS)]
            responses = [f"so it is \\boxed{{{42 if row['correct'] else 41}}}" for row in draws]
            for row, response, verdict in zip(
                draws, responses, Grader().grade(responses, ["42"] * QUESTIONS), strict=True
            ):
                row |= {
                    "seed": draw_seed(section.seed, row["question"], repeat),
                    "response": response,
                    "extracted": verdict.extracted,
                    "reason": verdict.reason,
                    "correct": verdict.correct,
                    "grader": Grader().name,
                }
            shards.write(out / task, f"r{repeat:04d}-{repeat:04d}.q00000-{QUESTIONS - 1:05d}", draws, told)
            rows += draws
        summaries[task] = {KEY: asked, "version": "1", "digest": "0123456789ab"} | summarise(rows, section.samples)
    return summaries


def config_digest(name):
    """12 hex digits in place of a model's fingerprint."""
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def _answer(name, task, question, repeat):
    draw = random.Random(hashlib.sha256(f"{name}-{task}-{question}-{repeat}".encode()).hexdigest())
    correct = draw.random() < 0.5
    return {
        "question": f"q{question}",
        "repeat": repeat,
        "seed": repeat,
        "response": "42",
        "tokens": 10,
        "gold": "42",
        "extracted": "42",
        "reason": "equal",
        "correct": correct,
        "truncated": False,
        "timed_out": False,
        "grader": "toy",
    }


TOY = Steps(
    train=toy_train,
    evaluate=toy_evaluate,
    environment=lambda: {"commit": None, "dirty": False},
    start_model=lambda name, revision: f"start/{name}",
)
HONEST = Steps(toy_train, honest_evaluate, TOY.environment, TOY.start_model)


def run_honest(work):
    """A cell for `ablate(run=...)` whose answers bear out everything that is said of them."""
    return run_job(work, steps=HONEST)


def run_toy(work):
    """A cell for `ablate(run=...)`."""
    return run_job(work, steps=TOY)


def run_lingering(work):
    """A cell whose process stays after its record was written."""
    reply = run_toy(work)
    time.sleep(600)
    return reply
