"""One self-contained HTML file about a study: question, answer, evidence, failures, provenance."""

import itertools
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from r3bench import __version__
from r3bench.analysis import plots
from r3bench.analysis.cells import CellRow, cell_rows
from r3bench.analysis.curves import Axis, Matched, cell_curves, matched
from r3bench.analysis.effects import Effect, effects
from r3bench.analysis.external import load_any
from r3bench.analysis.frame import Column, Entry, Table, count, decimal, points
from r3bench.analysis.lattice import contrasts
from r3bench.analysis.power import VarianceAssumptions, detectable_effects
from r3bench.analysis.prepare import benchmark_sets, observed_factors, prepare
from r3bench.analysis.render import plain, to_html
from r3bench.analysis.results import OFF_LEVELS, Results
from r3bench.analysis.study import load_study
from r3bench.analysis.tables import acted_text, p_text, study_tables
from r3bench.analysis.variance import assumptions_from, variance_table
from r3bench.errors import StateError
from r3bench.files import read_json, write_text

ANSWERS_SHOWN = 8  # sample answers in the report
ANSWER_LENGTH = 4000  # characters of one that are shown


@dataclass(frozen=True)
class Answer:
    """One sample answer, as text."""

    cell: str
    question: str
    verdict: str
    text: str


def write_report(study: Path, out: Path, *, figures: bool = True) -> Path:
    """Write the report of a study folder, or of a long table, as one HTML file; returns its path.

    Args:
        study: study folder, or a CSV or parquet file (see `external.load_table`).
        out: an `.html` file, or a folder for `report.html`.
        figures: also save every figure as PDF and PNG into `figures/` beside the report.

    Raises:
        StateError, DataError, ConfigError: see `load_study` and `load_table`.
    """
    study, out = Path(study), Path(out)
    results = load_study(study, metrics=True) if study.is_dir() else load_any(study)
    path = out if out.suffix == ".html" else out / "report.html"
    page, pictures = render_report(results, study if study.is_dir() else None)
    if figures:
        for picture in pictures:
            picture.save(path.parent / "figures")
    write_text(path, page)
    return path


