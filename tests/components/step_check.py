"""Every batch of a recorded run against the plain reference: rows, rewards, advantages, masks, loss and gradient."""

from collections import Counter

import numpy as np
import pytest
import torch
from component_tools import NAN  # noqa: F401  (puts tests/reference on the path)
from recording import PADDING, bare_prompts, by_number, historic
from reference_components import by_context, serr
from reference_loss import Row, constants, loss, reported
from reference_step import (
    Answer,
    Group,
    mixed_advantages,
    plain_advantages,
    plan_mix,
    rank,
    weight_of,
)
from transformers import AutoModelForCausalLM

KEPT = 32  # answers per question and kind the history keeps by default, besides the last of each verdict


class StepCheck:
    """Goes through a run's batches and keeps the history the reference draws from.

    Args:
        trainer: a recorded one.
        on: component -> its settings.
        losses: compare losses and gradients too.
    """

    def __init__(self, trainer, on, losses=True):
        self.trainer, self.on, self.losses = trainer, on, losses
        self.size = trainer.num_generations
        tokenizer = trainer.processing_class
        self.ends = (tokenizer.pad_token_id, tokenizer.eos_token_id)
        self.model = AutoModelForCausalLM.from_config(trainer.model.config, dtype=torch.float32).eval()
        self.bare = bare_prompts(trainer)
        self.store = {}
        self.seen = Counter()  # what was compared: kinds of groups, rules of mixtures, ...
        self.compared = []  # (batch, optimiser step, reference rows) of every comparison of losses

    def run(self):
        for batch in self.trainer.batches:
            self.batch(batch)
        return self.seen

    # ------------------------------------------------------------------ one batch

    def batch(self, batch):
        self.model.load_state_dict(batch.weights)
        groups = self.final_groups(batch)
        trainer, rows = self.trainer, by_number(batch)
        old = {prompt: list(found) for prompt, found in historic(batch).items()}
        for group, places, rewards in rank(groups, self.on.get("ranking"), self.store):
            self.check_ranking(group, places, rewards)
        reference, mixes = [], []
        for index, group in enumerate(groups):
            prompt = group.rows[0].prompt if group.kind == "fresh" else None
            mix = plan_mix(group, self.on, self.store, batch.step, batch.epoch)
            numbers = [self.size * index + i for i in range(self.size)]
            gone = [i for i, number in enumerate(numbers) if number not in rows]
            self.seen[group.kind] += 1
            if mix is None:
                assert not gone, "a row of a group that is not mixed is missing"
                own, other, drawn = dict(enumerate(plain_advantages(group, groups, trainer.scale_rewards))), [], []
            else:
                found = [old[tuple(prompt)].pop(0) for _ in range(mix.count)]
                assert len(gone) == (mix.count if mix.swapped else 0)
                drawn = self.identify(found, mix, batch)
                own, other = mixed_advantages(group, groups, gone, drawn, mix, trainer.scale_rewards)
                self.seen[f"{mix.rule} {'swapped' if mix.swapped else 'added'}"] += mix.count
            mixes.append((mix, drawn) if mix else None)
            factor = weight_of(group, mix, self.on)
            self.seen["rescaled"] += factor != 1
            for place, number in enumerate(numbers):
                if place not in gone:
                    reference.append(self.own_row(group.rows[place], rows[number], factor * own[place]))
            for answer, advantage, trained in zip(drawn, other, found if mix else [], strict=True):
                reference.append(self.historic_row(answer, trained, advantage, mix))
        assert not any(old.values()), "historic rows that no method asked for"
        assert len(reference) == len(batch.rows)
        self.seen["padding"] += sum(int((part["r3_row"] == PADDING).sum()) for part in batch.parts)
        if self.losses:
            self.check_losses(batch, reference)
        self.mixed(batch, groups, mixes)
        self.remember(batch, groups)

    def mixed(self, batch, groups, mixes):
        """For subclasses: all groups of a batch, and (mix, stored answers) of those that were mixed."""

    def final_groups(self, batch):
        """The groups that were trained: those of the first round, and those that took a dead one's place."""
        rounds = [
            [self.group(batch, rows[i : i + self.size]) for i in range(0, len(rows), self.size)]
            for rows in batch.rounds
        ]
        self.rounds, groups = rounds, list(rounds[0])
        if len(groups) == len(batch.asked) // self.size:
            for index, group in enumerate(groups):
                swapped = group.kind == "fresh" and group.question != batch.asked[self.size * index]
                group.revisited = swapped
        limit = self.on.get("dynamic_sampling", {}).get("max_rounds", 4) if "dynamic_sampling" in self.on else 0
        assert len(rounds) <= 1 + limit
        for later in rounds[1:]:
            dead = [i for i, group in enumerate(groups) if self.unwanted(group)]
            assert len(later) == len(dead), "a round samples as many groups as are missing"
            tried = {group.question for group in groups} | {group.question for group in later}
            assert len(tried) == len(groups) + len(later), "other questions are asked"
            for slot, group in zip(dead, [g for g in later if not self.unwanted(g)], strict=False):
                groups[slot] = group
                self.seen["resampled"] += 1
        return groups

    @staticmethod
    def unwanted(group):
        return group.kind == "fresh" and len(set(group.right)) == 1

    def group(self, batch, rows):
        answers = []
        found = constants(self.model, [(row.prompt, row.completion) for row in rows], self.trainer.temperature)
        of_policy = constants(self.model, [(row.prompt, row.completion) for row in rows], 1.0)[1]
        sampled = self.on.get("ranking", {}).get("entropy_temperature") == "sampling"
        for row, probabilities, entropies, own in zip(rows, *found, of_policy, strict=True):
            bare = row.prompt == self.bare[row.question]
            kind = "continuation" if row.given else "fresh" if bare else "reflection"
            answers.append(
                Answer(
                    row.question, row.prompt, row.completion, row.given, kind, row.task, row.scored[0] >= 1,
                    row.completion[-1] not in self.ends, probabilities, entropies.tolist(),
                    batch.step, int(batch.epoch), row.ranking, (entropies if sampled else own).tolist(),
                )
            )  # fmt: skip
        assert len({(a.question, a.kind, tuple(a.prompt), a.given) for a in answers}) == 1, "a group has one prompt"
        return Group(answers)

    # ------------------------------------------------------------------ rewards, rows

    def check_ranking(self, group, places, rewards):
        s = self.on["ranking"]
        got = [group.rows[place].ranking for place in places]
        if s.get("order") == "random" or s.get("ties") == "random":
            n = len(places)
            ladder = [s.get("max_reward", 0.5) * k / (n - 1) for k in range(n)] if n > 1 else [0.0]
            np.testing.assert_allclose(sorted(got), ladder, atol=1e-6)
        if s.get("order") == "shuffled":
            settled = by_context([group.rows[p].ranked for p in places], [group.rows[p].completion for p in places])
            r_max, ties = s.get("max_reward", 0.5), s.get("ties", "average")
            real = serr([h[group.rows[0].given :] for h in settled], s.get("peak_fraction", 0.2), r_max, ties)
            np.testing.assert_allclose(sorted(got), sorted(real), atol=1e-6)
        np.testing.assert_allclose(got, rewards, atol=1e-6)
        rest = [row.ranking for place, row in enumerate(group.rows) if place not in places]
        assert not any(rest), "a row out of scope got a ranking reward"
        self.seen["ranked rows"] += len(places)
        self.seen["ranked with spread"] += max(group.totals) > min(group.totals)
        self.seen["ties"] += len(set(np.round(got, 9))) < len(got)

    def own_row(self, answer, trained, advantage):
        assert trained.prompt == answer.prompt and trained.completion == answer.completion
        given = 0 if self.on.get("retrospective", {}).get("prefix_loss") else answer.given
        mask = [0] * given + [1] * (len(answer.completion) - given)
        assert trained.mask == mask, "which tokens are trained"
        np.testing.assert_allclose(trained.advantages, advantage, atol=2e-5)
        return Row(answer.prompt, answer.completion, mask, float(advantage), answer.logprobs)

    def identify(self, found, mix, batch):
        """The stored answers that the historic rows are, each one once."""
        left, drawn = list(mix.pool), []
        for row in found:
            match = [a for a in left if a.completion == row.completion]
            assert match, "a historic row is no admissible stored answer to its question"
            drawn.append(match[-1])
            left = [a for a in left if a is not match[-1]]
        if mix.exact is not None:
            want = Counter(tuple(a.completion) for a in mix.exact)
            assert Counter(tuple(a.completion) for a in drawn) == want, "not the rows the rule names"
        return drawn

    def historic_row(self, answer, trained, advantage, mix):
        now = constants(self.model, [(trained.prompt, trained.completion)], self.trainer.temperature)[0][0]
        assert trained.prompt == self.bare[answer.question]
        mask = [0] * answer.given + [1] * (len(answer.completion) - answer.given)
        assert trained.mask == mask
        rows = [  # the same tokens may be stored more than once, each with its own log-probs
            Row(
                trained.prompt,
                trained.completion,
                mask,
                float(advantage),
                now,
                mix.rule,
                np.array(a.logprobs),
                mix.clip,
            )
            for a in mix.pool
            if a.completion == answer.completion
        ]
        row = min(rows, key=lambda row: self.misfit(row, trained))
        np.testing.assert_allclose(trained.advantages, row.advantage * row.weights(), atol=2e-4, rtol=2e-3)
        if trained.old is not None:
            np.testing.assert_allclose(trained.old, row.old(), atol=1e-4)
        self.seen["given tokens replayed"] += answer.given > 0
        self.seen["weights far from 1"] += bool(np.abs(row.weights() - 1).max() > 0.1)
        return row

    @staticmethod
    def misfit(row, trained):
        found = np.abs(row.advantage * row.weights() - trained.advantages).max()
        return found if trained.old is None else found + np.abs(row.old() - trained.old).max()

    # ------------------------------------------------------------------ loss and gradient

    def check_losses(self, batch, reference):
        trainer = self.trainer
        kind, cap = trainer.loss_type, trainer.max_completion_length
        for step in batch.steps:
            self.model.load_state_dict(step["weights"])
            self.model.zero_grad()
            value = loss(self.model, reference, kind, cap=cap, temperature=trainer.temperature)
            value.backward()
            want = {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}
            got = step["gradients"]
            assert set(got) == set(want)
            printed = sum(step["losses"])
            assert printed == pytest.approx(reported(reference, float(value.detach()), kind, cap), abs=3e-5)
            largest = max(float(g.abs().max()) for g in want.values())
            for name, gradient in got.items():
                error = float((gradient - want[name]).abs().max())
                assert error <= 2e-4 * largest + 1e-7, (batch.step, name, error, largest)
            self.seen["with gradient"] += largest > 1e-4
            self.seen["steps"] += 1
            self.compared.append((step["weights"], reference))

    def finite_differences(self, which=-1, directions=3, length=2e-3):
        """The reference's own gradient against differences of its loss along directions of its own kind.

        Steps are as long as they are because Llama's norms and attention compute in float32 whatever the weights are.
        """
        weights, rows = self.compared[which]
        model = self.model.double()
        kind, cap = self.trainer.loss_type, self.trainer.max_completion_length
        model.load_state_dict(weights)
        model.zero_grad()
        loss(model, rows, kind, cap=cap).backward()
        parameters = list(model.parameters())
        gradient = [p.grad.clone() for p in parameters]
        generator = torch.Generator().manual_seed(0)
        for _ in range(directions):
            way = [g * torch.rand(g.shape, generator=generator, dtype=g.dtype) for g in gradient]
            size = float(torch.sqrt(sum((d**2).sum() for d in way)))
            way = [d / size for d in way]
            ends = []
            for sign in (1, -1):
                with torch.no_grad():
                    for p, d in zip(parameters, way, strict=True):
                        p += sign * length * d
                    ends.append(float(loss(model, rows, kind, cap=cap)))
                    for p, d in zip(parameters, way, strict=True):
                        p -= sign * length * d
            slope = float(sum((g * d).sum() for g, d in zip(gradient, way, strict=True)))
            assert slope > 1e-3
            assert (ends[0] - ends[1]) / (2 * length) == pytest.approx(slope, rel=5e-3)
        model.float()

    def remember(self, batch, groups):
        def place(group):
            return group.kind != "fresh", group.kind, group.question if group.kind != "fresh" else ""

        for group in sorted(groups, key=place):
            for row in group.rows:
                stored = self.store.setdefault(row.question, [])
                stored.append(row)
                same = [a for a in stored if a.kind == row.kind]
                for old in same[:-KEPT]:
                    later = same[next(i for i, a in enumerate(same) if a is old) + 1 :]
                    verdict = old.correct, old.truncated
                    if old.kind != "fresh" or verdict in [(a.correct, a.truncated) for a in later]:
                        stored[:] = [a for a in stored if a is not old]
