"""`study.plot`: the figures of a report as matplotlib axes, for a notebook or a paper of one's own."""

from typing import TYPE_CHECKING, Any, Literal

from r3bench.errors import StateError, nearest

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

    def _axes(self, name: str, benchmark: str | None, ax: "Axes | None") -> "Axes":
        """The axes of the figure `name`: `ax`, drawn into, or those of a new one.

        Raises:
            StateError: the study has no such figure, or no such benchmark.
        """
        import matplotlib as mpl
        from matplotlib.axes import Axes

        from r3bench.analysis.cells import cell_rows
        from r3bench.analysis.effects import effects
        from r3bench.analysis.pictures import pictures_of
        from r3bench.analysis.plots import INK as REPORT_INK
        from r3bench.analysis.plots import STYLE
        from r3bench.analysis.prepare import benchmark_sets

        if ax is not None and not isinstance(ax, Axes):
            raise StateError(f"{name}: ax: got a {type(ax).__name__}, expected matplotlib axes (one, not an array)")
        known = list(benchmark_sets(self._results))
        chosen = known[0] if benchmark is None else benchmark
        if chosen not in known:
            raise StateError(f"{self._results.name}: no benchmark '{chosen}'{nearest(chosen, known)}")
        found = [e for e in effects(self._results)[0] if e.benchmark == chosen]
        rows = [r for r in cell_rows(self._results) if r.benchmark == chosen]
        pictures = pictures_of(self._results, found, rows, chosen)
        picture = next((p for p in pictures if p is not None and p.name == name), None)
        if picture is None:
            have = sorted(p.name for p in pictures if p is not None)
            raise StateError(
                f"{self._results.name}: no figure '{name}': the results don't hold what it shows "
                f"(there are {', '.join(have) or 'none'})"
            )
        ink: Any = {key: INK if value == REPORT_INK else value for key, value in STYLE.items()}
        with mpl.rc_context(ink):
            figure = picture.draw(ax)
        axes: Axes = figure.axes[0] if ax is None else ax
        return axes
