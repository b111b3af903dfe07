"""What two studies have in common: cells, questions, runs."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from r3bench.analysis.results import OFF_LEVELS, Results, Scores
from r3bench.errors import ConfigError, StateError, nearest

ON_LEVELS = ("on", "1", "1.0", "true", "yes")
Key = frozenset[tuple[str, str]]  # a cell: its levels but those that are off


def cell_key(results: Results, cell: Sequence[str]) -> Key:
    """Levels without those that are off, so that a factor that only one study varies stands there as off."""
    levels = zip(results.factors, cell, strict=True)
    return frozenset((factor, _level(level)) for factor, level in levels if level.lower() not in OFF_LEVELS)


def _level(text: str) -> str:
    """A level in one spelling: 1e-4 is 0.0001, true is on."""
    if text.lower() in ON_LEVELS:
        return "on"
    try:
        return repr(float(text))
    except ValueError:
        return text


def shared_questions(a: Results, b: Results, tasks: Sequence[str] | None) -> tuple[Results, Results, list[str]]:
    """Both with the benchmarks and questions of both, in one order, and what was left out."""
    for task in tasks or ():
        for which, results in (("a", a), ("b", b)):
            if task not in results.benchmarks:
                raise ConfigError(
                    f"{results.name} ({which}): no benchmark '{task}'{nearest(task, list(results.benchmarks))}"
                )
    names = tasks or [name for name in a.benchmarks if name in b.benchmarks]
    if not names:
        raise StateError(
            f"{a.name} and {b.name} have no benchmark in common: {', '.join(a.benchmarks)}, and "
            f"{', '.join(b.benchmarks)}"
        )
    notes = [
        f"{name}: measured in {which} alone"
        for which, results, other in (("a", a, b), ("b", b, a))
        for name in results.benchmarks
        if name not in other.benchmarks and tasks is None
    ]
    kept: tuple[dict[str, Scores], dict[str, Scores]] = ({}, {})
    for name in dict.fromkeys(names):
        mine, theirs = a.benchmarks[name], b.benchmarks[name]
        common = sorted(set(mine.questions) & set(theirs.questions))
        if not common:
            notes.append(f"{name}: no question in common (ids such as {mine.questions[0]} and {theirs.questions[0]})")
            continue
        for which, scores in (("a", mine), ("b", theirs)):
            if len(scores.questions) > len(common):
                left = len(scores.questions) - len(common)
                notes.append(f"{name}: {left} of {len(scores.questions)} questions left out, only {which} has them")
        samples = [sorted({*scores.samples[scores.samples > 0].tolist()}) for scores in (mine, theirs)]
        if samples[0] != samples[1]:
            said = " and ".join(" or ".join(map(str, counts)) for counts in samples)
            notes.append(f"{name}: answers to a question: {said}")
        for target, scores in zip(kept, (mine, theirs), strict=True):
            target[name] = _restricted(scores, common)
    if not kept[0]:
        raise StateError("; ".join([f"{a.name} and {b.name} can't be compared", *notes]))
    return dataclasses.replace(a, benchmarks=kept[0]), dataclasses.replace(b, benchmarks=kept[1]), notes


def _restricted(scores: Scores, questions: Sequence[str]) -> Scores:
    place = {question: i for i, question in enumerate(scores.questions)}
    columns = [place[question] for question in questions]

    def part(values: np.ndarray | None) -> Any:
        return None if values is None else values[:, columns]

    return Scores(
        tuple(questions), part(scores.samples), part(scores.correct), part(scores.tokens), part(scores.truncated)
    )


def shared_macro(a: Results) -> tuple[str, ...]:
    """The benchmarks that a declared its macro average over, where both have them all; else all that both have."""
    declared = a.declared.macro or ()
    return tuple(declared) if len(declared) > 1 and set(declared) <= set(a.benchmarks) else tuple(a.benchmarks)


def same_runs(a: Results, b: Results) -> set[str]:
    """Ids of runs with the same answers in both: one run that both studies hold, or one repeated to the last digit."""
    place = {run.run: i for i, run in enumerate(b.runs)}
    found = set()
    for i, run in enumerate(a.runs):
        j = place.get(run.run)
        if j is None or run.outcome != "finished" or b.runs[j].outcome != "finished":
            continue
        if all(
            np.array_equal(s.samples[i], b.benchmarks[name].samples[j])
            and np.array_equal(s.correct[i], b.benchmarks[name].correct[j])
            for name, s in a.benchmarks.items()
        ):
            found.add(run.run)
    return found


def run_notes(a: Results, b: Results, same: set[str]) -> list[str]:
    """How the runs of the two studies are related, and what that means."""
    ids = {run.run for run in a.runs if not run.base} & {run.run for run in b.runs if not run.base}
    notes = ["questions are paired by their ids; runs are not, also where they share a seed"]
    if same:
        notes.append(
            f"{len(same)} {'run is' if len(same) == 1 else 'runs are'} in both with the same answers: their cells "
            "have no interval, for it would take one run for two"
        )
    if ids - same:
        some = len(ids - same)
        notes.append(
            f"{some} {'run has' if some == 1 else 'runs have'} one id in both studies, so one recipe and seed, and "
            "other answers: the studies differ in version, machine or numerics"
        )
    commits = [sorted({r.record.commit[:12] for r in s.runs if r.record is not None and r.record.commit})
               for s in (a, b)]  # fmt: skip
    if all(commits) and commits[0] != commits[1]:
        notes.append(f"commits: {', '.join(commits[0])} and {', '.join(commits[1])}")
    return notes
