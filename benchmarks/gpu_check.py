"""Does everything run on this machine's GPU, and what does it cost? Under 10 minutes on one GPU; prints one table.

    python benchmarks/gpu_check.py                  # a random model of 0.36B parameters, nothing is downloaded
    python benchmarks/gpu_check.py --model Qwen/Qwen2.5-1.5B-Instruct
    python benchmarks/gpu_check.py --cpu            # the same code on the embedded model, to try it out

Rows: TRL's own trainer, ours with everything off (expected: the same time and memory), without autocast (the others
keep float32 weights and compute in bfloat16), with weights kept in bfloat16 (expected: hardly any change), each
attention that is installed, generation by vLLM on the same GPU without and with the papers' four components and with an
engine that sleeps while weights are trained (where vllm is installed), answers of 8,192 tokens under either kind of
sampler correction (expected: a product over an answer leaves long ones little weight), FSDP2 with an untied head (on
two GPUs where there are two), and each component alone. "changed" is the share of weights that the updates moved, as
they are kept and as a bfloat16 engine sees them; "busy GB" what the whole GPU had in use while weights were trained.
Rewards are scripted, so that components act at once whatever the model answers. A row that fails says why, and the exit
code is 1; what would start after --minutes is left out and says so.
"""

import argparse
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import torch
from transformers import AutoModelForCausalLM, PrinterCallback, Qwen2Config, TrainerCallback
from transformers.utils import logging
from trl import GRPOConfig, GRPOTrainer

from r3bench import R3Config, R3Trainer, catalog
from r3bench.config.sections import DataSection, ModelSection
from r3bench.sweep.attempts import classify
from r3bench.sweep.executors.outcome import Outcome
from r3bench.sweep.strategy import variables
from r3bench.training.models.load import load_model
from r3bench.training.models.weights import WeightsWatch
from r3bench.training.questions.load import load_questions

NOW: dict[str, Any] = {  # settings that let a component act in the few steps there are
    "ranking": {"scope": "failed"},
    "reflection": {"warmup": 0, "max_share": 1.0},
    "replay": {"warmup": 0, "truncated_negatives": True},
    "repo": {"min_stored": 1},
    "retrospective": {"value": "monte_carlo", "outcome": "any", "cuts": "grid", "gate_auc": 0.0},
}
FOUR = ("replay", "retrospective", "reflection", "ranking")  # the papers' components
LONG = {"8k": "token_truncate", "8k product": "sequence_mask"}  # rows of 8,192 tokens, and their sampler correction
# rows in processes of their own (an engine can't be taken down again), and on how many GPUs at most
ALONE = {"vllm": 1, "vllm asleep": 1, "vllm+four": 1, **dict.fromkeys(LONG, 1), "fsdp2": 2}
ATTENTION = {"eager": None, "flash_attention_2": "flash_attn"}  # beside sdpa; the package each needs
PATIENCE = 180.0  # seconds such a row may take
GROUP = 8
SIZES = {  # what a row trains on: rows, answer cap, questions
    "gpu": {"rows": 16, "cap": 128, "questions": 4},
    "cpu": {"rows": 16, "cap": 24, "questions": 4},
}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    seconds: float | None = None  # median of a step, sampling included, without the first
    gb: float | None = None  # peak of what torch reserved on the GPU
    busy: float | None = None  # what all programs had in use of the GPU during an update
    changed: tuple[float, float] | None = None  # shares of weights that moved: as kept, as a bfloat16 engine sees them
    tokens: float = 0.0  # mean answer
    note: str = ""


