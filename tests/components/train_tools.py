"""Runs of `R3Trainer.train()` on the tiny model, and what their recorded batches hold."""

import numpy as np
import torch
from trainer_tools import arguments, questions, spy_on

HISTORIC, PADDING = -1, -2


def train(model, folder, components, reward, *, rows=6, steps=6, data=None, **changes):
    """A finished run whose trainer recorded every batch."""
    from r3bench import R3Trainer

    trainer = spy_on(R3Trainer)(
        model=model, reward_funcs=reward, train_dataset=data if data is not None else questions(rows),
        args=arguments(folder, components=components, max_steps=steps, **changes),
    )  # fmt: skip
    trainer.train()
    return trainer


def batch_rows(record):
    """The unmasked rows of a batch as dicts: prompt and completion ids, advantages and mask per token, r3_row."""
    found = []
    for batch in record["parts"]:
        for i in range(len(batch["prompt_ids"])):
            mask = batch["completion_mask"][i].bool()
            if not mask.any() or int(batch["r3_row"][i]) == PADDING:
                continue
            advantages = batch["advantages"][i]
            advantages = advantages.expand(len(mask)) if advantages.ndim == 0 else advantages
            trained = batch["tool_mask"][i] if "tool_mask" in batch else torch.ones(len(mask))
            found.append(
                {
                    "prompt": batch["prompt_ids"][i][batch["prompt_mask"][i].bool()].tolist(),
                    "completion": batch["completion_ids"][i][mask].tolist(),
                    "advantages": advantages[mask].tolist(),
                    "mask": trained[mask].int().tolist(),
                    "number": int(batch["r3_row"][i]),
                }
            )
    return sorted(found, key=lambda row: row["number"] if row["number"] >= 0 else 10**6)


def groups_of(record, size=4):
    """Fresh rows cut into groups of `size` consecutive row numbers."""
    fresh = [row for row in batch_rows(record) if row["number"] >= 0]
    assert [row["number"] for row in fresh] == list(range(len(fresh)))
    return [fresh[i : i + size] for i in range(0, len(fresh), size)]


def text_of(trainer, ids):
    return trainer._tokenizer.decode(ids)


def question_of(trainer, row):
    """The id of the question in a prompt of `trainer_tools.questions`."""
    return "q" + text_of(trainer, row["prompt"]).split("What is ")[1].split(" ")[0]


def token_entropies(model, prompt, completion, temperature=1.0):
    """Entropy in nats of the policy's distribution at each completion token, from plain logits; (T,)."""
    ids = torch.tensor([[*prompt, *completion]])
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0].double()
    logp = torch.log_softmax(logits[len(prompt) - 1 : -1] / temperature, dim=-1)
    return (-(logp.exp() * logp).sum(-1)).numpy()


def grpo(rewards):
    """Group advantages as TRL computes them."""
    rewards = np.array(rewards, float)
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
