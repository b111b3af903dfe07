"""What a grid will cost and what it can see, before anything is spent."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from r3bench.analysis.lattice import contrasts, error_model
from r3bench.analysis.power import (
    Scope,
    VarianceAssumptions,
    detectable_effect,
    detectable_effects,
    detectable_verdict,
)
from r3bench.config.sections import Recipe
from r3bench.config.strict import build
from r3bench.config.trainer_fields import trainer_value
from r3bench.errors import StateError
from r3bench.sweep.ablate import open_study
from r3bench.sweep.cells import BASE_MODEL, Cell
from r3bench.sweep.cost import RunCost, evaluation_rate, questions_of, run_cost, with_transformers
from r3bench.sweep.design import aliases
from r3bench.sweep.grid import Grid, factors_of
from r3bench.sweep.local import cpu_cores, gpu_ids
from r3bench.sweep.memory import memory_text, micro_batch_growth
from r3bench.training.embedded import CAPS

WITHIN = {"aime": 0.10, "amc": 0.12, "math500": 0.08}  # mean p(1-p) by the start of a task's name
DEFAULT_WITHIN = 0.12
PRIMARY = ("main", "leave_one_out", "add_one")  # effects a design is made for, the first it gives
MOST_SEEDS = 12  # considered in the search for an alternative


@dataclass(frozen=True)
class BenchmarkPlan:
    """What the grid can see on one benchmark."""

    task: str
    questions: int
    samples: int
    effects: dict[str, float]  # kind of effect -> smallest detectable one, on these questions
    like_these: dict[str, float]  # the same on questions like these
    assumptions: VarianceAssumptions
    source: str  # 'default', 'given' or the study they are estimated from


@dataclass(frozen=True)
class Alternative:
    """Another way to spend money on the same question."""

    change: str  # in words
    cost: float  # tokens relative to the plan
    effect: float  # smallest detectable main effect (or difference) on the plan's worst benchmark


@dataclass(frozen=True)
class Plan:
    """A grid, costed. Tokens and hours are for all runs."""

    name: str
    runs: list[dict[str, Any]]  # run_id, name, factors, seed
    duplicates: list[dict[str, Any]]  # name, factors, seed, same_as, reason
    aliases: list[tuple[str, str]]  # effects a half fraction can't tell apart
    benchmarks: list[BenchmarkPlan]
    training_tokens: float | None
    evaluation_tokens: float
    device_hours: dict[str, float]  # device kind -> hours over all runs
    peak_disk_gb: float  # with all slots in use
    kept_disk_gb: float
    slots: int  # runs at a time
    gpus: int  # of a run
    alternatives: list[Alternative]
    family: int  # main effects that a verdict is adjusted for
    resolved: float | None  # smallest of them that is called up or down, on the macro average; None: no main effect
    warnings: list[str]
    mean_length: float  # assumed response length, share of the cap
    power: float
    memory: str  # of each GPU, and on which it fits; empty for a model whose shape isn't known


def plan(
    grid: Grid | str,
    *,
    effect: float | None = None,
    assume: Mapping[str, float] | None = None,
    from_study: Path | None = None,
    tokens_per_second: float | None = None,
    mean_length: float = 0.5,
    power: float = 0.8,
) -> Plan:
    """Cost and resolution of a grid; starts and writes nothing.

    Args:
        grid: a grid, its name or its path.
        effect: an effect (in accuracy, 0.02 is two points) the user hopes to see; adds a warning or an all-clear.
        assume: fields of `VarianceAssumptions` to set.
        from_study: a finished study to estimate the assumptions and the token counts from.
        tokens_per_second: measured rate of one device, training included.
        mean_length: response length as a share of the cap.
        power: probability of finding an effect of the printed size.

    Raises:
        ConfigError: the grid can't be used, or an assumption has no such name or an impossible value.
        StateError: `from_study` has nothing to estimate from.
    """
    study = open_study(grid, Path())
    grid = study.grid
    trained = [cell for cell in study.cells if cell.factors != BASE_MODEL]
    levels = {factor.name: list(factor.levels) for factor in factors_of(grid)}
    warnings = []
    learned = _Learned(from_study) if from_study else None
    processes = 1 if trained[0].recipe.model.name in CAPS else grid.executor.gpus
    costs = {
        cell.run_id: run_cost(cell.recipe, mean_length=mean_length, processes=processes, rate=tokens_per_second)
        for cell in study.cells
    }
    if learned is not None:
        costs = {c.run_id: learned.correct(costs[c.run_id], c.recipe, tokens_per_second) for c in study.cells}

    benchmarks = []
    for task in trained[0].recipe.eval.tasks:
        questions = questions_of(task, trained[0].recipe.eval.limit)
        if questions is None:
            warnings.append(f"{task}: its file doesn't say how many questions it has; no detectable effect")
            continue
        assumptions, source = _assumptions(task, assume, learned)
        benchmarks.append(_benchmark(task, questions, trained, levels, len(grid.seeds), power, assumptions, source))
    family, resolved = _resolved(study.grid, levels, trained, benchmarks, power)
    slots = _slots(grid, len(study.cells), on_cpu=trained[0].recipe.model.name in CAPS)
    training = [cost.training_tokens for cell in trained if (cost := costs[cell.run_id])]
    alternatives = _alternatives(study.grid, levels, trained, costs, benchmarks, effect, power)
    if benchmarks and len(_combinations(trained)) > 1 and not any(benchmark.effects for benchmark in benchmarks):
        warnings.append(
            "these cells tell no effect of any factor apart: add cells that differ in one factor from the one with "
            "every factor at its first level"
        )
    elif effect is not None:
        warnings += _too_small(benchmarks, effect, alternatives)
        if resolved is not None and resolved > effect >= max(_primary(b.effects) for b in benchmarks):
            warnings.append(
                f"an effect of {100 * effect:.1f} points is seen by itself and on these questions; a verdict on it "
                f"takes {100 * resolved:.1f}, see above"
            )
    if any(tokens is None for tokens in training):
        warnings.append("the number of training questions isn't known, so neither are tokens; set trainer.max_steps")
    if with_transformers(trained[0].recipe):
        section = trained[0].recipe.eval
        warnings.append(
            f"evaluation samples with transformers (eval.backend: {section.backend}), {section.batch_size} rows at a "
            f"time (eval.batch_size), at {evaluation_rate(trained[0].recipe, math.inf):,.0f} tokens a second at most"
        )
    if grid.tuning is not None:
        warnings.append(_tuning(grid, trained, costs))
    hours: dict[str, float] = {}
    for cell in study.cells:
        for kind, value in costs[cell.run_id].device_hours.items():
            share = 0.0 if cell.factors == BASE_MODEL else value
            hours[kind] = hours.get(kind, 0.0) + share
    largest = max(costs.values(), key=lambda cost: cost.checkpoint_gb + cost.kept_gb)
    kept = sum(cost.kept_gb for cost in costs.values())
    return Plan(
        name=grid.name,
        runs=[_run(cell) for cell in study.cells],
        duplicates=[dataclasses.asdict(duplicate) for duplicate in study.duplicates],
        aliases=aliases(list(levels)) if grid.design == "half" else [],
        benchmarks=benchmarks,
        training_tokens=None if None in training else sum(t for t in training if t is not None),
        evaluation_tokens=sum(cost.evaluation_tokens for cost in costs.values()),
        device_hours=hours,
        peak_disk_gb=kept + slots * largest.checkpoint_gb,
        kept_disk_gb=kept,
        slots=slots,
        gpus=processes,
        alternatives=alternatives,
        family=family,
        resolved=resolved,
        warnings=warnings,
        mean_length=mean_length,
        power=power,
        memory=memory_text(
            max((cell.recipe for cell in trained), key=lambda recipe: micro_batch_growth(recipe, processes)),
            processes=processes,
            strategy=grid.executor.strategy,
        ),
    )


def _tuning(grid: Grid, cells: list[Cell], costs: Mapping[str, RunCost]) -> str:
    """What the searches add; an upper bound, since pruned trials stop early."""
    assert grid.tuning is not None
    names = {cell.name: cell for cell in cells}
    tokens = 0.0
    for cell in names.values():
        steps = int(trainer_value(cell.recipe.trainer, "max_steps"))
        share = grid.tuning.steps / steps if grid.tuning.steps and steps > 0 else 1.0
        tokens += grid.tuning.trials * share * (costs[cell.run_id].training_tokens or 0.0)
    return (
        f"tuning: {grid.tuning.trials} trials in each of {len(names)} cells first, "
        f"up to {tokens / 1e6:,.1f}M more tokens, not in the figures above"
    )


def _benchmark(
    task: str,
    questions: int,
    cells: list[Cell],
    levels: Mapping[str, list[str]],
    seeds: int,
    power: float,
    assumptions: VarianceAssumptions,
    source: str,
) -> BenchmarkPlan:
    samples, combinations = cells[0].recipe.eval.samples, _combinations(cells)

    def effects(scope: Scope) -> dict[str, float]:
        return detectable_effects(
            levels,
            combinations,
            questions=questions,
            samples=samples,
            seeds=seeds,
            assumptions=assumptions,
            power=power,
            scope=scope,
        )

    return BenchmarkPlan(task, questions, samples, effects("these"), effects("like_these"), assumptions, source)


def _resolved(
    grid: Grid, levels: Mapping[str, list[str]], cells: list[Cell], benchmarks: list[BenchmarkPlan], power: float
) -> tuple[int, float | None]:
    """The size of the primary family (see `r3bench.analysis.effects`) and the smallest effect in it with a verdict."""
    rows = [tuple(combination[factor] for factor in levels) for combination in _combinations(cells)]
    seeds = len(grid.seeds)
    found, _ = contrasts(levels, rows, [seeds] * len(rows))
    primary, macro = grid.analysis.get("primary"), grid.analysis.get("macro")
    main = [c for c in found if c.kind == "main" and (primary is None or c.factors[0] in primary)]
    members = [b for b in benchmarks if macro is None or b.task in macro]
    if not main or not members:
        return len(main), None
    return len(main), detectable_verdict(
        [(b.assumptions, b.questions) for b in members],
        samples=members[0].samples,
        seeds=seeds,
        weight=max(float((c.weights**2).sum()) for c in main),
        df=error_model(levels, rows, np.repeat(np.arange(len(rows)), seeds)).df,
        family=len(main),
        power=power,
    )


def _run(cell: Cell) -> dict[str, Any]:
    return {"run_id": cell.run_id, "name": cell.name, "factors": cell.factors, "seed": cell.seed}


def _combinations(cells: list[Cell]) -> list[dict[str, str]]:
    """The distinct level combinations, in order."""
    return [dict(pairs) for pairs in dict.fromkeys(tuple(cell.factors.items()) for cell in cells)]


def _slots(grid: Grid, cells: int, on_cpu: bool) -> int:
    """Runs at a time, as the executor will have them here; a machine without GPUs plans for one set of them."""
    if grid.executor.kind == "inline":
        return 1
    alone = cpu_cores() if on_cpu and not gpu_ids() else max(1, len(gpu_ids()) // grid.executor.gpus)
    return min(grid.executor.slots or alone, cells)


class _Learned:
    """A finished study as a source of assumptions."""

    def __init__(self, folder: Path) -> None:
        from r3bench.analysis.study import load_study

        self.folder = folder
        self.results = load_study(folder)
        trained = [run.record.train for run in self.results.runs if run.record and run.record.train.steps]
        if not trained:
            raise StateError(f"{folder}: no trained run to estimate from")
        self.tokens = sum(t.generated_tokens for t in trained) / len(trained)
        seconds = sum(t.train_seconds for t in trained)
        self.rate = sum(t.generated_tokens for t in trained) / seconds if seconds else None
        self.device = trained[0].device

    def assumptions(self, task: str) -> VarianceAssumptions | None:
        from r3bench.analysis.variance import assumptions_from

        return assumptions_from(self.results, task) if task in self.results.benchmarks else None

    def correct(self, cost: RunCost, recipe: Recipe, rate: float | None) -> RunCost:
        """The cost with the study's training tokens and rate."""
        rate = rate or self.rate
        hours = cost.device_hours
        if rate:
            seconds = self.tokens / rate + cost.evaluation_tokens / evaluation_rate(recipe, rate)
            hours = {self.device: seconds / 3600}
        return dataclasses.replace(cost, training_tokens=self.tokens, device_hours=hours)


