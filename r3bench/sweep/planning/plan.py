"""What a grid will cost and what it can see, before anything is spent."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from r3bench.analysis.statistics.families import PRIMARY, families
from r3bench.analysis.statistics.power import (
    Design,
    Scope,
    VarianceAssumptions,
    detectable_effect,
    detectable_effects,
    detectable_limit,
)
from r3bench.config.sections import Recipe
from r3bench.config.strict import build
from r3bench.config.trainer_fields import trainer_value
from r3bench.devices import cpu_cores, gpu_ids
from r3bench.errors import ConfigError, StateError
from r3bench.sweep.cells import BASE_MODEL, Cell
from r3bench.sweep.design import aliases
from r3bench.sweep.executors.choose import QUEUED
from r3bench.sweep.grid import Grid, factors_of
from r3bench.sweep.opening import open_study
from r3bench.sweep.planning.cost import RunCost, evaluation_rate, questions_of, run_cost, with_transformers
from r3bench.sweep.planning.memory import memory_text, micro_batch_growth
from r3bench.sweep.planning.spending import NODE_GPUS, Left, Machines, left_of
from r3bench.sweep.study import Study
from r3bench.training.questions.embedded import CAPS

WITHIN = {"aime": 0.10, "amc": 0.12, "math500": 0.08}  # mean p(1-p) by the start of a task's name
DEFAULT_WITHIN = 0.12
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
    effect: float  # smallest effect of a factor that gets a verdict, as `Plan.resolved`


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
    family: int  # effects of factors that a verdict is adjusted for
    tested: str | None  # their kind: 'main', or 'add_one', 'leave_one_out' where no main effect is as sure
    resolved: float | None  # smallest of them that is called up or down, on the macro average; None: no such effect
    limit: float | None  # what `resolved` comes down to with any number of seeds and answers
    warnings: list[str]
    mean_length: float  # assumed response length, share of the cap
    power: float
    memory: str  # of each GPU, and on which it fits; empty for a model whose shape isn't known
    nodes: int | None  # as asked for
    devices: int  # that runs are spread over: of all nodes, or as many as are used at a time here
    price: float | None  # of a device-hour, as given
    left: Left  # without the runs that are finished


def plan(
    grid: Grid | str | Study,
    *,
    effect: float | None = None,
    assume: Mapping[str, float] | None = None,
    from_study: Path | None = None,
    tokens_per_second: float | None = None,
    mean_length: float = 0.5,
    power: float = 0.8,
    machines: Machines | None = None,
) -> Plan:
    """Cost and resolution of a grid; starts and writes nothing.

    Args:
        grid: a grid, its name or its path, or what `open_study` made of it.
        effect: an effect (in accuracy, 0.02 is two points) that the user hopes for a verdict on; adds a warning if the
            grid can't, and the cheapest way to.
        assume: fields of `VarianceAssumptions` to set.
        from_study: a finished study to estimate the assumptions and the token counts from.
        tokens_per_second: measured rate of one device, training included.
        mean_length: response length as a share of the cap.
        power: probability of finding an effect of the printed size.
        machines: nodes to spread the runs over, and a price.

    Raises:
        ConfigError: the grid can't be used, or an assumption has no such name or an impossible value.
        StateError: `from_study` has nothing to estimate from.
    """
    study = grid if isinstance(grid, Study) else open_study(grid, Path())
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

    design = _design(grid, levels, trained, len(grid.seeds))
    benchmarks = []
    for task in trained[0].recipe.eval.tasks:
        questions = questions_of(task, trained[0].recipe.eval.limit)
        if questions is None:
            warnings.append(f"{task}: its file doesn't say how many questions it has; no detectable effect")
            continue
        assumptions, source = _assumptions(task, assume, learned)
        benchmarks.append(
            _benchmark(task, questions, trained[0].recipe.eval.samples, design, power, assumptions, source)
        )
    goal = _goal(grid, design, benchmarks, power)
    resolved = goal.smallest(design, benchmarks[0].samples) if goal else None
    machines = machines or Machines()
    on_cpu = all(set(costs[cell.run_id].device_hours) == {"CPU core"} for cell in trained)
    devices = _devices(machines, on_cpu)
    slots = _slots(grid, len(study.cells), on_cpu, devices, processes)
    training = [cost.training_tokens for cell in trained if (cost := costs[cell.run_id])]
    alternatives = _alternatives(grid, levels, trained, costs, benchmarks, goal, effect)
    if benchmarks and len(_combinations(trained)) > 1 and not any(benchmark.effects for benchmark in benchmarks):
        warnings.append(
            "these cells tell no effect of any factor apart: add cells that differ in one factor from the one with "
            "every factor at its first level"
        )
    elif effect is not None and goal is not None and resolved is not None and resolved > effect:
        warnings += _too_small(goal, effect, resolved, alternatives)
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
        cost = costs[cell.run_id]
        taken = cost.evaluation_hours if cell.factors == BASE_MODEL else cost.device_hours
        for kind, value in taken.items():
            hours[kind] = hours.get(kind, 0.0) + value
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
        family=goal.family if goal else 0,
        tested=goal.kind if goal else None,
        resolved=resolved,
        limit=goal.limit if goal else None,
        warnings=warnings,
        mean_length=mean_length,
        power=power,
        memory=memory_text(
            max((cell.recipe for cell in trained), key=lambda recipe: micro_batch_growth(recipe, processes)),
            processes=processes,
            strategy=grid.executor.strategy,
        ),
        nodes=machines.nodes,
        devices=devices or slots * processes,
        price=machines.price,
        left=left_of(study, costs, slots=slots, gpus=processes, machines=machines, devices=devices),
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


def _design(grid: Grid, levels: Mapping[str, list[str]], cells: list[Cell], seeds: int) -> Design:
    variance, blocks = grid.analysis.get("variance", "per_cell"), grid.analysis.get("blocks")
    return Design(levels, _combinations(cells), seeds, variance, blocks)


def _benchmark(
    task: str, questions: int, samples: int, design: Design, power: float, assumptions: VarianceAssumptions, source: str
) -> BenchmarkPlan:
    def seen(scope: Scope) -> dict[str, float]:
        return detectable_effects([(assumptions, questions)], design, samples=samples, power=power, scope=scope)

    return BenchmarkPlan(task, questions, samples, seen("these"), seen("like_these"), assumptions, source)


@dataclass(frozen=True)
class _Goal:
    """What a verdict is given on: the primary family of `r3bench.analysis.statistics.effects`."""

    kind: str  # of its effects, the first of them
    family: int  # how many
    weights: list[np.ndarray]  # of each over the cells
    benchmarks: list[tuple[VarianceAssumptions, int]]  # assumptions and questions of the macro average
    alpha: float  # of one test
    power: float

    def smallest(self, design: Design, samples: int) -> float:
        """The smallest effect of a factor that is called up or down; the worst over the family."""
        return max(
            detectable_effect(
                self.benchmarks, design, w, samples=samples, power=self.power, alpha=self.alpha, scope="verdict"
            )
            for w in self.weights
        )

    @property
    def limit(self) -> float:
        """That with any number of seeds and answers."""
        return detectable_limit(self.benchmarks, power=self.power, alpha=self.alpha)


def _goal(grid: Grid, design: Design, benchmarks: list[BenchmarkPlan], power: float) -> _Goal | None:
    primary, macro = grid.analysis.get("primary"), grid.analysis.get("macro")
    found = design.contrasts
    names = families([("", c) for c in found], "", tuple(primary or design.factors))
    tested = [c for c, family in zip(found, names, strict=True) if family == PRIMARY]
    members = [(b.assumptions, b.questions) for b in benchmarks if macro is None or b.task in macro]
    if not tested or not members:
        return None
    alpha = (1 - grid.analysis.get("confidence", 0.95)) / len(tested)
    return _Goal(tested[0].kind, len(tested), [c.weights for c in tested], members, alpha, power)


def _run(cell: Cell) -> dict[str, Any]:
    return {"run_id": cell.run_id, "name": cell.name, "factors": cell.factors, "seed": cell.seed}


def _combinations(cells: list[Cell]) -> list[dict[str, str]]:
    """The distinct level combinations, in order."""
    return [dict(pairs) for pairs in dict.fromkeys(tuple(cell.factors.items()) for cell in cells)]


def _devices(machines: Machines, on_cpu: bool) -> int | None:
    """Devices of all nodes together; None where none are told of."""
    if machines.nodes is None:
        return None
    here = cpu_cores() if on_cpu else len(gpu_ids()) or NODE_GPUS
    return machines.nodes * (machines.per_node or here)


def _slots(grid: Grid, cells: int, on_cpu: bool, devices: int | None, processes: int) -> int:
    """Runs at a time, as the executor will have them; a machine without GPUs plans for one set of them.

    Raises:
        ConfigError: a run takes more devices than the nodes have.
    """
    section = grid.executor
    if section.kind == "inline":
        return 1
    if devices is not None:
        if devices < processes:
            raise ConfigError(f"--nodes: {devices} devices, but one run takes {processes}")
        return min(devices // processes, section.slots or cells, cells)
    if section.kind in ("slurm", "ray"):
        return min(section.slots or QUEUED, cells)
    alone = cpu_cores() if on_cpu and not gpu_ids() else max(1, len(gpu_ids()) // section.gpus)
    return min(section.slots or alone, cells)


class _Learned:
    """A finished study as a source of assumptions."""

    def __init__(self, folder: Path) -> None:
        from r3bench.analysis.reading.study import load_study

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
        from r3bench.analysis.statistics.variance import assumptions_from

        return assumptions_from(self.results, task) if task in self.results.benchmarks else None

    def correct(self, cost: RunCost, recipe: Recipe, rate: float | None) -> RunCost:
        """The cost with the study's training tokens and rate."""
        rate = rate or self.rate
        hours = cost.device_hours
        if rate:
            seconds = self.tokens / rate + cost.evaluation_tokens / evaluation_rate(recipe, rate)
            hours = {self.device: seconds / 3600}
            measuring = {self.device: cost.evaluation_tokens / evaluation_rate(recipe, rate) / 3600}
            cost = dataclasses.replace(cost, evaluation_hours=measuring)
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


