"""`study.plot`: the figures of a report as matplotlib axes, for a notebook or a paper of one's own."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from r3bench.errors import StateError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from r3bench.analysis.results import Results

INK = "#222222"


class Plots:
    """Each method draws one figure, into `ax` if given, and returns its axes; `axes.figure` is what to show or save."""

    def __init__(self, results: "Results") -> None:
        self._results = results

    def effects(self, benchmark: str | None = None, *, ax: "Axes | None" = None) -> "Axes":
        """Every effect with both intervals, in points; the band is the equivalence margin."""
        return self._axes("effects", benchmark, ax)

    def interactions(self, benchmark: str | None = None, *, ax: "Axes | None" = None) -> "Axes":
        """Two-way interactions as a coloured matrix, in points."""
        return self._axes("interactions", benchmark, ax)

    def cells(self, benchmark: str | None = None, *, ax: "Axes | None" = None) -> "Axes":
        """Accuracy of every cell with its interval and a dot per run, in points."""
        return self._axes("accuracy", benchmark, ax)

    def length(self, benchmark: str | None = None, *, ax: "Axes | None" = None) -> "Axes":
        """Accuracy against response length, a mark per cell."""
        return self._axes("length", benchmark, ax)

    def questions(self, benchmark: str | None = None, *, ax: "Axes | None" = None) -> "Axes":
        """Main effects on every question, sorted."""
        return self._axes("questions", benchmark, ax)

    def half_normal(self, benchmark: str | None = None, *, ax: "Axes | None" = None) -> "Axes":
        """All effects of a complete two-level grid against half-normal quantiles."""
        return self._axes("half-normal", benchmark, ax)

    def curves(self, x: Literal["tokens", "seconds"] = "tokens", *, ax: "Axes | None" = None) -> "Axes":
        """Mean training accuracy of every cell with a band over seeds, against generated tokens or device seconds."""
        if x not in ("tokens", "seconds"):
            raise StateError(f"curves: x: got {x!r}, expected 'tokens' or 'seconds'")
        return self._axes(f"curves-{x}", None, ax)

    def pass_at_k(
        self, benchmark: str | None = None, ks: Sequence[int] | None = None, *, ax: "Axes | None" = None
    ) -> "Axes":
        """pass@k of every cell against k, with intervals and a dot per run, in points."""
        return self._axes("pass-at-k", benchmark, ax, ks)

    def maj_at_k(
        self, benchmark: str | None = None, ks: Sequence[int] | None = None, *, ax: "Axes | None" = None
    ) -> "Axes":
        """maj@k of every cell against k, with intervals and a dot per run, in points."""
        return self._axes("maj-at-k", benchmark, ax, ks)

    def held_out(
        self, x: Literal["tokens", "seconds"] = "tokens", benchmark: str | None = None, *, ax: "Axes | None" = None
    ) -> "Axes":
        """Accuracy on held-out questions along training, at the checkpoints that were measured, in points."""
        if x not in ("tokens", "seconds"):
            raise StateError(f"held_out: x: got {x!r}, expected 'tokens' or 'seconds'")
        return self._axes(f"heldout-{x}", benchmark, ax)

    def save(
        self, kind: str, path: Path | str, width: str | float = "column", benchmark: str | None = None,
        ks: Sequence[int] | None = None,
    ) -> Path:  # fmt: skip
        """A figure for a paper as a file, as `r3bench plot` draws it.

        Args:
            kind: as `r3bench plot --list` names them.
            path: a .pdf, .svg or .png file.
            width: 'column' (3.25 in), 'page' (5.5 in) or inches.
            benchmark: as above.
            ks: of pass@k and maj@k.

        Raises:
            ConfigError: no such kind, width or format.
            StateError: no such benchmark, or the results don't hold what it shows.
        """
        from r3bench.analysis.figures.files import formats_of, printed, save, width_of
        from r3bench.analysis.figures.of_study import picture

        place = Path(path)
        formats = formats_of([place.suffix[1:]])
        figure = printed(picture(self._results, kind, benchmark, ks), width_of(width))
        return save(figure, place.with_suffix(""), formats)[0]

    def _axes(self, name: str, benchmark: str | None, ax: "Axes | None", ks: Sequence[int] | None = None) -> "Axes":
        """The axes of the figure `name`: `ax`, drawn into, or those of a new one.

        Raises:
            StateError: the study has no such figure, or no such benchmark.
        """
        import matplotlib as mpl
        from matplotlib.axes import Axes

        from r3bench.analysis.figures.of_study import picture
        from r3bench.analysis.figures.plots import INK as REPORT_INK
        from r3bench.analysis.figures.plots import STYLE

        if ax is not None and not isinstance(ax, Axes):
            raise StateError(f"{name}: ax: got a {type(ax).__name__}, expected matplotlib axes (one, not an array)")
        drawn = picture(self._results, name, benchmark, ks)
        ink: Any = {key: INK if value == REPORT_INK else value for key, value in STYLE.items()}
        with mpl.rc_context(ink):
            figure = drawn.draw(ax)
        axes: Axes = figure.axes[0] if ax is None else ax
        return axes
