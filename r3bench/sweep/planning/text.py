"""A plan as text for people and as plain data for programs."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from r3bench.sweep.planning.plan import Plan

KINDS = {"main": "main effect", "leave_one_out": "leave one out", "add_one": "add one", "interaction": "interaction"}
SHOWN_RUNS = 40  # combinations listed in full


def plan_data(plan: Plan) -> dict[str, Any]:
    """JSON-ready; an effect that can't be seen at all is null."""
    return dict(_finite(dataclasses.asdict(plan)))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plan_text(plan: Plan) -> str:
    """The plan in sections: runs, what it can see, cost, alternatives, warnings."""
    sections = [_runs(plan), _resolution(plan), _cost(plan), plan.memory, _alternatives(plan)]
    if plan.warnings:
        sections.append("\n".join(f"warning: {line}" for line in plan.warnings))
    return "\n\n".join(section for section in sections if section)


def _runs(plan: Plan) -> str:
    names: dict[str, list[int]] = {}
    for run in plan.runs:
        names.setdefault(run["name"], []).append(run["seed"])
    lines = [f"{plan.name}: {len(plan.runs)} runs"]
    for name, seeds in list(names.items())[:SHOWN_RUNS]:
        what = "evaluated as it is" if name == "base-model" else f"seeds {', '.join(map(str, seeds))}"
        lines.append(f"  {name:<40} {what}")
    if len(names) > SHOWN_RUNS:
        lines.append(f"  ... and {len(names) - SHOWN_RUNS} more")
    for duplicate in plan.duplicates:
        lines.append(f"  not run: {duplicate['name']} s{duplicate['seed']}: {duplicate['reason']}")
    if plan.aliases:
        lines.append("  half fraction; these effects can't be told apart:")
        lines += [f"    {effect} = {other}" for effect, other in plan.aliases]
    return "\n".join(lines)


def _resolution(plan: Plan) -> str:
    if not plan.benchmarks:
        return ""
    lines = [
        f"Smallest effect found with {100 * plan.power:.0f} % power (points; in brackets: on questions like these)"
    ]
    for benchmark in plan.benchmarks:
        seen = [
            f"{name} {_points(benchmark.effects[kind])} ({_points(benchmark.like_these[kind])})"
            for kind, name in KINDS.items()
            if kind in benchmark.effects
        ]
        lines.append(
            f"  {benchmark.task:<16} {benchmark.questions} x {benchmark.samples} answers: {', '.join(seen) or 'none'}"
        )
    if plan.resolved is not None:
        on = "the macro average" if len(plan.benchmarks) > 1 else plan.benchmarks[0].task
        what = KINDS.get(plan.tested or "", "effect")
        after = f"after Holm over {plan.family} of them" if plan.family > 1 else "by itself"
        lines.append(f"  verdict on a {what}, on {on} of questions like these, {after}: {_points(plan.resolved)}")
    assumed: dict[str, list[str]] = {}
    for benchmark in plan.benchmarks:
        a = benchmark.assumptions
        text = (
            f"run SD {100 * a.run_sd:.2g}, run-by-question SD {100 * a.run_question_sd:.2g}, "
            f"p(1-p) {a.within_question:.3f}, effect SD over questions {100 * a.question_effect_sd:.2g}"
            + (f", {100 * a.shared:.0f} % of the run variance shared by runs of one seed" if a.shared else "")
            + f" ({benchmark.source})"
        )
        assumed.setdefault(text, []).append(benchmark.task)
    lines += [f"  assuming for {', '.join(tasks)}: {text}" for text, tasks in assumed.items()]
    return "\n".join(lines)


def _points(effect: float) -> str:
    return f"{100 * effect:.1f}" if math.isfinite(effect) else "none"


def _cost(plan: Plan) -> str:
    training = millions(plan.training_tokens)
    lines = [
        "Cost of all runs",
        f"  tokens           {training} sampled in training, {millions(plan.evaluation_tokens)} in evaluation "
        f"(answers at {100 * plan.mean_length:.0f} % of the cap)",
    ]
    if plan.device_hours:
        lines.append(f"  device-hours     {_hours(plan.device_hours)}")
    lines += _left(plan)
    lines.append(
        f"  disk             {plan.peak_disk_gb:,.1f} GB at most with {plan.slots} at a time, "
        f"{plan.kept_disk_gb:,.1f} GB in the end"
    )
    return "\n".join(lines)


def _left(plan: Plan) -> list[str]:
    """What isn't done yet, if some is, hours on the clock, and the price."""
    left, lines = plan.left, []
    if left.finished:
        tokens = millions(left.training_tokens)
        lines.append(
            f"  finished         {left.finished} of {len(plan.runs)} runs; left: {left.runs} to train"
            + (f", {left.measured} to measure only" if left.measured else "")
            + f"; {tokens} and {millions(left.evaluation_tokens)} tokens"
        )
        if left.device_hours:
            lines.append(f"  device-hours     {_hours(left.device_hours)} left")
    if left.wall_hours and plan.gpus * plan.slots > 1:
        lines.append(f"  hours            {_hours(left.wall_hours)}, with {_at_once(plan)}")
    if left.cost:
        lines.append(f"  price            {_money(left.cost)}, at {plan.price:g} for an hour of a device")
    if left.cost_held:
        lines.append(f"                   {_money(left.cost_held)} with all nodes held to the end")
    return lines


def _at_once(plan: Plan) -> str:
    where = (
        f" on {plan.nodes} {'node' if plan.nodes == 1 else 'nodes'} of {plan.devices // plan.nodes}"
        if plan.nodes
        else ""
    )
    each = f" of {plan.gpus} devices each" if plan.gpus > 1 else ""
    return (
        f"one run at a time{each.removesuffix(' each')}{where}"
        if plan.slots == 1
        else (f"{plan.slots} runs at a time{each}{where}")
    )


def millions(tokens: float | None) -> str:
    """`1.2M` tokens, fewer than 0.1M as they are."""
    if tokens is None:
        return "unknown"
    return f"{tokens / 1e6:,.1f}M" if tokens >= 1e5 or not tokens else f"{tokens:,.0f}"


def _hours(hours: Mapping[str, float]) -> str:
    return ", ".join(f"{kind} {hours_text(value)}" for kind, value in hours.items())


def hours_text(hours: float) -> str:
    """`12.3`, with two figures below a tenth of an hour."""
    return f"{hours:,.1f}" if hours >= 0.1 or not hours else f"{hours:.2g}"


def _money(cost: Mapping[str, float]) -> str:
    return ", ".join(f"{kind} {value:,.2f}" for kind, value in cost.items())


def wall_hours(device_hours: Mapping[str, float], at_once: int) -> str:
    """The line with hours on the clock, if `at_once` devices are kept busy."""
    hours = ", ".join(f"{kind} {value / at_once:,.1f}" for kind, value in device_hours.items())
    return f"  hours            {hours}, with {at_once} at a time"


def _alternatives(plan: Plan) -> str:
    if not plan.alternatives:
        return ""
    lines = ["Alternatives (cost in tokens, smallest effect of a factor that gets a verdict in points)"]
    lines += [f"  {a.change:<48} {a.cost:5.2f}x  {_points(a.effect)}" for a in plan.alternatives]
    return "\n".join(lines)
