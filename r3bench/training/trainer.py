"""`R3Trainer`: TRL's GRPOTrainer with named moments for components.

Owns no algorithm and copies no method: every override calls `super()`, and with all components off only that. What
a moment is for stands in `component.py`; who calls it when, in `moments.py`; what the tensors look like, in
`mixing.py`; what TRL promises, in `trl_adapter.py`.
"""

import math
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import Sampler
from transformers.trainer_utils import rotate_checkpoints
from trl import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from r3bench import catalog
from r3bench.component import Component, check_declared
from r3bench.config.load import check_components, resolve_components
from r3bench.config.strict import build
from r3bench.errors import ConfigError, Diverged
from r3bench.training import checkpoint
from r3bench.training.args import SECTIONS, R3Config, section
from r3bench.training.questions.identity import check_ids
from r3bench.training.resume import check_resumable, chosen, settings_of, warn_of_changes
from r3bench.training.step import trl_adapter
from r3bench.training.step.clipping import Clipping
from r3bench.training.step.correction import Correction
from r3bench.training.step.correctness import CorrectnessRule
from r3bench.training.step.exploration import Exploration
from r3bench.training.step.heads import reads_entropies, second_temperature, wanted_temperature
from r3bench.training.step.history import HistoryBounds, TrajectoryHistory
from r3bench.training.step.lengths import forward_by_length, parts_of_like_rows, splitter, tokens_per_forward
from r3bench.training.step.loss_inputs import needs_settling, settle
from r3bench.training.step.mixing import ROW_KEY, SCALE_KEY
from r3bench.training.step.moments import Moments
from r3bench.training.step.resampling import resample
from r3bench.training.step.reward_columns import as_list, check_counts, distinct, non_finite, placeholder, watched
from r3bench.training.step.rollout import Rollout, Scoring
from r3bench.training.supported import check_supported


