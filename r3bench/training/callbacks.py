"""What goes on beside the steps of a run: metrics file, progress, signals."""

import errno
import math
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from tqdm import tqdm
from transformers import TrainerCallback

from r3bench.files import append_jsonl, json_line, read_jsonl, write_bytes
from r3bench.training.step import trl_adapter


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class MetricsFile(TrainerCallback):
    """Appends each log line to `metrics.jsonl`: step, elapsed seconds, and what TRL and the components logged.

    `elapsed` counts the seconds behind the steps that were kept: work lost in a kill is not in it.
    """

    def __init__(self, path: Path, resumed_step: int, trainer: Any) -> None:
        self._path = path
        self._trainer = trainer
        torn: list[int] = []
        lines = read_jsonl(path, torn)
        ours = [line for line in lines if _number(line.get("step")) and _number(line.get("elapsed"))]
        lost = len(torn) + len(lines) - len(ours)
        if lost:
            print(f"{path}: {lost} lines left out, torn, damaged, or without a step and its seconds", file=sys.stderr)
        kept = [line for line in ours if line["step"] <= resumed_step]
        if path.exists():
            write_bytes(path, b"".join(map(json_line, kept)))
        self._before = float(kept[-1]["elapsed"]) if kept else 0.0
        self._start = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds behind the steps so far."""
        return self._before + time.monotonic() - self._start

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if not state.is_world_process_zero or logs is None or "train_runtime" in logs:
            return
        line: dict[str, Any] = {
            "step": state.global_step,
            "elapsed": round(self.elapsed, 3),
            "generated_tokens": self._trainer.generated_tokens,
        }
        for key, value in logs.items():
            finite = isinstance(value, int | float) and math.isfinite(value)
            line[key] = value if finite or isinstance(value, str) else None
        append_jsonl(self._path, line)


class Progress(TrainerCallback):
    """A bar on a terminal; elsewhere a plain line every tenth of the run."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bar: Any = None
        self._start = 0.0
        self._first = 0
        self._reward = ""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._start, self._first = time.monotonic(), state.global_step
        if sys.stderr.isatty():
            self._bar = tqdm(total=state.max_steps, initial=state.global_step, desc=self._name, unit="step")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if logs and logs.get("reward") is not None:
            self._reward = f"reward {logs['reward']:.3f}"

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(self._reward)
            self._bar.update(1)
            return
        if state.global_step % max(1, state.max_steps // 10) == 0 or state.global_step == state.max_steps:
            each = (time.monotonic() - self._start) / max(1, state.global_step - self._first)
            left = each * (state.max_steps - state.global_step)
            print(
                f"{self._name}: step {state.global_step}/{state.max_steps}  {self._reward}  {each:.2f} s/step  "
                f"{left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._bar is not None:
            self._bar.close()


class RoomForCheckpoint(TrainerCallback):
    """Before each checkpoint: fail with the numbers when the disk can't hold it, instead of tearing it.

    Args:
        trainer: built, not yet training.
        floor_gb: free space that must be left besides.
    """

    def __init__(self, trainer: Any, floor_gb: float = 0.0) -> None:
        self._accelerator = trainer.accelerator
        model = trainer.model
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        self._bytes = weights + 2 * trained  # Adam keeps two numbers per trained one
        self._floor = floor_gb * 1e9

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if control.should_save:
            free = shutil.disk_usage(Path(args.output_dir).parent).free
            short = torch.tensor([float(free < self._bytes + self._floor)], device=self._accelerator.device)
            if self._accelerator.gather(short).max() > 0:  # on all ranks or none: the others would wait for ever
                need, left = f"{self._bytes / 1e9:.2f} GB", f"{free / 1e9:.2f} GB"
                floor = f" and {self._floor / 1e9:g} GB are to stay free" if self._floor else ""
                raise OSError(
                    errno.ENOSPC, f"{args.output_dir}: a checkpoint needs about {need}{floor}, {left} are free"
                )


class StopOnSignal(TrainerCallback):
    """SIGTERM, SIGINT or SIGHUP: finish the sampled batch, save, stop. A second signal acts as it would without us."""

    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __init__(self) -> None:
        self.received: int | None = None
        self.stopped = False  # the run was cut short
        self._trainer: Any = None
        self._old: dict[int, Any] = {}

    def watch(self, trainer: Any) -> None:
        """Start listening (only possible in the main thread) on behalf of `trainer`."""
        self._trainer = trainer
        if threading.current_thread() is threading.main_thread():
            hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup: it is meant to go on
            numbers = [number for number in self.SIGNALS if number != signal.SIGHUP or not hangup_ignored]
            self._old = {number: signal.signal(number, self._on_signal) for number in numbers}

    @property
    def watching(self) -> bool:
        """Whether a signal would have come to us."""
        return bool(self._old)

    def release(self) -> None:
        """Give the signals back."""
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self.release()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self._trainer is not None
        wanted = self.received is not None
        accelerator = self._trainer.accelerator
        if accelerator.num_processes > 1:  # signals reach the ranks at different times: stop at the same step
            flag = torch.tensor([float(wanted)], device=accelerator.device)
            wanted = bool(accelerator.gather(flag).max() > 0)
        over = control.should_training_stop or state.global_step >= state.max_steps
        if wanted and not over and not trl_adapter.window_is_open(self._trainer):
            control.should_save = True
            control.should_training_stop = True
            self.stopped = True
