"""One training run in a run directory: build, resume, train, save. Evaluation is the caller's."""

import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback
from transformers.utils import logging as transformers_logging

from r3bench.config.precision import check_strategy_precision, movable_below, precision, update_size
from r3bench.config.sections import ModelSection, Recipe
from r3bench.config.strict import plain
from r3bench.errors import ConfigError, Diverged, Interrupted
from r3bench.files import append_jsonl, put_folder, read_jsonl
from r3bench.grading import Grader
from r3bench.grading.extract import THOUGHT_END
from r3bench.records import RunPaths, TrainRecord, read_train, write_train
from r3bench.training import checkpoint
from r3bench.training.args import R3Config
from r3bench.training.budget import StopAtTokens
from r3bench.training.callbacks import MetricsFile, Progress, RoomForCheckpoint, StopOnSignal
from r3bench.training.context import engine_context
from r3bench.training.divergence import StopAtRunawayWeights
from r3bench.training.environment import device
from r3bench.training.models.load import load_model, positions
from r3bench.training.models.optimizer import compensated_adamw
from r3bench.training.models.weights import WeightsWatch
from r3bench.training.numerics import compute_dtype, numerics
from r3bench.training.numerics import strategy as spread
from r3bench.training.questions.batches import check_ends, check_questions, check_save_steps
from r3bench.training.questions.load import load_questions
from r3bench.training.rewards import reward_functions
from r3bench.training.step import trl_adapter
from r3bench.training.trackers import PROJECT, TellTrackers, described, facts
from r3bench.training.tracking import check_trackers, keep_in
from r3bench.training.trainer import R3Trainer


def train(recipe: Recipe, paths: RunPaths, *, quiet: bool = False, disk_floor_gb: float = 0.0) -> TrainRecord:
    """Train a recipe in its run directory, resuming from the newest complete checkpoint.

    Writes `metrics.jsonl`, `checkpoints/`, `model/` and, last, `train.json`; with that file present it is only read.

    Raises:
        ConfigError: settings that contradict each other.
        Interrupted: a signal asked to stop; a checkpoint was saved.
        OSError: (ENOSPC) a checkpoint would leave less than `disk_floor_gb` (10^9 bytes) free; none is written.
    """
    if paths.train.exists():
        return read_train(paths)
    if quiet:
        transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    with Grader(recipe.reward.timeout, recipe.reward.workers, recipe.reward.require_boxed) as grader:
        return _run(build_trainer(recipe, paths, grader), recipe, paths, quiet, disk_floor_gb)


def build_trainer(
    recipe: Recipe, paths: RunPaths, grader: Grader, order: Callable[[Dataset], Dataset] | None = None
) -> R3Trainer:
    """The recipe's trainer, with `order` applied to its questions.

    Raises:
        ConfigError: settings that contradict each other.
    """
    arguments = training_arguments(recipe, paths)
    model, tokenizer = load_model(recipe.model)
    if recipe.reward.thinking == "required" and THOUGHT_END in tokenizer.all_special_tokens:
        raise ConfigError(
            f"reward.thinking: got 'required', but the tokenizer of '{recipe.model.name}' takes {THOUGHT_END} for a "
            "special token, which is left out of the text that rewards see; expected 'ignored'"
        )
    questions = load_questions(recipe.data)
    check_questions(len(questions), arguments)
    check_ends(len(questions), arguments)
    arguments.vllm_max_model_length = engine_context(recipe, questions, tokenizer, positions(model.config))
    try:
        with (
            trl_adapter.engine_arguments(**_engine(recipe, arguments, model)),
            trl_adapter.reference_revision(arguments, recipe.model.revision),
        ):
            trainer = R3Trainer(
                model=model,
                reward_funcs=reward_functions(recipe.reward, grader),
                args=arguments,
                train_dataset=order(questions) if order else questions,
                processing_class=tokenizer,
                peft_config=_adapters(recipe.model),
            )
    except (ValueError, TypeError, ImportError) as error:  # TRL's own argument checks, and packages it lacks
        raise ConfigError(f"trainer: {error}") from error
    trainer.logs_correction = True
    if recipe.model.compensation == "kahan":
        trainer.optimizer_cls_and_kwargs = compensated_adamw(arguments)
    check_strategy_precision(recipe, spread(trainer), recipe.name, loaded=str(model.dtype).removeprefix("torch."))
    return trainer


