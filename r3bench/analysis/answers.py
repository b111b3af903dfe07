"""Sample answers of a study, as text that can't be anything else."""

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from r3bench.analysis.cells import BASE_LABEL
from r3bench.analysis.render import plain
from r3bench.analysis.results import Results
from r3bench.analysis.study import run_folder

ANSWERS_SHOWN = 8  # sample answers in the report
COLUMNS = ["question", "response", "gold", "extracted", "correct", "tokens", "truncated"]
ANSWER_LENGTH = 4000  # characters of one that are shown


@dataclass(frozen=True)
class Answer:
    """One sample answer, as text."""

    cell: str
    question: str
    verdict: str
    text: str


def sample_answers(folder: Path, results: Results) -> list[Answer]:
    """A right and a wrong answer from a few cells; hostile text is shown as text."""
    task = next(iter(results.benchmarks))
    found: list[Answer] = []
    shown: set[str] = set()
    measured = results.benchmarks[task].measured
    for run, index, counted in zip(results.runs, results.cell_of, measured, strict=True):
        if not counted:
            continue  # a torn file, say; the tables' notes name its run
        label = BASE_LABEL if run.base else results.label(results.cells[index])
        shards = sorted((run_folder(folder, run.run) / "eval" / task).glob("*.parquet"))
        if label in shown or not shards or len(found) >= ANSWERS_SHOWN:
            continue
        try:
            rows = next(pq.ParquetFile(shards[0]).iter_batches(batch_size=64, columns=COLUMNS), None)
            answers = rows.to_pylist() if rows is not None else []
        except (OSError, pa.ArrowException, ValueError):
            continue  # damaged where the counts don't look, in a run without digests
        if not answers:
            continue
        shown.add(label)
        for wanted in (True, False):
            row = next((r for r in answers if bool(r["correct"]) is wanted), None)
            if row is not None:
                found.append(_answer(label, row))
    return found[:ANSWERS_SHOWN]


def _answer(label: str, row: Mapping[str, Any]) -> Answer:
    verdict = (
        f"{'right' if row['correct'] else 'wrong'}; expected {row['gold']}, found {row['extracted'] or 'no answer'}"
    )
    verdict += f"; {row['tokens']} tokens{', cut at the cap' if row['truncated'] else ''}"
    return Answer(plain(label), plain(str(row["question"])), plain(verdict, 500), visible(row["response"] or ""))


def visible(text: str, longest: int = ANSWER_LENGTH) -> str:
    """Text of several lines with control and bidirectional characters out, cut at a limit that is said."""
    kept = "".join(c for c in text[:longest] if c in "\n\t" or unicodedata.category(c)[0] != "C")
    return kept if len(text) <= longest else f"{kept}\n[{len(text) - longest:,} more characters]"
