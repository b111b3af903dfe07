"""What components and their history cost, beyond the tokens and forwards they add.

    python benchmarks/components.py steps [--steps 30]
    python benchmarks/components.py history [--questions 40000] [--tokens 16]
    python benchmarks/components.py ranks [--questions 40000] [--tokens 128]

`steps`: all four components on the embedded model. CPU milliseconds per step inside the components' own methods and in
what they share (groups, history, exchange between ranks, writing into the batch), forwards left out, as a share of the
step (target <= 1 %). The first five steps, in which things are loaded and built once, do not count.
`history`: filled with 16 trajectories per question on one rank: cost of an insert and a draw, bytes per trajectory.
`ranks`: the same store spread over 1, 2, 4 and 8 ranks: bytes the fullest rank holds (tokens included), CPU seconds and
bytes of its part of a checkpoint, and CPU seconds to take its share out of the one that a single rank saved. The
exchange between ranks is not part of it.
"""

import argparse
import gc
import json
import os
import random
import resource
import sys
import tempfile
import time
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np

from r3bench.training.component import Summary, Trajectory
from r3bench.training.history import HistoryBounds, TrajectoryHistory, owner

METHODS = ("plan", "entropy_rows", "score", "keep", "probe", "mix", "rescale", "observe", "take_counts", "take_figures")
SHARED = ("open", "score", "log_fresh", "kept", "finish", "observe")  # of `Moments`
FORWARDS = ("score_tokens", "hidden_states")  # of `trl_adapter`
COMPONENTS = {
    "ranking": {"scope": "failed"},  # the embedded model hardly ever hits the cap
    "reflection": {"template": "short"},
    "replay": True,
    "retrospective": {"gate_auc": 0.0},
}
WARMUP = 5  # steps that do not count
PER_QUESTION = 16
BATCH = 128  # questions inserted or drawn together


