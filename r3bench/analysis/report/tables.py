"""The tables that only a report has."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from r3bench import catalog
from r3bench.analysis.comparing.heldout import Cost, HeldOut, at_budget
from r3bench.analysis.output.frame import Column, Entry, Table, count, decimal, with_interval
from r3bench.analysis.output.tables import acted_text, missing_note, p_equals
from r3bench.analysis.results import Results
from r3bench.analysis.statistics.cells import CellRow
from r3bench.analysis.statistics.curves import Axis, Matched, RunCurve, curve_notes, matched
from r3bench.analysis.statistics.effects import Interval
from r3bench.analysis.statistics.variance import variance_table
from r3bench.errors import R3BenchError


def matched_table(results: Results, curves: Mapping[str, Sequence[RunCurve]], axis: Axis) -> Table:
    """Cells at the same budget: area under the training curve, and where they reach the baseline's peak."""
    baseline = next((results.label(c) for c in results.cells if results.label(c) in curves), None)
    found, budget = matched(curves, axis, baseline, results.declared.confidence)
    unit = {"tokens": "generated tokens", "seconds": "device seconds", "steps": "optimiser steps"}[axis]

    def span(low: float | None, high: float | None, say: Any) -> str:
        return "" if low is None or high is None else f" ({say(low)} to {say(high)})"

    def row(m: Matched) -> list[Entry]:
        reached = count(m.to_peak) + span(m.to_peak_low, m.to_peak_high, count)
        area = f"{m.area:.3f}" + span(m.area_low, m.area_high, lambda v: f"{v:.3f}")
        return [Entry(m.label), Entry(area), Entry(f"{m.reached}/{m.runs}"), Entry(reached)]

    columns = [Column("cell", "left"), Column(f"mean training accuracy up to {count(budget)} {unit}"),
               Column("runs that reach the baseline's peak"), Column(f"{unit} to get there")]  # fmt: skip
    notes = [
        f"baseline: {baseline}; {100 * results.declared.confidence:g} % intervals over seeds where there are several; "
        "the mean is over the runs that get there, an interval if all do"
    ]
    notes += curve_notes(results, curves)
    return Table(f"At matched {unit}", columns, [row(m) for m in found], notes, f"matched-{axis}")


def held_out_table(found: HeldOut, cost: Cost, confidence: float) -> Table:
    """Cells on the held-out questions at the cost of the cheapest run, against the first one."""
    rows, budget = at_budget(found, cost, confidence)
    unit = {"tokens": "generated tokens", "seconds": "device seconds"}[cost]
    body = []
    for row in rows:
        within = Interval(None, None, row.low, row.high, None)
        gain = Interval(None, None, row.gain_low, row.gain_high, None)
        body.append([Entry(row.label), Entry(str(row.runs)), Entry(with_interval(row.accuracy, within), row.accuracy),
                     Entry(with_interval(row.gain, gain, True), row.gain)])  # fmt: skip
    columns = [Column("cell", "left"), Column("runs"), Column(f"held-out accuracy at {count(budget)} {unit}"),
               Column(f"gain over {rows[0].label}")]  # fmt: skip
    points_of = sorted({len(run.accuracy) for runs in found.cells.values() for run in runs})
    notes = [
        f"{found.questions} questions of {found.benchmark} that every measured point has answers to; "
        f"{100 * confidence:g} % intervals over seeds, on exactly these questions, each by itself: not adjusted for "
        "several comparisons",
        f"the budget is what the cheapest run spent; a run's accuracy there lies on the line between its "
        f"{'-'.join(map(str, points_of))} measured points, so it is as sure as these are close",
    ]
    beyond = [r.run for runs in found.cells.values() for r in runs if r.at(cost, budget) is None]
    if beyond:
        notes.append(f"left out, their first measured point lies beyond the budget: {', '.join(beyond)}")
    if found.left_out:
        notes.append(f"left out, no checkpoint of theirs was measured: {', '.join(found.left_out)}")
    notes += [f"left out: {wrong}" for wrong in found.damaged]
    return Table(f"Held-out accuracy at equal {unit}", columns, body, notes, f"held-out-{cost}")


