"""The tables of a study: cells, effects, and the tidy frame behind them."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from r3bench.analysis.output import at_k_tables
from r3bench.analysis.output.choices import Choices, chosen
from r3bench.analysis.output.frame import Column, Entry, Table, count, decimal, many, points, with_interval
from r3bench.analysis.output.main_table import MODELS_MARK, MODELS_NOTE, main_frame, main_table
from r3bench.analysis.output.paper_layouts import paper_table
from r3bench.analysis.output.render import SUFFIXES, render
from r3bench.analysis.reading.longtable import write_long_table
from r3bench.analysis.reading.study import load_study
from r3bench.analysis.results import Results
from r3bench.analysis.statistics.cells import CellRow, Estimate, best_cells, cell_rows
from r3bench.analysis.statistics.effects import Effect, effects
from r3bench.analysis.statistics.families import OTHER, PRIMARY
from r3bench.analysis.statistics.prepare import MACRO, benchmark_sets
from r3bench.analysis.statistics.twoway import ROUNDING
from r3bench.errors import ConfigError, StateError
from r3bench.files import write_text

LIKE_THESE = "on questions like these (two-way: seeds and questions)"


def render_tables(
    study: Path | Results, format: str = "markdown", layout: str | None = None, choices: Choices | None = None
) -> str:
    """The study's tables as one text.

    Args:
        study: study folder, or the results of one or of a table in memory (`external.load_any`).
        format: 'markdown', 'latex', 'html', or 'csv' (the tidy cell frame; of a layout, its first table).
        layout: 'wide' (one table, a column per benchmark), 'long' (a table per benchmark), 'effects', 'pass@k' or
            'maj@k' (a table per benchmark, a column per k), or 'r3-table1' or 'r3-table3' for the paper's own. Left
            out: all, or 'wide' where the choices are about one table.
        choices: columns, names, decimals and the like.

    Raises:
        StateError, ConfigError: see `load_study`, `render`, `at_k` and `choices.chosen`.
    """
    results = study if isinstance(study, Results) else load_study(study)
    said = choices or Choices()
    if layout is None and said.of_one and said.only is None:
        layout = "wide"
    if format == "csv" and layout is None and said.only is None:
        return render([cell_frame(cell_rows(results))], "csv")
    if said.k is not None and layout not in at_k_tables.LAYOUTS:
        raise ConfigError(f"--k is about --layout {' or '.join(at_k_tables.LAYOUTS)}")
    if format == "csv" and layout in at_k_tables.LAYOUTS and said.only is None and said.columns is None:
        return render([at_k_tables.at_k_frame(results, [at_k_tables.LAYOUTS[layout]], said.k)], "csv")
    tables = chosen(_laid_out(results, layout, said), said)
    if not tables:
        raise StateError(f"{results.name}: no table to show in layout '{layout}': nothing was varied")
    if format == "csv":
        return render([main_frame(tables[0])], "csv")
    if format == "latex":
        from r3bench.analysis.output.latex import joined, to_latex

        return joined(
            [
                to_latex(t, "column" if said.width == "column" else "page", said.label if i == 0 else None)
                for i, t in enumerate(tables)
            ]
        )
    return render(tables, format)


def _laid_out(results: Results, layout: str | None, choices: Choices) -> list[Table]:
    if layout is None:
        rows = cell_rows(results)
        found = study_tables(results, rows, decimals=choices.decimals)
        # with one benchmark the cells' own table says the same
        wanted = len(results.benchmarks) > 1 or choices.only is not None
        return [main_table(results, rows, choices), *found] if wanted else found
    if layout == "wide":
        return [main_table(results, None, choices)]
    if layout == "long":
        return [t for t in study_tables(results, decimals=choices.decimals) if t.key.startswith(("cells-", "answers-"))]
    if layout == "effects":
        tables = study_tables(results, decimals=choices.decimals)
        return [t for t in tables if not t.key.startswith(("cells-", "answers-"))]
    if layout in at_k_tables.LAYOUTS:
        return at_k_tables.at_k_tables(results, at_k_tables.LAYOUTS[layout], choices)
    return [paper_table(results, layout)]


def write_tables(
    study: Path | Results, out: Path, choices: Choices | None = None, layout: str | None = None
) -> list[Path]:
    """Write the tables' files into `out`; returns their paths.

    `main.{md,tex,html,csv}` (the wide table), `tables.{md,tex,html}`, `{cells,effects}.csv`, `questions.parquet`, and,
    where a layout or something else was chosen, that as `chosen.{md,tex,html,csv}`. The others are the same whatever
    is chosen, so that they can be compared with those of any other day.
    """
    results = study if isinstance(study, Results) else load_study(study)
    rows, (found, notes) = cell_rows(results), effects(results, draws=500)
    shown = study_tables(results, rows, found, notes)
    written = {f"tables.{SUFFIXES[to]}": render(shown, to) for to in ("markdown", "latex", "html")}
    wide = main_table(results, rows)
    written |= {f"main.{suffix}": render([main_frame(wide) if to == "csv" else wide], to)
                for to, suffix in SUFFIXES.items()}  # fmt: skip
    written["cells.csv"] = render([cell_frame(rows)], "csv")
    written["effects.csv"] = render([effect_frame(found)], "csv")
    if layout is not None or (choices is not None and choices != Choices()):
        for to, suffix in SUFFIXES.items():
            written[f"chosen.{suffix}"] = render_tables(results, to, layout, choices)
    for name, text in written.items():
        write_text(out / name, text)
    write_long_table(results, out / "questions.parquet")
    return [*(out / name for name in written), out / "questions.parquet"]


def study_tables(
    results: Results, rows: Sequence[CellRow] | None = None, found: Sequence[Effect] | None = None,
    notes: Sequence[str] = (), decimals: int = 1,
) -> list[Table]:  # fmt: skip
    """Cells (macro average first), effects, and the sensitivity analysis if runs diverged and are scored."""
    rows = cell_rows(results) if rows is None else rows
    if found is None:
        found, notes = effects(results, draws=0)
    names = list(benchmark_sets(results))
    tables = [cell_table(results, name, [r for r in rows if r.benchmark == name], decimals) for name in names]
    tables += [t for name in results.benchmarks if (t := answer_table(results, name, rows, decimals)) is not None]
    if found:
        tables.append(effect_table(results, [e for e in found if e.benchmark == names[0]], notes, decimals=decimals))
        if len(names) > 1:
            tables.append(by_benchmark_table(results, found, decimals))
    if results.diverged and results.declared.failed_score != "drop":
        dropped, said = effects(results, failed_score="drop", draws=0)
        first = [e for e in dropped if e.benchmark == names[0] and e.family in (PRIMARY, OTHER)]
        if first:
            tables.append(
                effect_table(
                    results, first, said, "Sensitivity: tested effects without the runs that diverged", decimals
                )
            )
    return tables


def cell_table(results: Results, benchmark: str, rows: Sequence[CellRow], decimals: int = 1) -> Table:
    """One row per cell of one benchmark, in points."""
    columns = [
        Column("cell", "left"), Column("runs"), Column("accuracy"), Column("SD of seeds"),
        Column("gain over untrained"),
        Column(f"gain over {results.reference}"), Column("tokens/answer"), Column("truncated"),
        Column("generated tokens"), Column("train s"), Column("weights changed"),
        Column("acted", "left"), Column("outcome", "left"),
    ]  # fmt: skip
    body = []
    for row in rows:
        body.append(
            [
                Entry(row.label),
                Entry("-" if row.base else str(len(row.runs))),
                Entry(_estimate(row.accuracy, decimals=decimals), strong=row.best),
                Entry("-" if row.seed_sd is None else points(row.seed_sd, decimals=decimals)),
                Entry(_estimate(row.gain_base, True, decimals)),
                Entry(_estimate(row.gain_off, True, decimals)),
                Entry(decimal(row.tokens)),
                Entry("-" if row.truncated is None else f"{100 * row.truncated:.1f} %"),
                Entry(count(row.generated_tokens)),
                Entry(count(row.train_seconds)),
                Entry("-" if row.weights_changed is None else f"{100 * row.weights_changed:.1f} %"),
                Entry(acted_text(row)),
                Entry(outcome_text(row)),
            ]
        )
    keep = [i for i, c in enumerate(columns) if i < 3 or any(r[i].text not in ("-", "") for r in body)]
    if not any(r.diverged or r.missing or r.excluded for r in rows):
        keep = [i for i in keep if columns[i].name != "outcome"]
    title = f"{results.name}: macro average" if benchmark == MACRO else f"{results.name}: {benchmark}"
    return Table(
        title=title,
        columns=[columns[i] for i in keep],
        rows=[[r[i] for i in keep] for r in body],
        notes=_cell_notes(results, benchmark, rows),
        key=f"cells-{benchmark}",
    )


def _estimate(estimate: Estimate | None, signed: bool = False, decimals: int = 1) -> str:
    if estimate is None:
        return "-"
    if estimate.like_these.low is None and estimate.models.low is not None:
        return with_interval(estimate.value, estimate.models, signed, decimals) + MODELS_MARK
    return with_interval(estimate.value, estimate.like_these, signed, decimals)


def acted_text(row: CellRow) -> str:
    """Per component that was on: in how many runs it did anything. 'never' is spelled out."""
    parts = []
    for component, (did, on) in sorted(row.acted.items()):
        parts.append(f"{component} {'NEVER' if did == 0 else 'yes' if did == on else f'{did}/{on}'}")
    return ", ".join(parts) or "-"


def outcome_text(row: CellRow) -> str:
    """'3 finished', or what went wrong."""
    done = len(row.runs) - row.diverged
    parts = [(done, "finished"), (row.diverged, "diverged"), (len(row.missing), "missing"),
             (len(row.excluded), "excluded")]  # fmt: skip
    return ", ".join(f"{n} {what}" for n, what in parts if n)


def answer_table(results: Results, benchmark: str, rows: Sequence[CellRow], decimals: int = 1) -> Table | None:
    """What the evaluation counted besides accuracy: pass@k, maj@k, answers not found, gradings timed out."""
    rows = [r for r in rows if r.benchmark == benchmark and r.summary]
    keys = list(dict.fromkeys(k for r in rows for k in sorted(r.summary, key=lambda k: (k[0] not in "pm", k))))
    if not rows:
        return None
    body = [
        [Entry(r.label), *(Entry(points(r.summary.get(k), decimals=decimals), r.summary.get(k)) for k in keys)]
        for r in rows
    ]
    heads = [
        Column({"no_answer": "no answer %", "timeouts": "timed out %", "agreement": "spelling agrees %"}.get(k, k))
        for k in keys
    ]
    notes = [
        "means over runs measured on exactly these questions, in points, without intervals: accuracy is what the "
        "analysis is about"
    ]
    return Table(
        f"{results.name}: answers, {benchmark}", [Column("cell", "left"), *heads], body, notes, f"answers-{benchmark}"
    )


def _best_note(results: Results, rows: Sequence[CellRow], benchmark: str) -> list[str]:
    """Which cell has the highest mean, the reference among them, and how far the best other one is from that."""
    best = next((b for b in best_cells(results) if b.benchmark == benchmark), None)
    scores = {r.label: r.accuracy.value for r in rows if r.accuracy is not None and not r.base}
    if best is None or best.low is None or best.high is None or len(scores) < 2:
        return []
    top = max(scores.values())
    highest = [label for label, value in scores.items() if value > top - ROUNDING]
    gain = f"{points(best.gain, True)} ({points(best.low, True)} to {points(best.high, True)}) over {results.reference}"
    if best.candidates > 1:
        gain += f", allowing for its having been picked out of {best.candidates}"
        if best.few_seeds:
            gain += "; so few seeds make this interval long, 3 or more in every cell much shorter"
    if highest == [best.label]:
        return [f"highest mean: {best.label}, {gain}"]
    if len(highest) > 1:
        return [f"the highest mean is shared: {', '.join(highest)}"]
    return [f"the reference, {highest[0]}, has the highest mean; of the other cells {best.label}, {gain}"]


def _cell_notes(results: Results, benchmark: str, rows: Sequence[CellRow]) -> list[str]:
    members = benchmark_sets(results)[benchmark]
    size = " + ".join(f"{many(len(results.benchmarks[m].questions), 'question')} of {m}" for m in members)
    samples = sorted({int(s) for m in members for s in set(results.benchmarks[m].samples.ravel()) if s})
    answers = f"{' or '.join(map(str, samples))} answer{'' if samples == [1] else 's'} each"
    known = [r for r in rows if r.accuracy is not None]
    about = "accuracy in points"
    if any(r.accuracy and r.accuracy.like_these.low is not None for r in known):
        about += f", {100 * results.declared.confidence:g} % intervals {LIKE_THESE}"
    notes = [f"{about}; {size}, {answers}"]
    if results.reference == "reference":
        named = results.label([levels[0] for levels in results.factors.values()])
        notes.append(f"reference, every factor at its first level: {named}")
    notes += _best_note(results, rows, benchmark)
    if sum(not r.base for r in known) > 1 and not any(r.best for r in rows):
        notes.append("no cell is marked best: none is shown to beat every other one (Holm-adjusted)")
    bare = [r for r in known if r.accuracy and r.accuracy.like_these.low is None]
    single = [m for m in members if len(results.benchmarks[m].questions) < 2]
    if single:
        notes.append(f"no interval on questions like these: {single[0]} has one question")
    elif any(r.accuracy and r.accuracy.models.low is not None for r in bare):
        notes.append(MODELS_NOTE)
    elif bare and all(len(r.runs) < 2 for r in rows):
        notes.append("no interval where noise between runs can't be estimated: add seeds")
    elif bare:
        notes.append("no interval where nothing was seen to vary between runs and questions")
    silent = sorted({c for r in rows for c, (did, on) in r.acted.items() if on and not did})
    notes += [f"{c} was on and never acted in some cell: that row says nothing about it" for c in silent]
    notes += results.still
    halved = [r.run for r in results.runs if r.record is not None and r.record.train.halvings and any(
        r.run in row.runs for row in rows)]  # fmt: skip
    if halved:
        notes.append(f"micro-batch halved after running out of memory, same rows per update: {', '.join(halved)}")
    return [*notes, *lost_notes(results), *results.notes]


def lost_notes(results: Results) -> list[str]:
    """Every run that diverged or is missing, by name, with the reason."""
    notes = [f"{r.run}: diverged{f' ({r.reason})' if r.reason else ''}" for r in results.diverged]
    notes += [missing_note(results)] if results.missing else []
    return notes + [f"{r.run}: missing{f' ({r.reason})' if r.reason else ''}" for r in results.missing]


def missing_note(results: Results) -> str:
    """How many runs have no score because something other than training ended them, and by what."""
    kinds = Counter((r.reason or "unknown").partition(":")[0] for r in results.missing)
    shown = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(kinds.items()))
    return (
        f"{len(results.missing)} of {sum(not r.base for r in results.runs)} runs are missing ({shown}): what a machine "
        "or a bug ended is no outcome of training, so they have no score and their cells rest on the other runs"
    )


def effect_table(
    results: Results, found: Sequence[Effect], notes: Sequence[str], title: str = "", decimals: int = 1
) -> Table:
    """One row per effect: estimate, both intervals, adjusted p, verdict."""
    name = found[0].benchmark
    percent = f"{100 * results.declared.confidence:g}"
    columns = [
        Column("effect", "left"), Column("kind", "left"), Column(f"points ({percent} %) on questions like these"),
        Column("on these questions"), Column("SE"), Column("df"), Column("p"), Column("p adjusted"),
        Column("verdict", "left"),
    ]  # fmt: skip
    body = [
        [
            Entry(e.term),
            Entry(e.kind.replace("_", " ") + (" *" if e.assumes else "")),
            Entry(_effect(e, decimals)),
            Entry(with_interval(e.estimate, e.these, True, decimals)),
            Entry("-" if e.like_these.se is None else f"{100 * e.like_these.se:.2f}"),
            Entry(decimal(e.like_these.df, 0)),
            Entry(p_text(e.like_these.p)),
            Entry(p_text(e.p_adjusted)),
            Entry(e.verdict(1 - results.declared.confidence) or "-"),
        ]
        for e in found
        if e.same_as is None
    ]
    about = [
        "p adjusted: by Holm, over the effects that test a factor and over interactions apart, from a p with fewer "
        "degrees of freedom where seeds are few; '-': no test of its own, since it restates another effect, or no p; "
        "'negligible' means shown to be within "
        f"+-{points(results.declared.margin)} points"
    ]
    if len(body) < len(found):
        about.append("effects that come out as the same contrast are in one row, under the first of their names")
    if any(e.like_these.low is None and e.models.low is not None for e in found):
        about.append(MODELS_NOTE)
    about += [f"* assumes {a}" for a in sorted({e.assumes for e in found if e.assumes})]
    shown = title or f"{results.name}: effects, {'macro average' if name == MACRO else name}"
    return Table(shown, columns, body, [*about, *results.still, *notes], "sensitivity" if title else "effects")


def _effect(effect: Effect, decimals: int = 1) -> str:
    if effect.like_these.low is None and effect.models.low is not None:
        return with_interval(effect.estimate, effect.models, True, decimals) + MODELS_MARK
    return with_interval(effect.estimate, effect.like_these, True, decimals)


def by_benchmark_table(results: Results, found: Sequence[Effect], decimals: int = 1) -> Table:
    """Tested effects on every benchmark side by side; strong where the adjusted p resolves them."""
    names = list(dict.fromkeys(e.benchmark for e in found))
    main = {(e.term, e.benchmark): e for e in found if e.family in (PRIMARY, OTHER)}
    body = []
    for term in dict.fromkeys(term for term, _ in main):
        row = [Entry(term)]
        for name in names:
            effect = main.get((term, name))
            if effect is None:
                row.append(Entry("-"))
                continue
            clear = effect.verdict(1 - results.declared.confidence) in ("up", "down")
            row.append(Entry(_effect(effect, decimals), effect.estimate, clear))
        body.append(row)
    columns = [Column("effect", "left"), *(Column("macro average" if n == MACRO else n) for n in names)]
    notes = [f"points, intervals {LIKE_THESE}; bold: adjusted p below {1 - results.declared.confidence:.2g}; "
             "`r3bench tables` writes every effect on every benchmark to effects.csv", *results.still]  # fmt: skip
    return Table(f"{results.name}: tested effects by benchmark", columns, body, notes, "by-benchmark")


def p_equals(p: float) -> str:
    """'< 0.001' below that, else '= ' and three decimals."""
    return p_text(p) if p < 0.001 else f"= {p_text(p)}"


def p_text(p: float | None) -> str:
    """'<0.001' below that, else three decimals."""
    return "-" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def cell_frame(rows: Sequence[CellRow]) -> Table:
    """The tidy frame: one row per benchmark and cell, every number in full precision."""
    records = [r.record() for r in rows]
    factors = list(dict.fromkeys(f for r in records for f in r["levels"]))
    heads = {f: f"factor.{f}" if f in ("cell", *(records[0] if records else ())) else f for f in factors}
    flat = []
    for record in records:
        levels = {heads[f]: record["levels"].get(f) for f in factors}
        acted = " ".join(f"{c}:{did}/{on}" for c, (did, on) in sorted(record["acted"].items()))
        figures = " ".join(f"{k}:{v!r}" for k, v in sorted(record["summary"].items()))
        joined = {
            "summary": figures,
            "runs": " ".join(record["runs"]),
            "excluded": " ".join(record["excluded"]),
            "seeds": " ".join(map(str, record["seeds"])),
            "acted": acted,
        }
        flat.append({"benchmark": record["benchmark"], "cell": record["cell"], **levels} | {
            k: joined.get(k, v) for k, v in record.items() if k not in ("benchmark", "cell", "levels")})  # fmt: skip
    return frame_of(flat, "cells")


def effect_frame(found: Sequence[Effect]) -> Table:
    """The tidy frame of effects."""
    return frame_of([e.record() for e in found], "effects")


def frame_of(records: Sequence[dict[str, object]], title: str) -> Table:
    """Records with the same keys as a table for CSV."""
    names = list(records[0]) if records else []
    body = []
    for record in records:
        row = []
        for name in names:
            value = record[name]
            row.append(Entry("-") if value is None else Entry(str(value), value))  # type: ignore[arg-type]
        body.append(row)
    return Table(title, [Column(n) for n in names], body, key=title)
