"""`R3Trainer`: TRL's GRPOTrainer with named moments for components.

Owns no algorithm and copies no method: every override calls `super()`, and with all components off only that. What
a moment is for stands in `component.py`; what the tensors look like, in `mixing.py`; what TRL promises, in
`trl_adapter.py`.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.utils.data import Sampler
from transformers.trainer_utils import rotate_checkpoints
from trl.trainer.grpo_trainer import GRPOTrainer

from r3bench import catalog
from r3bench.config.load import check_components, resolve_components
from r3bench.config.strict import build
from r3bench.errors import ConfigError, Diverged
from r3bench.training import checkpoint, trl_adapter
from r3bench.training.args import R3Config
from r3bench.training.component import Component, Facts, Group, Mixture, PlannedGroup, Step, Summary
from r3bench.training.correctness import CorrectnessRule
from r3bench.training.history import HistoryBounds, HistoryView, TrajectoryHistory, trajectories_of
from r3bench.training.mixing import ROW_KEY, mix_into
from r3bench.training.rollout import Layout, Rollout, append_multiple, open_rollout, place, question_id


class R3Trainer(GRPOTrainer):
    """GRPO with components.

    A drop-in for `GRPOTrainer`: any model, data set and reward functions. A row's question is its `question_id` column
    if there is one, else a hash of its prompt.

    Args:
        model, reward_funcs, train_dataset, **kwargs: as in `GRPOTrainer`.
        args: an `R3Config`; `args.components` says what is on.

    Raises:
        ConfigError: an unsupported TRL, an unknown component, or settings that contradict each other.
        Diverged: from `train()`, on a non-finite loss, gradient or reward. The batch is saved in the output folder.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: R3Config | None = None,
        train_dataset: Any = None,
        **kwargs: Any,
    ) -> None:
        trl_adapter.check_trl()
        if not isinstance(args, R3Config):
            raise ConfigError(f"args: got {type(args).__name__}, expected an R3Config")
        where = "R3Config"
        settings = resolve_components(args.components or {}, f"{where}")
        rule = CorrectnessRule(**(args.correctness or {}))
        check_components(settings, vars(args), rule.threshold, where)
        classes = {name: catalog.component(name) for name in settings}
        shaping = [name for name, cls in classes.items() if cls.shapes_reward]

        functions = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
        weights = args.reward_weights
        if shaping and weights is not None:
            args.reward_weights = [*weights, *[1.0] * len(shaping)]
        self.components: list[Component] = []
        self._rollout: Rollout | None = None  # the batch being sampled
        self._pending: Rollout | None = None  # the batch whose log-probs the loss forward still has to bring
        self._view: Any = HistoryView(None, {})
        self.generated_tokens = 0  # sampled in training so far, over all ranks
        self.evidence: dict[str, float] = {}  # totals of the components' counters
        super().__init__(
            model,
            [*functions, *[_placeholder(name) for name in shaping]] if shaping else reward_funcs,
            args,
            train_dataset,
            **kwargs,
        )
        args.reward_weights = weights
        if settings and self.multi_objective_aggregation != "sum_then_normalize":
            raise ConfigError(
                f"{where}.multi_objective_aggregation: got '{self.multi_objective_aggregation}', components need "
                "'sum_then_normalize'"
            )
        self._shaping_columns = {name: self.reward_func_names.index(name) for name in shaping}
        self._correct_columns, self._threshold = rule.columns(self.reward_func_names, set(shaping))
        self.history = TrajectoryHistory(
            build(HistoryBounds, args.history or {}, f"{where}.history"),
            self.accelerator.process_index,
            self.accelerator.num_processes,
            trl_adapter.gather_list,
        )
        facts = self._facts() if settings else None
        self.components = [
            cls(build(cls.Config, settings[name], f"{where}.{name}"), facts) for name, cls in classes.items()
        ]
        self._uses_history = any(component.uses_history for component in self.components)
        self._observes_tokens = self._uses_history or any(component.observes_tokens for component in self.components)
        self._row_index: dict[str, int] | None = None
        self._order: Sampler | None = None

    # ------------------------------------------------------------------ what components are told

    def _facts(self) -> Facts:
        tokenizer = self._tokenizer
        return Facts(
            seed=self.args.seed,
            num_generations=self.num_generations,
            groups=self.args.generation_batch_size // self.num_generations,
            questions=len(self.train_dataset) if isinstance(self.train_dataset, Dataset) else 0,
            max_completion_length=self.max_completion_length,
            temperature=self.temperature,
            scale_rewards=self.scale_rewards,
            decode=lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
            encode=lambda text: list(tokenizer.encode(text, add_special_tokens=False)),
            append_multiple=append_multiple(self._layout(), self.args.steps_per_generation),
        )

    def _layout(self) -> Layout:
        """The batch's layout before any group is added."""
        ranks = self.accelerator.num_processes
        rows = self.args.generation_batch_size // ranks
        return Layout(self.accelerator.process_index, ranks, rows, self.num_generations)

    def _step_view(self, groups: list[Group], taken: frozenset[int] = frozenset()) -> Step:
        return Step(self.state.global_step, float(self.state.epoch or 0.0), groups, self._view, taken)

    def _row_of(self, question: str) -> dict[str, Any]:
        """The data set row of a question."""
        if self._row_index is None:
            if not isinstance(self.train_dataset, Dataset):
                raise ConfigError("components: this one plans groups by question and needs a map-style train_dataset")
            self._row_index = {question_id(row): i for i, row in enumerate(self.train_dataset)}
        row: dict[str, Any] = self.train_dataset[self._row_index[question]]
        return row

    # ------------------------------------------------------------------ sampling

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.components or not self.model.training:
            return super()._generate_and_score_completions(inputs)
        rollout = self._open(inputs)
        self._rollout = rollout
        try:
            batch = super()._generate_and_score_completions(rollout.inputs)
        finally:
            self._rollout = None
        batch[ROW_KEY] = torch.arange(rollout.layout.local_rows)
        return self._finish(rollout, batch)

    def _open(self, inputs: list[dict[str, Any]]) -> Rollout:
        layout = self._layout()
        heads = [row for i, row in enumerate(inputs) if (layout.first + i) % layout.group_rows == 0]
        rollout = open_rollout(inputs, layout, trl_adapter.gather_list(heads))
        self._open_history(rollout)
        planned: list[PlannedGroup] = []
        for component in self.components:
            taken = frozenset(plan.slot for plan in planned if plan.slot is not None)
            planned += component.plan(self._step_view(rollout.groups, taken))
        if planned:
            rollout, dropped = place(rollout, planned, self._row_of, self.args.steps_per_generation)
            trl_adapter.log_metric(self, "groups/planned", len(planned) - dropped)
            trl_adapter.log_metric(self, "groups/without_place", dropped)
            self._open_history(rollout)
        rollout.started = self._step
        return rollout

    def _open_history(self, rollout: Rollout) -> None:
        if self._uses_history:
            self._view = self.history.open([group.question for group in rollout.groups])

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        rollout = self._rollout
        outputs = super()._generate(prompts if rollout is None else rollout.seen_prompts(prompts))
        if self.model.training:
            rows = len(prompts) * self.accelerator.num_processes
            sampled = round(trl_adapter.last_metric(self, "completions/mean_length") * rows)
            self.generated_tokens += sampled - (rollout.prefix_tokens if rollout is not None else 0)
        if rollout is None:
            return outputs
        rollout.prompt_ids = outputs[trl_adapter.GENERATE_PROMPT_IDS]
        rollout.completion_ids = outputs[trl_adapter.GENERATE_COMPLETION_IDS]
        mask = rollout.prefix_mask()
        if mask is None:
            return outputs
        at = trl_adapter.GENERATE_TOOL_MASK
        return (*outputs[:at], mask, *outputs[at + 1 :])

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        rollout = self._rollout
        if rollout is None or not rollout.prefixes:
            return super()._generate_single_turn(prompt_ids, *args, **kwargs)
        prefixes = [list(rollout.prefixes.get(row, ())) for row in range(len(prompt_ids))]
        given = [ids + prefix for ids, prefix in zip(prompt_ids, prefixes, strict=True)]
        continuations, logprobs = super()._generate_single_turn(given, *args, **kwargs)
        cap = self.max_completion_length
        completions = [(p + list(c))[:cap] for p, c in zip(prefixes, continuations, strict=True)]
        if logprobs is not None:  # the prefix is masked from the loss and from TRL's ratio: any number will do
            logprobs = [([0.0] * len(p) + list(values))[:cap] for p, values in zip(prefixes, logprobs, strict=True)]
        return completions, logprobs

    # ------------------------------------------------------------------ rewards

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: list[list[int]]
    ) -> torch.Tensor:
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self.model.training and (torch.isinf(rewards).any() or torch.isnan(rewards).all()):
            names = [
                n for n, column in zip(self.reward_func_names, rewards.T, strict=True) if not column.isfinite().any()
            ]
            raise Diverged(
                f"step {self.state.global_step}: non-finite reward from {', '.join(names) or 'a reward function'}"
            )
        if self._rollout is not None:
            self._score(self._rollout, rewards)
        return rewards

    def _score(self, rollout: Rollout, rewards: torch.Tensor) -> None:
        """Fill the groups, let components give their rewards, write those into their columns of `rewards` (N, F)."""
        task = rewards[:, self._correct_columns]
        correct = (task >= self._threshold).all(dim=1)
        ends = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        local = torch.tensor(
            [[len(ids), not ids or ids[-1] not in ends] for ids in rollout.completion_ids],
            dtype=torch.long, device=rewards.device,
        )  # fmt: skip
        lengths, truncated = self.accelerator.gather(local).T
        rollout.fill(
            correct.cpu().numpy(), truncated.bool().cpu().numpy(), lengths.cpu().numpy(), self._totals(rewards)
        )
        for component in self.components:
            if not component.shapes_reward:
                continue
            wanted = component.entropy_rows(rollout.groups)
            shaped = component.score(rollout.groups, self._entropies(rollout, wanted))
            column = self._shaping_columns[component.name]
            for row, value in shaped.items():
                rewards[row, column] = value
        rollout.add_rewards(self._totals(rewards))

    def _totals(self, rewards: torch.Tensor) -> np.ndarray:
        """Total reward of every row, shape (N,), as TRL sums it."""
        weights = self.reward_weights.to(rewards.device).unsqueeze(0)
        totals: np.ndarray = (rewards * weights).nansum(dim=1).cpu().numpy()
        return totals

    def _entropies(self, rollout: Rollout, rows: list[int]) -> dict[int, np.ndarray]:
        """Per-token entropies of global rows, on every rank. One no-grad forward over the missing ones. Collective."""
        if not rows:
            return {}
        layout = rollout.layout
        by_rank = [[r for r in rows if r // layout.local_rows == rank] for rank in range(layout.ranks)]
        mine = [row - layout.first for row in by_rank[layout.rank]]
        harvested = bool(rollout.entropies)  # TRL's scoring forward ran with entropies, on every rank alike
        if not harvested:
            self._score_rows(rollout, mine, max(len(r) for r in by_rank))
        gathered = trl_adapter.gather_list([(local + layout.first, rollout.entropies[local]) for local in mine])
        return dict(gathered)

    def _score_rows(self, rollout: Rollout, local_rows: list[int], rows_on_fullest: int) -> None:
        """Score some of this rank's rows; ranks with fewer rows score spare ones, so that all do equally many."""
        if rows_on_fullest == 0:
            return
        padded = local_rows + [0] * (rows_on_fullest - len(local_rows))
        logprobs, entropies = trl_adapter.score_tokens(
            self, [rollout.prompt_ids[r] for r in padded], [rollout.completion_ids[r] for r in padded]
        )
        for place_, row in enumerate(local_rows):
            rollout.logprobs[row] = logprobs[place_].numpy()
            rollout.entropies[row] = entropies[place_].numpy()

    # ------------------------------------------------------------------ after TRL's advantages

    def _finish(self, rollout: Rollout, batch: dict[str, Any]) -> dict[str, Any]:
        homogeneous = [group.homogeneous for group in rollout.groups]
        trl_adapter.log_metric(self, "groups/homogeneous", float(np.mean(homogeneous)))
        step = self._step_view(rollout.groups)
        mixtures: list[Mixture] = []
        for component in self.components:
            taken = {mixture.group for mixture in mixtures}
            mixtures += [mixture for mixture in component.mix(step) if mixture.group not in taken]
        if mixtures:
            batch = self._mix(rollout, batch, mixtures)
        mixed = frozenset(mixture.group for mixture in mixtures)
        for component in self.components:
            self._rescale(rollout, batch, component.rescale(step, mixed))
        dead = [h and g.index not in mixed for h, g in zip(homogeneous, rollout.groups, strict=True)]
        trl_adapter.log_metric(self, "groups/dead", float(np.mean(dead)))
        if not self._observes_tokens:
            self._observe(rollout)
        elif trl_adapter.is_on_policy(self):
            self._pending = rollout
        else:
            self._observe(rollout)
        return batch

    def _mix(self, rollout: Rollout, batch: dict[str, Any], mixtures: list[Mixture]) -> dict[str, Any]:
        wanted: list[Summary] = [summary for mixture in mixtures for summary in mixture.historic]
        found = iter(self._view.fetch(wanted))
        trajectories = [[next(found) for _ in mixture.historic] for mixture in mixtures]
        if self._observes_tokens and trl_adapter.is_on_policy(self):
            # A row that gives way never meets the loss forward, so its log-probs have to be taken now.
            layout = rollout.layout
            gone = [rollout.groups[m.group].rows.start + p for m in mixtures for p in m.replaced]
            per_rank = [sum(r // layout.local_rows == rank for r in gone) for rank in range(layout.ranks)]
            mine = [local for r in gone if (local := layout.local(r)) is not None and local not in rollout.logprobs]
            self._score_rows(rollout, mine, max(per_rank))
        batch = mix_into(self, batch, rollout, mixtures, trajectories)
        advantages = {
            row: float(mixture.fresh_advantages[place_])
            for mixture in mixtures
            for place_, row in enumerate(rollout.groups[mixture.group].rows)
        }
        trl_adapter.relog_advantages(self, rollout.rows, advantages)
        return batch

    def _rescale(self, rollout: Rollout, batch: dict[str, Any], factors: dict[int, float]) -> None:
        for index, factor in factors.items():
            for row in rollout.groups[index].rows:
                local = rollout.layout.local(row)
                if local is not None:
                    batch["advantages"][local] *= factor

    # ------------------------------------------------------------------ log-probs, and what is learnt from the batch

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        rollout = self._rollout
        harvest = rollout is not None and model is self.model and self._observes_tokens
        if not harvest:
            return super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        assert rollout is not None
        logps, entropies, aux = super()._get_per_token_logps_and_entropies(
            model, *args, **{**kwargs, "compute_entropy": True}
        )
        for row, ids in enumerate(rollout.completion_ids):
            rollout.logprobs[row] = logps[row, : len(ids)].float().cpu().numpy()
            rollout.entropies[row] = entropies[row, : len(ids)].float().cpu().numpy()
        return logps, entropies if kwargs.get("compute_entropy") else None, aux

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        pending = self._pending
        if pending is None or ROW_KEY not in inputs:
            return super()._compute_loss(model, inputs)
        # On-policy, this forward is the behaviour policy: take its log-probs and entropies for the history.
        forward = self._get_per_token_logps_and_entropies
        rows = inputs[ROW_KEY].tolist()

        def recording(*args: Any, **kwargs: Any) -> Any:
            logps, entropies, aux = forward(*args, **kwargs)
            kept_logps, kept_entropies = logps.detach().float().cpu().numpy(), entropies.detach().float().cpu().numpy()
            for place_, row in enumerate(rows):
                if row >= 0 and row not in pending.logprobs:
                    length = len(pending.completion_ids[row])
                    pending.logprobs[row] = kept_logps[place_, :length]
                    pending.entropies[row] = kept_entropies[place_, :length]
            return logps, entropies, aux

        self._get_per_token_logps_and_entropies = recording  # type: ignore[method-assign]
        try:
            return super()._compute_loss(model, inputs)
        finally:
            del self._get_per_token_logps_and_entropies  # the method again

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)
        if not torch.isfinite(loss).all():
            self._diverged("loss", float(loss.detach().float().mean()))
        pending = self._pending
        if pending is not None and self._step - pending.started >= self.args.steps_per_generation:
            self._pending = None
            self._observe(pending)
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        if norm is not None and not math.isfinite(float(norm)):
            self._diverged("gradient norm", float(norm))
        return norm

    def _diverged(self, quantity: str, value: float) -> None:
        where = checkpoint.save_batch(
            Path(self.args.output_dir), self._buffered_inputs, self.state.global_step, self._tokenizer
        )
        raise Diverged(f"step {self.state.global_step}: {quantity} is {value}; the batch is in {where}")

    def _observe(self, rollout: Rollout) -> None:
        """Tokens and log-probs to all groups, trajectories to the history, evidence to the log. Collective."""
        step = self._step_view(rollout.groups)
        if self._observes_tokens:
            layout = rollout.layout
            local = [
                (
                    layout.first + row,
                    np.asarray(ids, np.int32),
                    rollout.logprobs[row].astype(np.float32),
                    rollout.entropies[row].astype(np.float32),
                )
                for row, ids in enumerate(rollout.completion_ids)
            ]
            known = {row: rest for row, *rest in trl_adapter.gather_list(local)}
            for group in rollout.groups:
                group.completion_ids = [known[row][0] for row in group.rows]
                group.logprobs = [known[row][1] for row in group.rows]
                group.entropies = [known[row][2] for row in group.rows]
        for component in self.components:
            component.observe(step)
        if self._uses_history:
            self.history.insert(trajectories_of(step), step.step)
            trl_adapter.log_metric(self, "history/trajectories_this_rank", len(self.history))
        for component in self.components:
            for key, value in component.take_counts().items():
                trl_adapter.log_metric(self, key, value)
                self.evidence[key] = self.evidence.get(key, 0.0) + value
            for key, value in component.take_figures().items():
                trl_adapter.log_metric(self, key, value)

    # ------------------------------------------------------------------ data order and checkpoints

    def _get_train_sampler(self, dataset: Any = None) -> Sampler:
        self._order = super()._get_train_sampler(dataset)
        return self._order

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        limit, self.args.save_total_limit = self.args.save_total_limit, None  # nothing goes before the new one is whole
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        output = Path(self._get_output_dir(trial=trial))
        folder = output / f"checkpoint-{self.state.global_step}"
        checkpoint.save_state(folder, self._checkpoint_state(), self.history.state(), self.accelerator)
        if self.args.should_save:
            checkpoint.mark_complete(folder)
            rotate_checkpoints(output_dir=str(output), save_total_limit=limit, use_mtime=True)

    def _checkpoint_state(self) -> dict[str, Any]:
        return {
            "generated_tokens": self.generated_tokens,
            "evidence": self.evidence,
            "components": {component.name: component.state_dict() for component in self.components},
        }

    def _load_optimizer_and_scheduler(self, checkpoint_folder: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint_folder)
        if checkpoint_folder is None:
            return
        # TRL's sampler keeps a generator that checkpoints don't hold: draw the orders of the epochs already done.
        generator = getattr(self._order, "generator", None)
        if generator is not None:
            for _ in range(int((self.state.epoch or 0.0) + 1e-6)):
                torch.randperm(self._order.num_samples, generator=generator)  # type: ignore[union-attr]
        trl_adapter.forget_batch(self)
        state, shares = checkpoint.load_state(Path(checkpoint_folder))
        if state is None:
            return
        self.generated_tokens = state["generated_tokens"]
        self.evidence = dict(state["evidence"])
        self.history.load(shares)
        for component in self.components:
            if component.name in state["components"]:
                component.load_state_dict(state["components"][component.name])


def _placeholder(name: str) -> Callable[..., list[None]]:
    """A reward function that gives nothing: it makes TRL name, weigh and log the column a component fills."""

    def nothing(prompts: list[Any], **_: Any) -> list[None]:
        return [None] * len(prompts)

    nothing.__name__ = name
    return nothing
