"""How often intervals hold and verdicts err, by simulation.

python tests/analysis/audit.py [--count N] [--variance pooled] [NAME ...]   coverage and errors of all regimes
python tests/analysis/audit.py --cost [--count N]                           half widths against one pooled variance

The studies are drawn by `grids`, with NumPy alone, and go through the front door (`effects`, `cell_rows`,
`best_cells`, `paired_interval`). What a number should be is worked out from the drawn probabilities, by definition,
not by the code under test.
"""

import argparse
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from grids import Cell, Drawn, Regime, base_truth, draw, truth, weights_of

from r3bench.analysis.statistics.cells import best_cells, cell_rows
from r3bench.analysis.statistics.effects import effects
from r3bench.evaluation.compare import paired_interval

LEAVE_ONE_OUT = tuple(i for i in range(16) if i not in (7, 11, 13, 14, 15))
ADD_ONE = tuple(i for i in range(16) if i not in (0, 1, 2, 4, 8, 15))
MATH = {"questions": (500,), "samples": 4, "run": 0.15}
NOISY = {"questions": (500,), "samples": 4, "run": 0.25}
VARIANTS = {"factors": 1, "levels": 6}
ONE = (1.0,) * 5 + (4.0,)
HARD, HARDEST = {"ease": -5.0, "spread": 3.0}, {"ease": -7.0, "spread": 3.0}
EQUAL = {
    "2^4 x 3, 30 questions x 16": Regime(),
    "2^4 x 3, 500 x 4": Regime(**MATH),
    "2^4 x 2, 500 x 4": Regime(seeds=2, **MATH),
    "2^3 x 3, 500 x 4": Regime(factors=3, **MATH),
    "2^3 x 2, 500 x 4": Regime(factors=3, seeds=2, **MATH),
    "2^2 x 3, 500 x 4": Regime(factors=2, **MATH),
    "2^2 x 2, 500 x 4, noisy training": Regime(factors=2, seeds=2, **NOISY),
    "6 variants x 3, 500 x 4": Regime(**VARIANTS, **MATH),
    "6 variants x 8, 500 x 4": Regime(**VARIANTS, seeds=8, **MATH),
    "one factor x 2, 500 x 4": Regime(factors=1, seeds=2, **MATH),
    "one factor x 3, 500 x 4": Regime(factors=1, **MATH),
    "one factor x 4, 500 x 4": Regime(factors=1, seeds=4, **MATH),
    "one factor x 3, 30 x 16": Regime(factors=1),
    "one factor x 10, 30 x 16": Regime(factors=1, seeds=10),
}
UNEQUAL = {
    "6 variants x 3, one 4 x as noisy": Regime(**VARIANTS, scale=ONE, **MATH),
    "the same, 30 questions x 16": Regime(**VARIANTS, scale=ONE),
    "6 variants, the noisy one 2 seeds, the rest 10": Regime(**VARIANTS, scale=ONE, seeds=(10,) * 5 + (2,), **MATH),
    "6 variants, the noisy one 10 seeds, the rest 2": Regime(**VARIANTS, scale=ONE, seeds=(2,) * 5 + (10,), **MATH),
    "6 variants x 3, noisy reference": Regime(**VARIANTS, scale=ONE[::-1], **MATH),
    "10 quiet against 3 noisy seeds": Regime(factors=1, noisy=4.0, seeds=(10, 3), **MATH),
    "10 quiet against 2 noisy seeds, 30 x 16": Regime(factors=1, noisy=4.0, seeds=(10, 2)),
    "2^3, noisy factor 2 seeds, quiet 6": Regime(factors=3, noisy=3.0, seeds=(6,) * 4 + (2,) * 4, **MATH),
    "2^3 x 3, a factor triples the noise": Regime(factors=3, noisy=3.0, **MATH),
    "2^2 x 3, one cell 4 x as noisy": Regime(factors=2, scale=(1.0, 1.0, 1.0, 4.0), **MATH),
    "2^4 x 3, all on 5 x as noisy": Regime(scale=(1.0,) * 15 + (5.0,), **MATH),
    "6 variants x 3, reference 10 seeds": Regime(**VARIANTS, seeds=(10,) + (3,) * 5, **MATH),
    "the same, one variant 4 x as noisy": Regime(**VARIANTS, seeds=(10,) + (3,) * 5, scale=ONE, **MATH),
    "2^3, noisy factor 3 seeds, quiet 10": Regime(factors=3, noisy=3.0, seeds=(10,) * 4 + (3,) * 4, **MATH),
    "3 x 3 cells x 3, two 4 x as noisy": Regime(
        factors=2, levels=3, scale=(1.0, 4.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 4.0), **MATH
    ),
    "2^3 x 3, heavy tails, one cell 4 x as noisy": Regime(factors=3, heavy=True, scale=(1.0,) * 7 + (4.0,), **MATH),
    "2^3 x 2, one cell 4 x as noisy": Regime(factors=3, seeds=2, scale=(1.0,) * 7 + (4.0,), **MATH),
    "2^4 x 2, one cell 4 x as noisy": Regime(seeds=2, scale=(1.0,) * 15 + (4.0,), **MATH),
}
OTHERS = {
    "2^4 x 1, 30 x 16": Regime(seeds=1),
    "2^4 x 1, 500 x 4, noisy training": Regime(seeds=1, **NOISY),
    "2^3 x 1, 100 x 4, noisy training": Regime(factors=3, seeds=1, questions=(100,), samples=4, run=0.25),
    "seeds 1 to 5": Regime(seeds=(1, 5, 2, 3, 1, 4, 2, 5, 3, 1, 2, 4, 5, 1, 3, 2), questions=(100,), run=0.25),
    "4 of 16 cells missing": Regime(left_out=(3, 6, 9, 14), questions=(100,), run=0.2),
    "leave-one-out, 5 cells x 3": Regime(left_out=LEAVE_ONE_OUT, questions=(100,), run=0.2),
    "add-one and all on, 6 cells x 3, a true interaction": Regime(
        left_out=ADD_ONE, gains=(0.3, 0.3, 0.0, 0.0), together=0.6, questions=(100,), run=0.2
    ),
    "macro average of 30 and 500": Regime(questions=(30, 500), samples=4),
    "three benchmarks, one cell 4 x as noisy": Regime(
        factors=2, questions=(30, 40, 100), samples=8, scale=(1.0, 1.0, 1.0, 4.0)
    ),
    "four true main effects": Regime(gains=(0.4,) * 4, **MATH),
    "two true main effects": Regime(questions=(100,), gains=(0.3, 0.0, 0.6, 0.0)),
    "effects interact over questions": Regime(varies=0.5, pairs=0.5),
    "heavy tails": Regime(factors=3, heavy=True, **MATH),
    "heavy tails, one factor x 5": Regime(factors=1, seeds=5, heavy=True, **MATH),
    "questions all alike": Regime(factors=2, spread=0.0, varies=0.0, run_question=0.0, questions=(100,)),
    "questions all right or all wrong": Regime(factors=3, spread=6.0),
    "8 % right": Regime(factors=3, **HARD),
    "2 % right": Regime(factors=2, ease=-6.5, spread=2.5),
    "98.7 % right": Regime(factors=2, ease=7.0, spread=2.5),
    "2 % right, 10 seeds": Regime(factors=1, seeds=10, ease=-6.5, spread=2.5),
    "2 % right, 4 answers": Regime(samples=4, **HARDEST),
    "2 % right, one factor with an effect": Regime(factors=1, samples=4, gains=(1.5,), **HARDEST),
    "2 % right, the same, 1 answer": Regime(factors=1, samples=1, gains=(1.5,), **HARDEST),
    "1 run in 10 collapses": Regime(factors=3, collapse=0.1, questions=(500,), samples=4),
    "runs of one seed alike": Regime(factors=3, blocks=0.25, run=0.1, questions=(500,), samples=4),
    "the same, declared as blocks": Regime(factors=3, blocks=0.25, run=0.1, questions=(500,), samples=4, blocked=True),
}
REGIMES = EQUAL | UNEQUAL | OTHERS


