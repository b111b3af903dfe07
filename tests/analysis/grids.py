"""Made-up studies whose truth is known exactly: drawn with NumPy alone, on the logit scale."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from r3bench.analysis.declared import Declared
from r3bench.analysis.results import Results, Run, Scores
from r3bench.analysis.statistics.effects import Effect

RULES = {n: np.polynomial.hermite_e.hermegauss(n) for n in (7, 31)}  # nodes and masses, for SDs below 1 and any
TAILS = 2.2  # degrees of freedom of heavy tails
Cell = tuple[str, ...]


@dataclass(frozen=True)
class Regime:
    """What is drawn; SDs in logits."""

    factors: int = 4
    levels: int = 2  # of every factor
    left_out: tuple[int, ...] = ()  # cells of the full grid that are not run, by place
    seeds: int | tuple[int, ...] = 3  # per cell
    questions: tuple[int, ...] = (30,)  # of each benchmark
    samples: int = 16
    ease: float = 0.0  # mean logit of a question
    spread: float = 2.0  # SD over questions
    gains: tuple[float, ...] = ()  # mean effect of each factor; none left out
    together: float = 0.0  # mean of what the first two factors add when both are on
    varies: float = 0.3  # SD of a factor's effect over questions
    pairs: float = 0.0  # SD over questions of every two factors' interaction
    run: float = 0.12  # SD between runs
    run_question: float = 0.35  # SD of one run on one question
    heavy: bool = False  # Student's t between runs, of the same scale
    collapse: float = 0.0  # share of runs that lose 1.5 logits
    noisy: float = 1.0  # factor on all noise where the first factor is on
    scale: tuple[float, ...] = ()  # factor on all noise of each cell, by place; all 1
    blocks: float = 0.0  # SD of what runs of one seed share
    blocked: bool = False  # declared as blocks

    @property
    def lattice(self) -> list[Cell]:
        """All cells."""
        return list(itertools.product(self.names, repeat=self.factors))

    @property
    def names(self) -> tuple[str, ...]:
        """Levels, the reference first."""
        return ("off", "on") if self.levels == 2 else ("off", *(f"v{i}" for i in range(1, self.levels)))

    @property
    def cells(self) -> list[Cell]:
        """Those that are run."""
        return [c for i, c in enumerate(self.lattice) if i not in self.left_out]

    def noise(self, cells: Sequence[Cell]) -> np.ndarray:
        """(C,) factor on all noise."""
        places = {cell: i for i, cell in enumerate(self.lattice)}
        return np.array([
            (self.scale[places[c]] if self.scale else 1.0) * (self.noisy if c[0] != "off" else 1.0) for c in cells
        ])  # fmt: skip

    def codes(self, cells: Sequence[Cell]) -> np.ndarray:
        """(C, F, levels - 1) +-1/2 for two levels, indicators for more."""
        centre = 0.5 if self.levels == 2 else 0.0
        return np.array([[[(v == name) - centre for name in self.names[1:]] for v in cell] for cell in cells])


def _pairs(regime: Regime, codes: np.ndarray) -> np.ndarray:
    """(C, P) products of the codes of two factors, in main-effect scaling."""
    chosen = itertools.combinations(range(regime.factors), 2)
    return np.stack([2 * codes[:, i, 0] * codes[:, j, 0] for i, j in chosen], axis=1) if regime.factors > 1 else (
        np.zeros((len(codes), 0)))  # fmt: skip


def mean_logits(regime: Regime, cells: Sequence[Cell]) -> np.ndarray:
    """(C,)"""
    codes = regime.codes(cells)
    mean = regime.ease + codes.sum(axis=2) @ np.array(regime.gains or (0.0,) * regime.factors)
    if regime.together:
        mean += regime.together * np.array([c[0] != "off" and c[1] != "off" for c in cells])
    return np.asarray(mean)


def _logits(regime: Regime, cells: Sequence[Cell], questions: int, rng: np.random.Generator) -> np.ndarray:
    """(C, Q), before run noise; effects vary symmetrically around their means."""
    codes = regime.codes(cells)
    effect = rng.normal(0, regime.varies, (codes.shape[1], codes.shape[2], questions))
    pair = _pairs(regime, codes)
    varying = np.einsum("cfl,flq->cq", codes, effect) + pair @ rng.normal(0, regime.pairs, (pair.shape[1], questions))
    return mean_logits(regime, cells)[:, None] + rng.normal(0, regime.spread, questions) + varying


def _shifts(regime: Regime) -> list[tuple[float, float]]:
    """What isn't normal in a run's noise: (logits, mass)."""
    if regime.heavy:
        points = 60
        places = stats.t.ppf((np.arange(points) + 0.5) / points, TAILS) * regime.run
        return [(float(p), 1 / points) for p in places]
    return [(0.0, 1 - regime.collapse), (-1.5, regime.collapse)] if regime.collapse else [(0.0, 1.0)]


def _expected(mean: np.ndarray, sd: np.ndarray, shifts: Sequence[tuple[float, float]], scale: np.ndarray) -> np.ndarray:
    """Mean accuracy at logits mean + N(0, sd^2) + scale x shift."""
    total = np.zeros(np.broadcast(mean, sd).shape)
    nodes, masses = RULES[7 if np.max(sd) < 1 else 31]
    for shift, share in shifts:
        for node, mass in zip(nodes, masses / masses.sum(), strict=True):
            total += share * mass / (1 + np.exp(-(mean + sd * node + scale * shift)))
    return total


def _run_sd(regime: Regime) -> float:
    return math.sqrt((0.0 if regime.heavy else regime.run**2) + regime.run_question**2 + regime.blocks**2)


def _between(regime: Regime, cells: Sequence[Cell]) -> np.ndarray:
    """(C,) variance over questions of a cell's logit."""
    codes = regime.codes(cells)
    varying = (codes**2).sum(axis=(1, 2)) * regime.varies**2 + (_pairs(regime, codes) ** 2).sum(
        axis=1
    ) * regime.pairs**2
    return np.asarray(regime.spread**2 + varying)


