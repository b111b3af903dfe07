"""Drives a component through made-up batches, moment by moment in the trainer's order, and notes what it decides."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from r3bench.component import Component, Group, PlannedGroup, Step
from r3bench.contract import batches
from r3bench.errors import R3BenchError, first_line
from r3bench.training.step.mixture_check import admitted


class Broken(R3BenchError):
    """A moment broke what a component promises; `rule` names the promise."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


@dataclass
class Drive:
    """One component on its way through the batches."""

    component: Component
    history: batches.Stored = field(default_factory=batches.Stored)
    totals: dict[str, float] = field(default_factory=dict)  # its counters so far
    changed: int = 0  # batches in which it changed anything
    number: int = 0  # the next batch

    def run(self, count: int) -> list[dict[str, Any]]:
        """The decisions of the next `count` batches, moment by moment, as JSON values."""
        return [self.batch() for _ in range(count)]

    def batch(self) -> dict[str, Any]:
        """The decisions of the next batch.

        Raises:
            Broken: a moment raises, changes what it was shown, or gives what a trainer would refuse.
        """
        one, number = self.component, self.number
        decided: dict[str, Any] = {}
        step = batches.opened(number, self.history)
        plans: list[PlannedGroup] = list(self._asked("plan", step, lambda: one.plan(step)))
        self._check_plans(plans)
        decided["plan"] = [plain(vars(plan)) for plan in plans]
        step = Step(step.step, step.epoch, batches.placed(step, plans), self.history)
        for group in step.groups:
            batches.sampled(group, number)
            if one.reads_answers:
                group.completion_ids = batches.tokens(group, number)
                group.texts = [one.facts.decode(ids.tolist()) for ids in group.completion_ids]
        shaped = self._scored(step, decided)
        keeps = self._kept(step, decided)
        self._probe(step, decided)
        mixtures = self._asked("mix", step, lambda: one.mix(step))
        with_rule(lambda: admitted(one, mixtures, step.groups, frozenset()), "what moments give")
        decided["mix"] = [plain(vars(mixture)) for mixture in mixtures]
        mixed = frozenset(mixture.group for mixture in mixtures)
        factors = self._asked("rescale", step, lambda: one.rescale(step, mixed))
        for index, factor in factors.items():
            if not 0 <= index < len(step.groups) or not math.isfinite(factor):
                raise Broken("what moments give", f"rescale() gave {factor} for group {index}")
        decided["rescale"] = plain(factors)
        self._observed(step)
        decided["counts"] = counts = one.take_counts()
        decided["figures"] = one.take_figures()
        for key, value in counts.items():
            self.totals[key] = self.totals.get(key, 0.0) + value
        other = any(factor != 1 for factor in factors.values())
        self.changed += bool(plans or shaped or not all(keeps) or mixtures or other)
        self.number += 1
        return decided

    def _scored(self, step: Step, decided: dict[str, Any]) -> bool:
        one, number = self.component, self.number
        if not one.shapes_reward:
            return False
        rows = list(self._asked("entropy_rows", step, lambda: one.entropy_rows(step)))
        entropies: dict[int, np.ndarray] = {}
        for group in step.groups:
            named = [row in rows for row in group.rows]
            if any(named):
                found, ids = batches.figures(group, number), batches.tokens(group, number)
                entropies |= {row: values for row, values, on in zip(group.rows, found, named, strict=True) if on}
                if not one.reads_answers:
                    group.completion_ids = [
                        row if on else np.zeros(0, np.int32) for row, on in zip(ids, named, strict=True)
                    ]
        shaped = self._asked("score", step, lambda: one.score(step, entropies))
        places = {row: (group, place) for group in step.groups for place, row in enumerate(group.rows)}
        for row, value in shaped.items():
            if row not in places or not math.isfinite(value):
                raise Broken(
                    "what moments give",
                    f"score() gave {value} for row {row}, expected finite rewards for rows 0 to {len(places) - 1}",
                )
            group, place = places[row]
            if group.judged[place]:
                group.rewards[place] += value
        decided["entropy_rows"], decided["score"] = plain(rows), plain(shaped)
        return any(value != 0 for value in shaped.values())

    def _kept(self, step: Step, decided: dict[str, Any]) -> list[bool]:
        one = self.component
        if not one.resamples:
            return []
        keeps = list(self._asked("keep", step, lambda: one.keep(step)))
        if len(keeps) != len(step.groups):
            raise Broken("what moments give", f"keep() gave {len(keeps)} verdicts for {len(step.groups)} groups")
        decided["keep"] = [bool(keep) for keep in keeps]
        return decided["keep"]  # type: ignore[no-any-return]

    def _probe(self, step: Step, decided: dict[str, Any]) -> None:
        one = self.component
        if not one.probes_hidden:
            return
        for group in step.groups:
            group.completion_ids = batches.tokens(group, self.number)
        asked = self._asked("probe", step, lambda: one.probe(step))
        for group in step.groups:
            for place, row in enumerate(group.rows):
                positions = list(asked.get(row, ()))
                if any(not 0 <= position < len(group.completion_ids[place]) for position in positions):
                    raise Broken("what moments give", f"probe() gave positions {positions} for row {row}, which has "
                                 f"tokens 0 to {len(group.completion_ids[place]) - 1}")  # fmt: skip
                if positions:
                    group.hidden[place] = batches.hidden(positions, row, self.number)
        decided["probe"] = plain(asked)

    def _observed(self, step: Step) -> None:
        one = self.component
        entropies = [batches.figures(group, self.number) for group in step.groups]
        if one.observes_tokens or one.uses_history:
            for group, values in zip(step.groups, entropies, strict=True):
                group.completion_ids = batches.tokens(group, self.number)
                group.entropies, group.logprobs = values, [-row for row in values]
        self._asked("observe", step, lambda: one.observe(step))
        for group, values in zip(step.groups, entropies, strict=True):
            group.completion_ids = batches.tokens(group, self.number)
            group.entropies, group.logprobs = values, [-row for row in values]
        self.history.insert(step)

    def _asked(self, moment: str, step: Step, ask: Callable[[], Any]) -> Any:
        before = copy.deepcopy([_seen(group) for group in step.groups])
        try:
            given = ask()
        except Exception as error:  # whatever the component raises
            raise Broken(
                "what moments give",
                f"{moment}() raised {type(error).__name__}: {first_line(error)} (batch {self.number})",
            ) from error
        if not _same(before, [_seen(group) for group in step.groups]):
            raise Broken("what it is shown", f"{moment}() changed the groups it was shown (batch {self.number})")
        return given

    @staticmethod
    def _check_plans(plans: list[PlannedGroup]) -> None:
        slots, cap = batches.GROUPS, batches.CAP
        for plan in plans:
            fault = None
            if plan.slot is not None and not 0 <= plan.slot < slots:
                fault = f"asks for slot {plan.slot}, there are slots 0 to {slots - 1}"
            elif len(plan.prefix_ids) >= cap:
                fault = f"gives {len(plan.prefix_ids)} tokens of {cap}: nothing would be left to sample"
            elif plan.question not in {f"q{number}" for number in range(batches.QUESTIONS)}:
                fault = f"asks for question '{plan.question}', which the data lacks"
            if fault:
                raise Broken("what moments give", f"plan() {fault}")


def with_rule(call: Callable[[], Any], rule: str) -> Any:
    """Whatever `call` refuses, as a breach of `rule`."""
    try:
        return call()
    except R3BenchError as error:
        raise Broken(rule, str(error)) from error


def plain(value: Any) -> Any:
    """JSON values of what a moment gave, exactly."""
    if isinstance(value, Mapping):
        return {str(key): plain(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, set | frozenset):
        return sorted(plain(one) for one in value)
    if isinstance(value, list | tuple | range):
        return [plain(one) for one in value]
    if isinstance(value, np.generic):
        return value.item()
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def _seen(group: Group) -> dict[str, Any]:
    return dict(vars(group))


def _same(before: Any, after: Any) -> bool:
    if isinstance(before, np.ndarray) or isinstance(after, np.ndarray):
        a, b = np.asarray(before), np.asarray(after)
        return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(before, Mapping):
        return before.keys() == after.keys() and all(_same(before[key], after[key]) for key in before)
    if isinstance(before, list | tuple):
        return len(before) == len(after) and all(map(_same, before, after))
    return bool(before == after)
