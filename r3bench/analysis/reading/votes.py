"""Who voted for what: for maj@k, the stored answers of a study by run, question and value."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from r3bench.analysis.reading.counts import count_answers, known_files
from r3bench.analysis.reading.study import run_folder
from r3bench.analysis.results import Results
from r3bench.analysis.statistics.draws import Votes
from r3bench.errors import StateError
from r3bench.grading.spelling.normalise import canonical
from r3bench.records import SCHEMA, RunPaths


def votes_of(results: Results) -> Mapping[str, np.ndarray]:
    """Benchmark -> (R, Q) `Votes` of every measured run and question, None elsewhere.

    Answers with the same canonical spelling are one candidate, and so are all right ones, as in an evaluation.

    Raises:
        StateError: results that hold counts alone, or answers that don't go with the counts any more.
    """
    if results.folder is None:
        raise StateError(
            f"{results.name}: maj@k needs what every answer says; these results are counts of right answers "
            "(of a study with its answers it can be had)"
        )
    found = {}
    for task, scores in results.benchmarks.items():
        place = {q: i for i, q in enumerate(scores.questions)}
        table = np.full(scores.samples.shape, None, object)
        for row in np.flatnonzero(scores.measured):
            run = results.runs[row]
            paths = RunPaths(run_folder(results.folder, run.run))
            known = known_files(run.record, paths, task) if run.record and run.record.schema >= SCHEMA else None
            counted = count_answers(paths.evaluation / task, known, ("extracted",))
            for question, votes in _by_question(counted).items():
                if question in place:
                    table[row, place[question]] = votes
            mine = table[row]
            if any(v is None or v[0] != c or size(v) != n
                   for v, c, n in zip(mine, scores.correct[row], scores.samples[row], strict=True)):  # fmt: skip
                raise StateError(f"{paths.evaluation / task}: changed while it was read; look again")
        found[task] = table
    return found


def size(votes: Votes) -> int:
    """Answers to the question."""
    right, wrong, silent = votes
    return right + sum(wrong) + silent


def _by_question(counted: Mapping[str, Any]) -> dict[str, Votes]:
    index, _, correct = counted["answers"]
    names, texts = counted["question"], counted["extracted"]
    spelled: dict[str, str] = {}
    right, silent = np.zeros(len(names), int), np.zeros(len(names), int)
    wrong: list[Counter[str]] = [Counter() for _ in names]
    for i, good, text in zip(index.tolist(), correct.tolist(), texts, strict=True):
        if good:
            right[i] += 1
        elif text is None:
            silent[i] += 1
        else:
            if text not in spelled:
                spelled[text] = canonical(text)
            wrong[i][spelled[text]] += 1
    return {
        name: (int(right[i]), tuple(sorted(wrong[i].values(), reverse=True)), int(silent[i]))
        for i, name in enumerate(names)
    }