def truth(regime: Regime) -> dict[Cell, float]:
    """Accuracy of every cell of the full grid over the population of questions and runs."""
    cells = regime.lattice
    scale = regime.noise(cells)
    sd = np.sqrt(_between(regime, cells) + (scale * _run_sd(regime)) ** 2)
    return dict(zip(cells, _expected(mean_logits(regime, cells), sd, _shifts(regime), scale), strict=True))


def base_truth(regime: Regime) -> float:
    """Accuracy of the untrained model: half a logit below all off, without noise between runs."""
    off = regime.lattice[:1]
    sd = np.sqrt(_between(regime, off))
    return float(_expected(mean_logits(regime, off) - 0.5, sd, [(0.0, 1.0)], np.ones(1))[0])


@dataclass(frozen=True)
class Drawn:
    """One study."""

    results: Results
    here: dict[Cell, float]  # each cell's accuracy on exactly its questions (of the only benchmark)
    models: np.ndarray  # (R,) accuracy of each trained model over the population of questions (of the last benchmark)


def draw(regime: Regime, rng: np.random.Generator, **declared: object) -> Drawn:
    """One study, the untrained model first."""
    cells = regime.cells
    seeds = [regime.seeds] * len(cells) if isinstance(regime.seeds, int) else list(regime.seeds)
    cell_of = np.repeat(np.arange(len(cells)), seeds)
    seed_of = np.concatenate([np.arange(n) for n in seeds])
    shared = rng.normal(0, 1, seed_of.max() + 1) * regime.blocks
    own = rng.standard_t(TAILS, len(cell_of)) if regime.heavy else rng.normal(0, 1, len(cell_of))
    run = own * regime.run + shared[seed_of]
    run -= 1.5 * (rng.random(len(cell_of)) < regime.collapse)
    scale = regime.noise(cells)
    benchmarks, here = {}, {}
    for name, questions in zip("pqrs", regime.questions, strict=False):
        logits = _logits(regime, cells, questions, rng)
        noise = run[:, None] + rng.normal(0, regime.run_question, (len(cell_of), questions))
        untrained = _logits(regime, regime.lattice[:1], questions, rng) if 0 in regime.left_out else logits[:1]
        all_logits = np.vstack([untrained - 0.5, logits[cell_of] + scale[cell_of][:, None] * noise])
        correct = rng.binomial(regime.samples, 1 / (1 + np.exp(-all_logits)))
        ids = tuple(f"{i:04d}" for i in range(questions))
        benchmarks[name] = Scores(ids, np.full(correct.shape, regime.samples), correct)
        if len(regime.questions) == 1 and not regime.blocks:
            sd = scale[:, None] * _run_sd(regime)
            expected = _expected(logits, sd, _shifts(regime), scale[:, None]).mean(axis=1)
            here = dict(zip(cells, expected, strict=True))
    factors = "abcd"[: regime.factors]
    runs = [Run("untrained", 0, {}, base=True)]
    runs += [
        Run(f"r{i}", int(seed_of[i]), dict(zip(factors, cells[c], strict=True))) for i, c in enumerate(cell_of.tolist())
    ]
    sd = np.sqrt(_between(regime, cells)[cell_of] + (scale[cell_of] * regime.run_question) ** 2)
    models = _expected(mean_logits(regime, cells)[cell_of] + scale[cell_of] * run, sd, [(0.0, 1.0)], np.ones(1))
    values = {"failed_score": "drop", "blocks": "seed" if regime.blocked else None, **declared}
    levels = dict.fromkeys(factors, regime.names)
    return Drawn(Results("audit", levels, tuple(runs), benchmarks, Declared(**values)), here, models)


