"""The runs, cells and counts of a long table: which columns are factors, which questions all runs share, no copies."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from r3bench.analysis.reading.columns import BASE, OPTIONAL, REQUIRED, Reading, doubtful
from r3bench.analysis.reading.counts import common_questions
from r3bench.analysis.reading.table_file import Rows, first_wrong
from r3bench.analysis.results import Run, Scores, order_levels
from r3bench.errors import DataError


def runs_of(
    frame: Any, rows: Rows, factors: Sequence[str], reading: Reading, path: Path | str
) -> tuple[list[Run], dict[str, tuple[str, ...]], list[str]]:
    """Runs in order of appearance, factors with their levels, and notes; a run's seed and levels must not change."""
    for factor in factors:
        first_wrong(path, (rows.levels[factor] == "") & ~rows.base, lambda i, f=factor: f"{f}: empty, expected a level")
    first_row: dict[str, int] = {}
    for i, name in enumerate(rows.run.tolist()):
        first_row.setdefault(name, i)
    start = np.array([first_row[c] for c in rows.run.tolist()])
    known = ", ".join((*REQUIRED, *OPTIONAL))
    of_run = {"seed": rows.seed, "outcome": rows.outcome, BASE: rows.base, **rows.levels}
    for label, values in of_run.items():
        first_wrong(
            path, (values != values[start]) & ~(rows.base & (label in rows.levels)),
            lambda i, a=label, v=values: f"{a}: got '{v[i]}' for run '{rows.run[i]}', which has '{v[start[i]]}' "
            f"in row {start[i] + 1}; every column that is not {known} is a factor of the run (--ignore {a} leaves it "
            "out)",
        )  # fmt: skip
    at = np.array(list(first_row.values()))
    trained = at[~rows.base[at]]
    used, notes = _chosen(frame, rows, trained, list(factors), reading, path)
    levels = {}
    for factor in used:
        seen = list(dict.fromkeys(rows.levels[factor][trained].tolist()))
        _spellings(rows.levels[factor], seen, factor, path)
        order = reading.levels.get(factor, ())
        levels[factor] = order_levels(seen, [v for v in order if v in seen])
    runs = [
        Run(name, int(rows.seed[i]), {} if rows.base[i] else {f: str(rows.levels[f][i]) for f in used},
            base=bool(rows.base[i]), outcome=rows.outcome[i])
        for name, i in first_row.items()
    ]  # fmt: skip
    return runs, levels, notes


def _chosen(
    frame: Any, rows: Rows, trained: np.ndarray, factors: list[str], reading: Reading, path: Path | str
) -> tuple[list[str], list[str]]:
    """The columns that are factors, and notes on those that aren't.

    Raises:
        DataError: it is doubtful; names the columns and what to say.
    """
    notes = [f"column '{c}' was not read, as asked" for c in reading.ignore]
    other = [c for c in frame.columns if c not in (*REQUIRED, *OPTIONAL, BASE, *factors, *reading.ignore)]
    notes += [f"column '{c}' was not read: it is not among the named factors" for c in other]
    if BASE in factors and reading.factors is None:
        notes.append(f"column '{BASE}' is a factor here; the untrained model is marked by {BASE}=model")
    used = factors
    if reading.factors is None:
        used = []
        for name in factors:
            values = rows.levels[name][trained]
            if len(set(values.tolist())) < 2:
                if len(values):
                    notes.append(f"column '{name}' is no factor: it is '{values[0]}' in all trained runs")
            elif all(v == str(s) for v, s in zip(values, rows.seed[trained].tolist(), strict=True)):
                notes.append(f"column '{name}' is no factor: it repeats the seed")
            elif (values == rows.run[trained]).all() and len(factors) > 1:
                notes.append(f"column '{name}' is no factor: it repeats the run's name")
            else:
                used.append(name)
    varied = {f: rows.levels[f][trained] for f in used if len(set(rows.levels[f][trained].tolist())) > 1}
    doubt = doubtful(varied, rows.seed[trained])
    if doubt is not None and reading.factors is None:
        why, *about = doubt
        raise DataError(
            f"{path}: {why}; say which were varied on purpose, --factors NAME,NAME, or leave out what wasn't: "
            + " or ".join(f"--ignore {name}" for name in about)
        )
    return used, notes + ([doubt[0]] if doubt is not None else [])


