"""The executor a grid asks for, with its number of slots."""

from concurrent.futures import Executor

from r3bench.devices import cpu_cores, gpu_ids
from r3bench.errors import ConfigError
from r3bench.sweep.executors.inline import InlineExecutor
from r3bench.sweep.executors.local import DeviceExecutor, ForkExecutor
from r3bench.sweep.grid import ExecutorSection

QUEUED = 10_000  # cells at a time of a scheduler that has a queue of its own


def make_executor(section: ExecutorSection) -> tuple[Executor, int]:
    """(executor, slots) for a grid's `executor` section.

    Raises:
        ConfigError: fewer GPUs than a cell needs, or an extra that isn't installed.
    """
    if section.kind == "inline":
        return InlineExecutor(), 1
    if section.kind == "local":
        gpus = gpu_ids()
        if gpus:
            executor = DeviceExecutor(gpus, section.gpus)
            if executor.slots == 0:
                raise ConfigError(f"executor.gpus: got {section.gpus}, expected at most the {len(gpus)} GPUs found")
            return executor, min(executor.slots, section.slots or executor.slots)
        slots = section.slots or cpu_cores()
        return ForkExecutor(threads=max(1, cpu_cores() // slots)), slots
    if section.kind == "slurm":
        from r3bench.sweep.executors.slurm import SlurmExecutor

        return SlurmExecutor(section), section.slots or QUEUED
    from r3bench.sweep.executors.ray import RayExecutor

    return RayExecutor(section), section.slots or QUEUED
