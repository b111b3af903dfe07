"""Calls the components at their moments of a generation batch, and keeps what they share: history, evidence, state.

Every method but the constructor is collective: all ranks call it, with their own rows, and all decide the same.
"""

import math
import warnings
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from r3bench.component import Component, Facts, Group, Mixture, PlannedGroup, Step, Summary
from r3bench.errors import ConfigError, StateError
from r3bench.training.questions.identity import SeenRows, question_id
from r3bench.training.step import trl_adapter
from r3bench.training.step.correctness import CorrectnessRule
from r3bench.training.step.history import HistoryView, TrajectoryHistory, trajectories_of
from r3bench.training.step.host import Host
from r3bench.training.step.loss_inputs import FREE_KEY, OLD
from r3bench.training.step.mixing import mix_into
from r3bench.training.step.mixture_check import admitted
from r3bench.training.step.rollout import Layout, Rollout, Scoring, append_multiple, open_rollout, place


class Moments:
    """The components of one trainer."""

    def __init__(
        self,
        trainer: Host,
        history: TrajectoryHistory,
        rule: CorrectnessRule,
        correct_columns: list[int],
        shaping_columns: dict[str, int],
    ) -> None:
        self._trainer = trainer
        self._rule, self._correct_columns = rule, correct_columns
        self._shaping_columns = shaping_columns
        self.history = history
        self.components: list[Component] = []
        self.evidence: dict[str, float] = {}  # totals of the components' counters
        self.before: tuple[int, float] = (0, 0.0)  # steps and epochs of earlier `train()` calls
        self._view: Any = HistoryView(None, {})
        self._row_index: dict[str, int] | None = None
        self._seen = SeenRows()  # of a stream, whose ids can't be checked before training

    def add(self, component: Component) -> None:
        """Switch a component on; the order of adding is the order of precedence."""
        self.components.append(component)

    @property
    def uses_history(self) -> bool:
        return any(component.uses_history for component in self.components)

    @property
    def observes_tokens(self) -> bool:
        return self.uses_history or any(component.observes_tokens for component in self.components)

    def facts(self) -> Facts:
        """What components may know about the trainer."""
        trainer = self._trainer
        tokenizer = trl_adapter.tokenizer(trainer)
        return Facts(
            seed=trainer.args.seed,
            num_generations=trainer.num_generations,
            groups=trainer.args.generation_batch_size // trainer.num_generations,
            questions=len(trainer.train_dataset) if isinstance(trainer.train_dataset, Dataset) else 0,
            max_completion_length=int(trainer.max_completion_length or 0),
            temperature=trainer.temperature,
            scale_rewards=trainer.scale_rewards,
            decode=lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
            encode=lambda text: list(tokenizer.encode(text, add_special_tokens=False)),
            stored_per_question=self.history.bounds.per_question,
            append_multiple=append_multiple(
                self.layout(trainer.args.generation_batch_size // trainer.accelerator.num_processes),
                trainer.args.steps_per_generation,
            ),
        )

    def layout(self, local_rows: int) -> Layout:
        """The layout of a batch with that many rows on each rank."""
        accelerator = self._trainer.accelerator
        return Layout(accelerator.process_index, accelerator.num_processes, local_rows, self._trainer.num_generations)

    def step(self, groups: Sequence[Group], taken: frozenset[int] = frozenset(), *, mixing: bool = False) -> Step:
        """The batch as a moment sees it; for `mix`, with what may be trained on of the history."""
        state, (steps, epochs) = self._trainer.state, self.before
        # TRL's mask_truncated_completions takes every truncated row out of the loss, so none may come back in.
        view = self._view.finished() if mixing and self._trainer.mask_truncated_completions else self._view
        return Step(steps + state.global_step, epochs + float(state.epoch or 0.0), groups, view, taken)

    def train_again(self) -> None:
        """A further `train()` from where the last one ended: steps and epochs of its own, after those."""
        state, (steps, epochs) = self._trainer.state, self.before
        self.before = steps + state.global_step, epochs + float(state.epoch or 0.0)

    def row_of(self, question: str) -> dict[str, Any]:
        """The data set row of a question."""
        row: dict[str, Any] = self._trainer.train_dataset[self.row_index[question]]
        columns = trl_adapter.columns_used(self._trainer)
        return row if columns is None else {key: value for key, value in row.items() if key in columns}

    @property
    def row_index(self) -> dict[str, int]:
        """Question id -> row number of the training set."""
        if self._row_index is None:
            data = self._trainer.train_dataset
            if not isinstance(data, Dataset):
                raise ConfigError("components: this one plans groups by question and needs a map-style train_dataset")
            columns = trl_adapter.columns_used(self._trainer)
            data = data if columns is None else data.select_columns([c for c in data.column_names if c in columns])
            self._row_index = {question_id(row): i for i, row in enumerate(data)}
        return self._row_index

    # ------------------------------------------------------------------ before generation

    def open(self, inputs: list[dict[str, Any]], *, planning: bool = True) -> Rollout:
        """The rollout of a batch, with the groups the components planned."""
        layout = self.layout(len(inputs))
        heads = [row for i, row in enumerate(inputs) if (layout.first + i) % layout.group_rows == 0]
        heads = trl_adapter.gather_list(heads)
        if not isinstance(self._trainer.train_dataset, Dataset):
            self._seen.check(heads)
        rollout = open_rollout(inputs, layout, heads)
        if planning:
            rollout = self._planned(rollout)
        else:
            self.look_up(rollout)
        rollout.started = trl_adapter.micro_step(self._trainer)
        rollout.scoring = Scoring.TO_COME if trl_adapter.scores_samples(self._trainer) else Scoring.LOSS
        return rollout

    def _planned(self, rollout: Rollout) -> Rollout:
        self.look_up(rollout)
        planned: list[PlannedGroup] = []
        for component in self.components:
            taken = frozenset(plan.slot for plan in planned if plan.slot is not None)
            planned += component.plan(self.step(rollout.groups, taken))
        if planned:
            for plan in planned:
                self._check_plan(plan, rollout.layout.groups)
            rollout, dropped = place(rollout, planned, self.row_of, self._trainer.args.steps_per_generation)
            trl_adapter.log_metric(self._trainer, "groups/planned", len(planned) - dropped)
            trl_adapter.log_metric(self._trainer, "groups/without_place", dropped)
            self.look_up(rollout)
        return rollout

    def _check_plan(self, plan: PlannedGroup, slots: int) -> None:
        cap = int(self._trainer.max_completion_length or 0)
        if plan.prefix_ids and self._trainer.rollout_func is not None:
            raise ConfigError("components: a planned group gives tokens, which a rollout_func would not continue")
        if plan.prompt is not None and trl_adapter.prompts_may_differ(self._trainer) and not self._trainer.rollout_func:
            raise ConfigError("components: a planned group has a prompt of its own, without what the environment adds")
        if len(plan.prefix_ids) >= cap:
            raise ConfigError(
                f"components: a planned group gives {len(plan.prefix_ids)} tokens, expected below "
                f"max_completion_length={cap}: something must be left to sample"
            )
        if plan.slot is not None and not 0 <= plan.slot < slots:
            raise ConfigError(
                f"components: a planned group asks for slot {plan.slot}, there are slots 0 to {slots - 1}"
            )
        if plan.question not in self.row_index:
            raise ConfigError(f"components: a planned group asks for question '{plan.question}', which the data lacks")

    def look_up(self, rollout: Rollout) -> None:
        """Bring the summaries of the batch's questions."""
        if self.uses_history:
            self._view = self.history.open([group.question for group in rollout.groups])

    # ------------------------------------------------------------------ rewards

    def score(self, rollout: Rollout, rewards: torch.Tensor) -> None:
        """Fill the groups, let components give their rewards, write those into their columns of `rewards` (N, F)."""
        trainer = self._trainer
        correct, judged = self._rule.verdicts(rewards, self._correct_columns)
        ends = {*trainer.eos_token_ids, trl_adapter.tokenizer(trainer).pad_token_id}
        local = torch.tensor(
            [
                [rollout.written(row), not ids or ids[-1] not in ends]
                for row, ids in enumerate(rollout.completion_ids)
            ],
            dtype=torch.long, device=rewards.device,
        )  # fmt: skip
        lengths, truncated = trainer.accelerator.gather(local).T
        rollout.fill(
            correct.cpu().numpy(), judged.cpu().numpy(), truncated.bool().cpu().numpy(), lengths.cpu().numpy(),
            self._totals(rewards),
        )  # fmt: skip
        if any(component.reads_answers for component in self.components):
            self._share_ids(rollout)
            decode = self.facts().decode
            for group in rollout.groups:
                group.texts = [decode(ids.tolist()) for ids in group.completion_ids]
        step = self.step(rollout.groups)
        for component in self.components:
            if component.shapes_reward:
                rows = component.entropy_rows(step)
                shaped = component.score(step, self._entropies(rollout, rows, component.entropy_temperature))
                column = self._shaping_columns[component.name]
                for row, value in shaped.items():
                    if not 0 <= row < len(rewards) or not math.isfinite(value):
                        raise ConfigError(
                            f"component '{component.name}': score() gave {value} for row {row}, expected finite "
                            f"rewards for rows 0 to {len(rewards) - 1}"
                        )
                    if judged[row]:
                        rewards[row, column] = value
        rollout.add_rewards(self._totals(rewards))

    def _totals(self, rewards: torch.Tensor) -> np.ndarray:
        """Total reward of every row, shape (N,), as TRL sums it; NaN where every function abstained."""
        weights = self._trainer.reward_weights.to(rewards.device).unsqueeze(0)
        totals = (rewards * weights).nansum(dim=1)
        totals[torch.isnan(rewards).all(dim=1)] = torch.nan
        found: np.ndarray = totals.cpu().numpy()
        return found

    def _entropies(self, rollout: Rollout, rows: list[int], temperature: float | None) -> dict[int, np.ndarray]:
        """Per-token entropies of global rows, on every rank; their tokens go into the groups.

        What TRL's scoring forward did not bring (none was made, or another temperature) costs a no-grad forward.
        """
        if not rows:
            return {}
        layout = rollout.layout
        mine = [local for row in rows if (local := layout.local(row)) is not None]
        fullest, found = layout.rows_on_fullest(rows), rollout.entropies
        if temperature not in (None, self._trainer.temperature):
            brought = rollout.scored and temperature == rollout.other_temperature
            found = rollout.other_entropies if brought else self._scored(rollout, mine, fullest, temperature)[1]
        elif not rollout.scored:  # else TRL's own scoring forward brought them, on every rank alike
            self._score_rows(rollout, mine, fullest)
        masks = rollout.masks or [np.ones(len(ids), bool) for ids in rollout.completion_ids]
        held = [
            (row + layout.first, np.asarray(rollout.completion_ids[row], np.int32), masks[row], found[row])
            for row in mine
        ]
        known = {row: rest for row, *rest in trl_adapter.gather_list(held)}
        for group in () if rollout.shared else rollout.groups:
            group.completion_ids = [known[row][0] if row in known else np.zeros(0, np.int32) for row in group.rows]
            group.masks = [known[row][1] if row in known else np.zeros(0, bool) for row in group.rows]
        return {row: entropies for row, (_, _, entropies) in known.items()}

    def _score_rows(
        self, rollout: Rollout, local_rows: list[int], rows_on_fullest: int, batch: Mapping[str, Any] | None = None
    ) -> None:
        """Log-probs and entropies of some of this rank's rows as they were sampled, into the rollout.

        `batch`: what TRL made of the rollout, for the images in it.
        """
        logprobs, entropies = self._scored(rollout, local_rows, rows_on_fullest, batch=batch)
        rollout.logprobs.update(logprobs)
        rollout.entropies.update(entropies)

    def _scored(
        self,
        rollout: Rollout,
        local_rows: list[int],
        rows_on_fullest: int,
        temperature: float | None = None,
        batch: Mapping[str, Any] | None = None,
    ) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
        """Local row -> log-probs, entropies (T,). Ranks with fewer rows score spare ones: all do equally many."""
        if rows_on_fullest == 0:
            return {}, {}
        padded = local_rows + [0] * (rows_on_fullest - len(local_rows))
        logprobs, entropies = trl_adapter.score_tokens(
            self._trainer,
            [rollout.prompt_ids[r] for r in padded],
            [rollout.completion_ids[r] for r in padded],
            temperature=temperature,
            images=trl_adapter.images_of(batch or {}, padded),
        )
        return (
            {row: logprobs[number].numpy() for number, row in enumerate(local_rows)},
            {row: entropies[number].numpy() for number, row in enumerate(local_rows)},
        )

    # ------------------------------------------------------------------ after the advantages

    def log_fresh(self, rollout: Rollout) -> None:
        """Share of right rows among the judged ones of the data set's own groups, before any round is sampled again:
        comparable between components, which the reward of the batch is not (they change what is in it)."""
        fresh = [group.correct[group.judged] for group in rollout.groups if group.provenance == "fresh"]
        verdicts = np.concatenate([np.zeros(0, bool), *fresh])
        if len(verdicts):
            trl_adapter.log_metric(self._trainer, "fresh/correct", float(verdicts.mean()))

    def kept(self, rollout: Rollout) -> list[bool]:
        """Per group: whether every component that resamples wants to keep it."""
        step = self.step(rollout.groups)
        verdicts = [component.keep(step) for component in self.components if component.resamples]
        return [all(votes) for votes in zip(*verdicts, strict=True)] if verdicts else [True] * len(rollout.groups)

    def max_rounds(self) -> int:
        """Extra generation rounds the components ask for."""
        return max((int(c.config.max_rounds) for c in self.components if c.resamples), default=0)

    def finish(self, rollout: Rollout, batch: dict[str, Any]) -> dict[str, Any]:
        """Mix historic rows in and rescale; returns the batch for the loss."""
        trainer = self._trainer
        self._probe(rollout)
        if self.uses_history and trl_adapter.prompts_may_differ(trainer):
            self._compare_prompts(rollout)
        judged = [group for group in rollout.groups if group.judged.any()]
        if judged:
            shares = [group.homogeneous for group in judged]
            trl_adapter.log_metric(trainer, "groups/homogeneous", float(np.mean(shares)))
        self._free_given_tokens(rollout, batch)
        mixtures: list[Mixture] = []
        for component in self.components:
            taken = frozenset(mixture.group for mixture in mixtures)
            step = self.step(rollout.groups, taken, mixing=True)
            mixtures += admitted(component, component.mix(step), rollout.groups, taken)
        step = self.step(rollout.groups)
        if mixtures:
            batch = self._mix(rollout, batch, mixtures)
        mixed = frozenset(mixture.group for mixture in mixtures)
        for component in self.components:
            self._rescale(rollout, batch, component.rescale(step, mixed))
        if judged:
            dead = [group.homogeneous and group.index not in mixed for group in judged]
            trl_adapter.log_metric(trainer, "groups/dead", float(np.mean(dead)))
        return batch

    @staticmethod
    def _free_given_tokens(rollout: Rollout, batch: dict[str, Any]) -> None:
        """Given tokens that are trained were not sampled: no ratio to the policy that sampled the rest, no clip."""
        if not rollout.trained_prefixes or OLD not in batch:
            return
        free = batch[FREE_KEY] = torch.zeros(batch["completion_ids"].shape, device=batch["completion_ids"].device)
        for row in rollout.trained_prefixes:
            free[row, : len(rollout.prefixes[row])] = 1

    def _compare_prompts(self, rollout: Rollout) -> None:
        """Leave stored answers to other prompts than this batch's out, where the data set's row does not settle it."""
        local = [zlib.crc32(np.array(ids, np.int64).tobytes()) for ids in rollout.prompt_ids]
        known = trl_adapter.gather_list(local)
        for group in rollout.groups:
            group.asked = known[group.rows.start : group.rows.stop]
        self._view = self._view.answered(rollout.groups)

    def _mix(self, rollout: Rollout, batch: dict[str, Any], mixtures: list[Mixture]) -> dict[str, Any]:
        wanted: list[Summary] = [summary for mixture in mixtures for summary in mixture.historic]
        found = iter(self._view.fetch(wanted))
        trajectories = [[next(found) for _ in mixture.historic] for mixture in mixtures]
        if self.observes_tokens and not rollout.scored:
            # A row that gives way never meets the loss forward, so its log-probs have to be taken now.
            gone = [rollout.groups[m.group].rows.start + p for m in mixtures for p in m.replaced]
            mine = [local for row in gone if (local := rollout.layout.local(row)) is not None]
            self._score_rows(rollout, mine, rollout.layout.rows_on_fullest(gone), batch)
        batch = mix_into(self._trainer, batch, rollout, mixtures, trajectories)
        advantages = {
            row: float(mixture.fresh_advantages[number])
            for mixture in mixtures
            for number, row in enumerate(rollout.groups[mixture.group].rows)
            if number in mixture.replaced or rollout.groups[mixture.group].judged[number]
        }
        if not rollout.resampled:
            trl_adapter.relog_advantages(self._trainer, rollout.rows, advantages)
        return batch

    def _rescale(self, rollout: Rollout, batch: dict[str, Any], factors: Mapping[int, float]) -> None:
        for index, factor in factors.items():
            group = rollout.groups[index]
            for row, judged in zip(group.rows, group.judged, strict=True):
                local = rollout.layout.local(row)
                if local is not None and judged:
                    batch["advantages"][local] *= factor

    def _probe(self, rollout: Rollout) -> None:
        """Hidden states where components ask for them, under the policy that sampled."""
        probing = [component for component in self.components if component.probes_hidden]
        if not probing:
            return
        layout = rollout.layout
        self._share_ids(rollout)
        step = self.step(rollout.groups)
        for component in probing:
            wanted = {row: list(positions) for row, positions in component.probe(step).items() if positions}
            mine = [place_ for row in wanted if (place_ := layout.local(row)) is not None]
            fullest = layout.rows_on_fullest(list(wanted))
            if fullest == 0:
                continue
            rows = mine + [0] * (fullest - len(mine))
            hidden = trl_adapter.hidden_states(
                self._trainer,
                [rollout.prompt_ids[r] for r in rows],
                [rollout.completion_ids[r] for r in rows],
                [wanted.get(layout.first + r, [0]) for r in rows],
            )
            gathered = dict(
                trl_adapter.gather_list([(layout.first + r, h) for r, h in zip(mine, hidden, strict=False)])
            )
            for group in rollout.groups:
                for number, row in enumerate(group.rows):
                    if row in gathered:
                        group.hidden[number] = gathered[row]

    # ------------------------------------------------------------------ what is learnt from the batch

    def observe(self, rollout: Rollout) -> None:
        """Tokens and log-probs to all groups, trajectories to the history, evidence to the log."""
        trainer = self._trainer
        step = self.step(rollout.groups)
        if self.observes_tokens:
            if trainer.mask_truncated_completions:
                self._forget_masked(rollout)
            self._share_tokens(rollout)
        for component in self.components:
            component.observe(step)
        if self.uses_history:
            self.history.insert(trajectories_of(step), step.step)
            trl_adapter.log_metric(trainer, "history/trajectories_this_rank", len(self.history))
        for component in self.components:
            for key, value in component.take_counts().items():
                trl_adapter.log_metric(trainer, key, value)
                self.evidence[key] = self.evidence.get(key, 0.0) + value
            for key, value in component.take_figures().items():
                trl_adapter.log_metric(trainer, key, value)

    @staticmethod
    def _forget_masked(rollout: Rollout) -> None:
        """TRL masks every token of a truncated row, and its forward then gives 0 for them: unknown, not certain."""
        for group in rollout.groups:
            for number, row in enumerate(group.rows):
                local = rollout.layout.local(row)
                if local is not None and group.truncated[number]:
                    length = len(rollout.completion_ids[local])
                    rollout.logprobs[local] = rollout.entropies[local] = np.full(length, np.nan, np.float32)

    @staticmethod
    def _share_ids(rollout: Rollout) -> None:
        """Every row's tokens to the groups of all ranks, once per batch."""
        if rollout.shared:
            return
        masks: list[Any] = [*rollout.masks] or [None] * len(rollout.completion_ids)
        known = trl_adapter.gather_list(
            [(np.array(ids, np.int32), mask) for ids, mask in zip(rollout.completion_ids, masks, strict=True)]
        )
        for group in rollout.groups:
            rows = known[group.rows.start : group.rows.stop]
            group.completion_ids = [ids for ids, _ in rows]
            some = any(mask is not None for _, mask in rows)
            group.masks = [np.ones(len(ids), bool) if mask is None else mask for ids, mask in rows] if some else []
        rollout.shared = True

    def _share_tokens(self, rollout: Rollout) -> None:
        self._share_ids(rollout)
        local = [
            (
                rollout.logprobs[row].astype(np.float32),  # a copy: stored, a view would keep its whole padded batch
                rollout.entropies[row].astype(np.float32, copy=False),
            )
            for row in range(rollout.layout.local_rows)
        ]
        known = trl_adapter.gather_list(local)
        for group in rollout.groups:
            rows = known[group.rows.start : group.rows.stop]
            group.logprobs, group.entropies = [pair[0] for pair in rows], [pair[1] for pair in rows]

    def state(self) -> dict[str, Any]:
        """For the checkpoint; equal on all ranks, the history apart."""
        return {
            "before": list(self.before),
            "evidence": self.evidence,
            "components": {component.name: component.state_dict() for component in self.components},
        }

    def load(self, state: Mapping[str, Any], shares: Any) -> None:
        """Inverse of `state`, with every rank's share of the history.

        Warns when other components are on than those that wrote it, and forgets the evidence of those that are off.
        """
        names = {component.name for component in self.components}
        steps, epochs = state.get("before", (0, 0.0))
        self.before = int(steps), float(epochs)
        if names != set(state["components"]):
            then, now = (", ".join(sorted(some)) or "none" for some in (state["components"], names))
            warnings.warn(
                f"the checkpoint was written with components {then}; training goes on with {now}: those that are new "
                "start without state",
                stacklevel=2,
            )
        self.evidence = {key: value for key, value in state["evidence"].items() if key.split("/")[0] in names}
        self.history.load(shares)
        for component in self.components:
            if component.name in state["components"]:
                try:
                    component.load_state_dict(state["components"][component.name])
                except (KeyError, TypeError, ValueError, IndexError) as error:
                    raise StateError(
                        f"the checkpoint's state of component '{component.name}' doesn't fit it as it is now "
                        f"({type(error).__name__}: {error}); go on with the code that wrote it, or start anew"
                    ) from error
