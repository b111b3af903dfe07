"""The layouts of the R3 paper's Tables 1 and 3, filled from our runs, with the paper's own rows marked `reported`."""

from collections.abc import Mapping

from r3bench.analysis.output.frame import Column, Entry, Table, with_interval
from r3bench.analysis.output.reported_rows import reported, source_notes
from r3bench.analysis.results import Results
from r3bench.analysis.statistics.cells import CellRow, cell_rows
from r3bench.analysis.statistics.prepare import MACRO
from r3bench.errors import ConfigError, nearest

OURS = ("wide", "long", "effects", "pass@k", "maj@k")  # layouts that are of no paper
LAYOUTS = {"r3-table1": "Pass@1 by model", "r3-table3": "leave-one-out ablation"}
# paper's column -> names a task of ours may have; where ours is another item set, the note says so
COLUMNS = {
    "aime24": ("aime24",), "math500": ("math500",), "amc": ("amc", "amc83", "amc23"), "minerva": ("minerva",),
    "olympiadbench": ("olympiadbench", "olympiad"),
}  # fmt: skip


def paper_table(results: Results, layout: str, with_reported: bool = True) -> Table:
    """A study in the layout of one of the paper's tables.

    Args:
        results: the study.
        layout: 'r3-table1' (a row per cell) or 'r3-table3' (all on, and all on without each factor).
        with_reported: the paper's own rows below ours.

    Raises:
        ConfigError: unknown layout, or a study without the cells the layout needs.
    """
    if layout not in LAYOUTS:
        raise ConfigError(f"layout: got '{layout}'{nearest(layout, (*OURS, *LAYOUTS))}")
    rows = cell_rows(results)
    ours = _benchmarks(results)
    chosen = _rows_for(results, layout)
    body = []
    for name, levels in chosen:
        found = {r.benchmark: r for r in rows if (dict(r.levels) == levels and r.base == (levels == {}))}
        body.append([Entry(name), Entry("measured"), *(_entry(found.get(task)) for task in ours.values())])
    if with_reported:
        quoted = reported(layout)
        values = {(s.model, s.benchmark): s.value for s in quoted}
        for model in dict.fromkeys(s.model for s in quoted):
            entries = [_reported(values, model, column) for column in ours]
            body.append([Entry(model), Entry("reported"), *entries])
    notes = [
        "measured: accuracy in points with intervals on questions like these; mean = macro average of this study",
        *(f"column {c} holds our task {t}" for c, t in ours.items() if t not in (c, MACRO)),
        *(f"no column {c}: the study has no such task" for c in COLUMNS if c not in ours),
    ]
    notes += results.still
    if with_reported:
        notes += ["reported rows come from another harness and are in no comparison", *source_notes([layout])]
    heads = [Column("mean" if c == MACRO else c) for c in ours]
    return Table(
        title=f"{results.name}: {LAYOUTS[layout]} (layout of R3, {layout.replace('r3-table', 'Table ')})",
        columns=[Column("model" if layout == "r3-table1" else "variant", "left"), Column("", "left"), *heads],
        rows=body,
        notes=notes,
        key=layout,
    )


def _benchmarks(results: Results) -> dict[str, str]:
    """Column -> our task: the paper's columns that the study has, then its other tasks, then the mean."""
    found = {c: next(n for n in names if n in results.benchmarks)
             for c, names in COLUMNS.items() if any(n in results.benchmarks for n in names)}  # fmt: skip
    found |= {task: task for task in results.benchmarks if task not in found.values()}
    return {**found, MACRO: MACRO} if len(results.benchmarks) > 1 else found


def _rows_for(results: Results, layout: str) -> list[tuple[str, dict[str, str]]]:
    """(name, levels) of the layout's rows; no levels is the untrained model."""
    names = list(results.factors)
    if layout == "r3-table1":
        found: list[tuple[str, dict[str, str]]] = [("untrained model", {})] if any(r.base for r in results.runs) else []
        return found + [(results.label(c), dict(zip(names, c, strict=True))) for c in results.cells]
    on = {f: levels[1] if len(levels) > 1 else levels[0] for f, levels in results.factors.items()}
    wanted = [("full", on)]
    wanted += [(f"w/o {f}", {**on, f: levels[0]}) for f, levels in results.factors.items() if len(levels) > 1]
    if tuple(on.values()) not in results.cells:
        raise ConfigError(
            f"layout '{layout}': the study has no run with everything on ({results.label(tuple(on.values()))})"
        )
    return [(name, levels) for name, levels in wanted if tuple(levels[f] for f in names) in results.cells]


def _entry(row: CellRow | None) -> Entry:
    if row is None or row.accuracy is None:
        return Entry("-")
    return Entry(with_interval(row.accuracy.value, row.accuracy.like_these), row.accuracy.value, row.best)


def _reported(values: Mapping[tuple[str, str], float], model: str, column: str) -> Entry:
    value = values.get((model, "mean" if column == MACRO else column))
    return Entry("-") if value is None else Entry(f"{value:.2f}", value)