class R3Trainer(GRPOTrainer):
    """GRPO with components.

    A drop-in for `GRPOTrainer`: any model, data set and reward functions. A row's question is its `question_id` column
    if there is one, else a hash of its prompt.

    Args:
        as in `GRPOTrainer`, in its order; `args` may be an `R3Config`, whose `components` say what is on.

    Raises:
        ConfigError: an unsupported TRL, an unknown component, or settings that contradict each other.
        Diverged: from `train()`, on a non-finite loss, gradient or reward. The batch is saved in the output folder.
    """

    args: R3Config
    model: Any  # TRL types it as maybe absent
    moments: Moments | None = None
    _rollout: Rollout | None = None  # the batch being sampled
    _pending: Rollout | None = None  # the batch whose log-probs the loss forward still has to bring
    _loss_inputs: dict[str, Any] | None = None  # the part of a batch whose loss is being computed, where it needs care

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: Any = None,
        optimizers: Any = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
        tools: Any = None,
        rollout_func: Any = None,
        environment_factory: Any = None,
    ) -> None:
        trl_adapter.check_trl()
        if args is not None and not isinstance(args, GRPOConfig):
            raise ConfigError(f"args: got {type(args).__name__}, expected an R3Config, a GRPOConfig or None")
        where = "R3Config"
        sections = {key: section(args, key) for key in SECTIONS}
        settings = resolve_components(sections["components"], where)
        rule = self.rule = build(CorrectnessRule, sections["correctness"], f"{where}.correctness")
        bounds = build(HistoryBounds, sections["history"], f"{where}.history")
        classes = {name: catalog.component(name) for name in settings}
        if settings and args is not None and args.multi_objective_aggregation != "sum_then_normalize":
            raise ConfigError(
                f"{where}.multi_objective_aggregation: got '{args.multi_objective_aggregation}', components need "
                "'sum_then_normalize'"
            )
        functions = as_list(reward_funcs)
        weights = None if args is None else args.reward_weights
        # Now, before a model is loaded, and again when all columns are known (an environment may bring some).
        lowest = rule.lowest_known([trl_adapter.reward_name(function) for function in functions], weights)
        check_components(settings, vars(args) if settings else {}, lowest, where)
        shaping = [name for name, cls in classes.items() if cls.shapes_reward]
        self.filled_columns = range(
            len(functions), len(functions) + len(shaping)
        )  # reward columns that components fill
        self._uneven = False  # rows of the sampled batch differ much in length
        self.generated_tokens = 0  # sampled in training so far, over all ranks
        self.logs_correction = False  # also with every component off, where nothing else differs from TRL's log
        self.correction = Correction()  # what the sampler correction leaves of answers' weights
        self._order: Sampler | None = None
        if shaping:
            check_counts(len(functions), weights, reward_processing_classes)
            reward_funcs = [*functions, *[placeholder(name) for name in shaping]]
            if reward_processing_classes is not None:
                reward_processing_classes = [*as_list(reward_processing_classes), *[None] * len(shaping)]
            if args is not None and weights is not None:
                args.reward_weights = [*weights, *[1.0] * len(shaping)]
        try:
            super().__init__(
                model,
                reward_funcs,
                args,
                train_dataset,
                eval_dataset,
                processing_class,
                reward_processing_classes,
                callbacks,
                optimizers,
                quantization_config,
                peft_config,
                tools,
                rollout_func,
                environment_factory,
            )
        finally:
            if args is not None:
                args.reward_weights = weights
        if len(self.reward_funcs) == len(shaping):
            raise ValueError("no reward source: pass reward_funcs, or an environment_factory with get_reward")
        self.reward_func_names = distinct(self.reward_func_names, self.filled_columns)
        columns = rule.columns(self.reward_func_names, self.filled_columns)
        lowest = rule.lowest_total(columns, self.reward_weights.tolist())
        check_components(settings, vars(self.args), lowest, where)
        history = TrajectoryHistory(
            bounds, self.accelerator.process_index, self.accelerator.num_processes, trl_adapter.gather_list
        )
        self.clipping = Clipping(self)
        self.exploration, self._correct_columns = Exploration(int(self.num_generations or 1)), columns
        self.moments = Moments(self, history, rule, columns, dict(zip(shaping, self.filled_columns, strict=True)))
        for name, cls in classes.items():
            try:
                component = cls(build(cls.Config, settings[name], f"{where}.{name}"), self.moments.facts())
            except ValueError as error:
                raise ConfigError(f"{where}.{name}: {error}") from error
            check_declared(component)
            self.moments.add(component)
        check_supported(self, self.moments.components, has_data=train_dataset is not None)
        if classes and isinstance(self.train_dataset, Dataset):
            check_ids(self.train_dataset, trl_adapter.columns_used(self))

    @property
    def components(self) -> list[Component]:
        """The components that are on, in order of precedence."""
        return self.moments.components if self.moments is not None else []

    @property
    def history(self) -> TrajectoryHistory:
        """This rank's share of the trajectory history."""
        assert self.moments is not None
        return self.moments.history

    @property
    def evidence(self) -> dict[str, float]:
        """Totals of the components' counters since the start of the run."""
        return self.moments.evidence if self.moments is not None else {}

    # ------------------------------------------------------------------ sampling

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        moments = self.moments
        if moments is None or not moments.components or not self.model.training:
            batch = super()._generate_and_score_completions(inputs)
            if self.model.training:
                self.correction.observe(self, batch, log=self.logs_correction)
            return batch

        self._uneven = False

        def sample(rows: list[dict[str, Any]], planning: bool = False) -> tuple[Rollout, dict[str, Any]]:
            rollout = moments.open(rows, planning=planning)
            self._rollout = rollout
            self._uneven = self._uneven or rollout.uneven
            try:
                batch = super(R3Trainer, self)._generate_and_score_completions(rollout.inputs)
            finally:
                self._rollout = None
            batch[ROW_KEY] = torch.arange(rollout.layout.local_rows)
            return rollout, batch

        rollout, batch = sample(inputs, planning=True)
        moments.log_fresh(rollout)
        if moments.max_rounds():
            rollout, batch = resample(self, moments, rollout, batch, sample)
        self.correction.observe(self, batch)
        batch = moments.finish(rollout, batch)
        if moments.observes_tokens and not rollout.scored:
            self._pending = rollout  # on-policy: the loss forward brings the log-probs
        else:
            moments.observe(rollout)
        return batch

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        rollout = self._rollout
        try:
            outputs = super()._generate(prompts if rollout is None else rollout.seen_prompts(prompts))
        except RuntimeError as error:
            if "probability tensor" in str(error):  # weights gone bad meet the sampler before they meet the loss
                raise Diverged(f"step {self.state.global_step}: sampling met non-finite probabilities") from error
            raise
        if self.model.training:
            rows = len(prompts) * self.accelerator.num_processes
            self.generated_tokens += round(trl_adapter.last_metric(self, "completions/mean_length") * rows)
            if (
                rollout is not None and rollout.prefix_lengths
            ):  # given tokens are in that mean, thrown away ones are not
                cap = int(self.max_completion_length or 0)
                self.generated_tokens -= sum(min(given, cap) for given in rollout.prefix_lengths)
                cut = torch.tensor([rollout.cut_tokens], device=self.accelerator.device)
                self.generated_tokens += int(self.accelerator.gather(cut).sum())
        if rollout is None:
            return outputs
        rollout.prompt_ids = outputs[trl_adapter.GENERATE_PROMPT_IDS]
        rollout.completion_ids = outputs[trl_adapter.GENERATE_COMPLETION_IDS]
        at = trl_adapter.GENERATE_TOOL_MASK
        rollout.keep_masks(outputs[at])
        return (*outputs[:at], rollout.loss_mask(outputs[at]), *outputs[at + 1 :])

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        rollout = self._rollout
        if rollout is not None:
            rollout.turn += 1
        if rollout is None or not rollout.prefixes or rollout.turn > 1:  # later turns: only rows that called a tool
            return self._turn(prompt_ids, *args, **kwargs)
        prefixes = [list(rollout.prefixes.get(row, ())) for row in range(len(prompt_ids))]
        given = [ids + prefix for ids, prefix in zip(prompt_ids, prefixes, strict=True)]
        continuations, logprobs = self._turn(given, *args, **kwargs)
        cap = int(self.max_completion_length or 0)
        completions = [(p + list(c))[:cap] for p, c in zip(prefixes, continuations, strict=True)]
        rollout.cut_tokens = sum(max(0, len(p) + len(c) - cap) for p, c in zip(prefixes, continuations, strict=True))
        if logprobs is not None:  # None: not sampled, which TRL takes as ratio 1
            logprobs = [([None] * len(p) + list(values))[:cap] for p, values in zip(prefixes, logprobs, strict=True)]
        return completions, logprobs

    def _turn(self, prompt_ids: list[list[int]], images: Any, fields: Any, *args: Any, **kwargs: Any) -> Any:
        generate = super()._generate_single_turn
        rollout = self._rollout
        if rollout is None or not rollout.uneven or images or fields or not trl_adapter.pads_prompts(self):
            return generate(prompt_ids, images, fields, *args, **kwargs)
        answers: dict[int, Any] = {}
        for rows in parts_of_like_rows([len(ids) for ids in prompt_ids]):
            found, _ = generate([prompt_ids[row] for row in rows], images, fields, *args, **kwargs)
            answers.update(zip(rows, found, strict=True))
        return [answers[row] for row in range(len(prompt_ids))], None

    # ------------------------------------------------------------------ rewards

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: list[list[int]]
    ) -> torch.Tensor:
        functions = self.reward_funcs
        if self.model.training:
            self.reward_funcs = [watched(function) for function in functions]
        try:
            rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        finally:
            self.reward_funcs = functions
        bad = non_finite(rewards, functions, self.filled_columns) if self.model.training else []
        if bad:
            names = ", ".join(self.reward_func_names[place] for place in bad)
            raise Diverged(f"step {self.state.global_step}: non-finite reward from {names}")
        if self._rollout is not None and self.moments is not None:
            self.moments.score(self._rollout, rewards)
        if self.model.training:
            correct, judged = self.rule.verdicts(rewards, self._correct_columns)
            self.exploration.watch(self, self._rollout, inputs, completion_ids_list, correct, judged)
        return rewards

    # ------------------------------------------------------------------ log-probs, and what is learnt from the batch

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """TRL's forward; on its way what it finds is kept, where components need it and no other pass brings it."""
        with trl_adapter.narrow_tiles(self.model):
            if self._loss_inputs is not None:
                return self._loss_forward(self._loss_inputs, model, *args, **kwargs)
            rollout, components = self._rollout, self.components
            wanted = self.moments is not None and (self.moments.observes_tokens or reads_entropies(components))
            if wanted and rollout is not None and model is self.model and rollout.scoring is Scoring.TO_COME:
                return self._scoring_forward(rollout, model, *args, **kwargs)
            return self._forward(model, *args, **kwargs)

    def _forward(self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, **kwargs: Any) -> Any:
        """TRL's forward, over parts of rows of like length where that is on."""
        forward = super()._get_per_token_logps_and_entropies
        by_length = self._uneven or tokens_per_forward(self) is not None
        if not (by_length and self.model.training and trl_adapter.can_split(self, kwargs)):
            return forward(model, input_ids, attention_mask, logits_to_keep, **kwargs)
        size = kwargs.pop("batch_size", None)
        many = size is not None and size < len(input_ids)
        rest = {"compute_entropy": kwargs.get("compute_entropy", False)}
        split = splitter(self, size if many else None)
        return forward_by_length(partial(forward, model), input_ids, attention_mask, logits_to_keep, split, **rest)

    def _scoring_forward(self, rollout: Rollout, model: Any, *args: Any, **kwargs: Any) -> Any:
        """TRL scores the sampled rows (the policy may change before their loss): keep what it finds, (B, T) each."""
        rollout.scoring = Scoring.DONE
        other = rollout.other_temperature = wanted_temperature(self.components, self.temperature)
        with second_temperature(self, other):
            logps, entropies, aux = self._forward(model, *args, **{**kwargs, "compute_entropy": True})
        if other is not None:
            entropies, others = entropies.unbind(dim=-1)
            for row, ids in enumerate(rollout.completion_ids):
                rollout.other_entropies[row] = others[row, : len(ids)].float().cpu().numpy()
        rollout.keep(range(len(rollout.completion_ids)), logps, entropies)
        return logps, entropies if kwargs.get("compute_entropy") else None, aux

    def _loss_forward(self, inputs: dict[str, Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        """The forward of a loss. On-policy it is the behaviour policy's: keep its log-probs and entropies, (B, T) each,
        for the history."""
        logps, entropies, aux = self._forward(model, *args, **kwargs)
        if self._pending is not None:
            self._pending.keep(inputs[ROW_KEY].tolist(), logps, entropies)
        return settle(inputs, logps) if needs_settling(inputs) else logps, entropies, aux

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        if ROW_KEY in inputs and (self._pending is not None or needs_settling(inputs)):
            inputs = self._loss_inputs = dict(inputs)  # a copy: what is settled in it is this update's alone
        try:
            loss = super()._compute_loss(model, inputs)
        finally:
            self._loss_inputs = None
        return loss * inputs[SCALE_KEY] if SCALE_KEY in inputs else loss

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.clipping.note(self)
        # On several ranks a loss is each one's own: there the gradient norm, equal on all, ends the run.
        if self.accelerator.num_processes == 1 and not torch.isfinite(loss).all():
            self._diverged("loss", float(loss.detach().float().mean()))
        pending = self._pending
        done = trl_adapter.micro_step(self)
        if pending is not None and done - pending.started >= int(self.args.steps_per_generation or 1):
            self._pending = None
            assert self.moments is not None
            self.moments.observe(pending)
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        if norm is not None and not math.isfinite(float(norm)):
            self._diverged("gradient norm", float(norm))
        return norm

    def _diverged(self, quantity: str, value: float) -> None:
        folder, parts = Path(str(self.args.output_dir)), trl_adapter.buffered(self)
        where = checkpoint.save_batch(folder, parts, self.state.global_step, trl_adapter.tokenizer(self))
        raise Diverged(f"step {self.state.global_step}: {quantity} is {value}; the batch is in {where}")

    # ------------------------------------------------------------------ data order and checkpoints

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in TRL, but `resume_from_checkpoint=True` means the newest *whole* checkpoint.

        Raises:
            StateError: the checkpoint can't be resumed as if training had never stopped.
        """
        folder = chosen(resume_from_checkpoint, Path(str(self.args.output_dir)))
        if folder is None and self.moments is not None:
            self.moments.train_again()
        if folder is not None:
            check_resumable(folder, self)
        return super().train(str(folder) if folder else None, *args, **kwargs)

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
        if trl_adapter.window_is_open(self) and self.state.global_step < self.state.max_steps:
            warnings.warn(f"{folder} lies inside a sampled batch: resumed from it, training samples anew", stacklevel=2)
        assert self.moments is not None
        own = {"generated_tokens": self.generated_tokens, "correction": self.correction.state()}
        own["clipping"] = self.clipping.state()
        own["exploration"] = self.exploration.state()
        state = {**own, **self.moments.state(), "settings": settings_of(self)}
        checkpoint.save_state(folder, state, self.history.state(), self.accelerator)
        if self.args.should_save:
            checkpoint.mark_complete(folder)
            # By step, since a clock can be set back; never this one, in a folder with an older run's higher steps.
            kept = self.state.best_model_checkpoint or str(folder)
            rotate_checkpoints(output_dir=str(output), save_total_limit=limit, best_model_checkpoint=kept)

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
        self._load_state(Path(checkpoint_folder))

    def spent(self, folder: Path) -> int:
        """Tokens sampled up to a checkpoint."""
        state, _ = checkpoint.load_state(folder)
        return int(state["generated_tokens"]) if state is not None else 0

    def take_over(self, folder: Path) -> None:
        """Become the trainer that wrote a checkpoint, with nothing left to train."""
        check_resumable(folder, self)
        trl_adapter.restore(self, str(folder))
        self._load_state(folder)

    def _load_state(self, folder: Path) -> None:
        state, shares = checkpoint.load_state(folder)
        if state is None:
            if self.components:
                names = ", ".join(component.name for component in self.components)
                warnings.warn(f"{folder}: has no components' state; {names} start without any", stacklevel=2)
            return
        self.generated_tokens = state["generated_tokens"]
        self.clipping.load(state.get("clipping", {}))
        self.correction.load(state.get("correction", {}))  # older checkpoints have none
        assert self.moments is not None
        self.exploration.load(state.get("exploration", {}))
        warn_of_changes(folder, state.get("settings"), self)
        self.moments.load(state, shares)
