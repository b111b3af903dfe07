"""Counts per run and question, from the stored answers `eval/<task>/*.parquet` of a study's runs."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from r3bench.analysis.results import Run, Scores
from r3bench.errors import StateError
from r3bench.records import RunPaths

SETTINGS = b"r3bench"  # metadata key of a shard: what its answers were sampled under
COLUMNS = ["question", "repeat", "correct", "tokens", "truncated"]


class TornShard(StateError):
    """A file of answers that can't be read."""


def task_scores(task: str, paths: list[RunPaths], runs: list[Run]) -> tuple[Scores | None, list[str]]:
    """Counts per run and question of one task over the questions that all its runs have answered; None without any.

    The notes name runs without answers, or with fewer than their record counts, which are left out of this benchmark,
    and the number of questions that were left out.
    """
    counts: list[dict[str, Any]] = []  # runs that were given up come after these, with no answers
    notes, silent = [], []
    for run, path in zip(runs, paths, strict=False):
        count: dict[str, Any] = {"question": []}
        try:
            count = count_answers(path.evaluation / task)
        except TornShard as error:
            notes.append(f"{run.run}: {error}; the run is left out of {task} until then")
        else:
            asked = (run.record.eval.get(task, {}) if run.record else {}).get("questions", 0)
            if not count["question"] and run.outcome == "finished":
                silent.append(run.run)
            elif 0 < len(count["question"]) < asked:
                notes.append(
                    f"{run.run}: answers to {len(count['question'])} of {asked} questions of {task}; "
                    "left out of this benchmark until they are complete (r3bench eval)"
                )
                count = {"question": []}
        counts.append(count)
    if silent:
        notes.append(f"{', '.join(silent)}: no answers for {task}")
    answered = {run.run: set(c["question"]) for run, c in zip(runs, counts, strict=False) if c["question"]}
    if not answered:
        return None, notes
    questions, found = common_questions(task, answered)
    place = {q: i for i, q in enumerate(questions)}
    shape = (len(runs), len(questions))
    samples, correct, truncated = (np.zeros(shape, np.int64) for _ in range(3))
    tokens = np.full(shape, np.nan)
    for row, count in enumerate(counts):
        kept = [i for i, q in enumerate(count["question"]) if q in place]
        if kept:
            columns = [place[count["question"][i]] for i in kept]
            samples[row, columns] = count["samples"][kept]
            correct[row, columns] = count["correct"][kept]
            truncated[row, columns] = count["truncated"][kept]
            tokens[row, columns] = count["tokens"][kept]
    scores = Scores(tuple(questions), samples, correct, tokens, truncated)
    return scores, [*notes, *found, *_differences(task, counts)]


def common_questions(task: str, answered: Mapping[str, set[str]]) -> tuple[list[str], list[str]]:
    """The questions that all runs have answered, sorted, and what to say about the others.

    Runs measured on other questions altogether have none in common with the rest: then the set that most runs have.
    """
    every = set().union(*answered.values())
    common = every.intersection(*answered.values())
    notes = []
    if not common:
        sets = Counter(frozenset(q) for q in answered.values())
        common = set(max((count, len(questions), sorted(questions)) for questions, count in sets.items())[2])
        notes += [
            f"{run}: answers to {len(q & common)} of {len(common)} questions of {task}; left out of this benchmark"
            for run, q in answered.items()
            if not q >= common
        ]
    if len(common) < len(every):
        fewest = min(answered, key=lambda run: len(answered[run]))
        notes.append(
            f"{task}: {len(every) - len(common)} of {len(every)} questions left out, not answered by every run "
            f"({fewest} answered {len(answered[fewest])})"
        )
    return sorted(common), notes


def _differences(task: str, counts: list[dict[str, Any]]) -> list[str]:
    """A warning for every setting of the evaluation that is not the same in all runs."""
    known = [c["settings"] for c in counts if c.get("settings")]
    notes = []
    for key in sorted(set().union(*known)) if known else ():
        values = {json.dumps(s.get(key)) for s in known}
        if len(values) > 1:
            notes.append(
                f"{task}: runs were measured with different {key} ({', '.join(sorted(values))}); "
                "their difference is not training's alone"
            )
    return notes


def count_answers(folder: Path) -> dict[str, Any]:
    """Sums per question over a task's shards: question, samples, correct, truncated (counts) and tokens (mean).

    An answer (question, repeat) that is in two shards counts once: the one in the first shard.
    """
    tables = []
    for path in sorted(folder.glob("*.parquet")) if folder.is_dir() else ():
        try:
            file = pq.ParquetFile(path)
            tables.append(file.read(columns=COLUMNS))
        except (pa.ArrowInvalid, OSError) as error:
            raise TornShard(
                f"{path}: not readable as parquet ({error}); remove it and run r3bench eval again"
            ) from error
        missing = set(COLUMNS) - set(tables[-1].column_names)
        if missing:
            raise StateError(f"{path}: no column '{sorted(missing)[0]}'; found {', '.join(tables[-1].column_names)}")
        for column in COLUMNS:
            if tables[-1][column].null_count:
                raise StateError(f"{path}: {column}: empty in {tables[-1][column].null_count} rows; evaluate again")
    if not tables:
        return {"question": []}
    settings = json.loads((file.schema_arrow.metadata or {}).get(SETTINGS, b"{}"))
    table = pa.concat_tables(tables)
    # dlpack, because pyarrow's to_numpy and fill_null import pandas, which takes as long as everything else here
    codes = table["question"].combine_chunks().dictionary_encode()
    size, index = len(codes.dictionary), np.from_dlpack(codes.indices).astype(np.int64)
    repeat = np.from_dlpack(pc.cast(table["repeat"], pa.int64()).combine_chunks())
    kept = np.unique(index * (repeat.max() + 1) + repeat, return_index=True)[1]
    samples = np.bincount(index[kept], minlength=size)

    def total(column: str) -> np.ndarray:
        values = pc.cast(table[column], pa.float64()).combine_chunks()
        return np.bincount(index[kept], weights=np.from_dlpack(values)[kept], minlength=size)

    return {
        "settings": {k: v for k, v in settings.items() if k != "model"},
        "question": codes.dictionary.to_pylist(),
        "samples": samples,
        "correct": total("correct"),
        "truncated": total("truncated"),
        "tokens": total("tokens") / samples,
    }