def variance_html_table(results: Results) -> Table:
    """Components as standard deviations in points, and what to spend on next."""
    names = {
        "seed": "seed",
        "question": "question",
        "interaction": "question x configuration",
        "run_question": "question x run",
        "sampling": "one answer",
        "question_effect": "effect over questions",
    }
    table = variance_table(results)
    body, notes = [], []
    for benchmark, record in table.items():
        parts = [None if record[key] is None else 100 * record[key] ** 0.5 for key in names]
        body.append([Entry(benchmark), *(Entry(decimal(p)) for p in parts)])
        if record["allocation"]:
            notes.append(f"{benchmark}: {record['allocation']['advice']}")
        if record["seed_block_p"] is not None:
            notes.append(
                f"{benchmark}: F test of whether runs that share a seed are alike: p {p_equals(record['seed_block_p'])}"
            )
    columns = [Column("benchmark", "left"), *(Column(n) for n in names.values())]
    return Table("Where the noise comes from (standard deviations, points)", columns, body, notes, "variance")


def evidence_table(results: Results, cells: Sequence[CellRow]) -> Table:
    """What the components' own counters say: totals of a run, over the runs of each cell."""
    body = []
    for row in (r for r in cells if r.acted):
        records = [r.record.train for r in results.runs if r.run in row.runs and r.record is not None]
        keys = sorted({k for r in records for k in r.evidence})
        if not keys:
            body.append([Entry(row.label), Entry(acted_text(row)), *(Entry("-") for _ in range(4))])
        for key in keys:
            values = [r.evidence.get(key, 0.0) for r in records]
            figures = (float(np.mean(values)), min(values), max(values))
            numbers = [Entry(f"{v:,.4g}" if abs(v) < 1e4 else f"{v:,.0f}") for v in figures]
            body.append([Entry(row.label), Entry(acted_text(row)), Entry(counted(key)), *numbers])
    columns = [Column("cell", "left"), Column("acted", "left"), Column("what was counted", "left"),
               Column("mean of runs"), Column("lowest"), Column("highest")]  # fmt: skip
    never = any(did == 0 for r in cells for did, on in r.acted.values() if on)
    notes = ["a component that was on and NEVER acted: its cell says nothing about it"] if never else []
    return Table("Did the components act?", columns, body, notes, "evidence")


def counted(key: str) -> str:
    """A counter in words, with its name; just the name where its component isn't at hand or says nothing of it."""
    component, _, what = key.partition("/")
    if update := re.fullmatch(r"(clip|cap)/share_update_(\d+)", key):
        return f"share of tokens or answers bound by the {update[1]} in update {update[2]} on a batch ({key})"
    words = None
    if component in catalog.component_names():
        with contextlib.suppress(R3BenchError):  # a component of one's own that can't be loaded any more
            words = catalog.component(component).counted(what)
    return f"{words} ({key})" if words else key


def failure_table(results: Results) -> Table:
    """Every run that diverged, every one that something else ended, and every one that someone has left out."""
    lost = [(r, "diverged") for r in results.diverged] + [(r, "missing") for r in results.missing]
    lost += [(r, "excluded by hand") for r in results.excluded]
    body = [[Entry(r.run), Entry(what), Entry(str(r.seed)), Entry(r.reason or "-")] for r, what in lost]
    rule = {
        "base": "score as the untrained model (are left out where that was not measured)",
        "zero": "score 0",
        "drop": "are left out",
    }[results.declared.failed_score]
    notes = [f"runs that diverged {rule} in the primary analysis"] if results.diverged else []
    notes += [missing_note(results)] if results.missing else []
    columns = [Column("run", "left"), Column("outcome", "left"), Column("seed"), Column("reason", "left")]
    return Table("Runs without a usable model", columns, body, notes, "failures")


def provenance_table(results: Results) -> Table:
    """Run by run: what it was, from which code and configuration, on what, when."""
    body = []
    for run in results.runs:
        record = run.record
        values = (
            (record.commit, record.config_hash, record.train.device, record.started, record.ended) if record else ()
        )
        body.append([Entry(run.run), Entry(str(run.seed)), Entry(run.outcome),
                     *(Entry(v or "-") for v in (values or ("-",) * 5))])  # fmt: skip
    heads = ("run", "seed", "outcome", "commit", "configuration", "device", "started", "ended")
    return Table("Runs", [Column(h, "left") for h in heads], body, key="runs")
