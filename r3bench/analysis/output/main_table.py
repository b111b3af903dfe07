"""The one table a paper takes: a row per cell, a column per benchmark, their average, gain, answers and cost."""

from collections.abc import Sequence

from r3bench.analysis.output.choices import Choices
from r3bench.analysis.output.frame import Column, Entry, Spread, Table, count, decimal, points
from r3bench.analysis.results import Results
from r3bench.analysis.statistics import marks
from r3bench.analysis.statistics.cells import CellRow, Estimate, cell_rows
from r3bench.analysis.statistics.effects import Interval
from r3bench.analysis.statistics.prepare import MACRO, benchmark_sets, prepare

MODELS_MARK = " ~"  # of an interval without noise between runs
MODELS_NOTE = (
    "~ interval over questions of exactly these models; it says nothing about other seeds of the same recipes, "
    "for which a cell needs more than one"
)
FIXED = ("cell", "runs", "average", "answers", "tokens/answer", "generated tokens", "train s")


def main_table(results: Results, rows: Sequence[CellRow] | None = None, choices: Choices | None = None) -> Table:
    """Cells as rows, the reference first among the trained ones; see `Choices` for how it is set."""
    chosen = choices or Choices()
    rows = cell_rows(results) if rows is None else rows
    sets = benchmark_sets(results)
    headline = next(iter(sets))
    by = {(r.benchmark, r.label, r.base): r for r in rows}
    order = [(r.label, r.base) for r in rows if r.benchmark == headline]
    reference = results.label([levels[0] for levels in results.factors.values()])
    order.sort(key=lambda one: (not one[1], one[0] != reference))
    shown = [*(name for name in results.benchmarks), *([MACRO] if MACRO in sets else [])]
    heads = [Column("cell", "left")]
    heads += [Column("average" if n == MACRO else _head(n), benchmark=n != MACRO) for n in shown]
    heads += [Column(f"gain over {results.reference}"), Column("runs"), Column("answers"), Column("tokens/answer"),
              Column("generated tokens"), Column("train s")]  # fmt: skip
    marked = {name: _marks(results, name, sets[name], chosen) for name in shown if name in sets}
    body = []
    for label, base in order:
        first = by[headline, label, base]
        line = [Entry(label)]
        for name in shown:
            row = by.get((name, label, base))
            strong, letters = marked.get(name, ({}, {}))
            found = None if row is None else row.accuracy
            best, group = (False, "") if base else (bool(strong.get(label)), letters.get(label, ""))
            line.append(entry_of(found, chosen, None if row is None else row.seed_sd, best, group))
        answers = _graded(results, first, sets[headline])
        line += [
            entry_of(first.gain_off, chosen, None, signed=True),
            Entry("-" if base else str(len(first.runs)), None if base else len(first.runs)),
            Entry(count(answers), answers),
            Entry(decimal(first.tokens), first.tokens),
            Entry(count(first.generated_tokens), first.generated_tokens),
            Entry(count(first.train_seconds), first.train_seconds),
        ]
        body.append(line)
    keep = [i for i in range(len(heads)) if heads[i].name == "runs" or any(line[i].text != "-" for line in body)]
    return Table(
        title=f"{results.name}: accuracy by benchmark",
        columns=[heads[i] for i in keep],
        rows=[[line[i] for i in keep] for line in body],
        notes=_notes(results, rows, chosen, marked, headline),
        key="main",
    )


def _head(name: str) -> str:
    """A benchmark's heading; apart from those of other columns."""
    return f"benchmark {name}" if name in FIXED or name.startswith("gain over ") else name


def _limits(estimate: Estimate) -> Interval:
    return estimate.models if estimate.like_these.low is None else estimate.like_these


def entry_of(
    estimate: Estimate | None, choices: Choices, sd: float | None, strong: bool = False, letters: str = "",
    signed: bool = False,
) -> Entry:  # fmt: skip
    """A number with its deviation and interval, as chosen; sd: over seeds; strong, letters: how it is marked."""
    if estimate is None:
        return Entry("-")
    low, high, places = _limits(estimate).low, _limits(estimate).high, choices.decimals
    known = low is not None and high is not None
    arm = max(estimate.value - low, high - estimate.value) if low is not None and high is not None else None
    spread = Spread(
        sd="" if sd is None else points(sd, decimals=places),
        low=points(low, signed, places) if known else "",
        high=points(high, signed, places) if known else "",
        half=points(arm, decimals=places) if known else "",
        letters=letters,
        mark=MODELS_MARK if estimate.like_these.low is None and known else "",
        sd_form=choices.sd,
        interval_form=choices.interval,
    )
    return Entry(points(estimate.value, signed, places), estimate.value, strong, spread, {"sd": sd, "low": low,
                 "high": high})  # fmt: skip


