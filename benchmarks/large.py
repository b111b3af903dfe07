"""What a study of many runs costs: status, plan, and the index of its trials made again.

    python benchmarks/large.py                 1,001 and 10,001 runs
    python benchmarks/large.py --seeds 62      one size: seeds x 16 cells, and the untrained model

The runs are toys, made outside the measured time. Each measurement is a fresh process, imports included; beside the
seconds stands what the next smaller study took, so that growth is seen.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOOLS = [str(HERE.parent / "tests" / "sweep")]
GRID = """name: large
recipe: quickstart
factors:
  replay: ["off", "on"]
  reflection: ["off", "on"]
  ranking: ["off", "on"]
  retrospective: ["off", "on"]
seeds: {seeds}
executor: {{kind: inline}}
"""
MAKE = """
import os, sys
sys.path[:0] = {tools!r}
os.fsync = lambda descriptor: None  # only made to be measured
from pathlib import Path
from toy import run_toy
from r3bench.sweep.dispatch.ablate import ablate
from r3bench.sweep.grid import load_grid
from r3bench.sweep.executors.inline import InlineExecutor
report = ablate(load_grid("large.yaml"), Path("runs"), run=run_toy, executor=InlineExecutor(), say=lambda line: None)
raise SystemExit(not report.complete)
"""
MEASURED = {
    "status": ["status", "large", "--runs", "runs"],
    "status --json": ["status", "large", "--runs", "runs", "--json"],
    "plan": ["plan", "large.yaml"],
}


def child(arguments: list[str], folder: Path) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds and peak resident memory (MB) of a process."""
    start = time.monotonic()
    process = subprocess.Popen([sys.executable, *arguments], cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{arguments}: exit code {process.returncode}")
    return time.monotonic() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    """Print one line per measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[62, 625], help="seeds of each study")
    make = MAKE.format(tools=TOOLS)
    print(f"{'runs':>6}  {'what':<16} {'s':>7} {'CPU s':>7} {'MB':>6}")
    for seeds in parser.parse_args().seeds:
        with tempfile.TemporaryDirectory() as made:
            folder, runs = Path(made), 16 * seeds + 1
            (folder / "large.yaml").write_text(GRID.format(seeds=list(range(seeds))))
            rows = {"all of it, toys": child(["-c", make], folder)}
            rows |= {what: child(["-m", "r3bench.cli", *command], folder) for what, command in MEASURED.items()}
            rows["nothing to do"] = child(["-c", make], folder)
            (folder / "runs" / "large" / "optuna.db").unlink()
            rows["index made again"] = child(["-c", make], folder)
            for what, (seconds, cpu, memory) in rows.items():
                print(f"{runs:>6}  {what:<16} {seconds:>7.2f} {cpu:>7.2f} {memory:>6.0f}", flush=True)


if __name__ == "__main__":
    main()