def value(weights: Mapping[Cell, float], means: Mapping[Cell, float]) -> float:
    """A contrast's true value."""
    return sum(weight * means[cell] for cell, weight in weights.items())


class Tally:
    """What is counted over the studies of a regime."""

    def __init__(self) -> None:
        self.held: dict[str, list[bool]] = {}
        self.half: dict[str, list[float]] = {}

    def note(self, name: str, low: float | None, high: float | None, true: float) -> None:
        if low is not None and high is not None:
            self.held.setdefault(name, []).append(low - 1e-12 <= true <= high + 1e-12)
            self.half.setdefault(name, []).append((high - low) / 2)

    def count(self, name: str, happened: bool) -> None:
        self.held.setdefault(name, []).append(happened)


def audit(
    regime: Regime, count: int, seed: int = 0, draws: int = 0, widths: bool = False, **declared: object
) -> dict[str, float]:
    """Shares over `count` studies.

    Returns:
        `main`, `interaction`, `leave_one_out`, ..., `cell`, `gain`, `base gain`, `compare`: 95 % intervals on questions
        like these that hold, and `noisy ...` those of contrasts of one or two cells that touch the noisiest;
        `these ...`: those on exactly these questions; `models ...`: of exactly these models; `bootstrap ...`;
        `best`: the interval of the best cell; `wrong verdict`: studies in which a factor without an effect is called up
        or down; `wrong interaction`: the same for interactions; `wrong negligible`: main effects of a point or more,
        called so; `no interval`: main effects without one. With `widths`, mean half widths instead.
    """
    means, base, rng = truth(regime), base_truth(regime), np.random.default_rng(seed)
    tally = Tally()
    for _ in range(count):
        _one(regime, draw(regime, rng, **declared), means, base, tally, draws, seed)
    return {name: float(np.mean(noted)) for name, noted in (tally.half if widths else tally.held).items()}


