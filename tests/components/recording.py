"""A run of `R3Trainer.train()` recorded from outside: what was sampled, its rewards, and what the loss was given.

Nothing here is read from the components or the moments.
"""

import copy
import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from trainer_tools import arguments, questions, spy_on

HISTORIC, PADDING = -1, -2


@dataclass
class Sampled:
    """A row as it was sampled."""

    question: str
    prompt: list[int]  # token ids the policy was asked with
    completion: list[int]  # given and sampled token ids
    given: int  # leading completion tokens the sampler got handed
    task: float = 0.0  # sum of the task's rewards
    ranking: float = 0.0  # reward of the ranking's column
    scored: list[float] = field(default_factory=list)  # the task's rewards, one by one

    @property
    def text(self) -> tuple[int, ...]:
        return tuple(self.completion)


@dataclass
class Trained:
    """A row as the loss got it."""

    number: int  # row number, or HISTORIC
    prompt: list[int]
    completion: list[int]
    mask: list[int]  # 1: the token is trained
    advantages: list[float]  # per token
    old: list[float] | None  # old log-probs per token, where the batch has any


@dataclass
class Batch:
    """One generation batch."""

    step: int  # optimiser steps done before it
    epoch: float  # epochs done before it
    weights: dict[str, torch.Tensor]  # of the policy that sampled
    asked: list[str]  # the question of every row, as the data set's order has it
    rounds: list[list[Sampled]] = field(default_factory=list)  # one list per generation
    parts: list[dict[str, Any]] = field(default_factory=list)  # micro-batches the loss saw in the first pass
    steps: list[dict[str, Any]] = field(default_factory=list)  # optimiser steps: weights, parts, losses, gradients

    @property
    def rows(self) -> list[Trained]:
        return [row for part in self.parts for row in trained_rows(part)]


def trained_rows(part: dict[str, Any]) -> list[Trained]:
    """The rows of a micro-batch, padding rows left out."""
    found = []
    for i in range(len(part["prompt_ids"])):
        number = int(part["r3_row"][i]) if "r3_row" in part else i
        mask = part["completion_mask"][i].bool()
        if number == PADDING:
            assert not mask.any(), "a padding row is trained"
            continue
        advantages = part["advantages"][i]
        advantages = advantages.expand(len(mask)) if advantages.ndim == 0 else advantages
        trained = part["tool_mask"][i] if "tool_mask" in part else torch.ones(len(mask))
        old = part["old_per_token_logps"][i][mask].tolist() if "old_per_token_logps" in part else None
        found.append(
            Trained(
                number,
                part["prompt_ids"][i][part["prompt_mask"][i].bool()].tolist(),
                part["completion_ids"][i][mask].tolist(),
                trained[mask].int().tolist(),
                advantages[mask].tolist(),
                old,
            )
        )
    return sorted(found, key=lambda row: row.number if row.number >= 0 else 10**6)


