"""What a reader must know of how runs were trained: that they differ, hardly moved, or lost their answers' weight."""

from collections.abc import Callable, Sequence
from typing import Any

from r3bench.records import RunRecord, TrainRecord

HARDLY = 0.5  # share of trained weights below which a run is named: its policy is close to the one it began with
HALF = 0.5  # mean weight of answers below which a cell is named


def _strategy(train: TrainRecord) -> str | None:
    return "ddp" if train.strategy == "single" else train.strategy  # that they differ in processes is said by itself


Differing = tuple[str, str, Callable[[TrainRecord], Any]]  # what differs, what depends on it, how it is read
POOLED: tuple[Differing, ...] = (
    ("different numbers of processes", "rows per update and sampling depend on it", lambda t: t.processes),
    ("different strategies", "rounding and the order of sums depend on it", _strategy),
    ("weights of different dtypes", "it decides which updates are kept", lambda t: t.weights_dtype),
    ("different dtypes to compute in", "the gradient's rounding depends on it", lambda t: t.compute_dtype),
    ("different sampling engines", "the probabilities that are sampled from depend on it", lambda t: t.engine),
    ("engines of different dtypes", "the probabilities that are sampled from depend on it", lambda t: t.engine_dtype),
)


def pooled_notes(records: Sequence[RunRecord]) -> list[str]:
    """Whether trained runs that are put together differ in what isn't in a run's name. Unknown is no difference."""
    notes = []
    for what, why, read in POOLED:
        found: dict[Any, list[str]] = {}
        for record in records:
            value = read(record.train)
            if value is not None:
                found.setdefault(value, []).append(record.run_id)
        if len(found) > 1:
            parts = (f"{value}: {_named(runs)}" for value, runs in sorted(found.items()))
            notes.append(f"runs trained with {what} are pooled; {why}: {'; '.join(parts)}")
    return notes


def still_notes(records: Sequence[RunRecord]) -> list[str]:
    """Runs whose weights hardly moved: their rows say nothing about what was switched on."""
    still = [r for r in records if r.train.weights_changed is not None and r.train.weights_changed < HARDLY]
    return [
        f"{r.run_id}: only {100 * float(r.train.weights_changed or 0):.2g} % of its trained weights ever changed "
        f"({r.train.weights_dtype or 'dtype not known'}): its policy is nearly the untrained one and its row says "
        "nothing about what was switched on"
        for r in still
    ]


def correction_notes(records: Sequence[RunRecord]) -> list[str]:
    """Cells in which the sampler correction took more than half of the weight of answers, by their length."""
    sums: dict[tuple[str, str], list[float]] = {}
    for record in records:
        for name, found in record.train.correction.items():
            total = sums.setdefault((record.name, name), [0.0, 0.0])
            total[0] += found["rows"]
            total[1] += found["rows"] * found["weight"]
    return [
        f"cell {cell}: the sampler correction left answers of {tokens} tokens {weight / rows:.2f} of their weight on "
        "average: they hardly count in its training"
        for (cell, tokens), (rows, weight) in sorted(sums.items())
        if rows and weight / rows < HALF
    ]


def _named(runs: Sequence[str]) -> str:
    return f"{len(runs)} runs ({', '.join(runs[:3])}{', ...' if len(runs) > 3 else ''})"
