"""Run on 1, 2 and 4 processes: the same sampled answers must give the same losses, gradients, history and critic.

    [torchrun --nproc_per_node=N] components_ranks.py MODEL FOLDER CASE...

Answers depend on the prompt, the place in the group and the step alone, so every number of processes trains on the same
global batches. Rank r of n leaves `rank-r-of-n.json`. Cases that save leave their checkpoints 3, 6 and 9 in `CASE-N`;
`CASE:NAME/checkpoint-S` resumes from there, into `resumed-CASE-N`. FSDP on one process needs torchrun, too. FOLDER/qwen
is a model with a template for tools.
"""

import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import torch
import world
from fsdp_ranks import shard
from peft import LoraConfig
from trainer_tools import arguments, questions, spy_on
from trl import GRPOTrainer
from trl.trainer import grpo_trainer
from trl.trainer.utils import shuffle_sequence_dict

import r3bench.training.trainer
from r3bench import R3Trainer
from r3bench.training.step.lengths import parts_of_like_rows

# The first sampled token's entropy is the same in all rows of a group but for its last bits, which differ between
# batches: a peak of two tokens or more, of six that are sampled, keeps them from deciding who dominates whom.
RANKING = {"peak_fraction": 0.34}
SHORT_PREFIXES = {"cuts": "grid", "spacing": 1, "max_fraction": 0.3, "retire": 0.9}
ROWS = 48  # sampled together, over all processes: all 12 questions in groups of 4
FOUR = {
    "ranking": RANKING,
    "reflection": {"template": "short", "max_share": 1 / 3},  # the 4 hopeless questions: a group for each of 4 ranks
    "replay": {"truncated_negatives": True},
    "retrospective": {"quantile": 0.0, "gate_auc": 0.0, **SHORT_PREFIXES},
}
REPLACING = {  # nothing is added to a batch, so that each update sees the same rows on every number of ranks
    **FOUR,
    "reflection": {"template": "short", "max_share": 1 / 3, "placement": "replace"},
    "replay": {"truncated_negatives": True, "mode": "replace"},
}
SAVING = {"save_strategy": "steps", "save_steps": 3}
MOMENTS = {"optim": "adamw_torch", "adam_epsilon": 0.1, "learning_rate": 0.02}  # as smooth as SGD, with a state to lose
SPLIT = (  # groups of 16 rows: one of three lies on both of 2 ranks, all of them on two of 4
    {
        "ranking": RANKING, "replay": {"truncated_negatives": True, "mode": "replace", "rows": 3},
        "reflection": {"template": "short", "placement": "replace", "max_share": 1.0},
        "retrospective": {"value": "monte_carlo", **SHORT_PREFIXES},
    },
    {"num_generations": 16, "max_steps": 14},
)  # fmt: skip
SPLIT_SILENT = {
    "ranking": {**RANKING, "scope": "failed"},
    "replay": {"truncated_negatives": True, "mode": "replace", "rows": 3, "weight": "none"},
}
PARTS = []  # local rows of the parts of a batch that are still to be sampled
CASES = {  # `fsdp` in a name: FSDP2; `lora`: adapters
    "four": (FOUR, SAVING),
    "fsdp": (FOUR, {"tokens_per_forward": 150}),
    "split": SPLIT,
    "fsdp-split": SPLIT,
    "lora": (FOUR, {"beta": 0.05, "max_steps": 6}),
    "fsdp-lora": (FOUR, {"beta": 0.05, "max_steps": 9, **SAVING, **MOMENTS}),
    "fsdp-saved": (FOUR, {**SAVING, **MOMENTS}),
    "iterations": (FOUR, {"num_iterations": 2, "gradient_accumulation_steps": 2, "max_steps": 8}),
    # a batch lasts 8 micro-steps, 4 updates
    "lora-iterations": (
        REPLACING,
        {
            "num_iterations": 2, "gradient_accumulation_steps": 2, "steps_per_generation": 4, "max_steps": 24,
            "beta": 0.05, **MOMENTS, **SAVING, "save_steps": 12,
        },
    ),
    # two batches in one update: the loss forward is the behaviour policy of both
    "accumulated": (FOUR, {"gradient_accumulation_steps": 4, "steps_per_generation": 2, "max_steps": 5}),
    # batches end in the middle of an update
    "odd": (
        REPLACING,
        {
            "num_iterations": 2, "gradient_accumulation_steps": 4, "steps_per_generation": 3, "max_steps": 14,
            "num_generations": 3, "rows": 36,
        },
    ),
    "rivals": (
        {"repo": {"rows": 3, "window": 4, "min_stored": 4}, "rescue": True, "exgrpo": {"start": 0.0}},
        {"rows": 16, "tokens_per_forward": 150},
    ),
    "idle": (
        {
            "replay": {"warmup": 99}, "reflection": {"warmup": 99, "max_share": 1 / 3},
            "retrospective": {"gate_auc": 1.0},
        },
        {"max_steps": 4},
    ),
    # of 2 ranks the first never has anything to do, of 4 the first two
    "one-sided": (
        {"ranking": RANKING, "replay": {"labels": "positives"}},
        {"loss_type": "grpo", "shuffle_dataset": False},
    ),
    # tokens of an environment in every answer, and rewards that leave rows, or whole groups, out
    "silent": (
        {
            "ranking": {**RANKING, "scope": "failed"}, "replay": {"truncated_negatives": True, "weight": "ppo"},
            "reflection": {"template": "short", "max_share": 1 / 3},
        },
        {"max_steps": 12, "beta": 0.05, "loss_type": "grpo"},
    ),
    "silent-split": (SPLIT_SILENT, {"num_generations": 16, "max_steps": 14, "beta": 0.05}),
    # two turns, the second one after a tool's answer; prefixes are given in the first
    "tools": (
        {
            "replay": {"truncated_negatives": True},
            "retrospective": {"value": "monte_carlo", **SHORT_PREFIXES},
        },
        {"rows": 16, "max_steps": 16, "max_completion_length": 160, "max_tool_calling_iterations": 2},
    ),
    # samples other groups on another number of ranks: the ranks must agree, that is all
    "resampling": ({"dynamic_sampling": True, "replay": {"truncated_negatives": True}}, {"rows": 16, "max_steps": 6}),
}  # fmt: skip