def _engine(recipe: Recipe, arguments: R3Config, model: Any) -> dict[str, Any]:
    """Arguments of a vLLM engine that samples in the precision of training, from the same revision."""
    compute = compute_dtype(arguments, str(model.dtype).removeprefix("torch."))
    revision = recipe.model.revision
    return {"dtype": compute} | ({"revision": revision, "tokenizer_revision": revision} if revision else {})


def training_arguments(recipe: Recipe, paths: RunPaths) -> R3Config:
    """The recipe's `trainer` section as arguments, with the harness's own settings around it.

    Raises:
        ConfigError: `save_steps` would cut a sampled batch in two, or TRL refuses a value.
    """
    cpu = not torch.cuda.is_available()
    values: dict[str, Any] = {
        "report_to": "none", "run_name": paths.root.name, "disable_tqdm": True, "save_total_limit": 2,
        "logging_nan_inf_filter": False, "project": facts(recipe, paths).study or PROJECT,
        **({"use_cpu": True, "bf16": False} if cpu else {}),
        **recipe.trainer,
        "output_dir": str(paths.checkpoints), "seed": recipe.seed, "components": recipe.components,
        "correctness": {"functions": list(recipe.reward.deciding), "threshold": recipe.reward.threshold},
        "history": plain(recipe.history),
    }  # fmt: skip
    if cpu and recipe.trainer.get("fp16"):
        raise ConfigError("trainer.fp16: got True, but there is no GPU here, and on a CPU it would be left out")
    if recipe.trainer.get("save_only_model"):
        raise ConfigError(
            "trainer.save_only_model: got True, but a run resumes from its checkpoints, and can't without the optimizer"
        )
    if recipe.reward.weights:
        values["reward_weights"] = recipe.reward.all_weights
    check_trackers(values)
    try:
        arguments = R3Config(**values)
    except (ValueError, TypeError, ImportError, OSError) as error:
        raise ConfigError(f"trainer: {error}") from error
    check_save_steps(arguments)
    return arguments


def _adapters(model: ModelSection) -> Any:
    section = model.lora
    if section is None:
        return None
    from peft import LoraConfig

    modules = section.target_modules
    return LoraConfig(
        r=section.rank,
        lora_alpha=section.alpha,
        lora_dropout=section.dropout,
        target_modules=modules if isinstance(modules, str) else list(modules),
        task_type="CAUSAL_LM",
        revision=model.revision,  # saved with them: on another one's weights they mean nothing
    )


def _run(trainer: R3Trainer, recipe: Recipe, paths: RunPaths, quiet: bool, disk_floor_gb: float) -> TrainRecord:
    lead = trainer.accelerator.is_main_process
    if lead:
        _remove_bad(paths)
    trainer.accelerator.wait_for_everyone()
    newest = checkpoint.agreed(paths.checkpoints, trainer.accelerator)
    if lead and newest is not None:
        before, now = checkpoint.saved_by(newest), trainer.accelerator.num_processes
        if before not in (None, now):
            append_jsonl(_notes(paths), {"note": f"resumed from {newest.name} of {before} processes on {now}"})
    metrics = MetricsFile(paths.metrics, int(newest.name.split("-")[1]) if newest else 0, trainer) if lead else None
    keep_in(paths.root, trainer)
    made = numerics(trainer)
    watch = WeightsWatch(trainer, getattr(torch, made.engine_dtype) if made.engine_dtype else None)
    if lead and (warning := _frozen(recipe, made.weights_dtype, watch)):
        print(f"warning: {warning}", file=sys.stderr, flush=True)
    stop = StopOnSignal()
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(StopAtRunawayWeights(trainer))
    trainer.add_callback(watch)
    trainer.add_callback(RoomForCheckpoint(trainer, disk_floor_gb))
    tokens = recipe.budget.generated_tokens
    if tokens is not None:
        trainer.add_callback(StopAtTokens(trainer, tokens))
    trainer.add_callback(stop)
    if metrics is not None:
        trainer.add_callback(metrics)
        if not quiet:
            trainer.add_callback(Progress(f"{recipe.name} s{recipe.seed}"))
    stop.watch(trainer)
    about = facts(recipe, paths)
    trainer.add_callback(TellTrackers(about, paths, trainer))
    outcome, reason = "finished", None
    try:
        if not (newest is not None and tokens is not None and trainer.spent(newest) >= tokens):
            with described(about, paths):
                trainer.train(resume_from_checkpoint=str(newest) if newest else None)
        else:  # killed after its last checkpoint: nothing is left to train
            trainer.take_over(newest)
    except Diverged as error:
        outcome, reason = "diverged", str(error)
    except KeyboardInterrupt as error:
        if stop.received is None and stop.watching:
            raise RuntimeError("KeyboardInterrupt was raised in a component or a reward; no signal came") from error
        raise
    finally:
        stop.release()
    if stop.stopped:
        trainer.accelerator.wait_for_everyone()  # the first rank that ends is taken for a failure: all have saved
        raise Interrupted(
            f"{paths.root}: stopped at step {trainer.state.global_step} of {trainer.state.max_steps} and saved; "
            "the same command resumes from there"
        )
    if outcome == "finished":
        watch.measure()
        save_model(trainer, paths.model, merge=recipe.model.saved_whole)
    found = device()
    record = TrainRecord(
        outcome=outcome,  # type: ignore[arg-type]
        reason=reason,
        steps=trainer.state.global_step,
        generated_tokens=trainer.generated_tokens,
        train_seconds=round(metrics.elapsed, 3) if metrics else 0.0,
        device=found["device"],
        processes=trainer.accelerator.num_processes,
        evidence={**trainer.evidence, **trainer.clipping.evidence},
        strategy=made.strategy,
        weights_dtype=made.weights_dtype,
        compute_dtype=made.compute_dtype,
        engine=made.engine,
        engine_dtype=made.engine_dtype,
        weights_changed=_share(watch.last.trained if watch.last else None),
        weights_changed_sampled=_share(watch.last.sampled if watch.last and made.engine_dtype else None),
        correction=trainer.correction.record(),
        acted={
            **{component.name: component.acted(trainer.evidence) for component in trainer.components},
            **trainer.clipping.acted,
        },
        notes=[str(line["note"]) for line in read_jsonl(_notes(paths)) if "note" in line],
    )
    if lead:
        record = write_train(record, paths)
    trainer.accelerator.wait_for_everyone()
    return record


