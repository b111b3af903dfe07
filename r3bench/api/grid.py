"""A grid from a mapping or a file, checked when it is made and run when it is told to."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r3bench.api.study import Study, load
from r3bench.errors import ConfigError, Interrupted, R3BenchError

if TYPE_CHECKING:
    import pandas as pd

    from r3bench.sweep.grid import Grid as GridFile


class Grid:
    """An ablation grid: factors, seeds, the recipe they change, and how runs are measured."""

    def __init__(self, source: Mapping[str, Any] | str | Path, *, name: str | None = None) -> None:
        """Check a grid; nothing is started or written.

        Args:
            source: the content of a grid file as a mapping (paths in it are as seen from the working directory), or
                the name or path of one.
            name: of the study's folder; by default the grid's.

        Raises:
            ConfigError: naming the key, the value, what was expected and the nearest valid name.
        """
        from r3bench.sweep.cells import enumerate_cells
        from r3bench.sweep.grid import grid_from, load_grid

        if isinstance(source, Mapping):
            named = {"name": name or "grid", **source}
            self._grid: GridFile = grid_from(named, "grid", Path.cwd())
        elif isinstance(source, str | Path):
            self._grid = load_grid(str(source))
        else:
            raise ConfigError(f"grid: got a {type(source).__name__}, expected a mapping, or a grid's name or path")
        self.name = name or self._grid.name
        self._cells, _ = enumerate_cells(self._grid)

    def __repr__(self) -> str:
        return f"<Grid {self.name}: {len(self._cells)} runs>"

    @property
    def cells(self) -> "pd.DataFrame":
        """A row per run that is planned: its id, seed and levels; the untrained model's has no levels."""
        import pandas as pd

        from r3bench.sweep.cells import BASE_MODEL

        return pd.DataFrame([
            {"run": c.run_id, "seed": c.seed, **({} if c.factors == BASE_MODEL else c.factors)} for c in self._cells
        ])  # fmt: skip

    def run(
        self, runs: str | Path = "runs", *, strict: bool = True, say: Callable[[str], None] = lambda line: None
    ) -> Study:
        """Run every cell that isn't finished yet, and measure it; calling it again resumes from there.

        Args:
            runs: folder that holds studies.
            strict: raise where some run failed or is left; False: a study of those that finished.
            say: takes a line of progress.

        Raises:
            R3BenchError: some run has no record; `r3bench status` says why.
            Interrupted: a signal asked to stop.
            ConfigError, StateError: the grid can't be run here.
        """
        from r3bench.sweep.dispatch.ablate import ablate

        report = ablate(self._grid, Path(runs), study=self.name, say=say)
        if report.interrupted or (strict and not report.complete):
            kind = Interrupted if report.interrupted else R3BenchError
            first = next(iter(report.failed.values()), None)
            raise kind(
                f"{report.study}: {len(report.finished)} runs have a record, {len(report.failed)} failed, "
                f"{len(report.left)} not run" + (f"; the first failure: {first.message}" if first else "")
            )
        return load(report.study)
