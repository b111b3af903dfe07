"""Coverage of intervals whose variance is a sum of few estimated ones, by a quick simulation: degrees of freedom alone.

python tests/analysis/freedoms.py [--draws N]                the rule of `statistics.freedom`, by design
python tests/analysis/freedoms.py --attainable [--draws N]   what any rule could reach with the two largest shares

Estimates are normal, variances of cells chi-squared; questions don't count. Lengths are against one pooled variance
under equal noise, which is right there.
"""

import argparse
import itertools
import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from r3bench.analysis.statistics.freedom import of_cells

LEVEL = 0.975


@dataclass(frozen=True)
class Design:
    """A contrast of cells."""

    weights: np.ndarray  # (C,)
    seeds: np.ndarray  # (C,)
    noise: np.ndarray  # (C,) SD between runs

    @property
    def sizes(self) -> np.ndarray:
        """(C,) squared weights of all runs of a cell."""
        return self.weights**2 / self.seeds


def main_effect(cells: int, seeds: int, *, noisy: float = 1.0, count: int = 1) -> Design:
    """Of two levels; the last `count` cells are `noisy` times as noisy."""
    noise = np.where(np.arange(cells) >= cells - count, noisy, 1.0)
    return Design(np.full(cells, 2 / cells), np.full(cells, seeds), noise)


def shapley(factors: int, seeds: int, *, noisy: float = 1.0) -> Design:
    """Of one of several factors; all on is noisy."""
    weights = [
        (1 if on else -1) / factors / math.comb(factors - 1, sum(others))
        for on, *others in itertools.product((0, 1), repeat=factors)
    ]
    return Design(np.array(weights), np.full(2**factors, seeds), np.r_[np.ones(2**factors - 1), noisy])


def two(first: int, second: int, *, noisy: float = 1.0) -> Design:
    """Two cells, the second one noisy."""
    return Design(np.ones(2), np.array([first, second]), np.array([1.0, noisy]))


def _how(noisy: float, which: str) -> str:
    return "equal" if noisy == 1 else f"{which} {noisy:g} x"