class Clock:
    """CPU seconds of this process by name; a call's time does not count for its caller."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._open: list[float] = []  # seconds the calls inside each open call took

    def watch(self, owner: Any, method: str, name: str) -> None:
        """Book the calls of `owner.method` under `name`."""
        call = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._open.append(0.0)
            start = time.process_time()
            try:
                return call(*args, **kwargs)
            finally:
                passed = time.process_time() - start
                self.spent[name] += passed - self._open.pop()
                if self._open:
                    self._open[-1] += passed

        setattr(owner, method, timed)


def steps(count: int) -> dict[str, Any]:
    """CPU milliseconds per step in each component and in what they share, and their share of the step."""
    from transformers import PrinterCallback, TrainerCallback

    from r3bench import R3Config, R3Trainer
    from r3bench.config.load import load_recipe
    from r3bench.grading import Grader
    from r3bench.training import trl_adapter
    from r3bench.training.data import load_questions
    from r3bench.training.models import load_model
    from r3bench.training.rewards import Correctness

    recipe = load_recipe("quickstart", ["data.limit=32"])
    model, tokenizer = load_model(recipe.model)
    clock = Clock()
    started = 0.0

    class Start(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            nonlocal started
            if state.global_step == WARMUP:
                clock.spent.clear()
                started = time.process_time()

    with Grader(5.0, 1, True) as grader, tempfile.TemporaryDirectory() as folder:
        values = {k: v for k, v in recipe.trainer.items() if k not in ("save_steps", "max_steps")}
        args = R3Config(
            output_dir=folder, max_steps=WARMUP + count, save_strategy="no", report_to="none", use_cpu=True,
            disable_tqdm=True, components=COMPONENTS, **values,
        )  # fmt: skip
        trainer = R3Trainer(
            model=model, reward_funcs=Correctness(grader), args=args, train_dataset=load_questions(recipe.data),
            processing_class=tokenizer,
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(Start())
        for component in trainer.components:
            for method in METHODS:
                clock.watch(component, method, component.name)
        for method in SHARED:
            clock.watch(trainer.moments, method, "shared")
        for method in FORWARDS:
            clock.watch(trl_adapter, method, "forwards")
        trainer.train()
        total = time.process_time() - started
        acted = {component.name: component.acted(trainer.evidence) for component in trainer.components}
    forwards = clock.spent.pop("forwards", 0.0)
    shared = clock.spent.pop("shared")
    own = sum(clock.spent.values())
    return {
        "cpu_ms_per_step": round(1000 * total / count, 1),
        "forwards_ms_per_step": round(1000 * forwards / count, 3),
        "component_ms_per_step": {name: round(1000 * value / count, 3) for name, value in sorted(clock.spent.items())},
        "shared_ms_per_step": round(1000 * shared / count, 3),
        "components_percent": round(100 * own / total, 3),
        "share_percent": round(100 * (own + shared) / total, 3),
        "acted": acted,
    }


def history(questions: int, tokens: int) -> dict[str, Any]:
    """Cost of a full history on one rank."""
    gc.collect()
    memory = _peak_bytes()
    start = time.process_time()
    store = _filled(questions, tokens, 0, 1)
    inserted = time.process_time() - start
    memory = _peak_bytes() - memory
    names = [f"question-{i}" for i in range(questions)]
    rng = random.Random(0)
    start = time.process_time()
    draws = 200
    for _ in range(draws):
        batch_names = rng.sample(names, min(BATCH, questions))
        view = store.open(batch_names)
        view.fetch([rng.choice(view.summaries(name)) for name in batch_names])
    drawn = time.process_time() - start
    count = questions * PER_QUESTION
    return {
        "trajectories": len(store),
        "insert_us_each": round(1e6 * inserted / count, 1),
        "draw_ms_per_batch_of_128": round(1000 * drawn / draws, 2),
        "bytes_each_beyond_tokens": round(memory / count - 8 * tokens),
    }


def ranks(questions: int, tokens: int, worlds: tuple[int, ...] = (1, 2, 4, 8)) -> Iterator[dict[str, Any]]:
    """What the fullest of so many ranks holds and saves, and what one of them takes from the checkpoint of one rank.

    Yields:
        `ranks`, `trajectories`; `memory` (bytes); `save_s` and `load_s` (CPU seconds); `file` (bytes of its part of a
        checkpoint).
    """
    from r3bench.training.checkpoint import load_state, save_state

    with tempfile.TemporaryDirectory() as whole:
        for world in worlds:
            counts = Counter(owner(f"question-{i}", world) for i in range(questions))
            rank = counts.most_common(1)[0][0]
            store, memory = _measured(lambda rank=rank, world=world: _filled(questions, tokens, rank, world))
            accelerator = SimpleNamespace(
                process_index=rank, num_processes=world, is_main_process=True, wait_for_everyone=lambda: None
            )
            folder = Path(whole, str(world))
            start = time.process_time()
            save_state(folder, {}, store.state(), accelerator)
            saved = time.process_time() - start
            trajectories = len(store)
            del store
            start = time.process_time()
            TrajectoryHistory(_bounds(), rank, world).load(load_state(Path(whole, str(worlds[0])))[1])
            loaded = time.process_time() - start
            size = sum(path.stat().st_size for path in folder.rglob("history-*"))
            yield {
                "ranks": world, "trajectories": trajectories, "memory": memory, "save_s": saved, "load_s": loaded,
                "file": size,
            }  # fmt: skip


def table(rows: Iterator[dict[str, Any]]) -> Iterator[str]:
    """The rows of `ranks` as a Markdown table, line by line."""
    yield "| ranks | trajectories of the fullest | memory MB | of one rank's | save s | file MB | load s |"
    yield "|---|---|---|---|---|---|---|"
    one = 0
    for row in rows:
        one = one or row["memory"]
        yield (
            f"| {row['ranks']} | {row['trajectories']:,} | {row['memory'] / 1e6:,.0f} | {row['memory'] / one:.3f} | "
            f"{row['save_s']:.1f} | {row['file'] / 1e6:,.0f} | {row['load_s']:.1f} |"
        )


def _bounds() -> HistoryBounds:
    return HistoryBounds(per_question=PER_QUESTION, max_tokens=10**12)


def _filled(questions: int, tokens: int, rank: int, world: int) -> TrajectoryHistory:
    """Rank `rank`'s share of a full store, inserted batch by batch as training does."""
    store = TrajectoryHistory(_bounds(), rank, world, lambda items: items)
    for visit in range(PER_QUESTION):
        for at in range(0, questions, BATCH):
            names = [f"question-{i}" for i in range(at, min(at + BATCH, questions))]
            store.insert([_trajectory(name, visit, tokens) for name in names], visit)
    return store


def _measured(build: Callable[[], TrajectoryHistory]) -> tuple[TrajectoryHistory, int]:
    """What `build` returns, and the bytes that Python and NumPy hold for it."""
    gc.collect()
    tracemalloc.start()
    try:
        store = build()
        gc.collect()
        return store, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _trajectory(question: str, step: int, tokens: int) -> Trajectory:
    summary = Summary(
        question=question, serial=0, step=step, epoch=step, provenance="fresh", correct=False, truncated=False,
        length=tokens, reward=0.0, task_reward=0.0, entropy_mean=0.5 + step, entropy_peak=1.0 + step,
    )  # fmt: skip
    return Trajectory(summary, np.zeros(tokens, np.int32), np.zeros(tokens, np.float32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("steps", "history", "ranks"))
    parser.add_argument("--steps", type=int, default=30, help="training steps")
    parser.add_argument("--questions", type=int, default=40_000, help="questions in the history")
    parser.add_argument("--tokens", type=int, help="tokens per trajectory")
    options = parser.parse_args()
    if options.part == "ranks":
        for line in table(ranks(options.questions, options.tokens or 128)):
            print(line, flush=True)
        return
    result = steps(options.steps) if options.part == "steps" else history(options.questions, options.tokens or 16)
    json.dump(result, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
