"""Loss and gradient of every update against an independent recomputation: the largest deviations.

    python benchmarks/recompute.py                        all of them, about ten minutes
    python benchmarks/recompute.py --only replay --loss gspo
    python benchmarks/recompute.py --json deviations.jsonl

Runs of `R3Trainer.train()` on the tests' tiny model: each component alone and the four together, by loss, KL
coefficient and updates per sampled batch. What is compared with, and how, stands in
`tests/components/recomputation.py`; the equations and their derivatives in
`tests/reference/reference_objective.py`. The exit code is 1 if a deviation is above 1e-4 or a run couldn't be compared.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS / folder) for folder in ("components", "trainer", "reference")]
LIMIT = 1e-4


def main() -> int:
    """Print the table."""
    import recomputation
    from trainer_tools import build_tiny_model

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(recomputation.COMPONENTS), help="what is on")
    parser.add_argument("--loss", nargs="+", choices=list(recomputation.LOSSES), help="losses")
    parser.add_argument("--json", type=Path, help="file that gets a line per run")
    arguments = parser.parse_args()
    chosen = [
        case
        for case in recomputation.cases()
        if case[0] in (arguments.only or case[0]) and case[1] in (arguments.loss or case[1])
    ]
    results, failed, start = {}, [], time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        model = build_tiny_model(Path(name) / "model")
        for number, case in enumerate(chosen):
            try:
                results[case] = recomputation.recomputed(model, Path(name) / str(number), *case)
            except AssertionError as error:  # rows, advantages or masks differ, or the run didn't do what it is for
                failed.append((case, error))
            if arguments.json and case in results:
                line = dict(zip(("on", "loss_type", "beta", "batch"), case, strict=True))
                line |= {key: value for key, value in vars(results[case]).items() if key != "seen"}
                with arguments.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
            print(f"{number + 1}/{len(chosen)}", end="\r", file=sys.stderr, flush=True)
    print(table(results, list(recomputation.LOSSES)))
    updates = sum(one.updates for one in results.values())
    print(f"\n{len(results)} runs, {updates} updates, {time.monotonic() - start:.0f} s")
    worst = max(results, key=lambda case: results[case].gradient, default=None)
    if worst:
        print(f"largest deviation of a gradient: {results[worst].gradient:.1e}, {worst}")
    for case, error in failed:
        print(f"not compared: {case}: {error}", file=sys.stderr)
    above = [case for case, one in results.items() if max(one.gradient, one.entry, one.loss) > LIMIT]
    for case in above:
        print(f"above {LIMIT}: {case}: {results[case]}", file=sys.stderr)
    return 1 if failed or above or not results else 0


def table(results: dict, losses: list[str]) -> str:
    """A row per thing that is on; a cell has the largest deviation of gradient and loss over its runs."""
    groups = defaultdict(list)
    for (what, loss, *_), one in results.items():
        groups[what, loss].append(one)
    lines = [
        "| on | updates | " + " | ".join(losses) + " | bound acted | average |",
        "|---" * (len(losses) + 4) + "|",
    ]
    for what in dict.fromkeys(case[0] for case in results):
        own = [one for case, one in results.items() if case[0] == what]
        cells = []
        for loss in losses:
            cell = groups[what, loss]
            worst = (max(max(one.gradient, one.entry) for one in cell), max(one.loss for one in cell)) if cell else None
            cells.append(f"{worst[0]:.1e}, {worst[1]:.0e}" if worst else "-")
        clipped, tokens = sum(one.clipped for one in own), sum(one.tokens for one in own)
        average = max(one.average for one in own)
        compared = sum(one.updates - one.without for one in own)
        lines.append(f"| {what} | {compared} | " + " | ".join(cells) + f" | {clipped / tokens:.0%} | {average:.0%} |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
