"""Figures of effects: all of them with their intervals, and the two-way interactions."""

from collections.abc import Sequence
from itertools import pairwise

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from r3bench.analysis.figures.plots import COLOURS, MARKERS, Picture, distinct, padded, short
from r3bench.analysis.statistics.effects import Effect

AGAIN = 2.0  # effects that reach so many times as far as the next don't set the scale
KINDS = ("main", "leave_one_out", "add_one", "shapley")
LEGIBLE = 4.5  # points of the smallest type


def forest(found: Sequence[Effect], margin: float, confidence: float = 0.95) -> Picture | None:
    """Effects with both intervals: thick on these questions, thin on questions like these."""
    rows = [e for kind in KINDS for e in found if e.kind == kind and e.same_as is None]
    if not rows:
        return None
    limits = _scale(rows, 100 * margin)

    def named() -> list[str]:
        name = distinct([e.term for e in rows])
        return [f"{name[e.term]} ({e.kind.replace('_', ' ')})" for e in rows]

    def paint(axes: Axes) -> None:
        if limits is not None:
            axes.set_xlim(*limits)
        axes.axvspan(-100 * margin, 100 * margin, color="#7f7f7f", alpha=0.18, linewidth=0)
        axes.axvline(0, color=matplotlib.rcParams["axes.edgecolor"], linewidth=0.8)
        for y, effect in enumerate(rows):
            at = KINDS.index(effect.kind)
            _effect_line(axes, y, effect, COLOURS[at], MARKERS[at], limits)
        axes.set_yticks(range(len(rows)), named())
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlabel("effect on accuracy, points")

    words = "; ".join(f"{n} {100 * e.estimate:+.1f}" for n, e in zip(named(), rows, strict=True))
    caption = "Effects."
    if any(e.like_these.low is not None for e in rows):
        caption += f" Thin line: {100 * confidence:g} % interval on questions like these."
    if any(e.these.low is not None for e in rows):
        caption += f" Thick: {100 * confidence:g} % interval on exactly these questions."
    caption += (
        f" Grey band: the equivalence margin, +-{100 * margin:.1f} points. Colour and mark: the kind in brackets."
    )
    if limits is not None:
        caption += " Arrows: beyond the scale, as far as the number says."
    size = (6.4, 0.9 + 0.26 * len(rows))
    return Picture("effects", caption, f"Forest plot of effects in points: {words}.", paint, size, len(rows))


def _ends(effect: Effect) -> list[float]:
    """Estimate and limits, in points."""
    ends = (effect.like_these.low, effect.like_these.high, effect.these.low, effect.these.high)
    return [100 * v for v in (effect.estimate, *ends) if v is not None]


def _scale(rows: Sequence[Effect], margin: float) -> tuple[float, float] | None:
    """Limits of the axis where some effects would flatten the others: those of the others; None where none would."""
    reach = [max(1.2 * margin, *map(abs, _ends(e))) for e in rows]
    steps = sorted(reach)
    most = next((r for r, n in pairwise(steps[(len(steps) - 1) // 2 :]) if n > AGAIN * r), None)
    if most is None:
        return None
    kept = [v for e, r in zip(rows, reach, strict=True) if r <= most for v in _ends(e)]
    return padded([*kept, -1.2 * margin, 1.2 * margin])


def _effect_line(
    axes: Axes, y: float, effect: Effect, colour: str, marker: str, limits: tuple[float, float] | None = None
) -> None:
    """An estimate with both intervals: thin on questions like these, thick on exactly these.

    What lies beyond the limits is cut there: an arrow, and how far it goes.
    """
    low, high = limits or (-np.inf, np.inf)
    for part, width in ((effect.like_these, 1.2), (effect.these, 4.0)):
        if part.low is not None and part.high is not None:
            axes.plot(np.clip([100 * part.low, 100 * part.high], low, high), [y, y], color=colour, linewidth=width,
                      solid_capstyle="butt", alpha=1 if width < 2 else 0.45)  # fmt: skip
    estimate = 100 * effect.estimate
    if low <= estimate <= high:
        axes.plot(estimate, y, marker, color=colour, markersize=5)
    for side, arrow, limit, align in ((min, "<", low, "left"), (max, ">", high, "right")):
        end = side(_ends(effect))
        if low <= end <= high:
            continue
        axes.plot(limit, y, arrow, color=colour, markersize=5, clip_on=False)
        said = f"{end:+.1f}" if low <= estimate <= high else f"{estimate:+.1f}, to {end:+.1f}"
        said = f"{estimate:+.1f}" if end == estimate else said
        axes.annotate(said, (limit, y), (4 if align == "left" else -4, 3), textcoords="offset points", ha=align,
                      fontsize=7)  # fmt: skip


def heat_map(found: Sequence[Effect], alpha: float = 0.05) -> Picture | None:
    """Two-way interactions as a coloured, labelled matrix, starred where the adjusted p is below `alpha`; a single one
    with its intervals."""
    pairs = [e for e in found if e.kind == "interaction"]
    names = list(dict.fromkeys(t for e in pairs for t in e.parts))
    if not pairs:
        return None
    matrix = np.full((len(names), len(names)), np.nan)
    for effect in pairs:
        i, j = (names.index(t) for t in effect.parts)
        matrix[max(i, j), min(i, j)] = 100 * effect.estimate
    starred = {frozenset(e.parts) for e in pairs if e.p_adjusted is not None and e.p_adjusted < alpha}

    def paint_one(axes: Axes) -> None:
        axes.axvline(0, color=matplotlib.rcParams["axes.edgecolor"], linewidth=0.8)
        _effect_line(axes, 0, pairs[0], COLOURS[0], MARKERS[0])
        axes.set_yticks([0], [short(pairs[0].term)])
        axes.set_xlabel("interaction, points")

    def paint(axes: Axes) -> None:
        limit = max(float(np.nanmax(np.abs(matrix))), 0.1)
        room = 72 * 0.5 * axes.figure.get_size_inches()[0] / (len(names) - 1)  # type: ignore[union-attr]
        size = min(9.0, room / 3.2)  # of the numbers; where they can't be read, the colours say it
        image = axes.imshow(matrix[1:, :-1], cmap="PuOr", vmin=-limit, vmax=limit)
        for i in range(1, len(names)):
            for j in range(i):
                if np.isfinite(matrix[i, j]):
                    mark = " *" if frozenset((names[i], names[j])) in starred else ""
                    shade = "white" if abs(matrix[i, j]) > 0.6 * limit else "black"
                    said = f"{matrix[i, j]:+.1f}{mark}" if size >= LEGIBLE else mark.strip()
                    axes.text(j, i - 1, said, ha="center", va="center", color=shade, fontsize=max(size, LEGIBLE))
        shown = list(distinct(names, 20).values())
        axes.set_xticks(range(len(names) - 1), shown[:-1], rotation=30, ha="right")
        axes.set_yticks(range(len(names) - 1), shown[1:])
        axes.figure.colorbar(image, ax=axes, label="interaction, points", shrink=0.8)

    side = 2.2 + 0.75 * len(names)
    words = "; ".join(f"{e.term} {100 * e.estimate:+.1f}" for e in pairs)
    caption = "Two-way interactions: by how much one factor's effect changes when the other is at the named level."
    caption += f" * adjusted p < {alpha:.2g}." if starred else f" No adjusted p is below {alpha:.2g}."
    alt = f"Two-way interactions in points: {words}."
    if len(pairs) == 1:  # a matrix of one field shows nothing
        return Picture("interactions", caption, alt, paint_one, (6.4, 1.2), 1)
    return Picture("interactions", caption, alt, paint, (side, 0.75 * side))