def _assumptions(
    task: str, assume: Mapping[str, float] | None, learned: _Learned | None
) -> tuple[VarianceAssumptions, str]:
    found = learned.assumptions(task) if learned else None
    source = str(learned.folder) if learned and found else "default"
    within = next((value for start, value in WITHIN.items() if task.startswith(start)), DEFAULT_WITHIN)
    found = found or VarianceAssumptions(within_question=within)
    if assume:
        values = {**dataclasses.asdict(found), **assume}
        return build(VarianceAssumptions, values, "assumptions"), "given" if source == "default" else f"{source}, given"
    return found, source


def _primary(effects: Mapping[str, float]) -> float:
    """The effect a design is made for: main effects where it has them, else the differences."""
    return next((effects[kind] for kind in PRIMARY if kind in effects), float("inf"))


def _alternatives(
    grid: Grid,
    levels: Mapping[str, list[str]],
    cells: list[Cell],
    costs: Mapping[str, RunCost],
    benchmarks: list[BenchmarkPlan],
    effect: float | None,
    power: float,
) -> list[Alternative]:
    """More or fewer seeds and samples, with their cost relative to the plan's; the cheapest that sees `effect`."""
    if not benchmarks:
        return []
    train = sum(costs[cell.run_id].training_tokens or 0.0 for cell in cells) / len(cells)
    measure = sum(costs[cell.run_id].evaluation_tokens for cell in cells) / len(cells)
    seeds, samples = len(grid.seeds), benchmarks[0].samples
    now = seeds * (train + measure)
    rows = [tuple(combination[factor] for factor in levels) for combination in _combinations(cells)]
    found, _ = contrasts(levels, rows, [seeds] * len(rows))
    weights: dict[str, float] = {}
    for contrast in found:
        weights[contrast.kind] = max(weights.get(contrast.kind, 0.0), float((contrast.weights**2).sum()))
    weight = _primary(weights)
    freedom = {s: error_model(levels, rows, np.repeat(np.arange(len(rows)), s)).df for s in (1, 2)}

    def option(new_seeds: int, new_samples: int) -> Alternative:
        df = freedom[1] if new_seeds == 1 else freedom[2] + len(rows) * (new_seeds - 2)
        worst = max(
            detectable_effect(
                benchmark.assumptions,
                questions=benchmark.questions,
                samples=new_samples,
                seeds=new_seeds,
                weight=weight,
                df=df,
                power=power,
            )
            for benchmark in benchmarks
        )
        cost = new_seeds * (train + measure * new_samples / samples)
        return Alternative(f"{new_seeds} seeds x {new_samples} samples", cost / now if now else 1.0, worst)

    pairs = [(seeds, samples), (seeds + 1, samples), (seeds - 1, samples), (seeds, samples * 2), (seeds, samples // 2)]
    tried = [option(*pair) for pair in pairs if min(pair) >= 1]
    if effect is not None:
        sizes = sorted({max(1, samples // 4), max(1, samples // 2), samples, samples * 2, samples * 4})
        search = [option(s, k) for s in range(1, MOST_SEEDS + 1) for k in sizes]
        enough = [alternative for alternative in search if alternative.effect <= effect]
        if enough:
            best = min(enough, key=lambda alternative: alternative.cost)
            tried.append(dataclasses.replace(best, change=f"cheapest that sees {100 * effect:g} points: {best.change}"))
    return tried


def _too_small(benchmarks: list[BenchmarkPlan], effect: float, alternatives: list[Alternative]) -> list[str]:
    lines = []
    for benchmark in benchmarks:
        smallest = _primary(benchmark.effects)
        if smallest > effect:
            lines.append(
                f"{benchmark.task}: this grid can't see an effect of {100 * effect:.1f} points; "
                f"the smallest it sees is {100 * smallest:.1f}"
            )
    if lines and not alternatives[-1].change.startswith("cheapest"):
        lines.append(f"no number of seeds up to {MOST_SEEDS} sees it on every benchmark; more questions would")
    return lines
