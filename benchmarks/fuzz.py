"""Damages every kind of file of a study, one at a time, and counts what all readers make of it.

    python benchmarks/fuzz.py              300 bits of each file, truncations, foreign bytes, lost and new blocks
    python benchmarks/fuzz.py --all        one bit in every byte of every file
    python benchmarks/fuzz.py --kinds shard run.json --flips 20

Readers: tables, curves, trace, status, the checks before weights are measured and answers are graded anew, the choice
of a checkpoint to resume from, the journal of an evaluation, `verify`; of the index `ablate`. The worst outcome
counts; `tests/verification/fuzz.py` says what the outcomes are. The exit code is 1 unless `silent` and `traceback` are
0 everywhere.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests" / "verification"), str(HERE.parent / "tests" / "sweep")]

OUTCOMES = ("same", "named", "refused", "silent", "traceback")


def make(runs: Path, *, whole: bool = False) -> Path:
    """The study of the tests: 2 x 2 cells of toys, the untrained model, and (unless `whole`) every kind of file."""
    from fuzz import prepare
    from toy import run_honest

    from r3bench.sweep.dispatch.ablate import ablate
    from r3bench.sweep.executors.inline import InlineExecutor
    from r3bench.sweep.grid import parse_grid

    values = {
        "name": "honest", "recipe": "quickstart", "seeds": [0], "eval": {"samples": 2}, "disk_floor_gb": 0.0,
        "keep": "all", "factors": {"replay": ["off", "on"], "trainer.learning_rate": ["1e-3", "1e-4"]},
    }  # fmt: skip
    grid = parse_grid(values, "honest")
    report = ablate(grid, runs, run=run_honest, executor=InlineExecutor(), say=lambda line: None)
    assert report.complete
    return runs / "honest" if whole else prepare(runs / "honest")


def main() -> int:
    """Print one JSON line per kind of file, and what was silent or ended in a traceback."""
    if str(HERE) in sys.path:  # its own name is that of the tests' module
        sys.path.remove(str(HERE))
    from fuzz import INDEX, KINDS, fuzz, fuzz_index

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="one bit in every byte")
    parser.add_argument("--flips", type=int, default=300, help="bits of each file")
    parser.add_argument("--kinds", nargs="+", default=[*KINDS, INDEX], choices=[*KINDS, INDEX])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        study = make(Path(name))
        for kind in arguments.kinds:
            start = time.monotonic()
            rng = random.Random(f"{arguments.seed} {kind}")
            if kind == INDEX:
                counts = fuzz_index(make(Path(name) / "indexed", whole=True), rng, arguments.flips // 5)
            else:
                counts = fuzz(study, kind, rng, None if arguments.all else arguments.flips)
            found = {outcome: counts.found[outcome] for outcome in OUTCOMES}
            line = {"kind": kind, "damages": sum(found.values()), **found, "seconds": round(time.monotonic() - start)}
            print(json.dumps(line), flush=True)
            print("".join(f"  {one}\n" for one in counts.bad[:20]), end="", flush=True)
            bad += len(counts.bad)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
