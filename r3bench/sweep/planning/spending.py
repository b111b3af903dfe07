"""What is left of a grid, finished runs subtracted, and what that takes: hours on the clock over nodes, a price."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from r3bench.errors import ConfigError, StateError
from r3bench.records import RunPaths
from r3bench.sweep.cell_run import finished
from r3bench.sweep.cells import BASE_MODEL, Cell
from r3bench.sweep.planning.cost import RunCost
from r3bench.sweep.study import Study

NODE_GPUS = 8  # of a node, where none is told and this machine has none


@dataclass(frozen=True)
class Machines:
    """What runs are spread over, and what it costs."""

    nodes: int | None = None  # None: this machine
    per_node: int | None = None  # devices of a node: GPUs, or CPU cores where runs take these
    price: float | None = None  # of one device for an hour, in any currency

    def __post_init__(self) -> None:
        for name, value in (("--nodes", self.nodes), ("--per-node", self.per_node)):
            if value is not None and value < 1:
                raise ConfigError(f"{name}: got {value}, expected at least 1")
        if self.price is not None and not 0 <= self.price < 1e9:
            raise ConfigError(f"--price: got {self.price}, expected what a device costs in an hour, 0 or more")
        if self.per_node is not None and self.nodes is None:
            raise ConfigError("--per-node: expected together with --nodes")


@dataclass(frozen=True)
class Left:
    """What of a grid isn't done yet."""

    finished: int  # runs, the untrained model included
    runs: int  # to be trained
    measured: int  # to be measured only: trained before, or the untrained model
    training_tokens: float | None
    evaluation_tokens: float
    device_hours: Mapping[str, float]  # device kind -> hours of one device
    wall_hours: Mapping[str, float]  # device kind -> hours on the clock
    cost: Mapping[str, float] | None  # device kind -> price of the device-hours; None without a price
    cost_held: Mapping[str, float] | None  # the same with all nodes held to the end; None without nodes or price


def left_of(
    study: Study, costs: Mapping[str, RunCost], *, slots: int, gpus: int, machines: Machines, devices: int | None
) -> Left:
    """What is left of a study, and what that takes.

    Args:
        study: with its folder, which need not exist.
        costs: run id -> cost of the whole run.
        slots: runs at a time.
        gpus: devices of a run.
        machines: nodes and price.
        devices: of all nodes together; None without nodes.
    """
    done, training, evaluation = 0, 0.0, 0.0
    unknown, trained, measured = False, 0, 0
    hours: dict[str, list[float]] = {}  # device kind -> device-hours of each run that is left
    for cell in study.cells:
        cost = costs[cell.run_id]
        paths = study.paths(cell)
        if _finished(cell, paths):
            done += 1
            continue
        only_measured = cell.factors == BASE_MODEL or paths.train.exists()
        measured, trained = measured + only_measured, trained + (not only_measured)
        evaluation += cost.evaluation_tokens
        if not only_measured:
            unknown = unknown or cost.training_tokens is None
            training += cost.training_tokens or 0.0
        taken = cost.evaluation_hours if only_measured else cost.device_hours
        for kind, value in taken.items():
            hours.setdefault(kind, []).append(value)
    wall = {kind: makespan([value / gpus for value in each], slots) for kind, each in hours.items()}
    total = {kind: sum(each) for kind, each in hours.items()}
    price = machines.price
    return Left(
        finished=done,
        runs=trained,
        measured=measured,
        training_tokens=None if unknown else training,
        evaluation_tokens=evaluation,
        device_hours=total,
        wall_hours=wall,
        cost=None if price is None else {kind: value * price for kind, value in total.items()},
        cost_held=None
        if price is None or devices is None
        else {kind: value * devices * price for kind, value in wall.items()},
    )


def _finished(cell: Cell, paths: RunPaths) -> bool:
    try:
        return finished(cell.recipe, paths) is not None
    except StateError:
        return False  # torn or foreign; the dispatcher says so


def makespan(hours: Sequence[float], slots: int) -> float:
    """Hours until the last run ends, if a slot that gets free takes the longest run that is left (Graham 1969).

    Args:
        hours: (R,) of each run.
        slots: runs at a time.
    """
    busy = [0.0] * max(1, min(slots, len(hours)))
    for value in sorted(hours, reverse=True):
        first = busy.index(min(busy))
        busy[first] += value
    return max(busy)
