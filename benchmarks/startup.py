"""How long the command line takes to answer, against importing TRL's trainer, which it therefore must not do.

    python benchmarks/startup.py [REPEATS]

Medians over fresh processes, alternating, the first of each (cold files) apart; the target for `--help` is 1 s.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = str(Path(sys.executable).with_name("r3bench"))
COMMANDS = {
    "r3bench --help": [PROGRAM, "--help"],
    "r3bench list": [PROGRAM, "list"],
    "r3bench validate quickstart": [PROGRAM, "validate", "quickstart"],
    "import trl; GRPOTrainer": [sys.executable, "-c", "import trl; from trl import GRPOTrainer"],
}


def seconds(command: list[str], folder: str) -> float:
    """Wall-clock of one process."""
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print one line per command."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats + 1):
            for name, command in COMMANDS.items():
                taken[name].append(seconds(command, folder))
    reference = statistics.median(taken["import trl; GRPOTrainer"][1:])
    print(f"{'command':<30} {'first':>8} {'median':>8} {'of trl':>8}")
    for name, times in taken.items():
        median = statistics.median(times[1:])
        print(f"{name:<30} {times[0]:>7.2f}s {median:>7.2f}s {median / reference:>7.1%}")


if __name__ == "__main__":
    main()