def recording(trainer_class: type) -> type:
    """`spy_on(trainer_class)` that keeps `batches`."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    class Recording(spy_on(trainer_class)):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.batches: list[Batch] = []
            self._turns: list[tuple[list[int], list[int]]] = []
            self._rows: list[Sampled] = []
            super().__init__(*args, **kwargs)

        def train(self, *args: Any, **kwargs: Any) -> Any:
            plain = GRPOTrainer._generate_single_turn

            def watched(trainer: Any, prompt_ids: Any, *rest: Any, **named: Any) -> Any:
                result = plain(trainer, prompt_ids, *rest, **named)
                if trainer is self:
                    self._turns += [(list(a), list(b)) for a, b in zip(prompt_ids, result[0], strict=True)]
                return result

            with mock.patch.object(GRPOTrainer, "_generate_single_turn", watched):
                return super().train(*args, **kwargs)

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            if self.model.training:
                weights = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
                asked = [question_of(row) for row in inputs]
                epoch = float(self.state.epoch or 0.0)
                self.batches.append(Batch(self.state.global_step, epoch, weights, asked))
            return super()._generate_and_score_completions(inputs)

        def _generate(self, prompts: Any) -> Any:
            self._turns = []
            outputs = super()._generate(prompts)
            cap = self.max_completion_length
            self._rows = []
            for prompt, completion in zip(outputs[0], outputs[1], strict=True):  # may be sampled in any order
                whole, n = list(prompt) + list(completion), len(prompt)
                turn = next(t for t in self._turns if t[0][:n] == whole[:n] and (t[0] + t[1])[: n + cap] == whole)
                self._turns.remove(turn)
                self._rows.append(Sampled("", list(prompt), list(completion), len(turn[0]) - n))
            assert not self._turns, "answers that reached nobody"
            return outputs

        def _calculate_rewards(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            rewards = super()._calculate_rewards(inputs, *args, **kwargs)
            if self.model.training:
                for row, data, values in zip(self._rows, inputs, rewards.tolist(), strict=True):
                    named = dict(zip(self.reward_func_names, values, strict=True))
                    row.question = question_of(data)
                    ranking = named.pop("ranking", float("nan"))
                    row.ranking = 0.0 if math.isnan(ranking) else ranking
                    row.scored = list(named.values())
                    row.task = sum(row.scored)
                self.batches[-1].rounds.append(self._rows)
            return rewards

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            if not self.model.training:
                return super()._compute_loss(model, inputs)
            batch = self.batches[-1]
            if not batch.steps or "gradients" in batch.steps[-1]:
                weights = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
                batch.steps.append({"weights": weights, "parts": [], "losses": []})
            loss = super()._compute_loss(model, inputs)
            part = {k: copy.copy(v) for k, v in inputs.items()}
            batch.steps[-1]["parts"].append(trained_rows(part))
            batch.steps[-1]["losses"].append(float(loss.detach()))
            if len(batch.parts) < self.args.steps_per_generation:
                batch.parts.append(part)
            return loss

        def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
            gradients = {n: p.grad.detach().clone() for n, p in self.model.named_parameters() if p.grad is not None}
            self.batches[-1].steps[-1]["gradients"] = gradients
            return super()._get_grad_norm(model, grad_norm=grad_norm)

    return Recording


def question_of(row: dict[str, Any]) -> str:
    """The question's id in a data set row."""
    return str(row["question_id"])


def record(
    model: Any,
    folder: Any,
    components: Any,
    reward: Any,
    *,
    rows: int = 6,
    steps: int = 6,
    prepare: Any = None,
    **changes: Any,
) -> Any:
    """A finished, recorded run on the tiny model; `prepare` gets the trainer before it starts."""
    from r3bench import R3Trainer

    trainer = recording(R3Trainer)(
        model=model, reward_funcs=reward, train_dataset=questions(rows),
        args=arguments(folder, components=components, max_steps=steps, max_grad_norm=0.0, **changes),
    )  # fmt: skip
    if prepare:
        prepare(trainer)
    trainer.train()
    return trainer


def bare_prompts(trainer: Any) -> dict[str, list[int]]:
    """question -> token ids of its prompt as the data set has it."""
    found = {}
    for row in trainer.train_dataset:
        ids = trainer._tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
        found[question_of(row)] = trainer._tokenizer.encode(ids, add_special_tokens=False)
    return found


def groups_of_rounds(batch: Batch, size: int) -> list[list[list[Sampled]]]:
    """Every generation's rows, cut into groups."""
    return [[rows[i : i + size] for i in range(0, len(rows), size)] for rows in batch.rounds]


def by_number(batch: Batch) -> dict[int, Trained]:
    """The rows sampled now that reached the loss, by row number."""
    return {row.number: row for row in batch.rows if row.number >= 0}


def historic(batch: Batch) -> dict[tuple[int, ...], list[Trained]]:
    """The historic rows of a batch by the prompt they were put under."""
    found = defaultdict(list)
    for row in batch.rows:
        if row.number == HISTORIC:
            found[tuple(row.prompt)].append(row)
    return found