def _alternatives(
    grid: Grid,
    levels: Mapping[str, list[str]],
    cells: list[Cell],
    costs: Mapping[str, RunCost],
    benchmarks: list[BenchmarkPlan],
    goal: _Goal | None,
    effect: float | None,
) -> list[Alternative]:
    """More or fewer seeds and samples, with their cost relative to the plan's; the cheapest that resolves `effect`."""
    if goal is None:
        return []
    train = sum(costs[cell.run_id].training_tokens or 0.0 for cell in cells) / len(cells)
    measure = sum(costs[cell.run_id].evaluation_tokens for cell in cells) / len(cells)
    seeds, samples = len(grid.seeds), benchmarks[0].samples
    now = seeds * (train + measure)

    def option(new_seeds: int, new_samples: int) -> Alternative:
        smallest = goal.smallest(_design(grid, levels, cells, new_seeds), new_samples)
        cost = new_seeds * (train + measure * new_samples / samples)
        return Alternative(f"{new_seeds} seeds x {new_samples} samples", cost / now if now else 1.0, smallest)

    pairs = [(seeds, samples), (seeds + 1, samples), (seeds - 1, samples), (seeds, samples * 2), (seeds, samples // 2)]
    tried = [option(*pair) for pair in pairs if min(pair) >= 1]
    if effect is not None and goal.limit < effect:
        enough = []
        for k in sorted({max(1, samples // 4), max(1, samples // 2), samples, samples * 2, samples * 4}):
            found = (option(s, k) for s in range(1, MOST_SEEDS + 1))
            enough += [first for first in [next((a for a in found if a.effect <= effect), None)] if first is not None]
        if enough:
            best = min(enough, key=lambda alternative: alternative.cost)
            tried.append(
                dataclasses.replace(best, change=f"cheapest that resolves {100 * effect:g} points: {best.change}")
            )
    return tried


def _too_small(goal: _Goal, effect: float, resolved: float, alternatives: list[Alternative]) -> list[str]:
    """What to say of an effect that gets no verdict with the planned power."""
    lines = [
        f"this grid can't resolve an effect of {100 * effect:.1f} points: a verdict on one takes {100 * resolved:.1f} "
        f"(questions like these, {goal.family} effects tested together)"
    ]
    if goal.limit >= effect:
        lines.append(
            f"no number of seeds gets there: with these questions alone a verdict takes more than "
            f"{100 * goal.limit:.1f} points; more questions would"
        )
    elif not alternatives[-1].change.startswith("cheapest"):
        lines.append(f"no number of seeds up to {MOST_SEEDS} resolves it; more questions would")
    return lines
