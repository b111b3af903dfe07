"""A figure for a paper: as wide as a column, in its type size, fonts inside, as PDF, SVG or PNG.

Nothing here needs a display: figures are drawn into memory, without pyplot.
"""

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from r3bench.analysis.figures.plots import INK, PRINT_INK, STYLE, Picture, longest
from r3bench.analysis.letters import families
from r3bench.errors import ConfigError, nearest
from r3bench.files import write_bytes

WIDTHS = {"column": 3.25, "page": 5.5}  # inches: one column of two, and a page of one
NARROWEST, WIDEST = 2.0, 20.0
SUFFIXES = ("pdf", "svg", "png")
POINTS = 8  # of the type; ticks and keys have one less
LINE = 0.135  # inches of a line of ticks or keys
LETTER = 0.058  # inches of one of their letters, about
LINES = 3  # of a label, where so many tell it from the others
DPI = 300  # of PNG
PRINT: Any = {
    **{key: PRINT_INK if value == INK else value for key, value in STYLE.items()},
    "font.size": POINTS, "axes.labelsize": POINTS, "xtick.labelsize": POINTS - 1, "ytick.labelsize": POINTS - 1,
    "legend.fontsize": POINTS - 1, "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6,
    "pdf.fonttype": 42,  # whole TrueType fonts: what publishers' checks ask for
    "svg.fonttype": "path",  # letters as shapes, so that they look the same anywhere
}  # fmt: skip


def width_of(text: str | float) -> float:
    """Inches of 'column', 'page' or a number.

    Raises:
        ConfigError: anything else.
    """
    if text in WIDTHS:
        return WIDTHS[str(text)]
    try:
        inches = float(text)
    except ValueError:
        raise ConfigError(f"--width: got '{text}', expected inches{nearest(str(text), WIDTHS)}") from None
    if not NARROWEST <= inches <= WIDEST:
        raise ConfigError(f"--width: got {inches:g}, expected {NARROWEST:g} to {WIDEST:g} inches, column or page")
    return inches


def formats_of(names: Sequence[str]) -> tuple[str, ...]:
    """File formats by their suffixes.

    Raises:
        ConfigError: one that can't be written.
    """
    for name in names:
        if name not in SUFFIXES:
            raise ConfigError(f"--format: got '{name}'{nearest(name, SUFFIXES)}")
    return tuple(dict.fromkeys(names))


def printed(picture: Picture, width: float) -> Figure:
    """The figure exactly `width` inches wide: labels on several lines, the key below, as tall as these need."""
    letters = max(int(width / 2.6 / LETTER), 12)  # labels may take that much of the width
    token = longest.set(LINES * letters - LINES)
    try:
        with matplotlib.rc_context({**PRINT, "font.family": families()}):
            figure = Figure(figsize=(width, 0.62 * width), layout="constrained")
            axes = figure.subplots()
            picture.draw(axes)
            height = width * (0.75 if picture.size[1] > 0.7 * picture.size[0] else 0.62)
            axes.set_ylabel(textwrap.fill(axes.get_ylabel(), max(int(0.6 * height / LETTER), 12)))
            if picture.rows:
                height = 0.55 + 1.35 * LINE * max(_wrapped(axes, letters), 2)
            height += _key_below(figure, axes, width)
            figure.set_size_inches(width, height)
            figure.draw_without_rendering()  # lays out, in the style of print
            return figure
    finally:
        longest.reset(token)


def _wrapped(axes: Axes, letters: int) -> int:
    """Break the labels of the vertical axis into lines; returns how many there are, rows without one counted."""
    texts = [textwrap.wrap(t.get_text(), letters, break_on_hyphens=False) for t in axes.get_yticklabels()]
    axes.set_yticks(axes.get_yticks(), ["\n".join(lines) for lines in texts])
    return sum(max(len(lines), 1) for lines in texts)


def _key_below(figure: Figure, axes: Axes, width: float) -> float:
    """Move the key below the axes, where it covers nothing; returns the inches that it takes."""
    if axes.get_legend() is None:
        return 0.0
    axes.get_legend().remove()  # type: ignore[union-attr]
    handles, labels = axes.get_legend_handles_labels()
    room = int((width - 0.3) / LETTER)
    lines = ["\n".join(textwrap.wrap(text, room - 6, break_on_hyphens=False)) for text in labels]
    widest = max((len(part) for text in lines for part in text.split("\n")), default=1)
    columns = max(1, min(len(lines), room // (widest + 6)))
    per_column = -(-len(lines) // columns)
    tall = [sum(text.count("\n") + 1 for text in lines[i : i + per_column]) for i in range(0, len(lines), per_column)]
    figure.legend(handles, lines, loc="outside lower center", ncols=columns, handlelength=2.2, columnspacing=1.2,
                  borderaxespad=0.2)  # fmt: skip
    return 0.1 + 1.1 * LINE * max(tall, default=1)


def save(figure: Figure, place: Path, formats: Sequence[str]) -> list[Path]:
    """Write `place` with the suffix of every format; returns the paths. The same results give the same bytes.

    Args:
        figure: of `printed`.
        place: path without a suffix.
        formats: see `formats_of`.
    """
    paths = []
    stamps: dict[str, dict[str, Any]] = {
        "pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {"Software": None},
    }  # fmt: skip
    with matplotlib.rc_context({**PRINT, "font.family": families()}):
        for suffix in formats:
            drawn = io.BytesIO()  # on a full disk matplotlib's writers fail with errors of their own
            figure.savefig(drawn, format=suffix, dpi=DPI, metadata=stamps[suffix])
            paths.append(place.with_name(f"{place.name}.{suffix}"))
            write_bytes(paths[-1], drawn.getvalue())
    return paths
