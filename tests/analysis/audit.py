"""How often intervals hold and tests err, by simulation: `python tests/analysis/audit.py [--count N] [NAME ...]`.

The grids are drawn here with NumPy alone and go through the front door (`effects`, `cell_rows`, `best_cells`). What a
number should be is worked out from the drawn probabilities, by definition, not by the code under test.
"""

import argparse
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from r3bench.analysis.cells import best_cells, cell_rows
from r3bench.analysis.declared import Declared
from r3bench.analysis.effects import Effect, effects
from r3bench.analysis.results import Results, Run, Scores

NODES, MASSES = np.polynomial.hermite_e.hermegauss(15)
Cell = tuple[str, ...]


@dataclass(frozen=True)
class Regime:
    """What is drawn; SDs in logits."""

    factors: int = 4
    left_out: tuple[int, ...] = ()  # cells of the full grid that are not run, by place
    seeds: int | tuple[int, ...] = 3  # per cell
    questions: tuple[int, ...] = (30,)  # of each benchmark
    samples: int = 16
    ease: float = 0.0  # mean logit of a question
    spread: float = 2.0  # SD over questions
    gains: tuple[float, ...] = ()  # mean effect of each factor; none left out
    varies: float = 0.3  # SD of a factor's effect over questions
    run: float = 0.12  # SD between runs
    run_question: float = 0.35  # SD of one run on one question
    collapse: float = 0.0  # share of runs that lose 1.5 logits
    noisy: float = 1.0  # factor on all noise where the first factor is on
    blocks: float = 0.0  # SD of what runs of one seed share

    @property
    def lattice(self) -> list[Cell]:
        """All cells."""
        return list(itertools.product(("off", "on"), repeat=self.factors))

    @property
    def cells(self) -> list[Cell]:
        """Those that are run."""
        return [c for i, c in enumerate(self.lattice) if i not in self.left_out]


LEAVE_ONE_OUT = tuple(i for i in range(16) if i not in (7, 11, 13, 14, 15))
NOISY = {"questions": (500,), "samples": 4, "run": 0.25}
HARD, HARDEST = {"ease": -5.0, "spread": 3.0}, {"ease": -7.0, "spread": 3.0}
REGIMES = {
    "2^4 x 3, 30 questions x 16": Regime(),
    "2^4 x 3, 30 x 64": Regime(samples=64),
    "2^4 x 3, 500 x 1": Regime(questions=(500,), samples=1),
    "2^4 x 3, 500 x 4, noisy training": Regime(**NOISY),
    "2^4 x 1, 30 x 16": Regime(seeds=1),
    "2^4 x 1, 500 x 4, noisy training": Regime(seeds=1, **NOISY),
    "2^3 x 1, 100 x 4, noisy training": Regime(factors=3, seeds=1, questions=(100,), samples=4, run=0.25),
    "2^2 x 2, 500 x 4, noisy training": Regime(factors=2, seeds=2, **NOISY),
    "one factor x 3, 500 x 4, noisy training": Regime(factors=1, **NOISY),
    "one factor x 10, 30 x 16": Regime(factors=1, seeds=10),
    "seeds 1 to 5": Regime(seeds=(1, 5, 2, 3, 1, 4, 2, 5, 3, 1, 2, 4, 5, 1, 3, 2), questions=(100,), run=0.25),
    "4 of 16 cells missing": Regime(left_out=(3, 6, 9, 14), questions=(100,), run=0.2),
    "leave-one-out, 5 cells x 3": Regime(left_out=LEAVE_ONE_OUT, questions=(100,), run=0.2),
    "macro average of 30 and 500": Regime(questions=(30, 500), samples=4),
    "real effects": Regime(questions=(100,), gains=(0.3, 0.0, 0.6, 0.0)),
    "questions all right or all wrong": Regime(spread=6.0),
    "8 % right": Regime(**HARD),
    "2 % right, 4 answers": Regime(samples=4, **HARDEST),
    "2 % right, one factor with an effect": Regime(factors=1, samples=4, gains=(1.5,), **HARDEST),
    "2 % right, the same, 1 answer": Regime(factors=1, samples=1, gains=(1.5,), **HARDEST),
    "1 run in 10 collapses": Regime(collapse=0.1, questions=(500,), samples=4),
    "3 x the noise in half the cells": Regime(noisy=3.0, questions=(500,), samples=4, run=0.15),
    "3 x the noise in one of two cells": Regime(factors=1, noisy=3.0, questions=(500,), samples=4, run=0.15),
    "runs of one seed alike": Regime(blocks=0.2, questions=(500,), samples=4),
}


