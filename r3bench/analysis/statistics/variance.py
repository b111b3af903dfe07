"""Where the noise comes from, and where the next hour of compute helps most."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import special

from r3bench.analysis.results import Results
from r3bench.analysis.statistics.lattice import contrasts
from r3bench.analysis.statistics.power import VarianceAssumptions
from r3bench.analysis.statistics.prepare import Prepared, observed_factors, prepare
from r3bench.analysis.statistics.twoway import run_question_variance, run_variance

SHOWN = 0.05  # p below which runs that share a seed are taken to be alike


@dataclass(frozen=True)
class Decomposition:
    """Variance components of one benchmark, in squared accuracy (0-1); None where the design can't tell."""

    seed: float | None  # between runs of one cell, over all questions alike
    question: float  # difficulty, common to all cells
    interaction: float | None  # question by configuration: the effect differs between questions
    run_question: float | None  # question by run, beyond sampling; None with one answer per question
    sampling: float | None  # one answer, given run and question: mean p(1-p); with one answer, run_question included
    question_effect: float | None  # variance over questions of a main effect, noise taken out


@dataclass(frozen=True)
class Allocation:
    """Standard error of a main effect now, and after spending a tenth more on one thing."""

    now: float  # SE on questions like these
    seeds: float | None  # SE after more seeds for the same money; None without cost records
    samples: float | None  # ... more answers per question
    questions: float | None  # ... more questions
    shares: dict[str, float]  # share of the variance: seed, run_question, sampling, question_effect
    advice: str  # in words


def decompose(y: np.ndarray, samples: np.ndarray, data: Prepared, effects: np.ndarray) -> Decomposition:
    """Method-of-moments components, each floored at zero.

    Args:
        y: (R, Q) accuracies of the trained runs and of any untrained rows (which are left out by `data.error`).
        samples: (R, Q) answers per run and question.
        data: design: error model, cells.
        effects: (E, R) contrast weights of the main effects.
    """
    trained = data.cell_of >= 0
    questions = y.shape[1]
    mixed = run_question_variance(y, data.error)  # run-by-question with sampling
    between = run_variance(y, data.error)
    if (samples[trained] > 1).all():
        p, k = y[trained], samples[trained]
        sampling = float((p * (1 - p) * k / (k - 1)).mean())
        run_question: float | None = max(0.0, mixed - float((p * (1 - p) / (k - 1)).mean()))
    else:
        sampling, run_question = mixed, None
    means = data.cell_weights() @ y
    count = len(means)
    inverse = float((1 / np.maximum(data.runs_per_cell, 1)).mean())
    centred = means - means.mean(axis=0) - means.mean(axis=1, keepdims=True) + means.mean()
    interaction = None
    if count > 1 and questions > 1 and np.isfinite(mixed):
        interaction = max(0.0, float((centred**2).sum()) / ((count - 1) * (questions - 1)) - mixed * inverse)
    noise = ((interaction or 0.0) + (mixed if np.isfinite(mixed) else 0.0) * inverse) / count
    difficulty = max(0.0, float(means.mean(axis=0).var(ddof=1)) - noise) if questions > 1 else 0.0
    spread = None
    if len(effects) and questions > 1 and np.isfinite(mixed):
        raw = (effects @ y).var(axis=1, ddof=1) - (effects**2).sum(axis=1) * mixed
        spread = float(np.maximum(raw, 0).mean())
    return Decomposition(
        seed=max(0.0, between - mixed / questions) if np.isfinite(between) else None,
        question=difficulty,
        interaction=interaction,
        run_question=run_question if run_question is None or np.isfinite(run_question) else None,
        sampling=sampling if np.isfinite(sampling) else None,
        question_effect=spread,
    )


def variance_table(results: Results) -> dict[str, dict[str, Any]]:
    """benchmark -> components, what to spend on next, and whether runs that share a seed are alike."""
    table = {}
    for name in results.benchmarks:
        data = prepare(results, name, (name,), "drop")
        if data is None:
            continue
        main = _main_weights(results, data)
        samples = results.benchmarks[name].samples[data.rows]
        parts = decompose(data.scores[0], samples, data, main)
        record: dict[str, Any] = asdict(parts)
        record["questions"] = data.scores[0].shape[1]
        record["samples"] = float(samples[samples > 0].mean())
        record["error_df"] = data.error.df
        record["error_source"] = data.error.source
        record["seed_block_p"] = seed_block_p(data, [results.runs[i].seed for i in data.rows])
        hint = allocate(results, name, data, parts, main)
        record["allocation"] = asdict(hint) if hint else None
        table[name] = record
    return table


def assumptions_from(results: Results, benchmark: str) -> VarianceAssumptions | None:
    """What a finished study says a new one may assume; None without an estimate of noise between runs.

    What runs of one seed share is taken only where the F test shows it, so that no plan counts on a chance likeness.
    """
    data = prepare(results, benchmark, (benchmark,), "drop")
    if data is None:
        return None
    samples = results.benchmarks[benchmark].samples[data.rows]
    parts = decompose(data.scores[0], samples, data, _main_weights(results, data))
    if parts.seed is None or parts.sampling is None:
        return None
    p, block = _seed_blocks(data, [results.runs[i].seed for i in data.rows])
    block = block if p is not None and p < SHOWN else 0.0
    own = parts.seed if data.error.blocks is not None else max(0.0, parts.seed - block)  # blocks leave it out already
    return VarianceAssumptions(
        run_sd=(own + block) ** 0.5,
        run_question_sd=(parts.run_question or 0.0) ** 0.5,
        within_question=min(parts.sampling, 0.25),
        question_effect_sd=(parts.question_effect or 0.0) ** 0.5,
        shared=block / (own + block) if block > 0 else 0.0,
    )


