"""What low precision does to training: weights that can't move, and answers that lose their weight.

    python benchmarks/precision.py weights [--model smollm2-135m] [--updates 20] [--blocks 4] [--tokens 4]
    python benchmarks/precision.py correction [--rows 20000]

`weights`: the same training (bf16 autocast, constant rate, answers of so many tokens with random rewards, the last so
many blocks of the model) with float32 weights, bfloat16 weights, and bfloat16 weights with the compensated optimiser:
the share of trained weights that could move as counted before, that changed, and that changed as a bfloat16 engine sees
them. Through `train` and its record.
`correction`: what TRL's correction leaves of an answer's weight, by its length and the divergence of engine and policy.
Log ratios of the tokens are drawn Gaussian, so that the mean ratio is 1, with the divergence (KL) of each token given.
"""

import argparse
import contextlib
import io
import os
import re
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np

LENGTHS = (500, 2000, 4000, 8192)
DIVERGENCES = (4e-4, 1e-3, 1e-2)  # nats a token
CAP = 3.0  # TRL's default upper bound of a ratio
ARMS = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, compensated": {"dtype": "bfloat16", "compensation": "kahan"},
}


def random_rewards(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """As if from a grader, and the same for the same answer."""
    return [float(np.random.default_rng(ids).random() < 0.5) for ids in completion_ids]


def weights(model: str, updates: int, rate: float, blocks: int, tokens: int) -> None:
    from r3bench.config.load import parse_recipe
    from r3bench.records import RunPaths
    from r3bench.training import run

    load = run.load_model

    def partly(section: Any) -> Any:
        found, tokenizer = load(section)
        found.requires_grad_(False)
        for block in found.model.layers[-blocks:]:
            block.requires_grad_(True)
        return found, tokenizer

    random_rewards.__name__ = "correctness"
    run.load_model, run.reward_functions = partly, lambda *_: [random_rewards]
    print("| weights | can move | changed | changed as a bfloat16 engine sees them |")
    print("|---|---:|---:|---:|")
    for name, section in ARMS.items():
        recipe = parse_recipe(
            {
                "model": {"name": model, **section},
                "data": {"name": "embedded", "limit": 8},
                "trainer": {
                    "learning_rate": rate, "lr_scheduler_type": "constant", "bf16": True, "max_steps": updates,
                    "per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": tokens,
                    "logging_steps": 1, "save_strategy": "no", "gradient_checkpointing": False,
                },
            },
            "precision.py",
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()) as said:
            record = run.train(recipe, RunPaths(Path(folder)), quiet=True)
        counted = re.search(r"only about (\S+) % of them can move \(counted", said.getvalue())
        print(
            f"| {name} | {f'{counted.group(1)} %' if counted else 'all'} | {100 * record.weights_changed:.2f} % | "
            f"{100 * record.weights_changed_sampled:.2f} % |",
            flush=True,
        )


def answers_weights(rows: int, tokens: int, divergence: float, mode: str, seed: int = 0) -> np.ndarray:
    """(rows,) factor on the loss of each answer, the mean over its tokens. KL of a Gaussian log ratio: variance / 2."""
    random, sigma = np.random.default_rng(seed), float(np.sqrt(2 * divergence))
    if mode.startswith("sequence"):  # the sum of the tokens' log ratios is Gaussian as well
        ratio = np.exp(random.normal(-tokens * divergence, sigma * np.sqrt(tokens), rows))
        return np.where(ratio > CAP, 0.0, ratio) if mode == "sequence_mask" else np.minimum(ratio, CAP)
    found = np.empty(rows)
    for row in range(rows):
        ratio = np.exp(random.normal(-divergence, sigma, tokens))
        found[row] = np.minimum(ratio, CAP).mean() if mode == "token_truncate" else ratio[ratio <= CAP].sum() / tokens
    return found


def correction(rows: int) -> None:
    print("| mode | KL a token | " + " | ".join(f"{n:,} tokens" for n in LENGTHS) + " |")
    print("|---|---:|" + "---:|" * len(LENGTHS))
    for mode in ("sequence_mask", "sequence_truncate", "token_truncate"):
        for divergence in DIVERGENCES:
            cells = []
            for tokens in LENGTHS:
                found = answers_weights(rows if mode.startswith("sequence") else 200, tokens, divergence, mode)
                cells.append(f"{found.mean():.2f} ({100 * (found < 0.1).mean():.0f} % below 0.1)")
            print(f"| `{mode}` | {divergence:g} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("weights")
    one.add_argument("--model", default="smollm2-135m")
    one.add_argument("--updates", type=int, default=20)
    one.add_argument("--rate", type=float, default=1e-6)
    one.add_argument("--blocks", type=int, default=4)
    one.add_argument("--tokens", type=int, default=4)
    commands.add_parser("correction").add_argument("--rows", type=int, default=20_000)
    given = parser.parse_args()
    if given.command == "weights":
        weights(given.model, given.updates, given.rate, given.blocks, given.tokens)
    else:
        correction(given.rows)


if __name__ == "__main__":
    main()
