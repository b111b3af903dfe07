"""The words of a report, made from the numbers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from r3bench.analysis.output.frame import many, points, with_interval
from r3bench.analysis.output.render import plain
from r3bench.analysis.output.tables import p_text
from r3bench.analysis.reading.study import run_folder
from r3bench.analysis.results import OFF_LEVELS, Results
from r3bench.analysis.statistics.cells import CellRow
from r3bench.analysis.statistics.effects import Effect
from r3bench.analysis.statistics.families import INTERACTIONS, OTHER, PRIMARY
from r3bench.analysis.statistics.power import Design, VarianceAssumptions, detectable_effects
from r3bench.analysis.statistics.prepare import MACRO, benchmark_sets, observed_factors, prepare
from r3bench.analysis.statistics.variance import assumptions_from
from r3bench.errors import StateError
from r3bench.files import read_json

NAMED = 3  # undecided effects that the answer names; of more it says how many


def default_question(results: Results) -> str:
    """What a grid asks, if its author did not say."""
    names = ", ".join(results.factors)
    if not results.factors:
        return f"How accurate is the model on {', '.join(results.benchmarks)}?"
    return f"Does each of {names} change accuracy on {', '.join(results.benchmarks)}, alone and given the others?"


def design_text(results: Results, headline: str) -> list[str]:
    """Grid, seeds, questions, and the smallest effect that it detects."""
    data = prepare(results, headline, benchmark_sets(results)[headline])
    trained = [r for r in results.runs if not r.base and r.outcome != "failed"]
    levels = "; ".join(f"{f}: {', '.join(v)}" for f, v in results.factors.items())
    text = [f"{many(len(results.cells), 'cell')} ({plain(levels, 500) or 'no factor'}), "
            f"{f'{len(trained)} of {results.planned} planned runs' if results.planned else many(len(trained), 'run')}, "
            f"{f'{len(results.excluded)} excluded by hand, ' if results.excluded else ''}"
            f"{many(len({r.seed for r in trained}), 'seed')}"]  # fmt: skip
    for name, scores in results.benchmarks.items():
        asked = sorted({int(k) for k in np.unique(scores.samples) if k})
        answers = f"{' or '.join(map(str, asked))} answer{'' if asked == [1] else 's'} each"
        text.append(f"{plain(name)}: {many(len(scores.questions), 'question')}, {answers}")
    if data is None or not results.factors:
        return text
    alpha = 1 - results.declared.confidence
    for name, scores in results.benchmarks.items():
        assumed = assumptions_from(results, name)
        source = "with this study's own variances" if assumed else "with typical variances assumed"
        factors = observed_factors(results, data.cells)
        seeds = int(data.runs_per_cell.min())
        cells = [dict(zip(factors, c, strict=True)) for c in data.cells]
        found = detectable_effects(
            [(assumed or VarianceAssumptions(), len(scores.questions))],
            Design(factors, cells, seeds, results.declared.variance, results.declared.blocks),
            samples=int(np.median(scores.samples[scores.samples > 0])), scope="like_these", alpha=alpha,
        )  # fmt: skip
        finite = {k: v for k, v in found.items() if np.isfinite(v)}
        if finite:
            parts = ", ".join(f"{k.replace('_', ' ')} {points(v)}" for k, v in finite.items())
            text.append(
                f"smallest effect detected on {plain(name)} (80 % power, p below {alpha:.2g}, {source}), in points: "
                + parts
            )
    return text


def answer_text(results: Results, top: Sequence[Effect], cells: Sequence[CellRow]) -> list[str]:
    """The answer in at most three sentences: what changes accuracy, which cell stands out, which runs are lost."""
    sentences = [t for t in (_changes(results, top), _standing(results, cells), _losses(results)) if t]
    return [plain(f"{t}.", 4000) for t in sentences] or ["Nothing is measured yet."]


def _changes(results: Results, top: Sequence[Effect]) -> str:
    """How many effects came out which way; those that are resolved are named, the others counted."""
    tested = [e for e in top if e.family in (PRIMARY, OTHER)]
    if not tested:
        return ""
    alpha = 1 - results.declared.confidence
    named: dict[str, list[str]] = {"up": [], "down": [], "negligible": [], "unresolved": []}
    for effect in tested:
        named[effect.verdict(alpha)].append(f"{_name(effect, tested)} ({points(effect.estimate, True)})")
    lead = {
        "up": "raised by",
        "down": "lowered by",
        "negligible": f"not changed beyond {points(results.declared.margin)} points by",
    }
    parts = [f"{lead[k]} {', '.join(named[k])}" for k in lead if named[k]]
    if named["unresolved"]:
        those = named["unresolved"]
        listed = f": {', '.join(those)}" if len(those) <= NAMED else ""
        parts.append(f"undecided for {len(those)} of {many(len(tested), 'effect')}{listed}")
    open_terms = {e.term for e in tested if e.verdict(alpha) == "unresolved"}
    if any(_leaves_out_zero(e) for e in top if e.term in open_terms):
        parts.append("an interval below that leaves out 0 all the same is not adjusted for several comparisons")
    headline = next(iter(benchmark_sets(results)))
    where = "the macro average" if headline == MACRO else headline
    return f"Accuracy on {where}, in points: {'; '.join(parts)}"


def _leaves_out_zero(effect: Effect) -> bool:
    part = effect.like_these
    return part.low is not None and part.high is not None and not part.low <= 0 <= part.high


def _name(effect: Effect, tested: Sequence[Effect]) -> str:
    """Its term, with its kind where two effects share the term."""
    shared = sum(e.term == effect.term for e in tested) > 1
    return f"{effect.term}, {effect.kind.replace('_', ' ')}" if shared else effect.term


def effect_texts(results: Results, top: Sequence[Effect]) -> list[str]:
    """Every tested effect of the headline benchmark in a sentence, as its row in the table has it."""
    tested = [e for e in top if e.family in (PRIMARY, OTHER)]
    alpha = 1 - results.declared.confidence
    sentences = []
    for effect in tested:
        part, name = effect.like_these, _name(effect, tested)
        size = f"{points(effect.estimate, True)} points"
        if part.low is not None and part.high is not None:
            size += f" ({points(part.low, True)} to {points(part.high, True)}, adjusted p {p_text(effect.p_adjusted)})"
        say = {
            "up": f"{name} raises accuracy by {size}",
            "down": f"{name} lowers accuracy: {size}",
            "negligible": f"{name} makes no difference beyond {points(results.declared.margin)} points: {size}",
            "unresolved": f"the effect of {name} is not resolved: {size}",
        }[effect.verdict(alpha)]
        sentences.append(say)
    clear = [e for e in top if e.family == INTERACTIONS and e.verdict(alpha) in ("up", "down")]
    if clear:
        sentences.append("effects depend on each other: " + ", ".join(
            f"{e.term} {points(e.estimate, True)}" for e in clear))  # fmt: skip
    return [plain(s, 1000) for s in sentences]


def _standing(results: Results, cells: Sequence[CellRow]) -> str:
    """Whether a cell beats all others, and what training alone gives."""
    parts = []
    best = next((r for r in cells if r.best), None)
    if len(results.cells) > 1:
        parts.append(
            f"{best.label} is shown to beat every other cell" if best else "No cell is shown to beat all others"
        )
    off = next((r for r in cells if r.gain_base is not None and _all_off(r)), None)
    if off is not None and off.gain_base is not None:
        parts.append(
            "training with everything off changes the untrained model by "
            f"{with_interval(off.gain_base.value, off.gain_base.like_these, True)} points"
        )
    parts += [
        f"{row.label} scores {points(row.accuracy.value)} points" for row in cells if row.accuracy and len(cells) < 3
    ]
    return "; ".join(parts)


def _losses(results: Results) -> str:
    trained = sum(not r.base for r in results.runs)
    lost = ((results.diverged, "diverged"), (results.missing, "are missing"))
    return "; ".join(f"{len(runs)} of {trained} runs {what}" for runs, what in lost if runs)


def _all_off(row: CellRow) -> bool:
    return bool(row.levels) and all(level.lower() in OFF_LEVELS for level in row.levels.values())


def environment_text(folder: Path | None, results: Results) -> list[str]:
    """The environment of the runs, and a warning where runs differ in their code."""
    commits = {r.record.commit for r in results.runs if r.record is not None}
    text = []
    if len(commits) > 1:
        text.append(f"the runs come from {len(commits)} commits: {', '.join(sorted(str(c) for c in commits))}")
    if folder is None:
        return [*text, "read from a table: no environment is known"]
    for run in results.runs:
        path = run_folder(folder, run.run) / "environment.json"
        if path.exists():
            try:
                record = read_json(path)
            except StateError:
                continue
            if not isinstance(record, dict):
                continue
            packages = record.pop("packages", {})
            record.pop("diff", None)  # pages of it; the file has it
            text.append(
                plain(", ".join(f"{k}: {v}" for k, v in record.items() if not isinstance(v, dict | list)), 1000)
            )
            if isinstance(packages, dict):
                text.append(plain("packages: " + ", ".join(f"{k} {v}" for k, v in sorted(packages.items())), 4000))
            break
    return text
