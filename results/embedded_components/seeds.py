"""The table by seed in README.md: python results/embedded_components/seeds.py runs/embedded_components"""

import json
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path

FIRST = 10  # steps behind "collapsed at first"


def rows(study: Path) -> dict[str, dict[int, tuple[float, float, float, float]]]:
    """Arm -> seed -> accuracy, and shares of groups without contrast: first steps, all steps, after mixing; percent."""
    found: dict[str, dict[int, tuple[float, float, float, float]]] = defaultdict(dict)
    for path in sorted(study.glob("*/run.json")):
        named = re.fullmatch(r"(.+)-s(\d+)-[0-9a-f]+", path.parent.name)
        if named is None or named[1] == "base-model":
            continue
        accuracy = 100 * json.loads(path.read_text())["eval"]["embedded-20"]["avg@4"]
        steps = [json.loads(line) for line in (path.parent / "metrics.jsonl").read_text().splitlines()]
        # with all components off there is TRL's own figure only
        whole = [100 * step.get("groups/homogeneous", step["frac_reward_zero_std"]) for step in steps]
        dead = [100 * step.get("groups/dead", step["frac_reward_zero_std"]) for step in steps]
        shares = (statistics.mean(values) for values in (whole[:FIRST], whole, dead))
        found[named[1]][int(named[2])] = (accuracy, *shares)  # type: ignore[assignment]
    return found


def main() -> None:
    table = rows(Path(sys.argv[1]))
    seeds = sorted({seed for arm in table.values() for seed in arm})
    print(f"| arm | seed {' | '.join(map(str, seeds))} | sd | collapsed at first | collapsed | dead after mixing |")
    print("|:---|" + "---:|" * (len(seeds) + 4))
    for arm, runs in table.items():
        each = [f"{runs[seed][0]:.1f}" if seed in runs else "-" for seed in seeds]
        spread = statistics.stdev(run[0] for run in runs.values()) if len(runs) > 1 else 0.0
        shares = [f"{statistics.mean(run[i] for run in runs.values()):.0f} %" for i in (1, 2, 3)]
        shares[2] += " (ranked)" if arm.startswith("ranking") else ""
        print("| " + " | ".join(["GRPO, all off" if arm == "base" else arm, *each, f"{spread:.1f}", *shares]) + " |")


if __name__ == "__main__":
    main()
