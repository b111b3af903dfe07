"""Speed of the evaluation: sampling against stock lm-eval, grading, and the task index. Prints one JSON object.

python benchmarks/eval.py [--model FOLDER] [--task embedded] [--questions 64] [--samples 8] [--max-tokens 48]

Both samplers get the same prompts, k, batch size, temperature and cap, in one process, in turn. CPU seconds are used on
a CPU (other processes don't count), wall-clock on a GPU.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

from r3bench.evaluation.backends.hf import HFBackend
from r3bench.evaluation.backends.sampling import Draw, Sampling, draw_seed
from r3bench.evaluation.tasks import load_task, manager, quiet_loggers
from r3bench.grading import Grader
from r3bench.grading.pool import Pool


def clock() -> float:
    """CPU seconds of this process, or wall-clock once the GPU is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def seconds(work: Callable[[], int]) -> tuple[float, int]:
    """Seconds that `work` takes and the tokens it says it sampled."""
    start = clock()
    tokens = work()
    return clock() - start, tokens


def sampling(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Tokens and answers a second of our loop and of lm-eval's `hf` model, and the median of the ratios by round."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    backend = HFBackend.load(folder, options.batch_size)
    docs = list(load_task(options.task).test_docs())[: options.questions]
    prompts = [backend.chat([{"role": "user", "content": doc["prompt"]}]) for doc in docs]
    rows = [
        (doc["id"], repeat, prompt)
        for doc, prompt in zip(docs, prompts, strict=True)
        for repeat in range(options.samples)
    ]
    with quiet_loggers():
        stock = HFLM(
            pretrained=backend.model,
            tokenizer=backend.tokenizer,
            batch_size=options.batch_size,
            max_length=backend.context,
        )
    settings = {"do_sample": True, "temperature": 1.0, "until": [], "max_gen_toks": options.max_tokens}

    def ours() -> int:
        draws = [Draw(name, repeat, draw_seed(0, name, repeat), prompt) for name, repeat, prompt in rows]
        answers = backend.generate(draws, Sampling(1.0, 1.0, options.max_tokens), lambda _: None)
        return sum(answer.tokens for answer in answers)

    def theirs() -> int:
        requests = [
            Instance("generate_until", {}, (prompt, dict(settings)), 0, metadata=(options.task, 0, 1))
            for *_, prompt in rows
        ]
        texts = stock.generate_until(requests, disable_tqdm=True)
        return sum(len(backend.tokenizer(text=text, add_special_tokens=False)["input_ids"]) + 1 for text in texts)

    ours(), theirs()  # warm
    measured = [(seconds(ours), seconds(theirs)) for _ in range(options.rounds)]
    per_second = [[tokens / spent for spent, tokens in pair] for pair in measured]
    answers = [[len(rows) / spent for spent, _ in pair] for pair in measured]
    return {
        "ours_tokens_per_second": statistics.median(a for a, _ in per_second),
        "stock_tokens_per_second": statistics.median(b for _, b in per_second),
        "tokens_ratio": statistics.median(a / b for a, b in per_second),
        "ours_answers_per_second": statistics.median(a for a, _ in answers),
        "stock_answers_per_second": statistics.median(b for _, b in answers),
        "answers_ratio": statistics.median(a / b for a, b in answers),
    }


def grading() -> dict[str, float]:
    """Answers graded a second (wall-clock, two processes): a mixture as met in practice, and mathematics only."""
    hard = [(rf"\frac{{{2 * i}}}{{{i + 1}}}", rf"{2 * i}/{i + 1}") for i in range(1000)]
    mixture = [rf"... so the answer is \boxed{{{i % 7}}}." for i in range(1500)] + [
        rf"\boxed{{{a}}}" for a, _ in hard[:500]
    ]
    golds = ["3"] * 1500 + [gold for _, gold in hard[:500]]
    with Grader(workers=2) as grader:
        grader.grade([r"\boxed{\frac{2}{4}}"], ["1/2"])
        start = time.perf_counter()
        grader.grade(mixture, golds)
        mixed = len(golds) / (time.perf_counter() - start)
    pool = Pool(timeout=5.0, workers=2)
    try:
        pool.run(hard[:2])
        start = time.perf_counter()
        pool.run(hard)
        only = len(hard) / (time.perf_counter() - start)
    finally:
        pool.close()
    return {"mixture_answers_per_second": mixed, "mathematics_answers_per_second": only}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="folder; default: the embedded model, built for the occasion")
    parser.add_argument("--task", default="embedded")
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

    import lm_eval.tasks  # noqa: F401, its import is not the index

    start = time.perf_counter()
    manager()
    result: dict[str, object] = {"task_index_seconds": time.perf_counter() - start, "grading": grading()}
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.model
        if folder is None:
            from r3bench.training.models.embedded import build

            folder = Path(scratch) / "embedded"
            build(folder, 9)
        result["sampling"] = sampling(options, folder)
    result["options"] = {key: str(value) for key, value in vars(options).items()}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
