"""What components and their history cost, beyond the tokens and forwards they add.

    python benchmarks/components.py steps [--steps 30] [--model embedded|experiment|smollm2-135m]
    python benchmarks/components.py batch [--questions 128] [--tokens 8192]
    python benchmarks/components.py history [--questions 40000] [--tokens 16]
    python benchmarks/components.py ranks [--questions 40000] [--tokens 128]

`steps`: all four components on a model. CPU milliseconds per step inside the components' own methods and in what they
share (groups, history, exchange between ranks, writing into the batch), forwards left out, as a share of the step
(target <= 1 %). `embedded`: 0.23M parameters, steps as short as they get. `experiment`: the cell with all four of grid
`embedded_components`, whose reflections act. `smollm2-135m`: a real, still small, model with 16 answers of 96 tokens.
The first steps, in which things are loaded and built once, do not count.
`batch`: the same for one large batch, without a model: so many questions with 8 answers of up to so many tokens, a
third of them cut off, and hidden states of 1,536 numbers. CPU milliseconds of the third batch, by part.
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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np

from r3bench import catalog
from r3bench.component import Facts, Group, Step, Summary, Trajectory
from r3bench.config.strict import build
from r3bench.training.step.history import HistoryBounds, TrajectoryHistory, owner, trajectories_of

METHODS = ("plan", "entropy_rows", "score", "keep", "probe", "mix", "rescale", "observe", "take_counts", "take_figures")
SHARED = ("open", "score", "log_fresh", "kept", "finish", "observe")  # of `Moments`
FORWARDS = ("score_tokens", "hidden_states")  # of `trl_adapter`
WARMUP = 5  # steps that do not count
PER_QUESTION = 16
BATCH = 128  # questions inserted or drawn together


@dataclass(frozen=True)
class Case:
    """What `steps` measures on."""

    overrides: tuple[str, ...]  # of the recipe `quickstart`
    components: Mapping[str, Any]  # settings of the four
    warmup: int = WARMUP  # steps that do not count


CASES = {
    "embedded": Case(
        ("data.limit=32",),
        {
            "ranking": {"scope": "failed"},  # the embedded model hardly ever hits the cap
            "reflection": {"template": "short"},
            "replay": True,
            "retrospective": {"gate_auc": 0.0},
        },
    ),
    "experiment": Case(
        ("model.name=embedded-20", "data.name=embedded-20", "trainer.max_completion_length=22"),
        dict.fromkeys(("ranking", "reflection", "replay", "retrospective"), True),
        warmup=40,  # reflections and replay begin with the second epoch
    ),
    "smollm2-135m": Case(
        (
            "model.name=smollm2-135m", "data.limit=4", "trainer.per_device_train_batch_size=16",
            "trainer.num_generations=8", "trainer.max_completion_length=96", "trainer.learning_rate=1e-6",
        ),
        {"ranking": True, "reflection": {"max_share": 0.5}, "replay": True, "retrospective": {"gate_auc": 0.0}},
        warmup=2,
    ),
}  # fmt: skip


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


def steps(count: int, case: Case) -> dict[str, Any]:
    """CPU milliseconds per step in each component and in what they share, and their share of the step."""
    from transformers import PrinterCallback, TrainerCallback

    from r3bench import R3Config, R3Trainer
    from r3bench.config.load import load_recipe
    from r3bench.grading import Grader
    from r3bench.training.models.load import load_model
    from r3bench.training.questions.load import load_questions
    from r3bench.training.rewards import Correctness
    from r3bench.training.step import trl_adapter

    recipe = load_recipe("quickstart", list(case.overrides))
    model, tokenizer = load_model(recipe.model)
    clock = Clock()
    started = 0.0

    class Start(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            nonlocal started
            if state.global_step == case.warmup:
                clock.spent.clear()
                started = time.process_time()

    with Grader(5.0, 1, True) as grader, tempfile.TemporaryDirectory() as folder:
        values = {k: v for k, v in recipe.trainer.items() if k not in ("save_steps", "max_steps")}
        args = R3Config(
            output_dir=folder, max_steps=case.warmup + count, save_strategy="no", report_to="none", use_cpu=True,
            disable_tqdm=True, components=dict(case.components), **values,
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


def batch(questions: int, tokens: int, *, batches: int = 3, generations: int = 8, hidden: int = 1536) -> dict[str, Any]:
    """CPU milliseconds of the last of a few large batches, by component and moment."""
    rng = np.random.default_rng(0)
    words = ["\n\n" if i % 40 == 0 else f" w{i}" for i in range(32_000)]
    facts = Facts(
        seed=0, num_generations=generations, groups=questions, questions=questions, max_completion_length=tokens + 1,
        temperature=1.0, scale_rewards="group", decode=lambda ids: "".join(words[i] for i in ids), encode=lambda _: [],
    )  # fmt: skip
    components = []
    for name in CASES["embedded"].components:
        cls = catalog.component(name)
        settings = {"gate_auc": 0.0} if name == "retrospective" else {}
        components.append(cls(build(cls.Config, settings, name), facts))
    groups = [_group(number, rng, generations, tokens, len(words)) for number in range(questions)]
    store = TrajectoryHistory(HistoryBounds(), 0, 1)
    spent: dict[str, float] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = call()
        spent[name] = spent.get(name, 0.0) + time.process_time() - start
        return result

    for number in range(batches):
        spent.clear()
        view = timed("history", lambda: store.open([group.question for group in groups]))
        step = Step(number, number + 0.5, groups, view)
        for component in components:
            timed(component.name, lambda component=component, step=step: component.plan(step))
            rows = timed(component.name, lambda component=component, step=step: component.entropy_rows(step))
            entropies = {row: groups[row // generations].entropies[row % generations] for row in rows}
            timed(component.name, lambda component=component, step=step, found=entropies: component.score(step, found))
            probed = timed(component.name, lambda component=component, step=step: component.probe(step))
            for row, places in probed.items():
                states = rng.standard_normal((len(places), hidden), np.float32)
                groups[row // generations].hidden[row % generations] = states
            timed(component.name, lambda component=component, step=step: component.mix(step))
            timed(component.name, lambda component=component, step=step: component.observe(step))
        timed("history", lambda step=step: store.insert(trajectories_of(step), step.step))
    return {
        "answers": questions * generations,
        "tokens": int(sum(group.lengths.sum() for group in groups)),
        "cpu_ms": {name: round(1000 * seconds, 1) for name, seconds in sorted(spent.items())},
        "cpu_ms_in_all": round(1000 * sum(spent.values()), 1),
    }


def _group(number: int, rng: np.random.Generator, rows: int, tokens: int, vocabulary: int) -> Group:
    """A sampled group: every fourth all wrong, the others right by a rate of their own."""
    correct = (rng.random(rows) < rng.random()) & (number % 4 > 0)
    truncated = ~correct & (rng.random(rows) < 0.5)
    lengths = np.where(truncated, tokens, rng.integers(tokens // 4, tokens, rows))
    return Group(
        number, f"question-{number}", "", "fresh", range(number * rows, (number + 1) * rows),
        correct=correct, truncated=truncated, lengths=lengths, rewards=correct.astype(float),
        task_rewards=correct.astype(float),
        completion_ids=[rng.integers(0, vocabulary, n).astype(np.int32) for n in lengths],
        logprobs=[np.zeros(n, np.float32) for n in lengths],
        entropies=[rng.exponential(size=n).astype(np.float32) for n in lengths],
    )  # fmt: skip


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
    parser.add_argument("part", choices=("steps", "batch", "history", "ranks"))
    parser.add_argument("--steps", type=int, default=30, help="training steps")
    parser.add_argument("--model", choices=tuple(CASES), default="embedded", help="of `steps`")
    parser.add_argument("--questions", type=int, help="questions in the history, or in the batch")
    parser.add_argument("--tokens", type=int, help="tokens per trajectory")
    options = parser.parse_args()
    questions = options.questions or (128 if options.part == "batch" else 40_000)
    if options.part == "ranks":
        for line in table(ranks(questions, options.tokens or 128)):
            print(line, flush=True)
        return
    if options.part == "steps":
        result = steps(options.steps, CASES[options.model])
    elif options.part == "batch":
        result = batch(questions, options.tokens or 8192)
    else:
        result = history(questions, options.tokens or 16)
    json.dump(result, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
