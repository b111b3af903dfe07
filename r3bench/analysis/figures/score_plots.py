"""Figures of scores against a budget: pass@k and maj@k against k, held-out accuracy against the cost of training."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from r3bench.analysis.comparing.heldout import Cost, HeldOut, Measured
from r3bench.analysis.figures.plots import Picture, Style, band_alpha, cell_styles, distinct, key
from r3bench.analysis.output.at_k import AtK
from r3bench.analysis.statistics.cells import BASE_LABEL
from r3bench.analysis.statistics.distributions import t_quantile

POINTS = 60  # of a cell's line
BANDS = 6  # cells up to which intervals are bands
SPREAD = 0.5  # doublings of k over which the bars of more cells stand


def at_k_curves(rows: Sequence[AtK], confidence: float, styles: Mapping[str, Style] | None = None) -> Picture | None:
    """pass@k or maj@k of every cell on one benchmark against k, with its intervals and a dot per run."""
    ks = sorted({r.k for r in rows})
    if len(ks) < 2:
        return None
    score = rows[0].score
    ends = {label: (own[0], own[-1]) for label in dict.fromkeys(r.label for r in rows)
            if (own := [r for r in rows if r.label == label])}  # fmt: skip
    words = {label: f"{label} {100 * a.value.value:.1f} at k = {a.k} to {100 * b.value.value:.1f} at k = {b.k}"
             for label, (a, b) in ends.items()}  # fmt: skip
    far = _far([r for r in rows if r.base], [r for r in rows if not r.base])
    rows = [r for r in rows if not (far and r.base)]
    cells = {label: [r for r in rows if r.label == label] for label in dict.fromkeys(r.label for r in rows)}
    look = styles or cell_styles(list(cells))

    def paint(axes: Axes) -> None:
        name = distinct(list(cells))
        for place, (label, own) in enumerate(cells.items()):
            # bars of many cells stand beside each other
            aside = 0.0 if len(cells) <= BANDS else SPREAD * (place / (len(cells) - 1) - 0.5)
            style, x = look[label], [r.k * 2**aside for r in own]
            parts = [r.value.like_these for r in own]
            if all(p.low is not None and p.high is not None for p in parts):
                low, high = [100 * (p.low or 0.0) for p in parts], [100 * (p.high or 0.0) for p in parts]
                if len(cells) <= BANDS:
                    axes.fill_between(x, low, high, color=style.colour, alpha=0.12, linewidth=0)
                else:
                    axes.vlines(x, low, high, color=style.colour, linewidth=0.6)
            axes.plot(x, [100 * r.value.value for r in own], style.dash, color=style.colour, marker=style.marker,
                      markersize=4, linewidth=1.2, label=name[label])  # fmt: skip
            dots = [(at, 100 * v) for at, r in zip(x, own, strict=True) for v in r.runs]
            axes.plot(*zip(*dots, strict=True), ".", color=style.colour, markersize=3.5, alpha=0.55)
        axes.set_xscale("log", base=2)
        axes.set_xticks(ks, [str(k) for k in ks])
        axes.minorticks_off()
        axes.set_ylim(max(axes.get_ylim()[0], -2.0), min(axes.get_ylim()[1], 102.0))
        axes.set_xlabel("k, answers to a question")
        axes.set_ylabel(f"{score}@k, points")
        key(axes)

    what = {"pass": "that k answers hold a right one", "maj": "that the most frequent of k answers is right"}[score]
    caption = f"{score}@k: the chance {what}. Dots: single runs"
    if any(r.value.like_these.low is not None for r in rows):
        what = "bands" if len(cells) <= BANDS else "bars"
        caption += f"; {what}: {100 * confidence:g} % intervals on questions like these, each by itself"
    caption += f". Not drawn, far away: the {words[BASE_LABEL].replace(BASE_LABEL, f'{BASE_LABEL},')}" if far else ""
    alt = f"{score}@k in points: {'; '.join(words.values())}."
    return Picture(f"{score}-at-k", f"{caption}.", alt, paint, (6.4, 3.4), of_cells=True)


def _far(base: Sequence[AtK], trained: Sequence[AtK]) -> bool:
    """Whether on one scale with the untrained model the trained cells would lie on top of each other."""
    if not base or not trained:
        return False
    parts = [(r.value.like_these.low, r.value.like_these.high) for r in trained]
    found = [v for part in parts for v in part if v is not None] + [
        v for r in trained for v in (r.value.value, *r.runs)
    ]
    most = max(r.value.value for r in base)
    return min(found) - most > 2 * max(max(found) - min(found), 0.02)


def held_out_curves(
    found: HeldOut, cost: Cost, confidence: float, styles: Mapping[str, Style] | None = None
) -> Picture:
    """Held-out accuracy of every cell along training: its mean with a band over seeds, a dot per measured point."""
    look = styles or cell_styles(list(found.cells))
    unit = {"tokens": "generated tokens", "seconds": "device seconds"}[cost]

    def paint(axes: Axes) -> None:
        name = distinct(list(found.cells))
        for label, runs in found.cells.items():
            style = look[label]
            for run in runs:
                axes.plot(getattr(run, cost), 100 * run.accuracy, ".-", color=style.colour, markersize=4, linewidth=0.5,
                          alpha=0.55)  # fmt: skip
            x, mean, half = _band(runs, cost, confidence)
            axes.plot(x, 100 * mean, style.dash, color=style.colour, marker=style.marker, markersize=4,
                      markevery=max(len(x) - 1, 1), label=name[label])  # fmt: skip
            if half is not None:
                low, high = np.clip([mean - half, mean + half], 0.0, 1.0)
                axes.fill_between(x, 100 * low, 100 * high, color=style.colour, alpha=band_alpha(len(found.cells)),
                                  linewidth=0)  # fmt: skip
        axes.set_xlabel(unit)
        axes.set_ylabel("held-out accuracy, points")
        key(axes)

    caption = (
        f"Accuracy on {found.questions} held-out questions of {found.benchmark} against {unit}, at the kept "
        "checkpoints that were measured. Dots and thin lines: single runs"
    )
    if any(len(runs) > 1 for runs in found.cells.values()):
        caption += f"; bands: pointwise {100 * confidence:g} % intervals over seeds, on exactly these questions"
    words = "; ".join(
        f"{label} ends at {100 * np.mean([r.accuracy[-1] for r in runs]):.1f}" for label, runs in found.cells.items()
    )
    return Picture(f"heldout-{cost}", f"{caption}.", f"Held-out accuracy in points against {unit}: {words}.", paint,
                   (6.4, 3.4), of_cells=True)  # fmt: skip


def _band(runs: Sequence[Measured], cost: Cost, confidence: float) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """(P,) grid, mean and half width over the stretch that all runs cover; one point where they have none in common."""
    xs = [getattr(run, cost) for run in runs]
    start, end = max(float(x[0]) for x in xs), min(float(x[-1]) for x in xs)
    grid = np.linspace(min(start, end), end, POINTS if start < end else 1)
    values = np.stack([np.interp(grid, x, run.accuracy) for x, run in zip(xs, runs, strict=True)])
    if len(runs) < 2:
        return grid, values.mean(axis=0), None
    half = float(t_quantile(0.5 + confidence / 2, len(runs) - 1)) * values.std(axis=0, ddof=1) / np.sqrt(len(runs))
    return grid, values.mean(axis=0), half
