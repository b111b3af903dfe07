"""One self-contained HTML file about a study: question, answer, evidence, failures, provenance."""

import base64
import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import get_args

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from r3bench import __version__
from r3bench.analysis.comparing.heldout import Cost, held_out
from r3bench.analysis.declared import Declared
from r3bench.analysis.figures import plots
from r3bench.analysis.figures.data import pictures_of
from r3bench.analysis.figures.of_study import held_out_picture
from r3bench.analysis.letters import lacking, said
from r3bench.analysis.output.external import load_any
from r3bench.analysis.output.frame import Table
from r3bench.analysis.output.render import plain, to_html
from r3bench.analysis.output.tables import lost_notes, study_tables
from r3bench.analysis.reading.columns import Reading
from r3bench.analysis.reading.outside import Outside, is_study
from r3bench.analysis.report.answers import Problems, Samples, sample_answers
from r3bench.analysis.report.drawn import drawn_answers, drawn_tables
from r3bench.analysis.report.tables import (
    evidence_table,
    failure_table,
    held_out_table,
    matched_table,
    provenance_table,
    variance_html_table,
)  # fmt: skip
from r3bench.analysis.report.text import answer_text, default_question, design_text, effect_texts, environment_text
from r3bench.analysis.results import Results
from r3bench.analysis.statistics.cells import CellRow, cell_rows
from r3bench.analysis.statistics.curves import Axis, RunCurve, cell_curves, comparable
from r3bench.analysis.statistics.effects import effects
from r3bench.analysis.statistics.prepare import benchmark_sets
from r3bench.files import write_text

OPEN = 3  # benchmarks, up to which the tables of each stand open
# The page's only script, the same in every report: its content policy allows nothing but a script of this digest.
SCRIPT = (files("r3bench.analysis.report") / "templates" / "report.js").read_text(encoding="utf-8")
SCRIPT_HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()


def write_report(
    study: Path,
    out: Path,
    *,
    figures: bool = True,
    declared: Declared | None = None,
    reading: Reading | None = None,
    outside: Outside | None = None,
    problems: Problems | None = None,
) -> Path:
    """Write the report of a study folder, or of anyone's results, as one HTML file; returns its path.

    Args:
        study: study folder, or a source as for `external.analyze`.
        out: an `.html` file, or a folder for `report.html`.
        figures: also save every figure as PDF and PNG into `figures/` beside the report.
        declared, reading, outside: see `external.load_any`.
        problems: finds the texts of the questions beside the sample answers; None: only their ids are shown.

    Raises:
        StateError, DataError, ConfigError: see `load_study` and `load_table`.
    """
    study, out = Path(study), Path(out)
    results = load_any(study, declared, reading, metrics=True, outside=outside)
    path = out if out.suffix == ".html" else out / "report.html"
    page, pictures = render_report(results, study if study.is_dir() and is_study(study) else None, problems)
    if figures:
        with lacking() as letters:
            for picture in pictures:
                picture.save(path.parent / "figures")
        if letters:
            warnings.warn(f"figures: {said(letters)}", stacklevel=2)
    write_text(path, page)
    return path


