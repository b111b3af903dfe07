"""The figures of a report, drawn once and saved as inline SVG, PDF and PNG."""

import io
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from r3bench.analysis.letters import families, lacking
from r3bench.analysis.output.render import plain
from r3bench.analysis.statistics.cells import BASE_LABEL, CellRow
from r3bench.analysis.statistics.curves import SOLVED, Axis, RunCurve, band
from r3bench.files import write_bytes

INK = "#010203"  # stands for the page's text colour in SVG, so that figures follow light and dark
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7f7f7f")  # Okabe and Ito
MARKERS, DASHES = "osD^vPX", ("-", "--", "-.", ":")  # so that colour is never the only difference
STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "r3bench", "font.size": 9, "font.family": "sans-serif",
    "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10, "legend.frameon": False,
    "text.parse_math": False,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}  # fmt: skip
PRINT_INK = "#222222"


# characters of a label: what is longer loses its middle
longest: ContextVar[int] = ContextVar("longest", default=40)
FEW = 6  # cells or effects, up to which their key stands inside a figure
BELOW = 0.22  # rows by which a run's dot lies below its cell's bar
MOST_FAR = 3  # one cell in so many may lie beyond the scale of the others


def band_alpha(cells: int) -> float:
    """How opaque a band is, so that many on top of each other don't hide the lines."""
    return 0.15 * min(1.0, 6 / cells)


def short(text: str, most: int | None = None) -> str:
    """A label in one line. Names of cells differ at their ends as often as at their beginnings."""
    text, most = plain(text, 1000), most or longest.get()
    return text if len(text) <= most else f"{text[: most - most // 2 - 1].rstrip()}…{text[-(most // 2) :].lstrip()}"


def distinct(labels: Sequence[str], most: int | None = None) -> dict[str, str]:
    """Label -> how it is shown: `short`, but long enough to be told apart from the others."""
    most = most or longest.get()
    shown = {label: short(label, most) for label in labels}
    while most < 1000 and (same := {text for text, n in Counter(shown.values()).items() if n > 1}):
        most = most * 4 // 3
        shown = {label: short(label, most) if text in same else text for label, text in shown.items()}
    return shown


def key(axes: Axes) -> None:
    """The key of a figure: inside where it is small, else below, where it covers nothing."""
    labels = axes.get_legend_handles_labels()[1]
    widest = max(map(len, labels), default=0)
    if len(labels) <= FEW and widest <= longest.get() // 2 + FEW:
        axes.legend(fontsize=8)
    else:
        columns = max(1, 100 // (widest + 6))
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=min(columns, len(labels)))


@dataclass(frozen=True)
class Picture:
    """One figure of a report."""

    name: str  # file name without suffix
    caption: str
    alt: str  # what it shows, in words and numbers
    paint: Callable[[Axes], None]  # called once per colour scheme
    size: tuple[float, float]  # width, height in inches
    rows: int = 0  # labels on its vertical axis, where it has a row for each
    of_cells: bool = False  # its legend names cells, as the page's one key does: inline it is left out

    def draw(self, axes: Axes | None = None) -> Figure:
        """The figure: a new one, or that of `axes`, into which it is drawn."""
        axes = Figure(figsize=self.size).subplots() if axes is None else axes
        self.paint(axes)
        return axes.figure  # type: ignore[return-value]

    def svg(self) -> str:
        """Inline SVG without declarations; ids are made unique, text stays text in the page's colour."""
        with matplotlib.rc_context(STYLE), lacking():  # the reader's browser has its own fonts
            out = io.StringIO()
            figure = self.draw()
            for axes in figure.axes if self.of_cells else ():
                if (legend := axes.get_legend()) is not None:
                    legend.remove()
            figure.savefig(out, format="svg", transparent=True, bbox_inches="tight", metadata={"Date": None})
        text = out.getvalue()
        opening = re.search(r"<svg [^>]*>", text)
        box = re.search(r'viewBox="0 0 ([0-9.]+) [0-9.]+"', text)
        if opening is None or box is None:
            raise ValueError("matplotlib wrote no <svg> with a viewBox")
        text = text[opening.end() :]
        text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.S)
        text = re.sub(r'\bid="', f'id="{self.name}-', text)
        text = text.replace("url(#", f"url(#{self.name}-").replace('xlink:href="#', f'href="#{self.name}-')
        text = text.replace('xlink:href="data:', 'href="data:').replace(INK, "currentColor")
        style = f"width:100%;max-width:{1.3 * float(box.group(1)):.0f}px;height:auto"
        return f'<svg xmlns="http://www.w3.org/2000/svg" {box.group(0)} style="{style}" aria-hidden="true">{text}'

    def save(self, folder: Path) -> list[Path]:
        """Write `<name>.pdf` and `<name>.png`; returns their paths."""
        ink: Any = {key: PRINT_INK if value == INK else value for key, value in STYLE.items()}
        paths = [folder / f"{self.name}.{suffix}" for suffix in ("pdf", "png")]
        with matplotlib.rc_context({**ink, "pdf.fonttype": 42, "font.family": families()}):
            figure = self.draw()
            for path in paths:
                stamp = {"CreationDate": None} if path.suffix == ".pdf" else {"Software": None}
                drawn = io.BytesIO()  # on a full disk matplotlib's writers fail with errors of their own
                figure.savefig(drawn, format=path.suffix[1:], dpi=150, bbox_inches="tight", metadata=stamp)
                write_bytes(path, drawn.getvalue())
        return paths