def _one(
    regime: Regime, drawn: Drawn, means: Mapping[Cell, float], base: float, tally: Tally, draws: int, seed: int
) -> None:
    results, here = drawn.results, drawn.here
    head = "macro" if len(regime.questions) > 1 else "p"
    noise = dict(zip(regime.lattice, regime.noise(regime.lattice), strict=True))
    noisiest = max(noise.values())

    def named(kind: str, cells: Sequence[Cell]) -> str:
        few = len(cells) < 3 and noisiest > min(noise.values())
        return f"noisy {kind}" if few and max(noise[c] for c in cells) == noisiest else kind

    wrong = {"wrong verdict": False, "wrong interaction": False}
    for e in effects(results, draws=draws, seed=seed)[0]:
        weights = weights_of(e, regime)
        true = value(weights, means)
        clear = e.verdict() in ("up", "down") and abs(true) < 1e-7
        if e.family:
            wrong["wrong interaction" if e.kind in ("interaction", "additivity") else "wrong verdict"] |= clear
        if e.benchmark != head:
            continue
        kind = named(e.kind + ("*" if e.assumes else ""), list(weights))
        tally.note(kind, e.like_these.low, e.like_these.high, true)
        tally.note(f"models {kind}", e.models.low, e.models.high, _models(weights, regime, drawn))
        tally.note(f"bootstrap {kind}", e.boot_low, e.boot_high, true)
        if here and all(c in here for c in weights):
            tally.note(f"these {kind}", e.these.low, e.these.high, value(weights, here))
        if e.kind == "main":
            tally.count("no interval", e.like_these.low is None)
            tally.count("found", e.verdict() in ("up", "down"))
            if abs(true) >= 0.01:
                tally.count("wrong negligible", e.verdict() == "negligible")
    for name, happened in wrong.items():
        tally.count(name, happened)
    off = regime.lattice[0]
    label = {results.label(cell): cell for cell in results.cells}
    for row in cell_rows(results):
        cell = label.get(row.label)
        if row.benchmark != head or cell is None or row.accuracy is None:
            continue
        kind = named("cell", [cell])
        tally.note(kind, row.accuracy.like_these.low, row.accuracy.like_these.high, means[cell])
        tally.note(f"models {kind}", row.accuracy.models.low, row.accuracy.models.high,
                   _models({cell: 1.0}, regime, drawn))  # fmt: skip
        if here:
            tally.note(f"these {kind}", row.accuracy.these.low, row.accuracy.these.high, here[cell])
        if row.gain_off is not None:
            gain = row.gain_off.like_these
            tally.note(named("gain", [cell, off]), gain.low, gain.high, means[cell] - means[off])
        if row.gain_base is not None:
            gain = row.gain_base.like_these
            tally.note(named("base gain", [cell]), gain.low, gain.high, means[cell] - base)
    for best in best_cells(results):
        if best.benchmark == head:
            tally.note("best", best.low, best.high, means[label[best.label]] - means[off])
    accuracy = next(iter(results.benchmarks.values())).accuracy
    low, high = paired_interval(accuracy[-1] - accuracy[1])
    tally.note("compare", low, high, float(drawn.models[-1] - drawn.models[0]))