def render_report(results: Results, folder: Path | None) -> tuple[str, list[plots.Picture]]:
    """The page and its figures.

    Args:
        results: with training logs for the learning curves.
        folder: study folder, for sample answers and environments; None for a table from elsewhere.
    """
    found, notes = effects(results)
    rows = cell_rows(results)
    headline = next(iter(benchmark_sets(results)))
    top = [e for e in found if e.benchmark == headline]
    cells = [r for r in rows if r.benchmark == headline]
    curves = cell_curves(results)
    pictures = [p for p in _pictures(results, top, cells, headline) if p is not None]
    tables = study_tables(results, rows, found, notes)
    page = Environment(
        loader=PackageLoader("r3bench.analysis"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    ).get_template("report.html")
    text = page.render(
        title=plain(results.name),
        version=__version__,
        question=plain(results.declared.question or default_question(results), 1000),
        design=design_text(results, headline),
        answer=answer_text(results, top, cells),
        pictures=[(p.name, p.caption, p.alt, Markup(p.svg())) for p in pictures],
        tables=[Markup(to_html(t)) for t in tables],
        matched=[Markup(to_html(matched_table(results, curves, axis))) for axis in ("tokens", "seconds")]
        if curves
        else [],
        variance=Markup(to_html(variance_html_table(results))),
        evidence=Markup(to_html(evidence_table(results, cells))) if any(r.acted for r in cells) else "",
        failures=Markup(to_html(failure_table(results))) if _lost(results) else "",
        provenance=Markup(to_html(provenance_table(results))),
        environment=environment_text(folder, results),
        answers=sample_answers(folder, results) if folder is not None else [],
        notes=[plain(n, 1000) for n in dict.fromkeys([*notes, *results.notes])],
    )
    return text, pictures


def default_question(results: Results) -> str:
    """What a grid asks, if its author did not say."""
    names = ", ".join(results.factors) or "the recipe"
    return f"Does each of {names} change accuracy on {', '.join(results.benchmarks)}, alone and given the others?"


def design_text(results: Results, headline: str) -> list[str]:
    """Grid, seeds, questions, and the smallest effect that it detects."""
    data = prepare(results, headline, benchmark_sets(results)[headline])
    trained = [r for r in results.runs if not r.base]
    levels = "; ".join(f"{f}: {', '.join(v)}" for f, v in results.factors.items())
    text = [f"{len(results.cells)} cells ({plain(levels, 500) or 'no factor'}), {len(trained)}"
            f"{f' of {results.planned} planned' if results.planned else ''} runs, "
            f"{len({r.seed for r in trained})} seeds"]  # fmt: skip
    for name, scores in results.benchmarks.items():
        asked = sorted({int(k) for k in np.unique(scores.samples) if k})
        text.append(f"{plain(name)}: {len(scores.questions)} questions, {'-'.join(map(str, asked))} answers each")
    if data is None or not results.factors:
        return text
    for name, scores in results.benchmarks.items():
        assumed = assumptions_from(results, name)
        source = "with this study's own variances" if assumed else "with typical variances assumed"
        factors = observed_factors(results, data.cells)
        found = detectable_effects(
            factors, [dict(zip(factors, c, strict=True)) for c in data.cells], questions=len(scores.questions),
            samples=int(np.median(scores.samples[scores.samples > 0])), seeds=int(data.runs_per_cell.min()),
            assumptions=assumed or VarianceAssumptions(), scope="like_these",
        )  # fmt: skip
        finite = {k: v for k, v in found.items() if np.isfinite(v)}
        if finite:
            parts = ", ".join(f"{k.replace('_', ' ')} {points(v)}" for k, v in finite.items())
            text.append(f"smallest effect detected on {plain(name)} (80 % power, 5 %, {source}), in points: {parts}")
    return text


def answer_text(results: Results, top: Sequence[Effect], cells: Sequence[CellRow]) -> str:
    """The answer in one paragraph, made from the numbers."""
    where = "the macro average" if len(results.benchmarks) > 1 else next(iter(results.benchmarks))
    sentences = []
    for effect in (e for e in top if e.kind == "main"):
        part = effect.like_these
        size = f"{points(effect.estimate, True)} points"
        if part.low is not None and part.high is not None:
            size += f" ({points(part.low, True)} to {points(part.high, True)}, adjusted p {p_text(effect.p_adjusted)})"
        say = {
            "up": f"{effect.term} raises accuracy by {size}",
            "down": f"{effect.term} lowers accuracy: {size}",
            "negligible": f"{effect.term} makes no difference beyond {points(results.declared.margin)} points: {size}",
            "unresolved": f"the effect of {effect.term} is not resolved: {size}",
        }[effect.verdict(1 - results.declared.confidence)]
        sentences.append(say)
    clear = [e for e in top if e.kind == "interaction" and e.verdict() in ("up", "down")]
    if clear:
        sentences.append("effects depend on each other: " + ", ".join(
            f"{e.term} {points(e.estimate, True)}" for e in clear))  # fmt: skip
    best = next((r for r in cells if r.best), None)
    off = next((r for r in cells if r.gain_base is not None and _all_off(r)), None)
    if off is not None and off.gain_base is not None:
        sentences.append(
            f"training with everything off changes the untrained model by {points(off.gain_base.value, True)} points"
        )
    sentences.append(f"the best cell is {best.label}" if best else "no cell is shown to beat all others")
    lost = len(_lost(results))
    if lost:
        sentences.append(f"{lost} of {sum(not r.base for r in results.runs)} runs diverged or failed")
    return plain(f"On {where}: " + "; ".join(sentences) + ".", 4000)


def _all_off(row: CellRow) -> bool:
    return bool(row.levels) and all(level in OFF_LEVELS for level in row.levels.values())


def _lost(results: Results) -> list[Any]:
    return [r for r in results.runs if r.outcome != "finished"]


def _pictures(
    results: Results, top: Sequence[Effect], cells: Sequence[CellRow], headline: str
) -> list[plots.Picture | None]:
    curves = cell_curves(results)
    return [
        plots.forest(top, results.declared.margin),
        plots.heat_map(top),
        plots.learning_curves(curves, "tokens"),
        plots.learning_curves(curves, "seconds"),
        plots.accuracy_and_length(cells),
        plots.question_differences(question_contrasts(results, headline)),
        plots.half_normal(orthogonal_contrasts(results, headline)),
    ]


def question_contrasts(results: Results, headline: str) -> dict[str, np.ndarray]:
    """Main effect per question: term -> (Q,), benchmarks of a macro average one after the other."""
    data = prepare(results, headline, benchmark_sets(results)[headline])
    if data is None:
        return {}
    found, _ = contrasts(observed_factors(results, data.cells), data.cells, data.runs_per_cell.tolist())
    main = [c for c in found if c.kind == "main"]
    if not main:
        return {}
    weights = np.stack([c.weights for c in main]) @ data.cell_weights()
    joined = np.concatenate([weights @ y for y in data.scores], axis=1)
    return {c.term: joined[i] for i, c in enumerate(main)}


def orthogonal_contrasts(results: Results, headline: str) -> dict[str, float]:
    """All 2^m - 1 effects of a complete two-level grid, in main-effect scaling; empty for any other grid."""
    data = prepare(results, headline, benchmark_sets(results)[headline])
    if data is None:
        return {}
    factors = {f: v for f, v in observed_factors(results, data.cells).items() if len(v) > 1}
    if any(len(v) != 2 for v in factors.values()) or len(data.cells) != 2 ** len(factors):
        return {}
    position = list(results.factors)
    means = data.cell_weights() @ (sum(y.mean(axis=1) for y in data.scores) / len(data.scores))
    signs = {f: np.array([1 if c[position.index(f)] == v[1] else -1 for c in data.cells]) for f, v in factors.items()}
    found = {}
    for order in range(1, len(factors) + 1):
        for chosen in itertools.combinations(factors, order):
            found[":".join(chosen)] = float(np.prod([signs[f] for f in chosen], axis=0) @ means / (len(means) / 2))
    return found


def matched_table(results: Results, curves: Mapping[str, Sequence[Any]], axis: Axis) -> Table:
    """Cells at the same budget: area under the training curve, and where they reach the baseline's peak."""
    baseline = next((results.label(c) for c in results.cells if results.label(c) in curves), None)
    found, budget = matched(curves, axis, baseline, results.declared.confidence)
    unit = "generated tokens" if axis == "tokens" else "device seconds"

    def span(low: float | None, high: float | None, say: Any) -> str:
        return "" if low is None or high is None else f" ({say(low)} to {say(high)})"

    def row(m: Matched) -> list[Entry]:
        reached = count(m.to_peak) + span(m.to_peak_low, m.to_peak_high, count)
        area = f"{m.area:.3f}" + span(m.area_low, m.area_high, lambda v: f"{v:.3f}")
        return [Entry(m.label), Entry(area), Entry(f"{m.reached}/{m.runs}"), Entry(reached)]

    columns = [Column("cell", "left"), Column(f"mean training accuracy up to {count(budget)} {unit}"),
               Column("runs that reach the baseline's peak"), Column(f"{unit} to get there")]  # fmt: skip
    notes = [f"baseline: {baseline}; intervals over seeds; the mean is over the runs that get there"]
    return Table(f"At matched {unit}", columns, [row(m) for m in found], notes, f"matched-{axis}")


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
            notes.append(f"{benchmark}: runs that share a seed are alike? p = {p_text(record['seed_block_p'])}")
    columns = [Column("benchmark", "left"), *(Column(n) for n in names.values())]
    return Table("Where the noise comes from (standard deviations, points)", columns, body, notes, "variance")


def evidence_table(results: Results, cells: Sequence[CellRow]) -> Table:
    """What the components' own counters say, totals averaged over a cell's runs."""
    body = []
    for row in (r for r in cells if r.acted):
        records = [r.record.train for r in results.runs if r.run in row.runs and r.record is not None]
        keys = sorted({k for r in records for k in r.evidence})
        shown = ", ".join(f"{k} {np.mean([r.evidence.get(k, 0.0) for r in records]):,.4g}" for k in keys)
        body.append([Entry(row.label), Entry(acted_text(row)), Entry(plain(shown, 190))])
    columns = [Column("cell", "left"), Column("acted", "left"), Column("totals per run", "left")]
    notes = ["a component that was on and NEVER acted leaves its cell equal to the one without it"]
    return Table("Did the components act?", columns, body, notes, "evidence")


def failure_table(results: Results) -> Table:
    """Every run that diverged or failed."""
    body = [[Entry(r.run), Entry(r.outcome), Entry(str(r.seed)), Entry(r.reason or "-")] for r in _lost(results)]
    rule = {"base": "as the untrained model", "zero": "zero", "drop": "not at all"}[results.declared.failed_score]
    columns = [Column("run", "left"), Column("outcome", "left"), Column("seed"), Column("reason", "left")]
    return Table(
        "Runs without a usable model", columns, body, [f"they score {rule} in the primary analysis"], "failures"
    )


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


def environment_text(folder: Path | None, results: Results) -> list[str]:
    """The environment of the runs, and a warning where runs differ in their code."""
    commits = {r.record.commit for r in results.runs if r.record is not None}
    text = []
    if len(commits) > 1:
        text.append(f"the runs come from {len(commits)} commits: {', '.join(sorted(str(c) for c in commits))}")
    if folder is None:
        return [*text, "read from a table: no environment is known"]
    for run in results.runs:
        path = folder / run.run / "environment.json"
        if path.exists():
            try:
                record = read_json(path)
            except StateError:
                continue
            packages = record.pop("packages", {}) if isinstance(record, dict) else {}
            text.append(
                plain(", ".join(f"{k}: {v}" for k, v in record.items() if not isinstance(v, dict | list)), 1000)
            )
            if isinstance(packages, dict):
                text.append(plain("packages: " + ", ".join(f"{k} {v}" for k, v in sorted(packages.items())), 4000))
            break
    return text


def sample_answers(folder: Path, results: Results) -> list[Answer]:
    """A right and a wrong answer from a few cells; hostile text is shown as text."""
    task = next(iter(results.benchmarks))
    found: list[Answer] = []
    shown: set[str] = set()
    for run, index in zip(results.runs, results.cell_of, strict=True):
        label = "untrained model" if run.base else results.label(results.cells[index])
        shards = sorted((folder / run.run / "eval" / task).glob("*.parquet"))
        if label in shown or not shards or len(found) >= ANSWERS_SHOWN:
            continue
        shown.add(label)
        columns = ["question", "response", "gold", "extracted", "correct", "tokens", "truncated"]
        file = pq.ParquetFile(shards[0])
        rows = next(file.iter_batches(batch_size=64, columns=columns)).to_pylist()
        for wanted in (True, False):
            row = next((r for r in rows if bool(r["correct"]) is wanted), None)
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
