"""GRPO's loss and R3's mixed advantages, written from the equations, independent of the implementation."""

import numpy as np
import torch


def eq3(fresh, replayed, alpha=1.0, lam=1e-4):
    """R3 Eq. 3: (R - mean) / (alpha std + lambda) over the mixed group, sample standard deviation."""
    rewards = np.array([*fresh, *replayed], dtype=float)
    mean = rewards.sum() / len(rewards)
    std = (((rewards - mean) ** 2).sum() / (len(rewards) - 1)) ** 0.5
    advantages = (rewards - mean) / (alpha * std + lam)
    return advantages[: len(fresh)], advantages[len(fresh) :]


def token_logprobs(model, prompt, completion):
    """log pi(token) of each completion token, from plain logits of one unpadded sequence; shape (T,)."""
    ids = torch.tensor([[*prompt, *completion]])
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    scores = torch.log_softmax(logits.float(), dim=-1)
    return torch.stack([scores[len(prompt) + t - 1, token] for t, token in enumerate(completion)])


def grpo_loss(model, rows, loss_type, epsilon=0.2):
    """Clipped GRPO loss over `rows` of (prompt, completion, advantage per token, old log-probs or None).

    `dapo` divides the sum over all tokens by their number; `grpo` takes the mean of each row, then the mean over rows.
    """
    sums, counts = [], []
    for prompt, completion, advantages, old in rows:
        now = token_logprobs(model, prompt, completion)
        before = now.detach() if old is None else torch.tensor(np.asarray(old), dtype=now.dtype)
        ratio = torch.exp(now - before)
        a = torch.tensor(np.asarray(advantages), dtype=now.dtype)
        per_token = -torch.minimum(ratio * a, ratio.clamp(1 - epsilon, 1 + epsilon) * a)
        sums.append(per_token.sum())
        counts.append(len(completion))
    if loss_type == "dapo":
        return torch.stack(sums).sum() / sum(counts)
    return torch.stack([s / n for s, n in zip(sums, counts, strict=True)]).mean()