@dataclass(frozen=True)
class Style:
    """How a cell looks in every figure."""

    colour: str
    marker: str
    dash: str


def cell_styles(labels: Sequence[str], base: str = BASE_LABEL) -> dict[str, Style]:
    """Colour, mark and dash of every cell; the untrained model is grey. Past 42 cells they come again."""
    styles = {base: Style(COLOURS[-1], "P", "-")}
    for i, label in enumerate(dict.fromkeys(label for label in labels if label != base)):
        n = len(COLOURS) - 1
        styles[label] = Style(COLOURS[i % n], MARKERS[i % len(MARKERS)], DASHES[i // n % len(DASHES)])
    return styles


def key_mark(style: Style) -> str:
    """A cell's mark for the page's key, as inline SVG; every value in it is a constant of this module."""
    from matplotlib.markers import MarkerStyle
    from matplotlib.transforms import Affine2D

    mark = MarkerStyle(style.marker)
    path = mark.get_path().transformed(mark.get_transform() + Affine2D().scale(90, -90).translate(90, 90))
    points = " ".join(f"{x / 10:.1f},{y / 10:.1f}" for x, y in np.asarray(path.to_polygons()[0]))
    return (
        f'<svg viewBox="0 0 18 18" width="18" height="18" aria-hidden="true"><polygon points="{points}" '
        f'fill="{style.colour}"/></svg>'
    )


def learning_curves(
    curves: Mapping[str, Sequence[RunCurve]],
    axis: Axis,
    notes: Sequence[str] = (),
    confidence: float = 0.95,
    styles: Mapping[str, Style] | None = None,
) -> Picture | None:
    """Mean training accuracy, or what else was measured, per cell with a band over seeds and a faint line per run.

    `notes` end the caption.
    """
    if not curves:
        return None
    bands = [band(label, runs, axis, confidence) for label, runs in curves.items()]
    unit = {"tokens": "generated tokens", "seconds": "device seconds", "steps": "optimiser steps"}[axis]
    measure = next(iter(curves.values()))[0].measure
    look = styles or cell_styles(list(curves))

    def paint(axes: Axes) -> None:
        name = distinct([b.label for b in bands])
        for i, one in enumerate(bands):
            style = look[one.label]
            colour = style.colour
            axes.plot(one.x, one.mean, style.dash, color=colour, label=name[one.label],
                      marker=style.marker, markevery=(3 * i % 15, 15), markersize=4)  # fmt: skip
            for run in curves[one.label] if one.runs > 1 else ():
                axes.plot(getattr(run, axis), run.accuracy, color=colour, alpha=0.35, linewidth=0.5)
            if one.runs > 1:
                axes.fill_between(one.x, one.low, one.high, color=colour, alpha=band_alpha(len(bands)), linewidth=0)
        axes.set_xlabel(unit)
        axes.set_ylabel({"reward": "training reward", SOLVED: "questions solved"}.get(measure, "training accuracy"))
        key(axes)

    words = "; ".join(f"{b.label} ends at {b.mean[-1]:.2f}" for b in bands)
    solved = measure == SOLVED
    caption = f"{'Questions solved so far' if solved else 'Learning curves'} against {unit}"
    if any(b.runs > 1 for b in bands):
        caption += f"; bands are pointwise {100 * confidence:g} % intervals over seeds, thin lines single runs"
    caption += "."
    caption += "".join(f" {note[0].upper()}{note[1:]}." for note in notes)
    if solved:
        caption += " Share of the training questions with a right answer, sampled for the bare question."
    name, shown = (f"solved-{axis}", "Share of questions solved") if solved else (f"curves-{axis}", "Training accuracy")
    return Picture(name, caption, f"{shown} against {unit}: {words}.", paint, (6.4, 3.4), of_cells=True)


def _far(rows: Sequence[CellRow]) -> list[CellRow]:
    """Cells, often the untrained model, on one scale with which the others would lie on top of each other."""
    kept = [r for r in rows if r.accuracy is not None]
    far: list[CellRow] = []
    while len(kept) > 1:
        values = [r.accuracy.value for r in kept if r.accuracy]
        middle = sorted(values)[len(values) // 2]
        one = max(kept, key=lambda r: (abs(r.accuracy.value - middle), r.base) if r.accuracy else (0.0, False))
        others = [a for r in kept if r is not one and (a := r.accuracy)]
        ends = [v for a in others for v in (a.value, a.like_these.low, a.like_these.high) if v is not None]
        value = one.accuracy.value if one.accuracy else 0.0
        gap = max(min(ends) - value, value - max(ends))
        if gap <= 2 * max(max(ends) - min(ends), 0.02) or (not one.base and MOST_FAR * (len(far) + 1) > len(rows)):
            break
        far.append(one)
        kept.remove(one)
    return far


def padded(values: Sequence[float]) -> tuple[float, float]:
    """Limits of an axis around values, with some air."""
    air = 0.08 * max(max(values) - min(values), 1.0)
    return min(values) - air, max(values) + air


def _drawn(rows: Sequence[CellRow], runs: Mapping[str, Sequence[float]]) -> list[float]:
    """Every number in points that is drawn of these cells."""
    found = [100 * v for r in rows for v in runs.get(r.label, ())]
    for estimate in (r.accuracy for r in rows if r.accuracy is not None):
        known = (estimate.value, estimate.like_these.low, estimate.like_these.high)
        found += [100 * v for v in known if v is not None]
    return found


def accuracies(rows: Sequence[CellRow], runs: Mapping[str, Sequence[float]], confidence: float) -> Picture | None:
    """Accuracy of every cell with its interval, and a dot per run. runs: label -> accuracy of each of its runs."""
    shown = [r for r in rows if r.accuracy is not None]
    if not shown:
        return None
    look, far = cell_styles([r.label for r in rows]), _far(shown)

    def paint(axes: Axes) -> None:
        for y, row in enumerate(shown):
            assert row.accuracy is not None
            colour, part = look[row.label].colour, row.accuracy.like_these
            if part.low is not None and part.high is not None:
                axes.plot([100 * part.low, 100 * part.high], [y, y], color=colour, linewidth=1.2)
            dots = [100 * v for v in runs.get(row.label, ())]
            axes.plot(dots, [y + BELOW] * len(dots), ".", color=colour, markersize=5, alpha=0.7)
            axes.plot(100 * row.accuracy.value, y, "|", color=colour, markersize=11, markeredgewidth=2)
            axes.plot(100 * row.accuracy.value, y, look[row.label].marker, color=colour, markersize=4)
        name = distinct([r.label for r in shown])
        axes.set_yticks(range(len(shown)), [name[r.label] for r in shown])
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlabel("accuracy, points")
        if far:
            low, high = padded(_drawn([r for r in shown if r not in far], runs))
            axes.set_xlim(low, high)
        for row in far:
            value = 100 * row.accuracy.value if row.accuracy else 0.0
            said = f"\u2190 {value:.1f}" if value < low else f"{value:.1f} \u2192"
            axes.annotate(said, (0.01 if value < low else 0.99, shown.index(row)), xycoords=axes.get_yaxis_transform(),
                          ha="left" if value < low else "right", va="center", fontsize=8)  # fmt: skip

    each = {r.label: ", ".join(f"{100 * v:.1f}" for v in runs.get(r.label, ())) or "-" for r in shown}
    words = "; ".join(f"{r.label} {100 * r.accuracy.value:.1f}, runs {each[r.label]}" for r in shown if r.accuracy)
    caption = "Accuracy of every cell. Bar: mean over runs; each dot below it: one run"
    if any(r.accuracy and r.accuracy.like_these.low is not None for r in shown):
        caption += f"; line: {100 * confidence:g} % interval of the mean on questions like these"
    caption += f". Beyond the scale: {', '.join(map(_the, far))}" if far else ""
    size = (6.4, 0.9 + 0.26 * len(shown))
    return Picture("accuracy", f"{caption}.", f"Accuracy in points: {words}.", paint, size, len(shown), True)


def _the(row: CellRow) -> str:
    return f"the {row.label}" if row.base else row.label


def accuracy_and_length(
    rows: Sequence[CellRow], runs: Mapping[str, Sequence[float]], confidence: float
) -> Picture | None:
    """Accuracy against response length, one point per cell and a dot per run. runs: see `accuracies`."""
    shown = [r for r in rows if r.accuracy is not None and r.tokens is not None]
    if len(shown) < 2:
        return None
    look, far = cell_styles([r.label for r in rows]), _far(shown)

    def paint(axes: Axes) -> None:
        name = distinct([r.label for r in shown])
        for i, row in enumerate(r for r in shown if r not in far):
            assert row.accuracy is not None and row.tokens is not None
            style = look[row.label]
            part, y = row.accuracy.like_these, 100 * row.accuracy.value
            known = part.low is not None and part.high is not None
            error = [[y - 100 * (part.low or 0.0)], [100 * (part.high or 0.0) - y]] if known else None
            dots = [100 * v for v in runs.get(row.label, ())]
            axes.plot([row.tokens] * len(dots), dots, ".", color=style.colour, markersize=4, alpha=0.5)
            axes.errorbar(row.tokens, y, yerror(error), fmt=style.marker, color=style.colour,
                          label=name[row.label], elinewidth=1, markersize=6,
                          markerfacecolor="none" if i >= len(COLOURS) else None)  # fmt: skip
        axes.set_xlabel("response tokens per answer")
        axes.set_ylabel("accuracy, points")
        key(axes)

    words = "; ".join(f"{r.label} {100 * r.accuracy.value:.1f} at {r.tokens:.0f} tokens" for r in shown if r.accuracy)
    caption = "Accuracy against response length, one mark per cell and a dot per run at its cell's length."
    said = [f"{_the(r)}, {100 * r.accuracy.value:.1f} at {r.tokens:.1f} tokens" for r in far if r.accuracy]
    caption += f" Not drawn, far away: {'; '.join(said)}." if said else ""
    caption += _along_length([r for r in shown if not r.base], 1 - confidence)
    return Picture("length", caption, f"Accuracy against response length: {words}.", paint, (6.4, 3.4), of_cells=True)


def _along_length(rows: Sequence[CellRow], alpha: float) -> str:
    """How accuracy goes with length over these cells, if there are enough of them to say so (Spearman's rho)."""
    from scipy import special

    x = np.array([r.tokens for r in rows], float)
    y = np.array([r.accuracy.value for r in rows if r.accuracy is not None])
    if len(x) < 5 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return ""
    rho = float(np.corrcoef(_ranks(x), _ranks(y))[0, 1])
    df = len(x) - 2
    clear = abs(rho) > 1 - 1e-12 or 2 * special.stdtr(df, -abs(rho) * (df / (1 - rho**2)) ** 0.5) < alpha
    if not clear:
        return f" Over the {len(x)} trained cells, length and accuracy don't clearly go together (rank rho {rho:+.2f})."
    return (
        f" Over the {len(x)} trained cells, those with longer answers are {'more' if rho > 0 else 'less'} accurate "
        f"(rank rho {rho:+.2f}); that is no effect of length."
    )


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1, ties at their mean. values: (N,)."""
    return np.array([(values < v).sum() + ((values == v).sum() + 1) / 2 for v in values])


def yerror(error: list[list[float]] | None) -> Any:
    """Error-bar argument: none, or lengths below and above that can't be negative."""
    return None if error is None else np.maximum(np.array(error), 0)


def question_differences(contrasts: Mapping[str, np.ndarray]) -> Picture | None:
    """Per factor, the main effect on every question, sorted. contrasts: term -> (Q,)."""
    if not contrasts:
        return None

    def paint(axes: Axes) -> None:
        axes.axhline(0, color=matplotlib.rcParams["axes.edgecolor"], linewidth=0.8)
        name = distinct(list(contrasts))
        for i, (term, values) in enumerate(contrasts.items()):
            axes.plot(np.linspace(0, 100, len(values)), 100 * np.sort(values), color=COLOURS[i % len(COLOURS)],
                      linestyle=DASHES[i % len(DASHES)], drawstyle="steps-mid", label=name[term])  # fmt: skip
        axes.set_xlabel("questions, sorted by effect, %")
        axes.set_ylabel("main effect on the question, points")
        key(axes)

    words = "; ".join(f"{t} up on {(v > 0).sum()}, down on {(v < 0).sum()} of {len(v)}" for t, v in contrasts.items())
    caption = "Where an effect comes from: its value on every question."
    return Picture("questions", caption, f"Per-question effects: {words}.", paint, (6.4, 3.2))


def half_normal(contrasts: Mapping[str, float], orders: Mapping[str, int]) -> Picture | None:
    """All orthogonal effects of a two-level grid against half-normal quantiles: noise lies on a line.

    Args:
        contrasts: term -> its size in the scaling of main effects, in which all have the same noise.
        orders: term -> how many factors it is of: of k, the size as tables call it is 2^(k-1) times that.
    """
    if len(contrasts) < 7:
        return None
    order = sorted(contrasts, key=lambda t: abs(contrasts[t]))
    values = np.array([100 * abs(contrasts[t]) for t in order])

    def paint(axes: Axes) -> None:
        from scipy import special

        at = special.ndtri(0.5 + 0.5 * (np.arange(len(order)) + 0.5) / len(order))
        axes.plot(at, values, MARKERS[0], color=COLOURS[0])
        middle = len(order) // 2
        if at[middle] > 0:
            axes.plot([0, at[-1]], [0, values[middle] / at[middle] * at[-1]], "--", color=COLOURS[6], linewidth=1)
        for i in range(max(0, len(order) - 3), len(order)):
            spot: dict[str, Any] = {"xytext": (-4, 4), "textcoords": "offset points", "ha": "right", "fontsize": 8}
            axes.annotate(short(order[i]), (at[i], values[i]), **spot)
        axes.set_xlabel("half-normal quantile")
        axes.set_ylabel("absolute effect in the scaling of main effects, points")

    largest = ", ".join(f"{t} {100 * contrasts[t] * 2 ** (orders[t] - 1):+.1f}" for t in order[:-6:-1])
    caption = (
        "Half-normal plot of all effects, in the scaling of main effects, so that all have the same noise: an "
        "interaction of two factors stands at half of its size in the tables, one of three at a quarter. Noise alone "
        "lies along a line; the dashed one goes through the effect in the middle. A picture, no test."
    )
    words = f"Half-normal plot; the largest effects in points, as tables size them: {largest}."
    return Picture("half-normal", caption, words, paint, (6.4, 3.4))
