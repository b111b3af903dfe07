"""Run under torchrun: cases whose results both ranks print as JSON lines. Not a test module itself."""

import json
import os
import sys
from pathlib import Path

import torch
from fsdp_ranks import sharded_runs
from trainer_tools import Recorder, arguments, by_length, questions
from trl import GRPOConfig, GRPOTrainer

from r3bench import R3Config, R3Trainer


def scripted(completion_ids, question_id, trainer_state, **_):
    epoch = int(trainer_state.epoch or 0)
    return [float((int(q[1:]) + epoch) % 2) for q in question_id]


def weights_digest(trainer):
    import hashlib

    digest = hashlib.sha256()
    for _, value in sorted(trainer.accelerator.unwrap_model(trainer.model).state_dict().items()):
        digest.update(value.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def stream(trainer):
    keys = ("loss", "grad_norm", "reward", "completions/mean_length", "entropy")
    return [{k: line[k] for k in keys if k in line} for line in trainer.state.log_history]


def run(cls, config, model, folder, rule, **changes):
    recorder = Recorder(rule)
    trainer = cls(
        model=model, reward_funcs=recorder, args=arguments(folder, config, **changes), train_dataset=questions(6)
    )
    trainer.train(resume_from_checkpoint=changes.get("resume_from_checkpoint"))
    return trainer, recorder


def main(model, folder):
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    rows = 8 // ranks
    out = {}
    for name, changes in {
        "whole": {"per_device_train_batch_size": rows},
        "split": {"per_device_train_batch_size": rows // 2, "num_generations": 4, "max_steps": 3},
    }.items():
        for label, cls, config in (("stock", GRPOTrainer, GRPOConfig), ("ours", R3Trainer, R3Config)):
            trainer, recorder = run(cls, config, model, f"{folder}/{name}-{label}", by_length, **changes)
            out[f"{name}-{label}"] = [stream(trainer), recorder.seen, weights_digest(trainer)]
    for mode in ("append", "replace"):
        trainer, _ = run(
            R3Trainer, R3Config, model, f"{folder}/replay-{mode}", scripted,
            per_device_train_batch_size=rows, max_steps=6, save_strategy="steps", save_steps=3,
            components={"replay": {"mode": mode, "truncated_negatives": True}}, loss_type="grpo",
        )  # fmt: skip
        out[f"replay-{mode}"] = [stream(trainer), trainer.evidence, weights_digest(trainer), trainer.history.digest()]
        out[f"share-{mode}"] = len(trainer.history)
    # split groups with replacement: groups of 8 rows over both ranks
    trainer, _ = run(
        R3Trainer, R3Config, model, f"{folder}/replay-split", scripted,
        per_device_train_batch_size=8 // ranks, num_generations=8, max_steps=12,
        components={"replay": {"mode": "replace", "truncated_negatives": True}},
    )  # fmt: skip
    out["replay-split"] = [stream(trainer), trainer.evidence]
    out["fsdp"] = sharded_runs(model, f"{folder}/fsdp")  # last: trainers after it are split too
    Path(f"{folder}/rank-{rank}-of-{ranks}.json").write_text(json.dumps(out))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
