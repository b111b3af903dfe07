"""One figure of a study by its kind, made from the results."""

from collections.abc import Sequence

from r3bench.analysis.comparing.heldout import Cost, held_out
from r3bench.analysis.figures import effect_plots, plots
from r3bench.analysis.figures.data import orthogonal_contrasts, question_contrasts, run_accuracies
from r3bench.analysis.figures.kinds import KINDS, NEEDS, kind_of
from r3bench.analysis.figures.score_plots import at_k_curves, held_out_curves
from r3bench.analysis.output.at_k import Score, at_k, most_answers
from r3bench.analysis.results import Results
from r3bench.analysis.statistics.cells import cell_rows
from r3bench.analysis.statistics.curves import SOLVED, cell_curves, curve_notes
from r3bench.analysis.statistics.effects import effects
from r3bench.analysis.statistics.prepare import benchmark_sets
from r3bench.errors import ConfigError, StateError, nearest


def picture(
    results: Results, name: str, benchmark: str | None = None, ks: Sequence[int] | None = None
) -> plots.Picture:
    """One figure.

    Args:
        results: with training logs for the curves.
        name: see `KINDS`.
        benchmark: a benchmark or 'macro'; None: the headline, of held-out curves the first with measured checkpoints.
        ks: of pass@k and maj@k; None: 1, 2, 4, ... and all answers.

    Raises:
        ConfigError: no such figure, or a choice that isn't about it.
        StateError: no such benchmark, or the results don't hold what it shows.
    """
    kind, sets = kind_of(name), benchmark_sets(results)
    if benchmark is not None and benchmark not in sets:
        raise StateError(f"{results.name}: no benchmark '{benchmark}'{nearest(benchmark, sets)}")
    if ks is not None and not kind.endswith("-at-k"):
        raise ConfigError(f"--k is about pass-at-k and maj-at-k, not {kind}")
    if benchmark is not None and kind.startswith(("curves-", "solved-")):
        raise ConfigError(f"--benchmark: {kind} is of training questions, not of {benchmark}")
    found = _drawn(results, kind, benchmark, ks)
    if found is None:
        have = ", ".join(available(results, benchmark)) or "none"
        raise StateError(f"{results.name}: no figure '{kind}': it needs {NEEDS[kind]} (there are {have})")
    return found


def available(results: Results, benchmark: str | None = None) -> list[str]:
    """The kinds that these results have a figure of."""
    return [kind for kind in KINDS if _has(results, kind, benchmark)]


def _has(results: Results, kind: str, benchmark: str | None) -> bool:
    try:
        return _drawn(results, kind, benchmark, None) is not None
    except StateError:  # says what is missing
        return False


def _drawn(results: Results, kind: str, benchmark: str | None, ks: Sequence[int] | None) -> plots.Picture | None:
    headline = benchmark if benchmark is not None else next(iter(benchmark_sets(results)))
    confidence = results.declared.confidence
    if kind.startswith("heldout-"):
        return held_out_picture(results, "tokens" if kind == "heldout-tokens" else "seconds", benchmark)
    if kind.endswith("-at-k"):
        return at_k_picture(results, "pass" if kind == "pass-at-k" else "maj", headline, ks)
    if kind in ("effects", "interactions"):
        top = [e for e in effects(results, draws=0)[0] if e.benchmark == headline]
        if kind == "effects":
            return effect_plots.forest(top, results.declared.margin, confidence)
        return effect_plots.heat_map(top, 1 - confidence)
    if kind == "questions":
        return plots.question_differences(question_contrasts(results, headline))
    if kind == "half-normal":
        found = orthogonal_contrasts(results, headline)
        return plots.half_normal({":".join(t): v for t, v in found.items()}, {":".join(t): len(t) for t in found})
    if kind in ("accuracy", "length"):
        rows = [r for r in cell_rows(results) if r.benchmark == headline]
        draw = plots.accuracies if kind == "accuracy" else plots.accuracy_and_length
        return draw(rows, run_accuracies(results, headline), confidence)
    styles = plots.cell_styles([results.label(c) for c in results.cells])
    if kind == "solved-tokens":
        return plots.learning_curves(cell_curves(results, (SOLVED,)), "tokens", (), confidence, styles)
    curves = cell_curves(results)
    notes = curve_notes(results, curves) if curves else []
    return plots.learning_curves(curves, "tokens" if kind == "curves-tokens" else "seconds", notes, confidence, styles)


def at_k_picture(
    results: Results, score: Score, benchmark: str, ks: Sequence[int] | None = None
) -> plots.Picture | None:
    """pass@k or maj@k on a benchmark; None where it has one answer to a question. Errors of `at_k`."""
    if min((most_answers(results).get(m, 0) for m in benchmark_sets(results)[benchmark]), default=0) < 2:
        return None
    rows = [r for r in at_k(results, score, ks) if r.benchmark == benchmark]
    return at_k_curves(rows, results.declared.confidence, plots.cell_styles([results.label(c) for c in results.cells]))


def held_out_picture(results: Results, cost: Cost, benchmark: str | None = None) -> plots.Picture | None:
    """Held-out accuracy along training; None without measured checkpoints."""
    found = held_out(results.folder, results, benchmark) if results.folder is not None else None
    if found is None:
        return None
    styles = plots.cell_styles([results.label(c) for c in results.cells])
    return held_out_curves(found, cost, results.declared.confidence, styles)
