"""Run with one and with two processes: the same sampled answers must give the same history, evidence and gradients."""

import hashlib
import json
import os
import random
import sys
from pathlib import Path

import torch
from trainer_tools import arguments, questions
from trl import GRPOTrainer

from r3bench import R3Trainer

ROWS, GROUP = 16, 4
CASES = {
    "four": (
        {
            "ranking": {"peak_fraction": 0.25},
            "reflection": {"template": "short", "max_share": 0.5, "exemplars": 2},  # both ranks get one
            "replay": {"truncated_negatives": True},
            "retrospective": {"cuts": "grid", "spacing": 2, "quantile": 0.0, "gate_auc": 0.0, "retire": 0.9},
        },
        {},
    ),
    "split": (  # groups of 16 rows lie on both ranks
        {
            "ranking": {"peak_fraction": 0.25}, "replay": {"truncated_negatives": True, "mode": "replace", "rows": 3},
            "reflection": {"template": "short", "placement": "replace", "max_share": 1.0},
            "retrospective": {"value": "monte_carlo", "cuts": "grid", "spacing": 2, "retire": 0.9},
        },
        {"num_generations": 16, "max_steps": 26},
    ),
    "rivals": ({"repo": {"rows": 3, "window": 4, "min_stored": 4}, "rescue": True, "exgrpo": {"start": 0.0}}, {}),
    "idle": ({"replay": {"warmup": 99}, "reflection": {"warmup": 99}, "retrospective": {"gate_auc": 1.0}}, {}),
    "one-sided": ({"ranking": {"peak_fraction": 0.25}, "replay": {"labels": "positives"}}, {"one_sided": True}),
}  # fmt: skip


def scripted_sampling(trainer, prompt_ids, *_, **__):
    """Answers that depend on the prompt, the place in the group and the step, not on the rank."""
    first = trainer.accelerator.process_index * len(prompt_ids)
    answers = []
    for row, prompt in enumerate(prompt_ids):
        place = (first + row) % trainer.num_generations
        rng = random.Random(f"{prompt}-{place}-{trainer.state.global_step}")
        length = rng.choice([3, 8, 8, 8])
        ids = [rng.randrange(3, 250) for _ in range(length)]
        answers.append(ids if length == 8 else [*ids, trainer._tokenizer.eos_token_id])
    return answers, None


def turning(completion_ids, question_id, trainer_state, one_sided=False, **_):
    epoch = int((trainer_state.epoch or 0) + 1e-6)
    numbers = [int(q[1:]) for q in question_id]
    return [
        float((4 <= n < 8 and epoch % 2 == 0) or (n >= 8 and sum(ids) % 2 == 0))
        for n, ids in zip(numbers, completion_ids, strict=True)
    ]


def stored(trainer):
    names = [f"q{i}" for i in range(12)]
    view = trainer.history.open(names)
    found = view.fetch([summary for name in names for summary in view.summaries(name)])
    rows = [
        [
            t.summary.question,
            t.summary.serial,
            t.summary.step,
            t.summary.provenance,
            t.summary.correct,
            t.prefix,
            *t.completion_ids.tolist(),
        ]
        for t in found
    ]
    return hashlib.sha256(json.dumps(sorted(rows)).encode()).hexdigest(), len(rows)


def main(model, folder):
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    GRPOTrainer._generate_single_turn = scripted_sampling
    out = {}
    for name, (components, changes) in CASES.items():
        changes = dict(changes)
        data = questions(12)
        if changes.pop("one_sided", False):
            data = data.select([0, 1, 2, 3, 8, 9, 10, 11])
        values = {"per_device_train_batch_size": ROWS // ranks, "max_steps": 9, "learning_rate": 0.0, **changes}
        trainer = R3Trainer(
            model=model, reward_funcs=turning, train_dataset=data,
            args=arguments(f"{folder}/{name}-{ranks}", components=components, **values),
        )  # fmt: skip
        trainer.train()
        stream = [[line["grad_norm"], line["reward"]] for line in trainer.state.log_history if "grad_norm" in line]
        out[name] = {"stream": stream, "evidence": trainer.evidence, "history": stored(trainer)}
    Path(f"{folder}/rank-{rank}-of-{ranks}.json").write_text(json.dumps(out))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
