"""The tables of README.md, from the runs and from what is kept of them.

python results/testbed/table.py collect STUDY_FOLDER NAME.csv    a line per run; the study's own folder below runs/
python results/testbed/table.py table NAME.csv [CONFIRMED.csv]   the table, from those lines alone
"""

import csv
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from r3bench.analysis.statistics.calibration import fifths

HERE = Path(__file__).parent
CONFIDENCE = 0.95
DEAD = tuple(f"dead{i}" for i in range(1, 6))  # share of groups without contrast in each fifth of a run, by tokens
FIELDS = ("arm", "seed", "accuracy", "tokens", "steps", "seconds", "solved", *DEAD, "wrong_tokens", "acted")
NAMES = {  # arms of the confirmation as the study calls them
    "base": "GRPO", "grpo": "GRPO", "positives": "replay.positives", "canonical": "retrospective.canonical",
    "dynamic_sampling": "rival.dynamic_sampling", "forking": "rival.forking",
}  # fmt: skip
Rows = Mapping[str, Mapping[int, Mapping[str, str]]]  # arm -> seed -> a line of the file


def collect(study: Path) -> list[dict[str, object]]:
    """A line per trained run: accuracy (0-1), sampled tokens, share of questions solved, of dead groups by fifths."""
    lines = []
    for path in sorted(study.glob("*/run.json")):
        named = re.fullmatch(r"(.+)-s(\d+)-[0-9a-f]+", path.parent.name)
        if named is None or named[1] == "base-model":
            continue
        record = json.loads(path.read_text())
        train = record["train"]
        (measured,) = record["eval"].values()
        log = [json.loads(line) for line in (path.parent / "metrics.jsonl").read_text().splitlines()]
        line: dict[str, object] = {
            "arm": NAMES.get(arm := named[1].removeprefix("method."), arm), "seed": named[2],
            "accuracy": f"{measured['avg@4']:.6f}", "tokens": train["generated_tokens"], "steps": train["steps"],
            "seconds": f"{train['train_seconds']:.1f}", "solved": f"{last(log, 'exploration/solved'):.4f}",
            "wrong_tokens": f"{measured['tokens_wrong']['mean']:.2f}",
            "acted": "+".join(name for name, did in train["acted"].items() if did) or "-",
        }  # fmt: skip
        line |= {f"dead{i}": f"{share:.4f}" for i, share in enumerate(fifths(log, "exploration/dead"), 1)}
        lines.append(line)
    return lines


def last(log: Sequence[Mapping[str, float]], key: str) -> float:
    """The newest logged value; NaN without one."""
    return next((line[key] for line in reversed(log) if key in line), float("nan"))


def read(path: Path) -> Rows:
    """Arms in the order of the file."""
    found: dict[str, dict[int, dict[str, str]]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            found.setdefault(line["arm"], {})[int(line["seed"])] = line
    return found


def column(runs: Mapping[int, Mapping[str, str]], key: str) -> np.ndarray:
    """One value per seed."""
    return np.array([float(run[key]) for _, run in sorted(runs.items())])


def gap(arm: np.ndarray, base: np.ndarray) -> tuple[float, float, float, float]:
    """Difference of means with Welch's interval and p; points."""
    test = stats.ttest_ind(100 * arm, 100 * base, equal_var=False)
    interval = test.confidence_interval(CONFIDENCE)
    return float(100 * (arm.mean() - base.mean())), float(interval.low), float(interval.high), float(test.pvalue)


def holm(values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given."""
    adjusted, worst = [0.0] * len(values), 0.0
    for rank, index in enumerate(np.argsort(values)):
        worst = max(worst, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = worst
    return adjusted


def table(rows: Rows, confirmed: Rows | None) -> str:
    """Markdown: arms by their mean, GRPO first."""
    base = column(rows["GRPO"], "accuracy")
    arms = sorted((arm for arm in rows if arm != "GRPO"), key=lambda arm: -column(rows[arm], "accuracy").mean())
    gaps = {arm: gap(column(rows[arm], "accuracy"), base) for arm in arms}
    adjusted = dict(zip(arms, holm([gaps[arm][3] for arm in arms]), strict=True))
    lines = [
        "| arm | accuracy | sd | over GRPO (95 %) | adjusted p | on fresh seeds (95 %) | steps | dead groups by "
        "fifths | solved |",
        "|:---|---:|---:|---:|---:|---:|---:|:---|---:|",
    ]
    for arm in ("GRPO", *arms):
        runs = rows[arm]
        accuracy = column(runs, "accuracy")
        dead = " ".join(f"{np.nanmean(100 * column(runs, key)):.0f}" for key in DEAD)
        over = p = again = "-"
        if arm != "GRPO":
            over, p = said(gaps[arm]), f"{adjusted[arm]:.3f}" if adjusted[arm] >= 0.001 else "< 0.001"
        if confirmed is not None and arm in confirmed and arm != "GRPO":
            again = said(gap(column(confirmed[arm], "accuracy"), column(confirmed["GRPO"], "accuracy")))
        lines.append(
            f"| {arm} | {100 * accuracy.mean():.1f} | {100 * accuracy.std(ddof=1):.1f} | {over} | {p} | {again} | "
            f"{column(runs, 'steps').mean():.0f} | {dead} | {100 * column(runs, 'solved').mean():.0f} |"
        )
    return "\n".join(lines)


def said(found: tuple[float, float, float, float]) -> str:
    """Such as `+15.3 (+5.7 to +24.9)`."""
    return f"{found[0]:+.1f} ({found[1]:+.1f} to {found[2]:+.1f})"


def by_seed(rows: Rows) -> str:
    """Markdown: every accuracy."""
    seeds = sorted({seed for runs in rows.values() for seed in runs})
    lines = [f"| arm | seed {' | '.join(map(str, seeds))} |", "|:---|" + "---:|" * len(seeds)]
    for arm, runs in rows.items():
        cells = [f"{100 * float(runs[seed]['accuracy']):.1f}" if seed in runs else "-" for seed in seeds]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    what, first, *rest = sys.argv[1:]
    if what == "collect":
        with (HERE / rest[0]).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(collect(Path(first)))
    elif what == "table":
        print(table(read(HERE / first), read(HERE / rest[0]) if rest else None))
    elif what == "seeds":
        print(by_seed(read(HERE / first)))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