def _models(weights: Mapping[Cell, float], regime: Regime, drawn: Drawn) -> float:
    """A contrast's true value for exactly the models of a study with one seed a cell."""
    places = {cell: i for i, cell in enumerate(regime.cells)}
    return (
        float(sum(w * drawn.models[places[c]] for c, w in weights.items())) if len(drawn.models) == len(places) else 0
    )


SHOWN = ("cell", "gain", "base gain", "main", "main*", "interaction", "additivity", "shapley", "leave_one_out",
         "add_one", "best", "compare", "these main", "these add_one", "these cell")  # fmt: skip
RATES = ("wrong verdict", "wrong interaction", "wrong negligible")


def shown(found: Mapping[str, float], key: str) -> str:
    """'95.1', with that of the noisy cell first where there is one: '94.2 / 95.1'."""
    noisy = [found[k] for k in (f"noisy {key}", key.replace("these ", "these noisy ")) if k in found and k != key]
    return " / ".join(f"{100 * v:.1f}" for v in [*noisy[:1], *([found[key]] if key in found else [])]) or "-"


def _row(task: tuple[str, int, dict[str, object]]) -> str:
    name, count, declared = task
    found = audit(REGIMES[name], count, **declared)
    return "| " + " | ".join((name, *(shown(found, k) for k in (*SHOWN, *RATES)))) + " |"


def _cost(task: tuple[str, int, dict[str, object]]) -> str:
    name, count, _ = task
    own, one = (audit(EQUAL[name], count, widths=True, variance=v) for v in ("per_cell", "pooled"))
    cells = []
    for kind in ("cell", "gain", "main", "interaction", "shapley", "add_one", "best"):
        cells.append(f"{100 * own[kind]:.1f}, {100 * (own[kind] / one[kind] - 1):+.0f} %" if kind in own else "-")
    return "| " + " | ".join((name, *cells)) + " |"


def main() -> None:
    """Print the tables of docs/statistics.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of the names of regimes; all if left out")
    parser.add_argument("--count", type=int, default=1000, help="studies of each regime")
    parser.add_argument("--variance", default="per_cell", help="per_cell, or pooled: one variance for all cells")
    parser.add_argument("--cost", action="store_true", help="half widths with equal noise instead")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    heads = ("regime", "cell", "gain", "main", "interaction", "shapley", "add_one", "best") if options.cost else (
        "regime", *SHOWN, *RATES)  # fmt: skip
    print("| " + " | ".join(heads).replace("_", " ") + " |")
    print("|" + "---|" * len(heads))
    tasks: list[tuple[str, int, dict[str, object]]] = [
        (name, options.count, {"variance": options.variance})
        for name in (EQUAL if options.cost else REGIMES)
        if not options.names or any(part in name for part in options.names)
    ]
    job = _cost if options.cost else _row
    if options.processes == 1:
        for task in tasks:
            print(job(task), flush=True)
    else:
        with ProcessPoolExecutor(options.processes) as pool:
            for line in pool.map(job, tasks):
                print(line, flush=True)


if __name__ == "__main__":
    main()
