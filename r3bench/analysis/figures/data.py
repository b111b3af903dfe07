"""Which figures a study has, and the numbers behind them."""

import itertools
from collections.abc import Sequence

import numpy as np

from r3bench.analysis.figures import effect_plots, plots
from r3bench.analysis.results import Results
from r3bench.analysis.statistics.cells import BASE_LABEL, CellRow
from r3bench.analysis.statistics.curves import SOLVED, cell_curves, curve_notes
from r3bench.analysis.statistics.effects import Effect
from r3bench.analysis.statistics.lattice import contrasts
from r3bench.analysis.statistics.prepare import benchmark_sets, observed_factors, prepare


def pictures_of(
    results: Results, top: Sequence[Effect], cells: Sequence[CellRow], headline: str
) -> list[plots.Picture | None]:
    curves = cell_curves(results)
    notes = curve_notes(results, curves) if curves else []
    confidence = results.declared.confidence
    runs = run_accuracies(results, headline)
    orthogonal = orthogonal_contrasts(results, headline)
    styles = plots.cell_styles([*(r.label for r in cells), *curves])
    return [
        effect_plots.forest(top, results.declared.margin, confidence),
        effect_plots.heat_map(top, 1 - confidence),
        plots.accuracies(cells, runs, confidence),
        plots.learning_curves(curves, "tokens", notes, confidence, styles),
        plots.learning_curves(curves, "seconds", notes, confidence, styles),
        plots.learning_curves(cell_curves(results, (SOLVED,)), "tokens", (), confidence, styles),
        plots.accuracy_and_length(cells, runs, confidence),
        plots.question_differences(question_contrasts(results, headline)),
        plots.half_normal({":".join(t): v for t, v in orthogonal.items()}, {":".join(t): len(t) for t in orthogonal}),
    ]


def run_accuracies(results: Results, headline: str) -> dict[str, list[float]]:
    """Cell label -> accuracy of each of its runs, as analysed, and of the untrained model."""
    data = prepare(results, headline, benchmark_sets(results)[headline], base_alone=True)
    found: dict[str, list[float]] = {}
    if data is None:
        return found
    means = sum(y.mean(axis=1) for y in data.scores) / len(data.scores)
    for mean, cell in zip(means.tolist(), data.cell_of.tolist(), strict=True):
        found.setdefault(BASE_LABEL if cell < 0 else results.label(data.cells[cell]), []).append(mean)
    return found


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


def orthogonal_contrasts(results: Results, headline: str) -> dict[tuple[str, ...], float]:
    """All 2^m - 1 effects of a complete two-level grid, in main-effect scaling: factors -> size.

    In this scaling all have the same noise; an effect of k factors is 2^(k-1) times as large in tables. Empty for any
    other grid.
    """
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
            found[chosen] = float(np.prod([signs[f] for f in chosen], axis=0) @ means / (len(means) / 2))
    return found
