"""Loss and gradient of every update of a run, recomputed from the equations: how far apart they are.

Rows, advantages and masks are checked against the plain reference on the way (`StepCheck`). What an average is taken
over is TRL's: where a sampled batch serves several updates, each update is divided by its share of the whole batch
(rows or tokens of the batch x the update's part of the micro-batches), not by its own rows or tokens.
"""

import itertools
import math
from collections import Counter
from dataclasses import dataclass, field

import torch
from recording import record
from step_check import StepCheck  # puts tests/reference on the path
from test_components_loss import ENDING, RANK, REFLECT, RETRO

from reference_loss import constants, logprobs  # isort: skip
from reference_objective import Objective, divisors, sizes_of, terms  # isort: skip

GROUPS, SIZE = 4, 4  # of the data set's own questions in a batch
NOTHING = 1e-6  # a gradient whose norm is below has no relative error

LOSSES = {
    "grpo": {"loss_type": "grpo"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "bnpo": {"loss_type": "bnpo"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.1},
    "gspo": {
        "loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.02, "epsilon_high": 0.03,
    },
}  # fmt: skip
BETAS = (0.0, 0.05)
# A sampled batch is 16 rows (more with added groups): two micro-batches an update throughout.
UPDATES = {
    "one": {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2},
    "two passes": {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_iterations": 2},
    "two halves": {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 4,
    },
    "two halves, two passes": {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 4,
        "num_iterations": 2,
    },
}  # fmt: skip
EACH = {"one": 1, "two passes": 2, "two halves": 2, "two halves, two passes": 4}  # updates per sampled batch


def reward(completion_ids, question_id, trainer_state, **_):
    """q0 never right, q1 right in even epochs and q2 in odd ones; the rest, and added groups, by their tokens."""
    even = int((trainer_state.epoch or 0) + 1e-6) % 2 == 0
    settled = {"q0": 0.0, "q1": float(even), "q2": float(not even)}
    by_tokens = [float(sum(ids) % 2 == 0) for ids in completion_ids]
    own = GROUPS * SIZE
    return [settled.get(q, r) if i < own else r for i, (q, r) in enumerate(zip(question_id, by_tokens, strict=True))]


@dataclass(frozen=True)
class Subject:
    """What is on in a run."""

    on: dict
    wanted: tuple  # what has to have been compared
    questions: int = 4
    generations: int = 2


REPLAY = {"warmup": 0.0, "rows": 2, "truncated_negatives": True}
RESTART = {**RETRO, "value": "random"}
TOGETHER = {
    "ranking": RANK, "replay": {**REPLAY, "rows": 1}, "retrospective": {**RESTART, "share": 0.25},
    "reflection": {**REFLECT, "max_share": 0.25},
}  # fmt: skip
COMPONENTS = {
    "nothing acts": Subject({"replay": {"warmup": 100.0}}, ("fresh",)),  # the batch is TRL's own
    "replay": Subject({"replay": REPLAY}, ("decoupled added",)),
    "reflection": Subject({"reflection": REFLECT}, ("reflection",)),
    "ranking": Subject({"ranking": RANK}, ("ranked with spread",)),
    "retrospective": Subject({"retrospective": RESTART}, ("continuation",)),
    "all four": Subject(
        TOGETHER, ("decoupled added", "reflection", "ranked with spread", "continuation"), generations=3,
    ),
    "replay, in place": Subject({"replay": {**REPLAY, "mode": "replace"}}, ("decoupled swapped",)),
    "replay, `ppo`": Subject({"replay": {**REPLAY, "weight": "ppo"}}, ("ppo added",)),
    "replay, `shaped`": Subject({"replay": {**REPLAY, "weight": "shaped"}}, ("shaped added",)),
    "repo": Subject({"repo": {"window": 4, "min_stored": 4, "rows": 3}}, ("ppo added",)),
    "exgrpo": Subject({"exgrpo": {"start": 0.0}}, ("shaped swapped",), questions=8, generations=3),
    "rescue": Subject({"rescue": {}}, ("none swapped",)),
    "dynamic_sampling": Subject({"dynamic_sampling": {"max_rounds": 0}}, ("rescaled",)),
}  # fmt: skip
KL = {  # for the KL term on historic rows alone, not in the table
    "replay, `none`": Subject({"replay": {**REPLAY, "weight": "none"}}, ("none added",)),
    "replay, `none`, in place": Subject({"replay": {**REPLAY, "weight": "none", "mode": "replace"}}, ("none swapped",)),
    "reflection, re-attached": Subject(
        {"reflection": {**REFLECT, "gradient": "reattach"}}, ("shaped swapped",), generations=4
    ),
    "reflection, re-attached, `none`": Subject(
        {"reflection": {**REFLECT, "gradient": "reattach", "weight": "none"}}, ("none swapped",), generations=4
    ),
}
FOUR = ("replay", "reflection", "ranking", "retrospective", "all four")


def cases():
    """(components, loss, beta, updates) of everything that is recomputed."""
    for what, loss, beta, updates in itertools.product(COMPONENTS, LOSSES, BETAS, UPDATES):
        both = updates == "two halves, two passes"  # all four in full, the four alone each way, the others once
        if (what in FOUR and (what == "all four" or not both)) or (both and what not in FOUR):
            yield what, loss, beta, updates


@dataclass
class Deviation:
    """The largest over a run's updates."""

    updates: int = 0
    without: int = 0  # updates with no gradient to compare
    gradient: float = 0.0  # |g - g*| / |g*|, Euclidean norms over all parameters
    entry: float = 0.0  # largest difference of an entry / largest entry
    loss: float = 0.0  # |loss - loss*| / sum of the magnitudes of its tokens' terms
    average: float = 0.0  # the divisor against that of the update's own rows or tokens, less 1
    clipped: int = 0  # tokens that were clipped or capped
    tokens: int = 0
    seen: Counter = field(default_factory=Counter)


class Recompute(StepCheck):
    """`StepCheck` that measures instead: `deviation` after `run()`."""

    def __init__(self, trainer, on):
        super().__init__(trainer, on)
        args = trainer.args
        self.objective = Objective(
            trainer.loss_type, trainer.importance_sampling_level == "sequence", trainer.epsilon_low,
            trainer.epsilon_high, trainer.beta, args.use_bias_correction_kl, trainer.max_completion_length,
        )  # fmt: skip
        self.first = trainer.batches[0].weights  # the policy that the KL term is against
        self.deviation = Deviation()
        self.rows, self.keys = {}, []

    @staticmethod
    def key(trained):
        old = None if trained.old is None else tuple(trained.old)
        return trained.number, tuple(trained.prompt), tuple(trained.completion), tuple(trained.advantages), old

    def own_row(self, answer, trained, advantage):
        return self.keep(trained, super().own_row(answer, trained, advantage))

    def historic_row(self, answer, trained, advantage, mix):
        row = super().historic_row(answer, trained, advantage, mix)
        row.kl = mix.kl
        self.seen["historic rows without KL"] += not mix.kl
        return self.keep(trained, row)

    def keep(self, trained, row):
        self.rows[self.key(trained)] = row
        self.keys.append(self.key(trained))
        return row

    def check_losses(self, batch, reference):
        if self.objective.beta:
            self.model.load_state_dict(self.first)
            pairs = [(row.prompt, row.completion) for row in reference]
            for row, found in zip(reference, constants(self.model, pairs, self.trainer.temperature)[0], strict=True):
                row.reference = found
        whole = sizes_of(reference)
        share = self.trainer.args.gradient_accumulation_steps / self.trainer.args.steps_per_generation
        sizes = type(whole)(whole.rows * share, whole.tokens * share)
        for step in batch.steps:
            self.update(step, [[self.rows[self.key(row)] for row in part] for part in step["parts"]], sizes)
        met = Counter(self.key(row) for step in batch.steps for part in step["parts"] for row in part)
        assert met == Counter(self.trainer.num_iterations * self.keys), "each row once in each pass"
        self.rows, self.keys = {}, []

    def update(self, step, parts, sizes):
        found, rows = self.deviation, [row for part in parts for row in part]
        self.model.load_state_dict(step["weights"])
        self.model.zero_grad()
        current = logprobs(self.model, [(row.prompt, row.completion) for row in rows], self.trainer.temperature)
        by = [divisor for part in divisors(parts, sizes, self.objective) for divisor in part]
        value, size, carrier = 0.0, 0.0, 0.0
        for row, now, divisor in zip(rows, current, by, strict=True):
            one = terms(row, now.detach().double().numpy(), self.objective)
            value += one.loss.sum() / divisor
            size += abs(one.loss).sum() / divisor
            trained = torch.tensor(row.mask, dtype=torch.bool)
            carrier = carrier + (now[trained] * torch.tensor(one.gradient / divisor, dtype=now.dtype)).sum()
            found.clipped += int(one.clipped.sum())
            found.tokens += len(one.clipped)
        carrier.backward()
        want = {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}
        got = step["gradients"]
        assert set(got) == set(want)
        norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in want.values()))
        apart = math.sqrt(sum(float(((got[n].double() - g.double()) ** 2).sum()) for n, g in want.items()))
        found.updates += 1
        if norm < NOTHING:
            assert apart < NOTHING, "a gradient where there should be none"
            found.without += 1
        else:
            found.gradient = max(found.gradient, apart / norm)
            largest = max(float(g.abs().max()) for g in want.values())
            entry = max(float((got[n] - g).abs().max()) for n, g in want.items())
            found.entry = max(found.entry, entry / largest)
            self.seen["with gradient"] += 1
        if size > 0:
            found.loss = max(found.loss, abs(sum(step["losses"]) - value) / size)
        own = sizes_of(rows)
        used, of_own = (
            (sizes.rows, own.rows) if self.objective.loss_type in ("grpo", "dr_grpo") else (sizes.tokens, own.tokens)
        )
        if self.objective.loss_type != "bnpo":
            found.average = max(found.average, abs(used / of_own - 1))
        self.seen["steps"] += 1


def recomputed(model, folder, what, loss, beta, updates, **changes):
    """The `Deviation` of one run; `changes` of the trainer's arguments."""
    subject = {**COMPONENTS, **KL}[what]
    settings = {**LOSSES[loss], **UPDATES[updates], **ENDING, "beta": beta, "learning_rate": 3e-3, **changes}
    steps = subject.generations * EACH[updates]
    trainer = record(model, folder, subject.on, reward, rows=subject.questions, steps=steps, **settings)
    check = Recompute(trainer, subject.on)
    check.deviation.seen = check.run()
    assert len(trainer.batches) == subject.generations
    missing = [wanted for wanted in subject.wanted if not check.seen[wanted]]
    assert not missing, (missing, dict(check.seen))
    return check.deviation
