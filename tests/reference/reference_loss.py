"""The clipped policy-gradient loss on stored constants, row by row, from the equations; any float type.

Everything that a gradient must not flow through (old, behaviour and current log-probs) is a constant of the row, so the
loss is a plain function of the weights and finite differences of it mean something.
"""

from dataclasses import dataclass, field

import numpy as np
import torch

GAMMA = 0.1  # of f(x) = x / (x + gamma)


@dataclass
class Row:
    """One row of the loss."""

    prompt: list
    completion: list
    mask: list  # 1: the token is trained
    advantage: float  # A, before any weight
    proximal: np.ndarray  # (T,) log pi_old
    rule: str = "fresh"  # or the off-policy weight of a historic row
    behaviour: np.ndarray | None = None  # (T,) log pi_b of a historic row
    clip: tuple = field(default=(0.0, 2.0))  # bounds of pi / pi_b in `decoupled`
    reference: np.ndarray | None = None  # (T,) log pi_ref, where there is a KL term
    kl: bool = True  # the KL term covers the row

    def weights(self):
        """(T,) factors on the advantage that a batch in TRL's form has to hold."""
        if self.rule == "decoupled":
            return np.clip(np.exp(self.proximal - self.behaviour), *self.clip)
        if self.rule == "shaped":  # r f'(r), the weight of grad log pi in grad f(r)
            ratio = np.exp(self.proximal - self.behaviour)
            return ratio * (1 / (ratio + GAMMA) - ratio / (ratio + GAMMA) ** 2)
        return np.ones(len(self.completion))

    def old(self):
        """(T,) log-probs the ratio is taken against."""
        return self.behaviour if self.rule == "ppo" else self.proximal


def scores(model, pairs, temperature=1.0):
    """Log-distribution each completion token was drawn from, of (prompt, completion) pairs: a list of (T, V)."""
    rows = [[*prompt, *completion] for prompt, completion in pairs]
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])  # on the right: positions stay as they are
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    logits = model(input_ids=ids, attention_mask=mask).logits / temperature
    return [
        torch.log_softmax(logits[i, len(prompt) - 1 : len(rows[i]) - 1], dim=-1) for i, (prompt, _) in enumerate(pairs)
    ]


def logprobs(model, pairs, temperature=1.0):
    """log pi(token) of each completion token in the model's own precision: a list of (T,)."""
    found = scores(model, pairs, temperature)
    return [s.gather(1, torch.tensor(c)[:, None])[:, 0] for s, (_, c) in zip(found, pairs, strict=True)]


def constants(model, pairs, temperature=1.0):
    """Log-probs and entropies (nats) of the completion tokens as float64 arrays, outside any gradient."""
    with torch.no_grad():
        found = [s.double() for s in scores(model, pairs, temperature)]
    chosen = [s.gather(1, torch.tensor(c)[:, None])[:, 0] for s, (_, c) in zip(found, pairs, strict=True)]
    return [c.numpy() for c in chosen], [(-(s.exp() * s).sum(-1)).numpy() for s in found]


def loss(model, rows, loss_type="dapo", epsilon=0.2, cap=None, temperature=1.0):
    """-mean of min(r A, clip(r) A) over trained tokens; a shaped row is f(r) A with r = pi / pi_b and no clip.

    `dapo`: over all trained tokens together; `grpo`: of each row, then over rows; `dr_grpo`: by rows x cap.
    """
    sums, counts = [], []
    current = logprobs(model, [(row.prompt, row.completion) for row in rows], temperature)
    for row, now in zip(rows, current, strict=True):
        mask = torch.tensor(row.mask, dtype=now.dtype)

        def number(values, like=now):
            return torch.as_tensor(np.asarray(values), dtype=like.dtype)

        if row.rule == "shaped":
            ratio = torch.exp(now - number(row.behaviour))
            gain = row.advantage * ratio / (ratio + GAMMA)
        else:
            ratio = torch.exp(now - number(row.old()))
            advantage = row.advantage * number(row.weights())
            gain = torch.minimum(ratio * advantage, ratio.clamp(1 - epsilon, 1 + epsilon) * advantage)
        sums.append(-(gain * mask).sum())
        counts.append(max(1, sum(row.mask)))
    if loss_type == "grpo":
        return torch.stack([s / n for s, n in zip(sums, counts, strict=True)]).mean()
    total = torch.stack(sums).sum()
    return total / (len(rows) * cap if loss_type == "dr_grpo" else sum(sum(row.mask) for row in rows))


def reported(rows, value, loss_type, cap=None):
    """The value a trainer prints for `loss`: a shaped row enters it by its weight r f'(r), not by f(r)."""
    change = []
    for row in rows:
        part = 0.0
        if row.rule == "shaped":
            ratio, mask = np.exp(row.proximal - row.behaviour), np.array(row.mask)
            part = float(row.advantage * ((ratio / (ratio + GAMMA) - row.weights()) * mask).sum())
        change.append(part / max(1, sum(row.mask)) if loss_type == "grpo" else part)
    if loss_type == "grpo":
        return value + sum(change) / len(rows)
    return value + sum(change) / (len(rows) * cap if loss_type == "dr_grpo" else sum(sum(row.mask) for row in rows))
