"""How fast a grid runs, against what one would otherwise do.

    python benchmarks/grid.py cells      the shipped `quickstart` grid with four seeds (16 cells) against 16 launches of
                                         `r3bench train`, one after the other
    python benchmarks/grid.py dispatch   overhead of the dispatcher per cell over 1,000 idle cells, and of `status`

Prints JSON. Both halves of `cells` train the same recipes with the same seeds, evaluate one question once (what is
compared is training) and leave the same records. `ratio` is wall-clock over wall-clock. `overhead_per_cell_seconds` is
what slots were held for beyond the `train_seconds` in the records, the start of the fork server included, until each
slot's last cell had its record; `startup_seconds` of wall-clock went before the first cell began. Launches take the
environment's OpenMP settings, cells always one thread per slot's share of the cores.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from r3bench.config.load import parse_recipe, resolved
from r3bench.config.trainer_fields import trainer_value
from r3bench.evaluation.settings import KEY, settings
from r3bench.records import RunPaths, RunRecord, TrainRecord, write_record
from r3bench.sweep.attempts import attempts_file
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.executors.inline import InlineExecutor
from r3bench.sweep.grid import Grid, load_grid, parse_grid
from r3bench.sweep.opening import open_study
from r3bench.sweep.status import status

CELLS = 16
COMPONENTS = ("replay", "reflection", "ranking", "retrospective")


def grid_of(steps: int, components: bool) -> Grid:
    """Sixteen cells on the embedded model: the shipped grid with four seeds, or 2^4 of the paper's components."""
    grid = load_grid("quickstart")
    if components:
        factors = {name: ["off", "on"] for name in COMPONENTS}
        values = {"name": "quickstart", "recipe": "quickstart", "factors": factors, "seeds": [0], "set": grid.set}
        grid = parse_grid(values, "benchmark")
    return dataclasses.replace(
        grid,
        seeds=(0,) if components else (0, 1, 2, 3),
        base_model=False,
        set={**grid.set, "trainer.max_steps": steps},
        eval={"samples": 1, "limit": 1},
        disk_floor_gb=0.5,
    )


def launches(recipes: list[Path], runs: Path) -> float:
    """Seconds that `r3bench train` takes for these recipes, one after the other."""
    start = time.perf_counter()
    for recipe in recipes:
        command = [sys.executable, "-m", "r3bench.cli", "train", str(recipe), "--runs", str(runs), "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def cells(steps: int, timed: int, components: bool) -> dict[str, float | str]:
    """Seconds of the grid, and of process launches of the same runs (`timed` of them, scaled up)."""
    grid = grid_of(steps, components)
    slots = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder)
        begun, start = time.time(), time.perf_counter()
        report = ablate(grid, runs, say=lambda line: print(line, file=sys.stderr))
        together = time.perf_counter() - start
        assert report.complete and len(report.finished) == CELLS
        trained = sum(record.train.train_seconds for record in report.finished.values())
        study = open_study(grid, runs)
        paths = [study.paths(cell) for cell in study.cells]
        first = min(attempts_file(path.root).stat().st_mtime for path in paths)  # written to when an attempt begins
        ends = sorted(path.record.stat().st_mtime for path in paths)[-slots:]
        held = sum(end - begun for end in ends)
        chosen = study.cells[:: CELLS // timed][:timed]
        recipes = []
        for number, cell in enumerate(chosen):
            recipes.append(runs / f"launch-{number}.yaml")
            recipes[-1].write_text(yaml.safe_dump(resolved(cell.recipe)))
        alone = launches(recipes, runs / "launches") * CELLS / timed
    return {
        "cells": CELLS,
        "steps": steps,
        "slots": slots,
        "grid_seconds": together,
        "launches_seconds": alone,
        "launches_timed": timed,
        "ratio": alone / together,
        "train_seconds_per_cell": trained / CELLS,
        "overhead_per_cell_seconds": (held - trained) / CELLS,
        "startup_seconds": first - begun,
        **{name: value for name, value in os.environ.items() if name.startswith(("OMP_", "GOMP_"))},
    }


def nothing(work):
    """A cell that does nothing but leave its record."""
    directory = Path(work["directory"])
    directory.mkdir(parents=True, exist_ok=True)
    recipe = parse_recipe(work["recipe"], "bench")
    train = TrainRecord("finished", None, 0, 0, 0.0, "none", 1)
    cap = int(trainer_value(recipe.trainer, "max_completion_length"))
    record = RunRecord(
        run_id=directory.name,
        name=recipe.name,
        config_hash=directory.name.rpartition("-")[2],
        seed=recipe.seed,
        factors=work["factors"],
        train=train,
        eval={"embedded": {"questions": 0, "samples": 4, "avg@4": 0.0, KEY: settings(recipe.eval, cap)}},
        commit=None,
        started="",
        ended=str(time.time()),
    )
    paths = RunPaths(directory)
    (paths.evaluation / "embedded").mkdir(parents=True, exist_ok=True)
    (paths.evaluation / "embedded" / "0000.parquet").touch()  # a record without answers is drawn again
    write_record(record, paths)
    return {}


def dispatch(count: int) -> dict[str, float]:
    """Seconds per cell of enumeration, dispatch, index and bookkeeping, beyond what the cells themselves take."""
    values = {
        "name": "many",
        "recipe": "quickstart",
        "factors": {"replay": ["off", "on"]},
        "seeds": list(range(count // 2)),
        "base_model": False,
        "disk_floor_gb": 0.0,
    }
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder)
        spent = 0.0

        def timed(work):
            nonlocal spent
            start = time.perf_counter()
            nothing(work)
            spent += time.perf_counter() - start
            return {}

        start = time.perf_counter()
        report = ablate(parse_grid(values, "many"), runs, run=timed, executor=InlineExecutor(), say=lambda line: None)
        total = time.perf_counter() - start - spent
        assert len(report.finished) == count
        spent, start = 0.0, time.perf_counter()
        again = ablate(parse_grid(values, "many"), runs, run=timed, executor=InlineExecutor(), say=lambda line: None)
        restart = time.perf_counter() - start
        assert again.complete and spent == 0.0
        start = time.perf_counter()
        assert status(runs / "many").counts == {"finished": count}
        seen = time.perf_counter() - start
    return {
        "cells": count,
        "overhead_per_cell_seconds": total / count,
        "restart_seconds": restart,
        "status_seconds": seen,
    }


def main() -> None:
    """Parse the command line and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cells", "dispatch"])
    parser.add_argument("--steps", type=int, default=50, help="optimiser steps per cell (cells)")
    parser.add_argument(
        "--launches", type=int, default=16, choices=[1, 2, 4, 8, 16], help="launches that are timed; the rest is scaled"
    )
    parser.add_argument("--components", action="store_true", help="2^4 of the paper's four components instead (cells)")
    parser.add_argument("--count", type=int, default=1000, help="cells (dispatch)")
    arguments = parser.parse_args()
    if arguments.what == "cells":
        print(json.dumps(cells(arguments.steps, arguments.launches, arguments.components), indent=2))
    else:
        print(json.dumps(dispatch(arguments.count), indent=2))


if __name__ == "__main__":
    main()
