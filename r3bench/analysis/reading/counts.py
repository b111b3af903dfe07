"""Counts per run and question, from the stored answers `eval/<task>/*.parquet` of a study's runs."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from r3bench.analysis.results import Run, Scores
from r3bench.errors import StateError, first_line
from r3bench.records import SCHEMA, RunPaths, RunRecord
from r3bench.seals import bytes_digest, weights_digest

SETTINGS = b"r3bench"  # metadata key of a shard: what its answers were sampled under
WEIGHTS = "weights"  # of the settings: which trained weights the answers are of
COLUMNS = ["question", "repeat", "correct", "tokens", "truncated"]
DAMAGED = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError)  # what reading a damaged shard ends in
PLACE = re.compile(r"\.q(\d+)-")  # in a shard's name: the place of its first question in the task
MOST_REPEATS = 2**20  # repeats are below this


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
        record = run.record
        known = known_files(record, path, task) if record and record.schema >= SCHEMA else None
        try:
            count = count_answers(path.evaluation / task, known)
        except TornShard as error:
            notes.append(f"{run.run}: {error}; the run is left out of {task} until then")
        else:
            if count.get("unknown"):
                notes.append(
                    f"{run.run}: {count['unknown']} files of answers in eval/{task} are left out: run.json doesn't "
                    "know them (a measurement that isn't finished; r3bench eval or ablate)"
                )
            if not count["question"] and run.outcome == "finished":
                silent.append(run.run)
            elif count["question"] and (
                wrong := _others(count, record, task)
                or _disagreement(count, record.eval.get(task, {}) if record else {}, task)
            ):
                notes.append(f"{run.run}: {wrong}")
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


def known_files(record: RunRecord, paths: RunPaths, task: str) -> dict[str, Any]:
    """Name -> digest of a task's shards, as the record has them."""
    top = f"{paths.evaluation.name}/{task}/"
    return {name.removeprefix(top): digest for name, digest in record.files.items() if name.startswith(top)}


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
        values = {json.dumps(s.get(key), sort_keys=True) for s in known}
        if len(values) > 1:
            notes.append(
                f"{task}: runs were measured with different {key} ({', '.join(sorted(values))}); "
                "their difference is not training's alone"
            )
    return notes


def count_answers(folder: Path, known: Mapping[str, Any] | None = None, texts: Sequence[str] = ()) -> dict[str, Any]:
    """Sums per question over a task's shards: question, samples, correct, truncated (counts) and tokens (mean).

    An answer (question, repeat) that is in two shards counts once: the one in the first shard.

    Args:
        folder: `eval/<task>`.
        known: name -> digest of the shards that the run's record is about; others are left out, and counted in
            `unknown`. None: all shards are taken as they are.
        texts: further columns that are wanted of every answer that counts, as lists in the order of `answers`.

    Raises:
        StateError: a shard is missing, has other content than its digest says, or can't be read as answers.
    """
    names = {path.name for path in folder.glob("*.parquet")} if folder.is_dir() else set()
    if not names:
        return {"question": []}
    tables, settings, weights = [], {}, set()
    for name in sorted(names if known is None else known):
        table = _table(folder / name, None if known is None else known[name], texts)
        settings = _settings(table, folder / name)
        weights.add(str(settings.pop(WEIGHTS, "")))
        tables.append(table)
    unknown = 0 if known is None else len(names - known.keys())
    if not tables:
        return {"question": [], "unknown": unknown}
    # dlpack, because pyarrow's to_numpy and fill_null import pandas, which takes as long as everything else here
    try:
        table = pa.concat_tables(tables, promote_options="default")  # a column may be empty in all of a shard
        codes = table["question"].combine_chunks().dictionary_encode()
        questions = codes.dictionary.to_pylist()
        size, index = len(questions), np.from_dlpack(codes.indices).astype(np.int64)
        numbers = {
            column: np.from_dlpack(pc.cast(table[column], kind).combine_chunks())
            for column, kind in (
                ("repeat", pa.int64()), ("correct", pa.float64()), ("truncated", pa.float64()), ("tokens", pa.float64())
            )
        }  # fmt: skip
    except DAMAGED as error:
        raise TornShard(
            f"{folder}: not answers ({first_line(error)}); remove them and run r3bench eval again"
        ) from error
    repeat = numbers["repeat"]
    if not index.size or repeat.min() < 0 or repeat.max() >= MOST_REPEATS or not (numbers["tokens"] >= 0).all():
        raise TornShard(f"{folder}: holds no answers, or a repeat or a number of tokens that can't be")
    kept = np.unique(index * (repeat.max() + 1) + repeat, return_index=True)[1]
    samples = np.bincount(index[kept], minlength=size)

    def total(column: str) -> np.ndarray:
        return np.bincount(index[kept], weights=numbers[column][kept], minlength=size)

    return {
        "settings": {k: v for k, v in settings.items() if k != "model"},
        "weights": weights - {""},
        "question": questions,
        "samples": samples,
        "correct": total("correct"),
        "truncated": total("truncated"),
        "tokens": total("tokens") / samples,
        "unknown": unknown,
        "answers": (index[kept], repeat[kept], numbers["correct"][kept] > 0),
        "order": partial(_order, sorted(names if known is None else known), tables),
        **{column: table[column].take(pa.array(kept)).to_pylist() for column in texts},
    }


