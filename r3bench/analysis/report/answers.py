"""Sample answers of a study with their questions, as text that can't be anything else."""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from r3bench.analysis.output.render import plain
from r3bench.analysis.reading.study import run_folder
from r3bench.analysis.results import Results, Scores
from r3bench.analysis.statistics.cells import BASE_LABEL

# task, runs that were asked its questions -> question id -> its text; empty where that is not at hand
Problems = Callable[[str, Sequence[Path]], Mapping[str, str]]

QUESTIONS_SHOWN = 6  # in the report
CELLS_SHOWN = 20  # cells of which answers are shown, in the tables' order
COLUMNS = ["question", "response", "gold", "extracted", "correct", "tokens", "truncated"]
ANSWER_LENGTH = 4000  # characters of an answer or a question that are shown


@dataclass(frozen=True)
class Answer:
    """One sample answer, as text."""

    cell: int  # position in `Samples.cells`
    right: bool
    verdict: str  # what was found, how long it is
    text: str


@dataclass(frozen=True)
class Asked:
    """A question and what the cells answered: of each a right and a wrong answer, where there are both."""

    question: str  # its id
    problem: str | None  # its text, if it is at hand
    gold: str
    share: str  # how many answers of all measured runs are right
    answers: tuple[Answer, ...]  # by cell, right before wrong


@dataclass(frozen=True)
class Samples:
    """What the report shows of the stored answers."""

    cells: tuple[str, ...]  # labels of the cells with answers
    asked: tuple[Asked, ...]  # hardest first


def sample_answers(folder: Path, results: Results, problems: Problems | None = None) -> Samples:
    """Some questions of the first benchmark, from hard to easy, with answers of one run of every cell.

    Args:
        folder: the study's.
        results: of it.
        problems: finds the questions' texts; None: they are left out.
    """
    task = next(iter(results.benchmarks))
    scores = results.benchmarks[task]
    wanted = _spread(scores)
    if not wanted:
        return Samples((), ())
    found: dict[str, dict[tuple[str, bool], Mapping[str, Any]]] = {}
    read: list[Path] = []
    for run, index, counted in zip(results.runs, results.cell_of, scores.measured, strict=True):
        label = BASE_LABEL if run.base else results.label(results.cells[index])
        if not counted or label in found or len(found) >= CELLS_SHOWN:
            continue  # a torn file, say; the tables' notes name its run
        path = run_folder(folder, run.run)
        if rows := _answers(path / "eval" / task, set(wanted)):
            found[label] = rows
            read.append(path)
    order = [BASE_LABEL, *map(results.label, results.cells)]
    found = {label: found[label] for label in order if label in found}
    texts = problems(task, read) if problems is not None and found else {}
    asked = []
    for question in wanted:
        answers, golds = [], []
        for place, rows in enumerate(found.values()):
            for right in (True, False):
                if (row := rows.get((question, right))) is not None:
                    answers.append(_answer(place, right, row))
                    golds.append(row.get("gold"))
        if answers:
            problem = texts.get(question)
            shown = None if problem is None else visible(problem)
            asked.append(
                Asked(plain(question), shown, plain(str(golds[0]), 500), _share(scores, question), tuple(answers))
            )
    return Samples(tuple(plain(label) for label in found), tuple(asked))


def _spread(scores: Scores) -> list[str]:
    """Questions evenly spaced from the hardest to the easiest, first of those with right and wrong answers."""
    asked, right = scores.samples.sum(axis=0), scores.correct.sum(axis=0)
    share = np.divide(right, asked, out=np.zeros(len(asked)), where=asked > 0)
    order = np.argsort(share, kind="stable")
    order = order[asked[order] > 0]
    both = order[(right[order] > 0) & (right[order] < asked[order])]
    chosen = _even(both)
    chosen += [i for i in _even(order) if i not in chosen][: QUESTIONS_SHOWN - len(chosen)]
    return [scores.questions[i] for i in sorted(chosen, key=lambda i: (share[i], i))]


def _even(order: np.ndarray) -> list[int]:
    if not len(order):
        return []
    places = np.linspace(0, len(order) - 1, min(QUESTIONS_SHOWN, len(order))).round().astype(int)
    return [int(order[i]) for i in places]


def _share(scores: Scores, question: str) -> str:
    at = scores.questions.index(question)
    return f"{int(scores.correct[:, at].sum()):,} of {int(scores.samples[:, at].sum()):,}"


def _answers(folder: Path, wanted: set[str]) -> dict[tuple[str, bool], Mapping[str, Any]]:
    """(question, verdict) -> the first stored answer of that kind; a damaged file has none."""
    found: dict[tuple[str, bool], Mapping[str, Any]] = {}
    for shard in sorted(folder.glob("*.parquet")):
        try:
            keys = pq.read_table(shard, columns=["question", "correct"]).to_pylist()
            new: dict[tuple[str, bool], int] = {}
            for place, row in enumerate(keys):  # responses are long: they are read only where one is missing
                key = (row["question"], bool(row["correct"]))
                if key[0] in wanted and key not in found:
                    new.setdefault(key, place)
            start = 0
            for batch in pq.ParquetFile(shard).iter_batches(batch_size=64, columns=COLUMNS) if new else ():
                for key, place in new.items():
                    if start <= place < start + len(batch):
                        found[key] = batch.slice(place - start, 1).to_pylist()[0]
                start += len(batch)
        except (OSError, pa.ArrowException, ValueError):
            continue  # damaged where the counts don't look, in a run without digests
        if len(found) == 2 * len(wanted):
            break
    return found


def _answer(cell: int, right: bool, row: Mapping[str, Any]) -> Answer:
    verdict = f"answered {row['extracted']}" if row.get("extracted") else "no answer found"
    verdict += f"; {row['tokens']} tokens{', cut at the cap' if row['truncated'] else ''}"
    return Answer(cell, right, plain(verdict, 500), visible(row.get("response") or ""))


def visible(text: str, longest: int = ANSWER_LENGTH) -> str:
    """Text of several lines with control and bidirectional characters out, cut at a limit that is said."""
    kept = "".join(c for c in text[:longest] if c in "\n\t" or unicodedata.category(c)[0] != "C")
    return kept if len(text) <= longest else f"{kept}\n[{len(text) - longest:,} more characters]"
