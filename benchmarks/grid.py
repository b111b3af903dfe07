"""How fast a grid runs, against what one would otherwise do.

    python benchmarks/grid.py cells      the 16 cells of a 2^4 against the same trainings as 16 process launches
    python benchmarks/grid.py dispatch   overhead of the dispatcher per cell over 1,000 idle cells, and of `status`

Prints JSON. Both halves of `cells` train the same recipes with the same seeds and no evaluation.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from r3bench.config.load import parse_recipe, resolved
from r3bench.config.trainer_fields import trainer_value
from r3bench.evaluation.settings import KEY, settings
from r3bench.records import RunPaths, RunRecord, TrainRecord, write_record
from r3bench.sweep.ablate import ablate, open_study
from r3bench.sweep.grid import Grid, parse_grid
from r3bench.sweep.inline import InlineExecutor
from r3bench.sweep.status import status
from r3bench.sweep.worker import Steps, real_steps, run_job


def grid_of(steps: int, eval_limit: int) -> Grid:
    """2^4 on the embedded model with one seed."""
    return parse_grid(
        {
            "name": "bench",
            "recipe": "quickstart",
            "factors": {
                "replay": ["off", "on"],
                "ranking": ["off", "on"],
                "length_bonus": {"off": {"reward.length_bonus": False}, "on": {"reward.length_bonus": True}},
                "trainer.beta": [0.0, 0.01],
            },
            "seeds": [0],
            "base_model": False,
            "set": {"trainer.max_steps": steps, "data.limit": 96},
            "eval": {"samples": 1, "limit": eval_limit},
            "disk_floor_gb": 0.5,
        },
        "bench",
    )


def train_only(work):
    """A cell without its evaluation, so that both sides of the comparison do the same work."""
    real = real_steps()

    def skip(model, section, out, *, default_max_tokens, **_):
        asked = {KEY: settings(section, default_max_tokens)}
        return {task: {"questions": 0, "samples": 1, "avg@1": 0.0, **asked} for task in section.tasks}

    return run_job(work, Steps(real.train, skip, real.environment, real.start_model))


LAUNCH = """
import json, sys
from pathlib import Path
from r3bench.config.load import parse_recipe
from r3bench.records import RunPaths
from r3bench.training.run import train
recipe = parse_recipe(json.loads(Path(sys.argv[1]).read_text()), "bench")
train(recipe, RunPaths(Path(sys.argv[2])), quiet=True)
"""


def _importable(function):
    """The same function under this file's own name, which worker processes can import; not `__main__`."""
    sys.path.insert(0, str(Path(__file__).parent))
    return getattr(importlib.import_module(Path(__file__).stem), function.__name__)


def cells(steps: int, cells_timed: int) -> dict[str, float]:
    """Seconds of the grid, and of process launches of the same training (a sample of them, scaled up)."""
    grid = grid_of(steps, 1)
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder)
        start = time.perf_counter()
        report = ablate(grid, runs, run=_importable(train_only), say=lambda line: print(line, file=sys.stderr))
        together = time.perf_counter() - start
        assert report.complete and len(report.finished) == 16
        inside = sum(record.train.train_seconds for record in report.finished.values())
        study = open_study(grid, runs)
        chosen = study.cells[:: max(1, 16 // cells_timed)][:cells_timed]
        start = time.perf_counter()
        for number, cell in enumerate(chosen):
            recipe = runs / f"launch-{number}.json"
            recipe.write_text(json.dumps(resolved(cell.recipe)))
            command = [sys.executable, "-c", LAUNCH, str(recipe), str(runs / f"launch-{number}")]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        alone = (time.perf_counter() - start) * 16 / len(chosen)
    slots = len(os.sched_getaffinity(0))
    return {
        "cells": 16,
        "steps": steps,
        "slots": slots,
        "grid_seconds": together,
        "launches_seconds": alone,
        "launches_timed": len(chosen),
        "ratio": alone / together,
        "overhead_per_cell_seconds": max(0.0, together * slots - inside) / 16,
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
    write_record(record, RunPaths(directory))
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
        total = time.perf_counter() - start
        assert len(report.finished) == count
        start = time.perf_counter()
        again = ablate(parse_grid(values, "many"), runs, run=timed, executor=InlineExecutor(), say=lambda line: None)
        restart = time.perf_counter() - start
        assert again.complete
        start = time.perf_counter()
        assert status(runs / "many").counts == {"finished": count}
        seen = time.perf_counter() - start
    return {
        "cells": count,
        "overhead_per_cell_seconds": (total - spent) / count,
        "restart_seconds": restart,
        "status_seconds": seen,
    }


def main() -> None:
    """Parse the command line and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cells", "dispatch"])
    parser.add_argument("--steps", type=int, default=50, help="optimiser steps per cell (cells)")
    parser.add_argument("--launches", type=int, default=16, help="process launches that are timed; the rest is scaled")
    parser.add_argument("--count", type=int, default=1000, help="cells (dispatch)")
    arguments = parser.parse_args()
    if arguments.what == "cells":
        print(json.dumps(cells(arguments.steps, arguments.launches), indent=2))
    else:
        print(json.dumps(dispatch(arguments.count), indent=2))


if __name__ == "__main__":
    main()