def render_report(
    results: Results, folder: Path | None, problems: Problems | None = None
) -> tuple[str, list[plots.Picture]]:
    """The page and its figures.

    Args:
        results: with training logs for the learning curves.
        folder: study folder, for sample answers and environments; None for a table from elsewhere.
        problems: see `write_report`.
    """
    found, notes = effects(results)
    rows = cell_rows(results)
    headline = next(iter(benchmark_sets(results)))
    top = [e for e in found if e.benchmark == headline]
    cells = [r for r in rows if r.benchmark == headline]
    curves = cell_curves(results)
    drawn, said = drawn_answers(results, headline)
    along = [held_out_picture(results, cost) for cost in get_args(Cost)]
    pictures = [p for p in (*pictures_of(results, top, cells, headline), *drawn, *along) if p is not None]
    tables = study_tables(results, rows, found, notes)
    samples = sample_answers(folder, results, problems) if folder is not None else Samples((), ())
    lost = results.diverged or results.missing or results.excluded
    page = Environment(
        loader=PackageLoader("r3bench.analysis.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    ).get_template("report.html")
    text = page.render(
        title=plain(results.name),
        version=__version__,
        question=plain(results.declared.question or default_question(results), 1000),
        design=design_text(results, headline),
        answer=answer_text(results, top, cells),
        effect_lines=effect_texts(results, top),
        pictures=[(p.name, p.caption, p.alt, Markup(p.svg())) for p in pictures],
        tables=[(plain(t.title), _block(t), _folded(results, headline, t)) for t in tables],
        drawn=[_block(t) for t in drawn_tables(results, headline)],
        matched=_matched(results, folder, curves),
        unmatched=_unmatched(results, folder, curves),
        variance=_block(variance_html_table(results)),
        evidence=_block(evidence_table(results, cells)) if any(r.acted for r in cells) else "",
        failures=_block(failure_table(results)) if lost else "",
        provenance=_block(provenance_table(results)),
        environment=environment_text(folder, results),
        samples=samples,
        key=_key(cells, curves) if any(p.of_cells for p in pictures) else [],
        script=Markup(SCRIPT),
        script_hash=SCRIPT_HASH,
        notes=[plain(n, 1000) for n in dict.fromkeys([*notes, *said, *lost_notes(results), *results.notes])],
    )
    return text, pictures


def _key(cells: Sequence[CellRow], curves: Mapping[str, object]) -> list[tuple[Markup, str]]:
    """(mark, cell) of every cell that a figure shows: one key for all of them."""
    styles = plots.cell_styles([*(r.label for r in cells), *curves])
    shown = dict.fromkeys([*(r.label for r in cells), *curves])
    return [(Markup(plots.key_mark(styles[label])), plain(label)) for label in shown]


def _folded(results: Results, headline: str, table: Table) -> bool:
    """Whether a table has to be opened: one benchmark's of many, where the headline says the same in one."""
    kind, _, name = table.key.partition("-")
    return len(results.benchmarks) > OPEN and kind in ("cells", "answers") and name != headline


def _block(table: Table) -> Markup:
    """A table for the page: "acted" right after the cell's name, and a frame that the keyboard can scroll."""
    names = [c.name for c in table.columns]
    if "acted" in names[2:]:
        at = names.index("acted")
        order = [0, at, *(i for i in range(1, len(names)) if i != at)]
        columns, rows = [table.columns[i] for i in order], [[row[i] for i in order] for row in table.rows]
        table = replace(table, columns=columns, rows=rows)
    frame = Markup('<div class="table" tabindex="0" role="region" aria-label="{}">').format(plain(table.title))
    return Markup(to_html(table).replace('<div class="table">', frame, 1))


def _matched(results: Results, folder: Path | None, curves: dict[str, list[RunCurve]]) -> list[Markup]:
    """Tables at equal cost: of held-out questions where checkpoints were measured, of training where it compares."""
    tables = []
    along = held_out(folder, results) if folder is not None else None
    if along is not None:
        tables += [held_out_table(along, cost, results.declared.confidence) for cost in get_args(Cost)]
    if comparable(results, curves):
        tables += [matched_table(results, curves, axis) for axis in get_args(Axis)]
    return [_block(t) for t in tables]


def _unmatched(results: Results, folder: Path | None, curves: dict[str, list[RunCurve]]) -> str:
    """Why there is no comparison of training at equal cost, and what gives one of held-out questions."""
    if not curves:
        return "No training logs: nothing to match."
    if comparable(results, curves):
        return ""
    along = folder is not None and held_out(folder, results) is not None
    return (
        "The training logs hold no accuracy over fresh groups in all runs, and components change the whole batch: what "
        "cells reach in training at equal cost is not compared."
        + ("" if along else " Kept checkpoints, measured with `r3bench eval STUDY --checkpoints N`, compare the cells "
           "on held-out questions.")
    )  # fmt: skip