def _logits(regime: Regime, cells: Sequence[Cell], questions: int, rng: np.random.Generator) -> np.ndarray:
    """(C, Q), before run noise; each factor's effect is symmetric around its mean."""
    codes = np.array([[0.5 if level == "on" else -0.5 for level in cell] for cell in cells])
    mean = np.array(regime.gains or (0.0,) * regime.factors)[:, None]
    effect = mean + rng.normal(0, regime.varies, (regime.factors, questions))
    return rng.normal(regime.ease, regime.spread, questions) + codes @ effect


def _noise(regime: Regime, cells: Sequence[Cell]) -> np.ndarray:
    return np.array([regime.noisy if cell[0] == "on" else 1.0 for cell in cells])


def _expected(regime: Regime, cells: Sequence[Cell], logits: np.ndarray) -> np.ndarray:
    """(C,) mean accuracy over questions, run noise integrated out."""
    scale = _noise(regime, cells)[:, None] * math.sqrt(regime.run**2 + regime.run_question**2 + regime.blocks**2)

    def mean(shift: float) -> np.ndarray:
        return sum(m / (1 + np.exp(-(logits + shift + n * scale))) for n, m in zip(NODES, MASSES, strict=True)) / sum(
            MASSES
        )

    whole = (1 - regime.collapse) * mean(0.0)
    return (whole + regime.collapse * mean(-1.5) if regime.collapse else whole).mean(axis=1)


def truth(regime: Regime) -> dict[Cell, float]:
    """Accuracy of every cell of the full grid over the population of questions and runs."""
    rng = np.random.default_rng(99)
    cells = regime.lattice
    means = [_expected(regime, cells, _logits(regime, cells, 4000, rng)) for _ in range(40)]
    return dict(zip(cells, np.mean(means, axis=0), strict=True))


def draw(regime: Regime, rng: np.random.Generator) -> tuple[Results, dict[Cell, float]]:
    """One study, and each cell's accuracy on exactly its questions (of the only benchmark)."""
    cells = regime.cells
    seeds = [regime.seeds] * len(cells) if isinstance(regime.seeds, int) else list(regime.seeds)
    cell_of = np.repeat(np.arange(len(cells)), seeds)
    seed_of = np.concatenate([np.arange(n) for n in seeds])
    shared = rng.normal(0, 1, seed_of.max() + 1) * regime.blocks
    run = rng.normal(0, regime.run, len(cell_of)) + shared[seed_of]
    run -= 1.5 * (rng.random(len(cell_of)) < regime.collapse)
    scale = _noise(regime, cells)[cell_of][:, None]
    benchmarks, here = {}, {}
    for name, questions in zip("pq", regime.questions, strict=False):
        logits = _logits(regime, cells, questions, rng)
        noise = run[:, None] + rng.normal(0, regime.run_question, (len(cell_of), questions))
        correct = rng.binomial(regime.samples, 1 / (1 + np.exp(-(logits[cell_of] + scale * noise))))
        ids = tuple(f"{i:04d}" for i in range(questions))
        benchmarks[name] = Scores(ids, np.full(correct.shape, regime.samples), correct)
        here = dict(zip(cells, _expected(regime, cells, logits), strict=True))
    names = "abcd"[: regime.factors]
    runs = [
        Run(f"r{i}", int(seed_of[i]), dict(zip(names, cells[c], strict=True))) for i, c in enumerate(cell_of.tolist())
    ]
    factors = dict.fromkeys(names, ("off", "on"))
    return Results("audit", factors, tuple(runs), benchmarks, Declared(failed_score="drop")), here


def defined(effect: Effect, means: Mapping[Cell, float], names: str) -> float:
    """The effect by its definition, from the means of all cells."""
    places = [names.index(part) for part in effect.parts]

    def level(**on: str) -> float:
        return float(np.mean([m for c, m in means.items() if all(c[int(p[1:])] == v for p, v in on.items())]))

    def gain(others: Cell) -> float:
        place = places[0]
        return means[(*others[:place], "on", *others[place:])] - means[(*others[:place], "off", *others[place:])]

    rest = len(names) - 1
    if effect.kind == "main":
        return level(**{f"p{places[0]}": "on"}) - level(**{f"p{places[0]}": "off"})
    if effect.kind == "interaction":
        a, b = (f"p{p}" for p in places)
        on, off = (level(**{a: "on", b: x}) - level(**{a: "off", b: x}) for x in ("on", "off"))
        return on - off
    if effect.kind == "leave_one_out":
        return gain(("on",) * rest)
    if effect.kind == "add_one":
        return gain(("off",) * rest)
    shares = [(c, c.count("on")) for c in itertools.product(("off", "on"), repeat=rest)]
    return sum(gain(c) / (rest + 1) / math.comb(rest, n) for c, n in shares)