def by_place(parts):
    """Instead of TRL's shuffling of each rank's rows: by their place in the group, which is the same on every number of
    ranks. Which rows an update sees matters where it isn't all of them."""

    def order(batch):
        rows = len(batch["completion_ids"])
        places = sorted(range(rows), key=lambda row: row % parts)
        return {k: v[places] if isinstance(v, torch.Tensor) and v.ndim else v for k, v in batch.items()}

    return order


def remembered_parts(widths, size=None):
    """The parts in which a batch is sampled, narrow rows first, kept for `scripted_sampling`."""
    PARTS[:] = parts_of_like_rows(widths, size)
    return list(PARTS)


def scripted_sampling(trainer, prompt_ids, *_, **__):
    """Answers that depend on the prompt, the place in the group and the step, not on the rank."""
    rows = PARTS.pop(0) if PARTS else range(len(prompt_ids))
    first = trainer._rollout.layout.first
    answers = []
    for row, prompt in zip(rows, prompt_ids, strict=True):
        place = (first + row) % trainer.num_generations
        rng = random.Random(f"{prompt}-{place}-{trainer.state.global_step}")
        length = rng.choice([3, 8, 8, 8])
        ids = [rng.randrange(3, 250) for _ in range(length)]
        answers.append(ids if length == 8 else [*ids, trainer._tokenizer.eos_token_id])
    return answers, None


def dictated(prompts, trainer):
    """A `rollout_func`: tokens by prompt, place in the group and step, of which an environment wrote some."""
    asked = trainer._tokenizer.apply_chat_template(prompts, add_generation_prompt=True, return_dict=True)["input_ids"]
    PARTS.clear()
    rows, _ = scripted_sampling(trainer, asked)
    masks = [[int(place == 0 or (token + place) % 3 > 0) for place, token in enumerate(ids)] for ids in rows]
    return {"prompt_ids": asked, "completion_ids": rows, "logprobs": None, "env_mask": masks}


def sometimes_silent(completion_ids, question_id, trainer_state, **more):
    """As `turning`, but of some questions every other row is left out, of two all rows, and of one all now and then."""
    values = turning(completion_ids, question_id, trainer_state, **more)
    return [
        None
        if number in (5, 11) or (number % 3 == 1 and sum(ids) % 2) or (number == 6 and trainer_state.epoch < 2)
        else v
        for v, ids, number in zip(values, completion_ids, [int(q[1:]) for q in question_id], strict=True)
    ]


def talking(trainer, prompt_ids, *_, **__):
    """Calls of a tool in the first turn, by prompt, place and step; after its answer a text that depends on it."""
    answers = []
    for row, prompt in enumerate(prompt_ids):
        text = trainer._tokenizer.decode(prompt)
        if "</tool_response>" in text:
            answer = f"so {sum(prompt) % 97}"
        else:
            place = (trainer._rollout.layout.first + row) % trainer.num_generations
            number = random.Random(f"{text}-{place}-{trainer.state.global_step}").randrange(90)
            answer = f"n{number}" if number % 5 == 0 else f"n{number} " + world.call("add", a=number, b=place)
        answers.append([*trainer._tokenizer.encode(answer), trainer._tokenizer.eos_token_id])
    return answers, None


def masks(trainer):
    """[completion, mask, kind] of every row that met the loss: 1 for a replayed one, 0 for one of this rank's own."""
    found = []
    for record in getattr(trainer, "records", []):
        batch = record["batch"]
        for row, number in enumerate(batch["r3_row"].tolist()):
            size = int(batch["completion_mask"][row].sum())
            mask = batch["tool_mask"][row][:size].int().tolist()
            if number >= -1:
                found.append([batch["completion_ids"][row][:size].tolist(), mask, int(number == -1)])
    return found


