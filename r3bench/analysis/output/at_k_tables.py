"""The tables of pass@k and maj@k: a row per cell, a column per k."""

from collections.abc import Sequence
from typing import get_args

from r3bench.analysis.output.at_k import AtK, Score, at_k, most_answers
from r3bench.analysis.output.choices import Choices
from r3bench.analysis.output.frame import Column, Entry, Table, many
from r3bench.analysis.output.main_table import MODELS_NOTE, entry_of
from r3bench.analysis.results import Results
from r3bench.analysis.statistics.prepare import MACRO, benchmark_sets

LAYOUTS: dict[str, Score] = {f"{score}@k": score for score in get_args(Score)}  # name of the layout -> score
ABOUT = {
    "pass": "pass@k: the chance that k answers to a question hold a right one",
    "maj": "maj@k: the chance that the most frequent of k answers is the right one; where m share the first place one "
    "of them is taken at random, and answers without a value don't vote",
}


def at_k_tables(results: Results, score: Score, choices: Choices | None = None) -> list[Table]:
    """One table per benchmark, the macro average first.

    Raises:
        ConfigError, StateError: see `at_k`.
    """
    chosen = choices or Choices()
    rows = at_k(results, score, chosen.k)
    return [_table(results, score, name, found, chosen)
            for name in benchmark_sets(results) if (found := [r for r in rows if r.benchmark == name])]  # fmt: skip


def _table(results: Results, score: Score, name: str, rows: Sequence[AtK], choices: Choices) -> Table:
    ks = sorted({r.k for r in rows})
    by = {(r.label, r.base, r.k): r for r in rows}
    body = []
    for label, base in dict.fromkeys((r.label, r.base) for r in rows):
        line = [Entry(label)]
        for k in ks:
            row = by.get((label, base, k))
            line.append(Entry("-") if row is None else entry_of(row.value, choices, None))
        last = by.get((label, base, ks[-1]))
        line.append(entry_of(None if last is None else last.gain_off, choices, None, signed=True))
        body.append(line)
    heads = [Column("cell", "left"), *(Column(f"{score}@{k}") for k in ks),
             Column(f"gain over {results.reference}, {score}@{ks[-1]}")]  # fmt: skip
    keep = [i for i in range(len(heads)) if i <= len(ks) or any(line[i].text != "-" for line in body)]
    where = "macro average" if name == MACRO else name
    return Table(
        f"{results.name}: {score}@k, {where}",
        [heads[i] for i in keep],
        [[line[i] for i in keep] for line in body],
        _notes(results, score, name, rows, choices),
        f"{score}@k-{name}",
    )


def _notes(results: Results, score: Score, name: str, rows: Sequence[AtK], choices: Choices) -> list[str]:
    from r3bench.analysis.output.tables import lost_notes

    most = most_answers(results)
    drawn = ", ".join(f"{most[m]} of {m}" for m in benchmark_sets(results)[name] if m in most)
    notes = [f"{ABOUT[score]}; points, averaged over all ways to draw k of a question's answers ({drawn})"]
    for member in results.benchmarks if choices.k else ():
        if beyond := [str(k) for k in choices.k or () if k > most.get(member, 0)]:
            notes.append(
                f"{member}: {many(most.get(member, 0), 'answer')} to a question, too few for k = {', '.join(beyond)}"
            )
    level = f"{100 * results.declared.confidence:g} %"
    if choices.interval != "none" and any(r.value.like_these.low is not None for r in rows):
        notes.append(f"{level} intervals on questions like these (two-way: seeds and questions), each by itself: not "
                     "adjusted for several k or cells")  # fmt: skip
    if choices.interval != "none" and any(
        r.value.like_these.low is None and r.value.models.low is not None for r in rows
    ):
        notes.append(MODELS_NOTE)
    return list(dict.fromkeys([*notes, *results.still, *lost_notes(results), *results.notes]))


def at_k_frame(results: Results, scores: Sequence[Score], ks: Sequence[int] | None = None) -> Table:
    """The tidy frame: a row per score, benchmark, cell and k, every number in full precision (0-1)."""
    from r3bench.analysis.output.tables import frame_of

    records = [row.record() for score in scores for row in at_k(results, score, ks)]
    for record in records:
        record["run_means"] = " ".join(map(repr, record["run_means"]))
    return frame_of(records, "at_k")