def weights_of(effect: Effect, regime: Regime) -> dict[Cell, float]:
    """The effect by its definition, as weights of all cells."""
    factors = "abcd"[: regime.factors]
    chosen = [part.split("=") if "=" in part else [part, "on"] for part in effect.parts]
    where = {factors.index(factor): level for factor, level in chosen}
    found: dict[Cell, float] = {}

    def add(cell: Cell, weight: float) -> None:
        found[cell] = found.get(cell, 0.0) + weight

    def gain(others: Mapping[int, str], place: int, share: float) -> None:
        for level, sign in ((where[place], 1), ("off", -1)):
            add(tuple(level if i == place else others[i] for i in range(len(factors))), sign * share)

    place = next(iter(where))
    rest = [i for i in range(len(factors)) if i != place]
    if effect.kind in ("main", "interaction"):
        free = [i for i in range(len(factors)) if i not in where]
        cells = list(itertools.product(regime.names, repeat=len(free)))
        for others in cells:
            for levels in itertools.product(*([(level, 1), ("off", -1)] for level in where.values())):
                cell = dict(zip(free, others, strict=True)) | dict(zip(where, [v for v, _ in levels], strict=True))
                add(tuple(cell[i] for i in range(len(factors))), math.prod(s for _, s in levels) / len(cells))
    elif effect.kind in ("leave_one_out", "add_one"):
        gain(dict.fromkeys(rest, regime.names[1] if effect.kind == "leave_one_out" else "off"), place, 1.0)
    elif effect.kind == "shapley":
        for others in itertools.product(regime.names[:2], repeat=len(rest)):
            size = sum(v != "off" for v in others)
            gain(dict(zip(rest, others, strict=True)), place, 1 / len(factors) / math.comb(len(rest), size))
    else:  # additivity from all off
        add(tuple(where.get(i, "off") for i in range(len(factors))), 1.0)
        add(("off",) * len(factors), len(where) - 1.0)
        for moved, level in where.items():
            add(tuple(level if i == moved else "off" for i in range(len(factors))), -1.0)
    return {cell: weight for cell, weight in found.items() if abs(weight) > 1e-12}
