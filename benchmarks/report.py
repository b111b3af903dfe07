"""Time and peak memory of tables and report on a made-up study of 16 cells x 3 seeds x 1,000 questions x 16 answers.

    python benchmarks/report.py            48 and 192 runs, with the limits below checked
    python benchmarks/report.py --runs 48  one size

Limits: tables < 5 s, report < 20 s, peak memory < 1 GB at 48 runs; four times the runs, at most five times the time.
Each measurement is a fresh process, imports included; the study is made outside the measured time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMITS = {"tables": 5.0, "report": 20.0}  # seconds at 48 runs
MEMORY = 1.0  # GB
GROWTH = 5.0  # times the time for four times the runs
CODE = {
    "tables": "from r3bench.analysis import render_tables; render_tables(Path(study))",
    "report": "from r3bench.analysis import write_report; write_report(Path(study), Path(out))",
}


def make(folder: Path, runs: int) -> Path:
    """A study of `runs` trained runs over 16 cells and the untrained model."""
    sys.path.insert(0, str(HERE.parent / "tests" / "analysis"))
    from synthetic import Spec, make_study

    spec = Spec(
        factors={f: ["off", "on"] for f in ("replay", "retrospective", "reflection", "ranking")},
        seeds=range(runs // 16), benchmarks={"math": 1000}, samples=16, block=64, metrics=True,
        response="Step by step, the number of ways is counted twice and halved. " * 10 + "So it is \\boxed{7}.",
    )  # fmt: skip
    return make_study(folder / f"runs-{runs}", spec)


def measure(what: str, study: Path, out: Path) -> dict[str, float]:
    """Wall seconds and peak resident memory (GB) of one command in a process of its own."""
    code = f"from pathlib import Path; study, out = {str(study)!r}, {str(out)!r}; {CODE[what]}"
    start = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", code])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{what}: failed with exit code {process.returncode}")
    return {
        "seconds": round(time.monotonic() - start, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),  # what a busy machine does not change
        "peak_gb": round(usage.ru_maxrss / 2**20, 3),
    }


def main() -> int:
    """Print one JSON line per measurement and a verdict; the exit code is 1 if a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[48, 192], help="numbers of runs, multiples of 16")
    arguments = parser.parse_args()
    found: dict[tuple[str, int], dict[str, float]] = {}
    broken = []
    with tempfile.TemporaryDirectory() as name:
        for runs in arguments.runs:
            study = make(Path(name), runs)
            for what in CODE:
                found[what, runs] = measure(what, study, Path(name) / "out")
                print(json.dumps({"what": what, "runs": runs, **found[what, runs]}), flush=True)
    for what, limit in LIMITS.items():
        at_48, at_192 = found.get((what, 48)), found.get((what, 192))
        if at_48 and at_48["seconds"] >= limit:
            broken.append(f"{what}: {at_48['seconds']} s at 48 runs, limit {limit} s")
        if at_48 and at_48["peak_gb"] >= MEMORY:
            broken.append(f"{what}: {at_48['peak_gb']} GB at 48 runs, limit {MEMORY} GB")
        if at_48 and at_192 and at_192["seconds"] > GROWTH * at_48["seconds"]:
            broken.append(f"{what}: {at_192['seconds']} s at 192 runs, limit {GROWTH} x {at_48['seconds']} s")
    print("\n".join(broken) or "all limits kept")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
