"""Stored answers to be read: of a run, a cell or a study, filtered and sampled, with question, verdict and rule."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r3bench.errors import ConfigError, R3BenchError, StateError, nearest
from r3bench.evaluation.runs import answers, task_names, task_settings
from r3bench.files import read_json
from r3bench.grading.document import rule_named
from r3bench.records import RunPaths, enter_project


@dataclass(frozen=True)
class Wanted:
    """Which answers."""

    task: str | None = None  # None: of every task
    question: str | None = None  # its id; None: of every question
    correct: bool | None = None  # None: right and wrong ones
    truncated: bool | None = None  # None: cut off and finished ones
    sample: int | None = None  # this many of them, drawn; None: all
    seed: int = 0  # of the draw


def look(runs: Sequence[Path], wanted: Wanted) -> tuple[list[dict[str, Any]], int]:
    """(answers, how many fit before sampling), in the order of runs, tasks, questions and repeats.

    Each has the stored columns plus `run`, `task`, `rule` (what decided, in words) and `problem` (the question's text;
    None where its task can't be loaded here).

    Raises:
        ConfigError: a task or question that none of the runs has.
        StateError: no run has answers.
    """
    found: list[dict[str, Any]] = []
    known: set[str] = set()
    tasks: set[str] = set()
    some = False
    for run in runs:
        try:
            names = task_names(run)
        except StateError:
            continue  # not measured
        some = True
        tasks |= set(names)
        for task in names if wanted.task is None else [t for t in names if t == wanted.task]:
            rows = answers(run, task)
            known |= {row["question"] for row in rows}
            found += [{"run": run.name, "task": task, **row} for row in rows if _fits(row, wanted)]
    if not some:
        raise StateError("no stored answers here; r3bench eval measures a run")
    if wanted.task is not None and wanted.task not in tasks:
        raise ConfigError(f"--task: no stored answers of '{wanted.task}'{nearest(wanted.task, tasks)}")
    if wanted.question is not None and wanted.question not in known:
        raise ConfigError(f"--question: no stored answer to '{wanted.question}'{nearest(wanted.question, known)}")
    found.sort(key=lambda row: (row["run"], row["task"], row["question"], row["repeat"]))
    total = len(found)
    if wanted.sample is not None and wanted.sample < total:
        chosen = sorted(random.Random(wanted.seed).sample(range(total), wanted.sample))
        found = [found[place] for place in chosen]
    texts = {task: problems(task, runs) for task in {row["task"] for row in found}}
    for row in found:
        rule = rule_named(row["reason"])
        row |= {"problem": texts[row["task"]].get(row["question"]), "rule": rule.says if rule else None}
    return found, total


def _fits(row: dict[str, Any], wanted: Wanted) -> bool:
    asked = {"question": wanted.question, "correct": wanted.correct, "truncated": wanted.truncated}
    return all(value is None or row[key] == value for key, value in asked.items())


def problems(task: str, runs: Sequence[Path]) -> dict[str, str]:
    """question id -> text, of a task that can be loaded here and holds the questions that were asked; else nothing."""
    from r3bench.evaluation.lm import digest
    from r3bench.evaluation.tasks import load_task

    for run in [run for run in runs if task in _names(run)][:1]:
        enter_project(RunPaths(run))  # which has the task, wherever one looks from
    try:
        docs = list(load_task(task).test_docs())
        asked = {str(task_settings(run, task).get("questions")) for run in runs if task in _names(run)}
    except R3BenchError:
        return {}
    if digest(docs) not in asked:
        return {}  # other questions than those that were asked
    return {str(doc["id"]): str(doc["problem"]) for doc in docs}


def _names(run: Path) -> list[str]:
    try:
        return task_names(run)
    except StateError:
        return []


def runs_of(study: Path, cell: str | None) -> list[Path]:
    """The run directories of a study, or of one of its cells: its name in `status`, or `factor=level,...`.

    Raises:
        ConfigError: no such cell.
    """
    cells = read_json(study / "study.json")["cells"]
    named = {c["run_id"]: c for c in cells}
    if cell is not None:
        levels = dict(part.strip().partition("=")[::2] for part in cell.split(",")) if "=" in cell else None
        named = {
            run: c
            for run, c in named.items()
            if cell in (c["name"], run)
            or (levels is not None and all(str(c["factors"].get(f)) == v for f, v in levels.items()))
        }
        if not named:
            raise ConfigError(f"{study}: no cell '{cell}'{nearest(cell, {c['name'] for c in cells})}")
    return [study / run for run in named if (study / run).is_dir()]
