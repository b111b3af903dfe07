"""Does a task tell a known effect from none, and how small an effect could it tell? What `r3bench calibrate` prints.

A calibration is a grid with one factor, `control`: `off` (the recipe), `positive` (a change that must help, with the
same seeds) and `null` (machinery without an effect, with other seeds), all at equal sampled tokens. Differences are
taken run by run; intervals are Student's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, stats

NULL = "null"
LEVELS = ("off", "positive", NULL)  # of the factor `control`
DESIGNS = (4, 8, 16)  # seeds a detectable effect is given for
POWER = 0.8  # chance of finding an effect of that size
CONFIDENCE = 0.95
FIFTHS = 5  # parts of a run, by tokens


@dataclass(frozen=True)
class Difference:
    """A control against `off`, run by run; accuracies (0-1)."""

    estimate: float  # mean difference
    low: float  # its 95 % interval
    high: float
    sd: float  # of the differences over seeds

    @property
    def helps(self) -> bool:
        """Whether the interval lies above zero."""
        return self.low > 0

    def none(self, margin: float) -> bool:
        """Whether the interval holds zero, or nothing beyond +-margin."""
        return self.low <= 0 <= self.high or max(-self.low, self.high) <= margin


@dataclass(frozen=True)
class Arm:
    """One level over its seeds."""

    accuracies: tuple[float, ...]  # in the order of the seeds
    tokens: float  # mean sampled tokens of a run
    seconds: float  # mean seconds of training
    dead_at_start: float  # share of groups without contrast in the first batch
    dead: tuple[float, ...]  # the same in each fifth of the run, by tokens; NaN where nothing was logged
    reward: tuple[float, ...]  # mean reward likewise
    solved: float  # share of the training questions with a right answer at the end


@dataclass(frozen=True)
class Card:
    """What is known of a task."""

    recipe: str  # its name
    task: str  # measured on
    seeds: tuple[int, ...]  # of `off` and `positive`; `null` has as many others
    start: float | None  # accuracy of the model before training
    arms: Mapping[str, Arm]  # by level
    positive: Difference  # against off
    null: Difference  # against off
    margin: float  # accuracy; a null control that is shown to be inside of +-margin is none
    detectable: Mapping[int, float]  # seeds -> smallest effect found in 80 % of studies, from the spread of `null`

    @property
    def faults(self) -> list[str]:
        """Why it isn't calibrated; empty where it is."""
        found = []
        if not self.positive.helps:
            found.append(
                f"the positive control isn't told from none: {_points(self.positive.estimate)} "
                f"[{_points(self.positive.low)}, {_points(self.positive.high)}]"
            )
        if not self.null.none(self.margin):
            found.append(
                f"the null control is told from none: {_points(self.null.estimate)} "
                f"[{_points(self.null.low)}, {_points(self.null.high)}]"
            )
        return found


def difference(level: Sequence[float], off: Sequence[float]) -> Difference:
    """Two levels' accuracies (S,), seed by seed, S >= 2."""
    gaps = np.asarray(level, float) - np.asarray(off, float)
    mean, sd, count = float(gaps.mean()), float(gaps.std(ddof=1)), len(gaps)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) * sd / np.sqrt(count)
    return Difference(mean, mean - half, mean + half, sd)


def detectable_effect(sd: float, seeds: int) -> float:
    """The smallest true difference whose two-sided paired t test at 5 % rejects in 80 % of studies.

    Args:
        sd: of a difference over seeds.
        seeds: pairs, at least 2.
    """
    if sd == 0:
        return 0.0
    df, bound = seeds - 1, stats.t.ppf((1 + CONFIDENCE) / 2, seeds - 1)

    def short(shift: float) -> float:  # of the wished power, at a shift in standard errors
        above, below = stats.nct.sf(bound, df, shift), stats.nct.cdf(-bound, df, shift)
        return float(np.nan_to_num(above, nan=1.0) + np.nan_to_num(below)) - POWER  # scipy gives NaN far out

    return float(optimize.brentq(short, 0.01, 50.0)) * sd / float(np.sqrt(seeds))


