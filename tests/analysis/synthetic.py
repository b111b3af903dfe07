"""Makes study folders and simulated score arrays with known effects."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from r3bench.records import RunPaths, RunRecord, TrainRecord, read_record, write_record, write_study


@dataclass(frozen=True)
class Spec:
    """A study to be made up."""

    factors: dict[str, list[str]] = field(
        default_factory=lambda: {"replay": ["off", "on"], "ranking": ["off", "on"]}
    )  # factor -> levels
    seeds: Sequence[int] = (0, 1, 2)
    benchmarks: dict[str, int] = field(default_factory=lambda: {"embedded": 40})  # name -> questions
    samples: int = 4
    settings: dict[str, object] | None = None  # what the answers claim to be sampled under
    block: int | None = None  # questions per shard; None: all
    effects: dict[str, float] = field(default_factory=lambda: {"replay": 0.8})  # logits per factor that is on
    base_logit: float = -1.0  # the untrained model
    trained_logit: float = 0.2  # all off
    difficulty: float = 1.5  # SD over questions, logits
    run_sd: float = 0.1
    run_question_sd: float = 0.3
    base_model: bool = True
    wrong_values: int = 0  # wrong answers take one of so many values, or none; 0: none have a value
    response: str = "so the answer is \\boxed{7}"
    diverged: Sequence[tuple[int, int]] = ()  # (cell index, seed) that diverged
    gave_up: Sequence[tuple[int, int]] = ()  # (cell index, seed) that failed for good
    failure: tuple[str, str] = ("bug", "ValueError: boom")  # class and message of what ended these
    missing: Sequence[int] = ()  # cell indices that were not run
    analysis: dict[str, object] = field(default_factory=dict)
    metrics: bool = False


def make_study(root: Path, spec: Spec | None = None, seed: int = 0) -> Path:
    """Write a study folder as `r3bench ablate` does, with answers drawn from a logit model; returns `root`."""
    spec = spec or Spec()
    rng = np.random.default_rng(seed)
    questions = {b: rng.normal(0, spec.difficulty, n) for b, n in spec.benchmarks.items()}
    cells = [dict(zip(spec.factors, levels, strict=True)) for levels in product(*spec.factors.values())]
    planned = []
    if spec.base_model:
        planned.append((-1, 0, {"base": "model"}, spec.base_logit))
    for index, cell in enumerate(cells):
        if index not in spec.missing:
            gain = sum(spec.effects.get(f, 0.0) for f, level in cell.items() if level != spec.factors[f][0])
            planned += [(index, s, cell, spec.trained_logit + gain) for s in spec.seeds]
    listed = []
    for index, run_seed, cell, logit in planned:
        name = "base-model" if index < 0 else "+".join(f for f, v in cell.items() if v != spec.factors[f][0]) or "base"
        run_id = f"{name}-s{run_seed}-{index + 1:012x}"
        listed.append(
            {"run_id": run_id, "name": name, "factors": cell, "seed": run_seed, "config_hash": f"{index + 1:012x}"}
        )
        paths = RunPaths(root / run_id)
        paths.root.mkdir(parents=True)
        if (index, run_seed) in spec.gave_up:
            events = [{"event": "failure", "kind": spec.failure[0], "message": spec.failure[1]}, {"event": "gave_up"}]
            (paths.root / "attempts.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
            continue
        diverged = (index, run_seed) in spec.diverged
        shift = 0.0 if index < 0 else rng.normal(0, spec.run_sd)
        if not diverged:
            for task, difficulty in questions.items():
                noise = 0.0 if index < 0 else rng.normal(0, spec.run_question_sd, len(difficulty))
                p = 1 / (1 + np.exp(-(logit + shift + noise - difficulty)))
                _write_answers(paths.evaluation / task, p, spec, rng)
        on = [f for f, v in cell.items() if index >= 0 and v != spec.factors[f][0]]
        train = TrainRecord(
            outcome="diverged" if diverged else "finished",
            reason="loss is nan at step 3" if diverged else None,
            steps=0 if index < 0 else 60,
            generated_tokens=0 if index < 0 else 100_000 + 1000 * run_seed,
            train_seconds=0.0 if index < 0 else 50.0 + run_seed,
            device="none" if index < 0 else "cpu",
            processes=1,
            evidence={f"{f}/rows": 12.0 for f in on},
            acted={f: f != "ranking" for f in on},
        )
        record = RunRecord(
            run_id=run_id, name=name, config_hash=f"{index + 1:012x}", seed=run_seed, factors=cell, train=train,
            eval={} if diverged else {
                b: {"questions": n, "pass@4": 0.75, "maj@4": 0.5, "no_answer": 0.125}
                for b, n in spec.benchmarks.items()
            },
            commit="0123456789abcdef", started="2026-01-01T00:00:00+00:00", ended="2026-01-01T00:10:00+00:00",
        )  # fmt: skip
        environment = {"commit": "0123456789abcdef", "dirty": False, "python": "3.13", "packages": {"trl": "1.16.0"}}
        (paths.environment).write_text(json.dumps(environment))
        paths.config.write_text(json.dumps({"seed": run_seed, "name": name}))
        if spec.metrics and index >= 0:
            _write_metrics(paths, logit, rng)
        write_record(record, paths)
    grid = {"name": root.name, "factors": spec.factors, "seeds": list(spec.seeds), "analysis": spec.analysis}
    write_study({"schema": 2, "grid": grid, "cells": listed, "duplicates": []}, root / "study.json")
    return root


def record_again(run: Path) -> None:
    """Make a run's record of the files that are there now, as whoever edits them on purpose could."""
    write_record(read_record(RunPaths(run)), RunPaths(run))