def turning(completion_ids, question_id, trainer_state, **_):
    """Four questions are never solved, four in every other epoch, four now and then."""
    epoch = int((trainer_state.epoch or 0) + 1e-6)
    numbers = [int(q[1:]) for q in question_id]
    return [
        float((4 <= n < 8 and epoch % 2 == 0) or (n >= 8 and sum(ids) % 2 == 0))
        for n, ids in zip(numbers, completion_ids, strict=True)
    ]


def one_sided(completion_ids, question_id, trainer_state, **_):
    """The first six questions have right and wrong answers at every visit; three are hopeless; three turn."""
    odd = int((trainer_state.epoch or 0) + 1e-6) % 2
    numbers = [int(q[1:]) for q in question_id]
    return [float(place % 2 if n < 6 else n >= 9 and not odd) for place, n in enumerate(numbers)]


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().double()


def projections(trainer):
    """Two numbers per trained parameter: its norm, and its product with fixed random numbers."""
    found = []
    for _, value in sorted((n, whole(p)) for n, p in trainer.model.named_parameters() if p.requires_grad):
        random_numbers = torch.randn(value.shape, generator=torch.Generator().manual_seed(1), dtype=torch.double)
        found.append([float(value.norm()), float((value * random_numbers).sum())])
    return found


def measured(trainer):
    """Behaviour log-probs and entropies of everything stored, in the order of the rows' names."""
    names = [f"q{i}" for i in range(12)]
    view = trainer.history.open(names)
    found = view.fetch([summary for name in names for summary in view.summaries(name)])
    values = [[t.summary.entropy_mean, t.summary.entropy_peak, *t.logprobs.tolist()] for t in found]
    return [None if np.isnan(v) else v for row in values for v in row]


def stored(trainer):
    """Question -> sums of the tokens of its stored answers."""
    names = [f"q{i}" for i in range(12)]
    view = trainer.history.open(names)
    found = {name: view.fetch(view.summaries(name)) for name in names}
    return {name: [int(t.completion_ids.sum()) for t in rows] for name, rows in found.items() if rows}


def critic(trainer):
    """The critic's weights and running figures; empty without one."""
    (state,) = [c.state_dict() for c in trainer.components if c.name == "retrospective"] or [{}]
    arrays = [v for k, v in sorted(state.items()) if k.startswith("critic")]
    return np.concatenate([np.ravel(np.asarray(v, float)) for v in arrays]).tolist() if arrays else []


def run(model, folder, name, resume=None):
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    components, changes = CASES[name]
    changes = dict(changes)
    parts = changes.get("steps_per_generation", changes.get("gradient_accumulation_steps", 1))
    rows = changes.pop("rows", ROWS) // ranks // parts
    values = {"per_device_train_batch_size": rows, "max_steps": 9, "learning_rate": 0.05, "optim": "sgd", **changes}
    args = arguments(f"{folder}/{'resumed-' if resume else ''}{name}-{ranks}", components=components, **values)
    if "fsdp" in name and "WORLD_SIZE" in os.environ:
        shard(args)
    ordering = by_place(args.num_generations) if components is REPLACING else shuffle_sequence_dict
    grpo_trainer.shuffle_sequence_dict = ordering
    reward = {"one-sided": one_sided, "silent": sometimes_silent, "silent-split": sometimes_silent}.get(name, turning)
    GRPOTrainer._generate_single_turn = talking if name == "tools" else scripted_sampling
    own = {}
    if name == "tools":
        own = {"model": str(Path(folder) / "qwen"), "tools": [world.add]}
    elif "silent" in name:
        own["rollout_func"] = dictated
    trainer = (spy_on(R3Trainer) if own else R3Trainer)(
        reward_funcs=reward, train_dataset=questions(12), args=args,
        peft_config=LoraConfig(r=4, target_modules="all-linear") if "lora" in name else None,
        **{"model": model, **own},
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume)
    lines = [line for line in trainer.state.log_history if "grad_norm" in line]
    return {
        "sharded": any(hasattr(p, "full_tensor") for p in trainer.model.parameters()),
        "stream": {key: [line[key] for line in lines if key in line] for key in ("loss", "grad_norm", "reward")},
        "weights": projections(trainer),
        "evidence": trainer.evidence,
        "history": [trainer.history.digest(), len(trainer.history)],
        "measured": measured(trainer),
        "critic": critic(trainer),
        "masks": masks(trainer),
        "stored": stored(trainer),
    }


def main(model, folder, *cases):
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    r3bench.training.trainer.parts_of_like_rows = remembered_parts
    out = {}
    for case in cases:
        name, _, checkpoint = case.partition(":")
        out[case] = run(model, folder, name, f"{folder}/{checkpoint}" if checkpoint else None)
    Path(f"{folder}/rank-{rank}-of-{ranks}.json").write_text(json.dumps(out))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