def _table(path: Path, known: Mapping[str, Any] | None, texts: Sequence[str] = ()) -> pa.Table:
    """The columns of one shard that are counted, and `texts`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TornShard(f"{path}: {error.strerror}; run r3bench eval again") from error
    if known is not None and bytes_digest(content) != known:
        raise TornShard(f"{path}: has other content than run.json says; remove it and run r3bench eval again")
    try:
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        columns = file.schema_arrow.names
        table = file.read(columns=[*COLUMNS, *texts])
    except DAMAGED as error:
        raise TornShard(
            f"{path}: not readable as parquet ({first_line(error)}); remove it and run r3bench eval again"
        ) from error
    missing = {*COLUMNS, *texts} - set(table.column_names)
    if missing:
        raise TornShard(f"{path}: no column '{sorted(missing)[0]}'; found {', '.join(columns)}")
    for column in COLUMNS:
        if table[column].null_count:
            raise TornShard(f"{path}: {column}: empty in {table[column].null_count} rows; evaluate again")
    return table


def _settings(table: pa.Table, path: Path) -> dict[str, Any]:
    try:
        found = json.loads((table.schema.metadata or {}).get(SETTINGS, b"{}"))
    except (ValueError, RecursionError) as error:
        raise TornShard(f"{path}: its settings are not readable as JSON; the file was edited") from error
    if not isinstance(found, dict):
        raise TornShard(f"{path}: its settings are no mapping; the file was edited")
    return found


def _order(names: Sequence[str], tables: Sequence[pa.Table]) -> list[str]:
    """The questions in the order of the task: by the place that a shard's name gives its first one."""
    places = [(int(found[1]) if (found := PLACE.search(name)) else 0, i) for i, name in enumerate(names)]
    return list(dict.fromkeys(question for _, i in sorted(places) for question in tables[i]["question"].to_pylist()))


def _others(count: Mapping[str, Any], record: RunRecord | None, task: str) -> str | None:
    """That answers are said to be of other weights than the run's; None if they aren't, or don't say."""
    if record is None or count["weights"] <= {weights_digest(record.train.files)}:
        return None
    return f"the answers of {task} are of other weights than this run's; left out of this benchmark"


def _disagreement(count: Mapping[str, Any], summary: Mapping[str, Any], task: str) -> str | None:
    """What of a task's summary in `run.json` the stored answers don't bear out; None if nothing.

    Its scores are over the first `questions` questions of the task and the repeats below `samples`; there may be more
    answers, of an earlier measurement.
    """
    asked, k = summary.get("questions", 0), summary.get("samples")
    have = len(count["question"])
    if have < asked:
        return (
            f"answers to {have} of {asked} questions of {task}; left out of this benchmark until they are complete "
            "(r3bench eval)"
        )
    if k is None or not asked:
        return None  # a table from elsewhere
    index, repeat, correct = count["answers"]
    wanted = set(count["question"] if have == asked else count["order"]()[:asked])
    member = np.array([question in wanted for question in count["question"]])
    used = member[index] & (repeat < k)
    per_question = np.bincount(index[used], minlength=have)[member]
    if (per_question != k).any():
        return (
            f"{int(used.sum())} of {asked * k} answers of {task} are stored, {k} to each question; left out of this "
            "benchmark until they are complete (r3bench eval)"
        )
    said, found = summary.get(f"avg@{k}"), float(correct[used].mean())
    if said is not None and not abs(said - found) < 1e-9:
        return (
            f"run.json says avg@{k} = {said:.6g} for {task}, its answers give {found:.6g}; left out of this benchmark "
            "until it is measured again (r3bench eval)"
        )
    return None