def fifths(log: Sequence[Mapping[str, Any]], key: str) -> tuple[float, ...]:
    """Means of a log's `key` over the five equal parts of its tokens; NaN for a part without a line."""
    lines = [(line["generated_tokens"], line[key]) for line in log if line.get(key) is not None]
    whole = lines[-1][0] if lines else 1
    parts = [min(FIFTHS - 1, int(FIFTHS * tokens / whole)) for tokens, _ in lines]
    values = [[value for (_, value), part in zip(lines, parts, strict=True) if part == p] for p in range(FIFTHS)]
    return tuple(float(np.mean(part)) if part else float("nan") for part in values)


def card(
    recipe: str,
    task: str,
    start: float | None,
    runs: Mapping[str, Mapping[int, Mapping[str, Any]]],
    logs: Mapping[str, Mapping[int, Sequence[Mapping[str, Any]]]],
    margin: float,
) -> Card:
    """The card of a calibration.

    Args:
        recipe, task, start, margin: as in `Card`.
        runs: level -> seed -> `accuracy`, `tokens`, `seconds`; every level with the same seeds, two or more (those of
            `null` as if they began where the others do).
        logs: level -> seed -> lines of the run's `metrics.jsonl`.
    """
    seeds = sorted(runs["off"])
    arms = {}
    for level in LEVELS:
        found, lines = [runs[level][seed] for seed in seeds], [logs[level][seed] for seed in seeds]
        first = [log[0].get("exploration/dead") if log else None for log in lines]
        ends = [log[-1].get("exploration/solved") if log else None for log in lines]
        arms[level] = Arm(
            accuracies=tuple(float(run["accuracy"]) for run in found),
            tokens=float(np.mean([run["tokens"] for run in found])),
            seconds=float(np.mean([run["seconds"] for run in found])),
            dead_at_start=_mean(first),
            dead=_over_runs(lines, "exploration/dead"),
            reward=_over_runs(lines, "reward"),
            solved=_mean(ends),
        )
    off = arms["off"].accuracies
    null = difference(arms["null"].accuracies, off)
    return Card(
        recipe, task, tuple(seeds), start, arms, difference(arms["positive"].accuracies, off), null,
        margin, {count: detectable_effect(null.sd, count) for count in DESIGNS},
    )  # fmt: skip


def _over_runs(logs: Sequence[Sequence[Mapping[str, Any]]], key: str) -> tuple[float, ...]:
    table = np.array([fifths(log, key) for log in logs])
    return tuple(_mean(list(column)) for column in table.T)


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None and not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")


def _points(value: float) -> str:
    return f"{100 * value:+.1f}"


def text(made: Card) -> str:
    """The card for a terminal."""
    off = made.arms["off"]

    def row(values: Sequence[float]) -> str:
        return "  ".join(f"{100 * value:5.1f}" for value in values)

    lines = [
        f"{made.recipe}, measured on {made.task}, {len(made.seeds)} seeds a level, accuracies in %",
        "",
        f"before training        {100 * made.start:5.1f}" if made.start is not None else "",
        f"groups without contrast{100 * off.dead_at_start:6.1f} % in the first batch",
        f"  in each fifth        {row(off.dead)}",
        f"mean reward            {row(off.reward)}",
        f"questions ever solved  {100 * off.solved:5.1f} %",
        "",
    ]
    for level in LEVELS:
        arm = made.arms[level]
        spread = f"sd {100 * np.std(arm.accuracies, ddof=1):.1f}"
        lines.append(
            f"{level:9} {row(arm.accuracies)}   mean {100 * np.mean(arm.accuracies):.1f}, {spread}, "
            f"{arm.tokens:,.0f} tokens, {arm.seconds:.0f} s"
        )
    lines.append("")
    for level, gap in (("positive", made.positive), ("null", made.null)):
        lines.append(
            f"{level} - off: {_points(gap.estimate)} points, 95 % interval {_points(gap.low)} to {_points(gap.high)}"
        )
    lines[-1] += f" (margin {100 * made.margin:g})"
    sizes = ", ".join(f"{100 * size:.1f} with {count} seeds" for count, size in made.detectable.items())
    lines += [f"smallest effect found in 80 % of studies, in points: {sizes}", ""]
    lines.append("calibrated" if not made.faults else "not calibrated: " + "; ".join(made.faults))
    return "\n".join(lines)