class Clock(TrainerCallback):
    """Seconds of every optimiser step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.busy = 0.0  # GB of the GPU in use before an update, by everybody

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        _wait()
        self._start = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        _wait()
        self.seconds.append(time.perf_counter() - self._start)

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        if torch.cuda.is_available():
            free, total = torch.cuda.mem_get_info()
            self.busy = max(self.busy, (total - free) / 1e9)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def scripted(completion_ids: list[list[int]], question_id: list[str], trainer_state: Any, **_: Any) -> list[float]:
    """All wrong in the first epoch; in the second half the questions all right, the others mixed; and so on."""
    late = int(trainer_state.epoch or 0) % 2
    rewards = []
    for place, (ids, question) in enumerate(zip(completion_ids, question_id, strict=True)):
        right = int(question[-1]) % 2 or (place + len(ids)) % 3 == 0  # the number of a generated question
        rewards.append(float(bool(late and right)))
    return rewards


def random_model(folder: Path) -> str:
    """A Qwen2 of 0.36B random weights with an untied head and the embedded model's tokenizer."""
    _, tokenizer = load_model(ModelSection())
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
        num_attention_heads=14, num_key_value_heads=2, max_position_embeddings=16384, tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def measure(name: str, model_name: str, steps: int, cpu: bool) -> Row:
    """Train `steps` steps after a first one and look at the clock and the memory."""
    size = SIZES["cpu" if cpu else "gpu"]
    exact = cpu or name == "float32"
    cap = 8192 if name in LONG else size["cap"]
    gc.collect()
    if not cpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        values: dict[str, Any] = {
            "output_dir": folder, "max_steps": steps + 1, "per_device_train_batch_size": size["rows"],
            "num_generations": GROUP, "max_completion_length": cap, "learning_rate": 1e-6, "report_to": "none",
            "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1, "seed": 1,
            "bf16": not exact and name != "bfloat16",
            "gradient_checkpointing": not cpu, "lr_scheduler_type": "constant",
        }  # fmt: skip
        if cpu:
            values["use_cpu"] = True
        if name.startswith("vllm") or name in LONG:
            values |= {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3}
            values |= {"vllm_max_model_length": cap + 1024, "vllm_enable_sleep_mode": name == "vllm asleep"}
            values |= {"vllm_importance_sampling_mode": LONG.get(name, "token_truncate")}
        if name in LONG:  # every answer in full length, few at a time
            values |= {"per_device_train_batch_size": GROUP, "generation_kwargs": {"min_tokens": cap}, "max_steps": 2}
        names = FOUR if name == "vllm+four" else [name] if name in catalog.component_names() else []
        on = {component: NOW.get(component, True) for component in names}
        section = ModelSection(
            name=model_name, dtype="bfloat16" if name == "bfloat16" else "float32",
            attention=name if name in ATTENTION else None,  # type: ignore[arg-type]
        )  # fmt: skip
        model, tokenizer = load_model(section)
        clock = Clock()
        trainer = (GRPOTrainer if name == "stock" else R3Trainer)(
            model=model, reward_funcs=scripted, processing_class=tokenizer, callbacks=[clock],
            args=GRPOConfig(**values) if name == "stock" else R3Config(**values, components=on),
            train_dataset=load_questions(DataSection(limit=size["questions"])),
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        watch = WeightsWatch(trainer, torch.bfloat16)
        trainer.train()
        shares = watch.measure()
        lengths = [line["completions/mean_length"] for line in trainer.state.log_history if "loss" in line]
    note = ""
    if on:
        idle = [part.name for part in trainer.components if not part.acted(trainer.evidence)]
        note = f"did not act: {', '.join(idle)}" if idle else "acted"
    if name in LONG:
        note = weights_left(trainer.state.log_history)
    return Row(
        name=name,
        seconds=statistics.median(clock.seconds[1:] or clock.seconds),
        gb=None if cpu else torch.cuda.max_memory_reserved() / 1e9,
        busy=clock.busy or None,
        changed=(shares.trained, shares.sampled),
        tokens=statistics.mean(lengths),
        note=note,
    )


def weights_left(history: Sequence[dict[str, Any]]) -> str:
    """What the sampler correction left of the longest answers' weight: its quantiles over all steps."""
    names = sorted({key for line in history for key in line if key.startswith("correction/")})
    longest = max((key.split("/")[1] for key in names), key=lambda name: int(name.split("-")[0]), default="")
    parts = []
    for quantile in ("q10", "median", "q90"):
        values = [line[key] for line in history if (key := f"correction/{longest}/{quantile}") in line]
        parts += [f"{quantile} {statistics.mean(values):.3f}"] if values else []
    return f"weight left of answers of {longest.replace('_', ' ')}: {', '.join(parts)}" if parts else "no correction"


def alone(name: str, options: argparse.Namespace, model: str) -> Row:
    """A row in a process of its own (an engine that can't be taken down again), or in several."""
    ranks = min(ALONE[name], torch.cuda.device_count())
    if options.cpu or not ranks:
        return Row(name, note="not run: needs a GPU")
    if (name.startswith("vllm") or name in LONG) and find_spec("vllm") is None:
        return Row(name, note="not run: vllm is not installed")
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    arguments = [__file__, "--model", model, "--steps", str(options.steps), "--inside", name]
    environment = {**os.environ, **(variables("fsdp2") if name == "fsdp2" else {})}
    code, out, err = finished([sys.executable, *start, *arguments], environment)
    lines = [line for line in out.splitlines() if line.startswith('{"name"')]
    if code or not lines:
        reason = next((line for line in reversed(err.splitlines()) if "Error" in line), "no output")
        return Row(name, note=f"failed: {reason.strip()[:200]}")
    read = json.loads(lines[0])
    return Row(**read | {"changed": tuple(read["changed"]) if read["changed"] else None})


def finished(command: Sequence[str], environment: dict[str, str], patience: float = PATIENCE) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command; after `patience` seconds all its processes are killed."""
    started = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = started.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        out, _ = started.communicate()
        return 1, out, f"TimeoutError: no answer in {patience:.0f} s"
    return started.returncode, out, err


def table(rows: Sequence[Row]) -> str:
    """The rows in columns, times also relative to TRL's own trainer."""
    stock = next((row.seconds for row in rows if row.name == "stock" and row.seconds), None)
    lines = [("", "s/step", "x stock", "peak GB", "busy GB", "changed %", "tokens", "")]
    for row in rows:
        seconds = "-" if row.seconds is None else f"{row.seconds:.3f}"
        times = f"{row.seconds / stock:.2f}" if row.seconds and stock else "-"
        moved = "-" if row.changed is None else " / ".join(f"{100 * share:.2f}" for share in row.changed)
        memory = ["-" if gb is None else f"{gb:.2f}" for gb in (row.gb, row.busy)]
        lines.append((row.name, seconds, times, *memory, moved, f"{row.tokens:.0f}", row.note))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]

    def cells(line: Sequence[str]) -> list[str]:
        """Names and notes to the left, numbers to the right."""
        placed = enumerate(zip(line, widths, strict=True))
        return [cell.rjust(width) if 0 < i < 7 else cell.ljust(width) for i, (cell, width) in placed]

    return "\n".join("  ".join(cells(line)).rstrip() for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="on the embedded model, without a GPU")
    parser.add_argument("--model", help="a folder or hub id; default: random weights")
    parser.add_argument("--steps", type=int, default=8, help="timed steps of a row")
    parser.add_argument("--only", help="rows, separated by commas; default: all")
    parser.add_argument("--minutes", type=float, default=9, help="no row starts later than this")
    parser.add_argument("--inside", help=argparse.SUPPRESS)  # the row of a process started by `alone`
    options = parser.parse_args(arguments)
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    if not options.cpu and not torch.cuda.is_available():
        print("gpu_check: no GPU is visible; --cpu tries the code out without one", file=sys.stderr)
        return 2
    if options.inside:
        row = measure(options.inside, options.model, options.steps, cpu=False)
        if int(os.environ.get("RANK", "0")) == 0:
            print(json.dumps(asdict(row)), flush=True)
        return 0
    kinds = [kind for kind, package in ATTENTION.items() if package is None or find_spec(package)]
    names = ["stock", "off", "float32", "bfloat16", *kinds, *ALONE, *catalog.component_names()]
    if options.only:
        unknown = set(options.only.split(",")) - set(names)
        if unknown:
            parser.error(f"--only: no row '{sorted(unknown)[0]}'; rows: {', '.join(names)}")
        names = options.only.split(",")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or ("embedded" if options.cpu else random_model(Path(folder, "model")))
        begun = time.monotonic()
        for name in names:
            if time.monotonic() - begun > 60 * options.minutes:
                rows.append(Row(name, note="not run: out of time"))
                continue
            with Outcome() as outcome:
                outcome.value = (
                    alone(name, options, model) if name in ALONE else measure(name, model, options.steps, options.cpu)
                )
            if outcome.error is not None:
                outcome.value = Row(name, note=f"failed: {classify(outcome.error).message[:200]}")
            rows.append(outcome.value)
            print(f"{name}: {outcome.value.note or 'done'}", file=sys.stderr, flush=True)
    device = "CPU" if options.cpu else torch.cuda.get_device_name()
    print(f"{device}, {model if options.model or options.cpu else 'random weights'}, torch {torch.__version__}")
    print(table(rows))
    return int(any(row.note.startswith("failed") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