def audit(regime: Regime, count: int, seed: int = 0, draws: int = 0) -> dict[str, float]:
    """Shares over `count` studies.

    Returns:
        `main`, `interaction`, `leave_one_out`, ..., `cell`, `gain`: 95 % intervals on questions like these that hold;
        `these ...`: those on exactly these questions; `bootstrap ...`; `best`: the interval of the best cell;
        `wrong verdict`: studies in which a main effect of zero is called up or down; `wrong secondary`: the same for
        anything else, where there is no effect at all; `wrong negligible`: main effects of a point or more, called so;
        `no interval`: main effects without one.
    """
    means, rng = truth(regime), np.random.default_rng(seed)
    names = "abcd"[: regime.factors]
    tally: dict[str, list[bool]] = {}
    values: dict[tuple[str, ...], float] = {}  # effects in the population

    def note(name: str, low: float | None, high: float | None, value: float) -> None:
        if low is not None and high is not None:
            tally.setdefault(name, []).append(low - 1e-12 <= value <= high + 1e-12)

    for _ in range(count):
        results, here = draw(regime, rng)
        head = "macro" if len(regime.questions) > 1 else "p"
        found = [e for e in effects(results, draws=draws, seed=seed)[0] if e.benchmark == head]
        wrong = {"wrong verdict": False, "wrong secondary": False}
        for e in found:
            if (e.kind, *e.parts) not in values:
                values[e.kind, *e.parts] = defined(e, means, names)
            value = values[e.kind, *e.parts]
            note(e.kind, e.like_these.low, e.like_these.high, value)
            note(f"bootstrap {e.kind}", e.boot_low, e.boot_high, value)
            if head == "p" and not regime.left_out and not regime.blocks:
                note(f"these {e.kind}", e.these.low, e.these.high, defined(e, here, names))
            clear, big = e.verdict() in ("up", "down"), abs(value) >= 0.01
            if not regime.gains or (e.kind == "main" and not regime.gains[names.index(e.parts[0])]):
                wrong["wrong verdict" if e.family == "primary" else "wrong secondary"] |= clear
            if e.kind == "main":
                tally.setdefault("no interval", []).append(e.like_these.low is None)
                if big:
                    tally.setdefault("wrong negligible", []).append(e.verdict() == "negligible")
        for name, happened in wrong.items():
            tally.setdefault(name, []).append(happened)
        off = ("off",) * regime.factors
        label = {results.label(cell): cell for cell in results.cells}
        for row in cell_rows(results):
            cell = label.get(row.label)
            if row.benchmark != head or cell is None or row.accuracy is None:
                continue
            note("cell", row.accuracy.like_these.low, row.accuracy.like_these.high, means[cell])
            if head == "p" and not regime.blocks:
                note("these cell", row.accuracy.these.low, row.accuracy.these.high, here[cell])
            if row.gain_off is not None:
                note("gain", row.gain_off.like_these.low, row.gain_off.like_these.high, means[cell] - means[off])
        for best in best_cells(results):
            if best.benchmark == head:
                note("best", best.low, best.high, means[label[best.label]] - means[off])
    return {name: float(np.mean(noted)) for name, noted in tally.items()}


SHOWN = ("main", "interaction", "leave_one_out", "cell", "gain", "best", "these main", "these cell")
RATES = ("wrong verdict", "wrong secondary", "wrong negligible")


def main() -> None:
    """Print the table of docs/statistics.md."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of regimes; all if left out")
    parser.add_argument("--count", type=int, default=600, help="studies of each regime")
    options = parser.parse_args()
    print("| " + " | ".join(("regime", *SHOWN, *RATES)) + " |")
    print("|" + "---|" * (1 + len(SHOWN) + len(RATES)))
    for name, regime in REGIMES.items():
        if not options.names or any(part in name for part in options.names):
            found = audit(regime, options.count)
            cells = [f"{100 * found[k]:.1f}" if k in found else "-" for k in (*SHOWN, *RATES)]
            print("| " + " | ".join((name, *cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