def _marks(
    results: Results, name: str, members: tuple[str, ...], choices: Choices
) -> tuple[dict[str, bool], dict[str, str]]:
    """(label -> not shown to differ from the best, label -> letters); empty where nothing is told apart."""
    data = prepare(results, name, members, base_alone=True)
    if data is None or len(data.cells) < 2 or choices.mark == "none":
        return {}, {}
    labels = [results.label(c) for c in data.cells]
    if choices.mark == "letters":
        found = marks.letters(data, results.declared.confidence)
        return {}, dict(zip(labels, found, strict=True)) if len(set(found)) > 1 else {}
    kept = marks.level_with_best(data, results.declared.confidence)
    return ({} if kept.all() else dict(zip(labels, kept.tolist(), strict=True))), {}


def _graded(results: Results, row: CellRow, members: Sequence[str]) -> int | None:
    """Answers graded of a cell, over its runs and the benchmarks."""
    where = [i for i, run in enumerate(results.runs) if run.run in row.runs]
    total = sum(int(results.benchmarks[m].samples[where].sum()) for m in members)
    return total or None


def _notes(
    results: Results, rows: Sequence[CellRow], choices: Choices,
    marked: dict[str, tuple[dict[str, bool], dict[str, str]]], headline: str,
) -> list[str]:  # fmt: skip
    from r3bench.analysis.output.tables import lost_notes

    notes = [f"points; {_forms(results, rows, choices)}"]
    level = f"{100 * results.declared.confidence:g} %"
    if choices.mark == "bold" and any(strong for strong, _ in marked.values()):
        notes.append(f"bold: the highest mean and every cell not shown to differ from it ({level}, Bonferroni over the "
                     "comparisons with it)")  # fmt: skip
    elif choices.mark == "letters" and any(letters for _, letters in marked.values()):
        notes.append(f"cells that share a letter are not shown to differ ({level}, Bonferroni over all pairs)")
    if choices.mark != "none" and not any(a or b for a, b in marked.values()) and len(results.cells) > 1:
        notes.append("no cell is marked: none is shown to differ from the highest mean")
    shown = choices.interval != "none"
    if shown and any(a.like_these.low is None and a.models.low is not None for r in rows if (a := r.accuracy)):
        notes.append(MODELS_NOTE)
    if results.reference == "reference":
        notes.append(f"reference: {results.label([levels[0] for levels in results.factors.values()])}")
    if len(benchmark_sets(results)) > 1:
        members = benchmark_sets(results)[headline]
        notes.append(f"gain, answers and tokens/answer are over the benchmarks of the average: {', '.join(members)}")
    silent = sorted({c for r in rows for c, (did, on) in r.acted.items() if on and not did})
    notes += [f"{c} was on and never acted in some cell: that row says nothing about it" for c in silent]
    return list(dict.fromkeys([*notes, *results.still, *lost_notes(results), *results.notes]))


def _forms(results: Results, rows: Sequence[CellRow], choices: Choices) -> str:
    """What stands beside a number."""
    parts = []
    if choices.sd != "none" and any(r.seed_sd is not None for r in rows):
        parts.append({"pm": "+-", "brackets": "in square brackets", "subscript": "lowered"}[choices.sd]
                     + ": standard deviation over seeds")  # fmt: skip
    known = [r.accuracy for r in rows if r.accuracy is not None and _limits(r.accuracy).low is not None]
    if choices.interval != "none" and known:
        how = {
            "pm": "+-: longer arm of the",
            "brackets": "in brackets:",
            "subscript": "lowered and raised: limits of the",
        }
        about = "on questions like these" if any(a.like_these.low is not None for a in known) else "over questions"
        parts.append(f"{how[choices.interval]} {100 * results.declared.confidence:g} % interval {about}")
    return "; ".join(parts) or "neither deviations nor intervals are shown"


def main_frame(table: Table) -> Table:
    """The same with numbers for CSV (accuracy 0-1): value, deviation, limits and mark in columns of their own."""
    columns: list[Column] = []
    rows: list[list[Entry]] = [[] for _ in table.rows]
    for i, column in enumerate(table.columns):
        parts = any(row[i].numbers is not None for row in table.rows)
        columns.append(column)
        for row, old in zip(rows, table.rows, strict=True):
            row.append(Entry(old[i].text, old[i].value))
        for key in ("sd", "low", "high", "marked") if parts else ():
            columns.append(Column(f"{column.name} {key}"))
            for row, old in zip(rows, table.rows, strict=True):
                entry = old[i]
                value = (entry.numbers or {}).get(key)
                if key == "marked" and entry.numbers is not None:
                    row.append(
                        Entry((entry.spread.letters if entry.spread else "") or ("yes" if entry.strong else "-"))
                    )
                else:
                    row.append(Entry("-", value))
    return Table(table.title, columns, rows, table.notes, table.key)