def _spellings(values: np.ndarray, levels: Sequence[str], factor: str, path: Path | str) -> None:
    """`DataError` for one level in two spellings, such as `On` and `on`, or `1e-4` and `0.0001`."""
    seen: dict[Any, str] = {}
    for level in levels:
        try:
            key: Any = float(level)
        except ValueError:
            key = " ".join(level.casefold().split())
        if key in seen:
            i, j = (int(np.flatnonzero(values == v)[0]) + 1 for v in (seen[key], level))
            raise DataError(
                f"{path}: row {j}: {factor}: got '{level}', and '{seen[key]}' in row {i}: one level in two spellings? "
                "Spell it in one way"
            )
        seen[key] = level


def benchmarks_of(rows: Rows, runs: Sequence[Run]) -> tuple[dict[str, Scores], list[str]]:
    """Count matrices per benchmark, over the questions that all runs measured there have; notes on what is left out."""
    place = {run.run: i for i, run in enumerate(runs)}
    at = np.array([place[r] for r in rows.run.tolist()])
    found, notes = {}, []
    measured = rows.outcome == "finished"
    for benchmark in sorted(set(rows.benchmark[measured].tolist())):
        here = np.flatnonzero((rows.benchmark == benchmark) & measured)
        answered: dict[str, set[str]] = {}
        for run, question in zip(rows.run[here].tolist(), rows.question[here].tolist(), strict=True):
            answered.setdefault(run, set()).add(question)
        silent = [r.run for r in runs if r.outcome == "finished" and r.run not in answered]
        if silent:
            notes.append(f"{', '.join(silent)}: no answers for {benchmark}")
        questions, said = common_questions(benchmark, answered)
        notes += said
        column = {q: i for i, q in enumerate(questions)}
        here = here[[q in column for q in rows.question[here].tolist()]]
        index = (at[here], np.array([column[q] for q in rows.question[here].tolist()], int))
        shape = (len(runs), len(questions))
        arrays: dict[str, np.ndarray] = {}
        for name, values in rows.counts.items():
            arrays[name] = np.zeros(shape, np.int64)
            arrays[name][index] = values[here]
        mean = None
        if rows.tokens is not None:
            mean = np.full(shape, np.nan)
            mean[index] = rows.tokens[here]
        found[benchmark] = Scores(tuple(questions), arrays["samples"], arrays["correct"], mean, arrays.get("truncated"))
    return found, notes


def copies(runs: Sequence[Run], benchmarks: dict[str, Scores], path: Path | str) -> list[str]:
    """Notes on runs of one cell that may be one run.

    Raises:
        DataError: two runs of one cell with the same seed have the same counts everywhere.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, run in enumerate(runs):
        if run.outcome == "finished":
            groups.setdefault((run.base, *run.levels.items()), []).append(i)

    def counts(i: int) -> bytes:
        return b"".join(s.correct[i].tobytes() + s.samples[i].tobytes() for s in benchmarks.values())

    notes = []
    alike = len({counts(i) for g in groups.values() for i in g}) == 1  # nothing varied anywhere: said by the analysis
    for group in groups.values():
        seeds: dict[int, list[str]] = {}
        by_counts: dict[bytes, int] = {}
        for i in group:
            first = by_counts.setdefault(counts(i), i)
            if first != i and runs[i].seed == runs[first].seed:
                raise DataError(
                    f"{path}: runs '{runs[first].run}' and '{runs[i].run}': one cell, seed {runs[i].seed} and the same "
                    "counts on every question: a copy is no further replicate; take one of them out"
                )
            if first != i and not alike:
                notes.append(
                    f"runs {runs[first].run} and {runs[i].run} of one cell have the same counts on every question, "
                    "with different seeds; if one is a copy, take it out: it counts as a replicate"
                )
            seeds.setdefault(runs[i].seed, []).append(runs[i].run)
        notes += [
            f"runs {', '.join(names)} of one cell share seed {seed} and count as {len(names)} replicates; if they are "
            "one trained model measured again, take all but one out"
            for seed, names in seeds.items()
            if len(names) > 1
        ]
    return notes