def _frozen(recipe: Recipe, dtype: str, watch: WeightsWatch) -> str | None:
    """What to say when updates can't move the weights that were loaded; None when they can."""
    found = precision(recipe, dtype)
    step = update_size(found.optim, found.learning_rate, found.max_grad_norm, watch.trained_weights)
    sizes = watch.start_magnitudes
    if not len(sizes):
        return None
    return found.warning(float((sizes < movable_below(dtype, step)).mean()), "counted on the weights that were loaded")


def _share(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else round(value, 6)


def _remove_bad(paths: RunPaths) -> None:
    """Remove checkpoints that a kill tore or a disk corrupted, newest first, down to one that can be resumed."""
    newest, bad = checkpoint.newest_complete(paths.checkpoints, contents=True)
    for folder, wrong in bad.items():
        print(f"{folder}: left out, {wrong}", file=sys.stderr)
        if (folder / checkpoint.MANIFEST).exists():  # it was whole once; without it, a kill cut its writing short
            then = f"from {newest.name}" if newest else "from the start"
            append_jsonl(_notes(paths), {"note": f"{folder.name} was corrupt ({wrong}); resumed {then}"})
        checkpoint.remove(folder)


def _notes(paths: RunPaths) -> Path:
    return paths.root / "notes.jsonl"


def save_model(trainer: R3Trainer, folder: Path, *, merge: bool = True) -> None:
    """Save the trained model as a plain folder, adapters merged in and also on their own in `adapter/`.

    Adapters alone (with `merge=False` in `folder` itself) come with the tokenizer; loading them loads the start model,
    too.
    """
    lead = trainer.accelerator.is_main_process
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.")) if lead else folder.parent
    unwrapped = trainer.accelerator.unwrap_model(trainer.model)
    if hasattr(unwrapped, "merge_and_unload"):
        if lead:
            adapters = temporary / "adapter" if merge else temporary
            unwrapped.save_pretrained(adapters)
            trl_adapter.tokenizer(trainer).save_pretrained(adapters)
            if merge:
                unwrapped.merge_and_unload().save_pretrained(temporary)
                trl_adapter.tokenizer(trainer).save_pretrained(temporary)
    elif trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        target = [str(temporary)]
        if trainer.accelerator.num_processes > 1:
            import torch.distributed

            torch.distributed.broadcast_object_list(target, src=0)
        trainer.save_model(target[0])
    elif lead:
        trainer.save_model(str(temporary))
    if lead:
        put_folder(temporary, folder)
    trainer.accelerator.wait_for_everyone()
