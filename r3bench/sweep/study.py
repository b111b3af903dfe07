"""A study's folder: the resolved grid, the state of every cell as its run directory tells it, and the lock."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from r3bench.config.load import config_hash
from r3bench.config.strict import plain
from r3bench.errors import StateError
from r3bench.files import read_json
from r3bench.lock import holder
from r3bench.records import STUDY_SCHEMA, RunPaths, RunRecord, check_study, read_record, write_study
from r3bench.seals import sealed
from r3bench.secrets import masked_values
from r3bench.sweep.cell_run import finished, set_aside_torn
from r3bench.sweep.cells import BASE_MODEL, Cell, Duplicate
from r3bench.sweep.grid import Grid, factors_of, written
from r3bench.sweep.hooks import shown_address

State = Literal["finished", "elsewhere", "to_do"]


@dataclass(frozen=True)
class Study:
    """A grid with the folder that holds its runs."""

    root: Path  # runs/<study>
    grid: Grid
    cells: tuple[Cell, ...]  # in the order they are started
    duplicates: tuple[Duplicate, ...]  # combinations that are the same run as a cell

    @property
    def file(self) -> Path:
        """The resolved grid with its cells."""
        return self.root / "study.json"

    @property
    def lock(self) -> Path:
        """Held by the one dispatcher."""
        return self.root / "study.lock"

    def paths(self, cell: Cell) -> RunPaths:
        """A cell's run directory."""
        return RunPaths(self.root / cell.run_id)

    def describe(self) -> dict[str, Any]:
        """The content of `study.json`."""
        return {
            "schema": STUDY_SCHEMA,
            # options of a scheduler may hold variables with a token
            "grid": {
                **written(self.grid),
                "executor": masked_values(plain(self.grid.executor)),
                "notify": self._notify(),
            },
            # lists, because their order means something (a factor's first level is its reference) and a mapping's is
            # lost by many a JSON tool
            "factors": [{"name": f.name, "levels": list(f.levels)} for f in factors_of(self.grid)],
            "cells": [
                {
                    "run_id": cell.run_id,
                    "name": cell.name,
                    "factors": cell.factors,
                    "seed": cell.seed,
                    "config_hash": config_hash(cell.recipe),
                }
                for cell in self.cells
            ],
            "duplicates": [plain(duplicate) for duplicate in self.duplicates],
        }

    def _notify(self) -> dict[str, Any]:
        section = self.grid.notify
        shown = {"url": shown_address(section.url)} if section.url else {}
        without: Any = masked_values(plain(section))
        return {**without, **shown}

    def write(self) -> None:
        """Write `study.json`, unless it would orphan runs of an older version of the grid.

        Raises:
            StateError: the folder holds runs that are no longer part of the grid.
        """
        known = {cell.run_id for cell in self.cells}
        if self.file.exists():
            try:
                old = read_json(self.file)
            except StateError:
                old = None  # torn: everything in it follows from the grid
            stale = [
                cell["run_id"]
                for cell in (check_study(old, self.file)["cells"] if old is not None else ())
                if cell["run_id"] not in known and (self.root / cell["run_id"]).is_dir()
            ]
            if stale:
                raise StateError(
                    f"{self.root}: holds {len(stale)} runs of another version of this grid (such as {stale[0]}); "
                    "give this version a folder of its own with --study NAME, or move those runs away"
                )
        description = self.describe()
        if not self.file.exists() or old != sealed(description):
            write_study(description, self.file)

    def state(self, cell: Cell) -> tuple[State, RunRecord | None]:
        """What the run directory says. Unreadable records of a cell nobody works on are set aside first."""
        paths = self.paths(cell)
        if not paths.root.is_dir():
            return "to_do", None
        if holder(paths.lock) is not None:
            return "elsewhere", None
        set_aside_torn(paths)
        record = finished(cell.recipe, paths)
        return ("finished", record) if record else ("to_do", None)

    def check_weights(self) -> None:
        """Refuse to start when finished runs lack a measurement that their weights would be needed for.

        Raises:
            StateError: some do; names one.
        """
        lost = [cell.run_id for cell in self.cells if cell.factors != BASE_MODEL and self._weightless(cell)]
        if lost:
            raise StateError(
                f"{self.root}: {len(lost)} finished runs are to be measured again, but their weights were not kept; "
                f"remove {lost[0]} to train it again{' (and the others likewise)' if len(lost) > 1 else ''}, or take "
                "back what the grid asks for in addition"
            )

    def _weightless(self, cell: Cell) -> bool:
        paths = self.paths(cell)
        if paths.model.is_dir() or not (paths.record.exists() and paths.train.exists()):
            return False
        if holder(paths.lock) is not None:
            return False
        try:
            record = read_record(paths)
        except StateError:
            return False  # torn or foreign; said when it is its turn
        return record.train.outcome == "finished" and finished(cell.recipe, paths) is None

    def foreign(self) -> Sequence[str]:
        """Run directories in the folder that are not this grid's: copies, or runs started by hand."""
        known = {cell.run_id for cell in self.cells}
        if not self.root.is_dir():
            return []
        return sorted(p.name for p in self.root.iterdir() if p.name not in known and (p / "run.json").exists())