DESIGNS = {
    f"{cells} cells x {seeds}, {_how(noisy, 'one')}": main_effect(cells, seeds, noisy=noisy)
    for cells, seeds, noisy in itertools.product((2, 4, 8, 16), (2, 3, 4, 6), (1.0, 2.0, 4.0, 5.0))
}
DESIGNS |= {
    f"{cells} cells x {seeds}, half 3 x": main_effect(cells, seeds, noisy=3.0, count=cells // 2)
    for cells, seeds in itertools.product((4, 8, 16), (2, 3))
}
DESIGNS |= {
    f"Shapley of {factors} factors x {seeds}, {_how(noisy, 'all on')}": shapley(factors, seeds, noisy=noisy)
    for factors, seeds, noisy in itertools.product((3, 4), (2, 3), (1.0, 4.0))
}
DESIGNS |= {
    f"{first} seeds against {second}, these {noisy:g} x": two(first, second, noisy=noisy)
    for (first, second), noisy in itertools.product(((10, 2), (10, 3), (5, 3)), (0.25, 1.0, 4.0))
}


def drawn(design: Design, draws: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(D,) t statistics, (D, C) parts of the variance, (D,) half widths with one pooled variance."""
    rng = np.random.default_rng(seed)
    df, true = design.seeds - 1.0, design.sizes * design.noise**2
    parts = true * rng.chisquare(df, (draws, len(df))) / df
    statistic = np.abs(rng.normal(0, np.sqrt(true.sum()), draws)) / np.sqrt(parts.sum(axis=1))
    pooled = (parts / design.sizes * df).sum(axis=1) / df.sum() * design.sizes.sum()
    return statistic, parts, special.stdtrit(df.sum(), LEVEL) * np.sqrt(pooled)


def coverage(design: Design, draws: int = 20_000, seed: int = 0) -> tuple[float, float, float]:
    """Shares of 95 % and of 99 % intervals that hold, and their mean length over that with one pooled variance."""
    statistic, parts, pooled = drawn(design, draws, seed)
    shape = np.broadcast_to(design.seeds - 1.0, parts.shape), np.broadcast_to(design.sizes, parts.shape)
    df = of_cells(parts, *shape)
    wide = special.stdtrit(df, LEVEL)
    held, surely = (float(np.mean(statistic < special.stdtrit(df, q))) for q in (LEVEL, 0.995))
    return held, surely, float(np.mean(wide * np.sqrt(parts.sum(axis=1))) / pooled.mean())


def attainable(designs: list[Design], target: float, draws: int, seed: int = 0) -> float:
    """Least mean length in the first design, over that of one pooled variance, with coverage of `target` in all.

    The critical value may be any function of the shares that the two largest parts have (in steps, 14 by 6): Lagrange
    multipliers are moved until each design holds.
    """
    found = [drawn(d, draws, seed) for d in designs]
    ordered = [np.sort(parts, axis=1) for _, parts, _ in found]
    first = [p[:, -1] / p.sum(axis=1) for p in ordered]
    second = [p[:, -2] / p[:, :-1].sum(axis=1) for p in ordered]
    edges = np.quantile(np.concatenate(first), np.linspace(0, 1, 15)[1:-1])
    place = [np.digitize(f, edges) for f in first]
    pooled_second, pooled_place = np.concatenate(second), np.concatenate(place)
    steps = [np.quantile(pooled_second[pooled_place == i], np.linspace(0, 1, 7)[1:-1]) for i in range(14)]
    place = [6 * p + (s[:, None] > np.array(steps)[p]).sum(axis=1) for p, s in zip(place, second, strict=True)]
    grid = np.concatenate([np.arange(1.5, 5, 0.05), np.geomspace(5, 200, 60)])
    beyond = np.zeros((len(designs), 84, len(grid)))
    for d, (statistic, *_) in enumerate(found):
        for i in range(84):
            inside = np.sort(statistic[place[d] == i])
            beyond[d, i] = (len(inside) - np.searchsorted(inside, grid)) / draws
    length = np.bincount(place[0], np.sqrt(found[0][1].sum(axis=1)), 84) / draws / found[0][2].mean()
    multiplier, costs = np.ones(len(designs)), []
    for step in range(400):
        chosen = (length[:, None] * grid + np.tensordot(multiplier, beyond, 1)).argmin(axis=1)
        held = 1 - beyond[:, np.arange(84), chosen].sum(axis=1)
        multiplier = np.maximum(0, multiplier + 20 / (1 + step / 30) * (target - held))
        costs.append((length * grid[chosen]).sum())
    return float(np.mean(costs[200:]))


LIMITS = {
    f"{cells} cells x {seeds}": [main_effect(cells, seeds, noisy=noisy) for noisy in (1.0, 2.0, 3.0, 4.0)]
    for cells, seeds in itertools.product((4, 8, 16), (2, 3))
}
LIMITS |= {
    f"Shapley of 4 factors x {seeds}": [shapley(4, seeds, noisy=noisy) for noisy in (1.0, 2.0, 3.0, 4.0)]
    for seeds in (2, 3)
}


def main() -> None:
    """Print tables of docs/statistics.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attainable", action="store_true", help="least lengths instead")
    parser.add_argument("--draws", type=int, default=50_000)
    options = parser.parse_args()
    if options.attainable:
        print("| one cell up to 4 x as noisy | 92 % | 93 % | 94 % | this rule |\n|---|---|---|---|---|")
        for name, designs in LIMITS.items():
            least = [f"{100 * attainable(designs, t, options.draws) - 100:+.0f} %" for t in (0.92, 0.93, 0.94)]
            held, _, length = (
                min(coverage(d, options.draws) for d in designs)[0],
                0,
                coverage(designs[0], options.draws)[2],
            )
            print(f"| {name} | {' | '.join(least)} | {100 * held:.1f} % at {100 * length - 100:+.0f} % |", flush=True)
        return
    print("| design | 95 % | 99 % | length |\n|---|---|---|---|")
    for name, design in DESIGNS.items():
        held, surely, length = coverage(design, options.draws)
        print(f"| {name} | {100 * held:.1f} | {100 * surely:.1f} | {100 * length - 100:+.0f} % |")


if __name__ == "__main__":
    main()