def seed_block_p(data: Prepared, seeds: Sequence[int]) -> float | None:
    """F test of "runs that share a seed are alike", seed over cell by seed; None unless every cell has all seeds."""
    return _seed_blocks(data, seeds)[0]


def _seed_blocks(data: Prepared, seeds: Sequence[int]) -> tuple[float | None, float]:
    """That p, and the variance of what the runs of one seed share, by moments and at least 0."""
    trained = np.flatnonzero(data.cell_of >= 0).tolist()
    names = sorted({seeds[i] for i in trained})
    cells = len(data.cells)
    grid = np.full((cells, len(names)), np.nan)
    means = data.scores[0].mean(axis=1)
    for i in trained:
        grid[data.cell_of[i], names.index(seeds[i])] = means[i]
    if cells < 2 or len(names) < 2 or len(trained) != grid.size or np.isnan(grid).any():
        return None, 0.0
    block = grid.mean(axis=0) - grid.mean()
    rest = grid - grid.mean(axis=1, keepdims=True) - block
    df = (len(names) - 1, (cells - 1) * (len(names) - 1))
    between, within = cells * float((block**2).sum()) / df[0], float((rest**2).sum()) / df[1]
    p = float(special.fdtrc(*df, between / within)) if within > 0 else None
    return p, max(0.0, between - within) / cells


def allocate(
    results: Results, benchmark: str, data: Prepared, parts: Decomposition, main: np.ndarray
) -> Allocation | None:
    """Compare a tenth of the study's cost spent on seeds, samples or questions, for the SE of a main effect."""
    if parts.seed is None or parts.sampling is None or not len(main):
        return None
    runs = data.runs_per_cell
    seeds, questions = float(runs.mean()), data.scores[0].shape[1]
    k = float(results.benchmarks[benchmark].samples[data.rows].mean())
    weight = float((main**2).sum(axis=1).mean()) * seeds  # per seed

    def pieces(s: float, k: float, q: float) -> dict[str, float]:
        return {
            "seed": weight / s * (parts.seed or 0.0),
            "run_question": weight / s * (parts.run_question or 0.0) / q,
            "sampling": weight / s * (parts.sampling or 0.0) / (q * k),
            "question_effect": (parts.question_effect or 0.0) / q,
        }

    now = pieces(seeds, k, questions)
    total = sum(now.values())
    shares = {name: value / total if total else 0.0 for name, value in now.items()}
    cost = _seconds(results, benchmark)
    if cost is None:
        largest = max(shares, key=lambda s: shares[s])
        cures = {"seed": "more seeds", "run_question": "more seeds or questions", "question_effect": "more questions"}
        cure = cures.get(largest, "more answers per question")
        advice = f"largest part of a main effect's variance: {largest.replace('_', ' ')}; {cure} reduce it"
        return Allocation(total**0.5, None, None, None, shares, advice)
    train, answer = cost
    spent = seeds * (train + questions * k * answer)
    budget = 0.1 * spent
    options = {
        "seeds": pieces(seeds + budget / (train + questions * k * answer), k, questions),
        "samples": pieces(seeds, k + budget / (seeds * questions * answer), questions),
        "questions": pieces(seeds, k, questions + budget / (seeds * k * answer)),
    }
    after = {name: sum(values.values()) ** 0.5 for name, values in options.items()}
    best = min(after, key=lambda name: after[name])
    words = {"seeds": "more seeds", "samples": "more answers per question", "questions": "more questions"}
    advice = (
        f"a tenth more compute lowers the standard error of a main effect from {100 * total**0.5:.2f} to "
        f"{100 * after[best]:.2f} points if it goes into {words[best]} (seeds {100 * after['seeds']:.2f}, "
        f"answers {100 * after['samples']:.2f}, questions {100 * after['questions']:.2f})"
    )
    return Allocation(total**0.5, after["seeds"], after["samples"], after["questions"], shares, advice)


def _main_weights(results: Results, data: Prepared) -> np.ndarray:
    found, _ = contrasts(observed_factors(results, data.cells), data.cells, data.runs_per_cell.tolist())
    rows = [c.weights for c in found if c.kind == "main"]
    return np.stack(rows) @ data.cell_weights() if rows else np.zeros((0, len(data.rows)))


def _seconds(results: Results, benchmark: str) -> tuple[float, float] | None:
    """Seconds per training run, and per evaluation answer at the training's seconds per generated token."""
    records = [r.record.train for r in results.runs if r.record is not None and not r.base and r.outcome == "finished"]
    tokens = results.benchmarks[benchmark].tokens
    if not records or tokens is None or not np.isfinite(tokens).any():
        return None
    train = float(np.mean([r.train_seconds for r in records]))
    sampled = float(np.mean([r.generated_tokens for r in records]))
    if train <= 0 or sampled <= 0:
        return None
    return train, float(np.nanmean(tokens)) * train / sampled