def _write_answers(folder: Path, p: np.ndarray, spec: Spec, rng: np.random.Generator) -> None:
    """One shard per repeat or, with `spec.block`, per block of questions and 8 repeats, as an evaluation does."""
    folder.mkdir(parents=True)
    (folder.parent / ".lock").touch()  # the evaluation leaves one
    width, depth = (len(p), 1) if spec.block is None else (spec.block, 8)
    for first in range(0, spec.samples, depth):
        repeats = range(first, min(first + depth, spec.samples))
        for start in range(0, len(p), width):
            place = np.tile(np.arange(start, min(start + width, len(p))), len(repeats))
            correct = rng.random(len(place)) < p[place]
            count = len(place)
            said: list[str | None] = [None] * count
            if spec.wrong_values:
                said = [str(100 + v) if v else None for v in rng.integers(0, spec.wrong_values + 1, count)]
            table = pa.table(
                {
                    "question": [f"q{i:04d}" for i in place],
                    "repeat": np.repeat(np.array(repeats), count // len(repeats)),
                    "seed": np.zeros(count, int),
                    "response": [spec.response] * count,
                    "tokens": rng.integers(20, 60, count),
                    "gold": ["7"] * count,
                    "extracted": ["7" if c else s for c, s in zip(correct, said, strict=True)],
                    "reason": ["exact" if c else "no boxed answer" for c in correct],
                    "correct": correct,
                    "truncated": rng.random(count) < 0.1,
                    "timed_out": np.zeros(count, bool),
                    "grader": ["exact 1"] * count,
                }
            )
            if spec.settings is not None:
                table = table.replace_schema_metadata({b"r3bench": json.dumps(spec.settings).encode()})
            pq.write_table(table, folder / f"repeat-{first:03d}-{start:05d}.parquet")


def _write_metrics(paths: RunPaths, logit: float, rng: np.random.Generator) -> None:
    steps = np.arange(1, 61)
    curve = 1 / (1 + np.exp(-(-1 + (logit + 1) * steps / 60))) + rng.normal(0, 0.02, 60)
    lines = [
        {"step": int(s), "generated_tokens": int(s * 1700), "seconds": float(s), "correct": float(c), "length": 40.0}
        for s, c in zip(steps, curve, strict=True)
    ]
    paths.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
