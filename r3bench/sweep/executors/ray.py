"""Cells on a Ray cluster (extra `ray`), each as a detached actor, so that it outlives the dispatcher."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r3bench.errors import ConfigError, StateError
from r3bench.files import expect, read_json, write_json
from r3bench.sweep.attempts import FailureKind
from r3bench.sweep.executors.child import call_to
from r3bench.sweep.executors.queued import QueueExecutor
from r3bench.sweep.grid import ExecutorSection

NAMESPACE = "r3bench"


@dataclass
class RayJob:
    """A detached actor that does its work while it is created and then ends."""

    actor: str  # its name in the namespace
    reply: Path  # where it leaves its result

    @property
    def name(self) -> str:
        """For messages."""
        return f"actor {self.actor}"

    def ended(self) -> tuple[str, FailureKind] | None:
        """A lost actor (killed, or its node gone) is preempted; None while it waits or works."""
        import ray

        try:
            ray.get_actor(self.actor, namespace=NAMESPACE)
        except ValueError:
            return "DEAD", "preempted"
        return None

    def cancel(self) -> None:
        """Kill the actor."""
        import ray

        try:
            ray.kill(ray.get_actor(self.actor, namespace=NAMESPACE), no_restart=True)
        except ValueError:
            return


class RayExecutor(QueueExecutor):
    """Submits cells to Ray.

    Args:
        section: `options` are Ray's actor options (num_cpus, resources, runtime_env, ...) and `address` of the cluster,
            by default the running one ('auto'); `gpus` is asked for unless the options give num_gpus.
        poll: seconds between looks.
    """

    def __init__(self, section: ExecutorSection, poll: float = 2.0) -> None:
        try:
            import ray
        except ImportError as error:
            raise ConfigError("executor.kind: ray needs Ray; install r3bench[ray]") from error
        super().__init__(poll)
        options = dict(section.options)
        address = options.pop("address", "auto")
        try:
            ray.init(address=address, namespace=NAMESPACE, ignore_reinit_error=True, log_to_driver=False)
        except ConnectionError as error:
            raise ConfigError(
                f"executor.options.address: no Ray cluster at '{address}'; start one with ray start"
            ) from error
        self.processes = section.gpus if options.get("num_gpus", section.gpus) else 1
        self.options = {"num_gpus": section.gpus, "num_cpus": 1, "max_restarts": 0, **options}

    def enqueue(self, function: str, work: Mapping[str, Any], directory: Path) -> RayJob:
        """Create the actor; its name is left in `ray.json`, since a waiting cell holds no lock yet."""
        import ray

        number = uuid.uuid4().hex[:12]
        job = RayJob(f"{directory.name}-{number}", directory / "ray" / f"reply-{number}.json")
        write_json(directory / "ray.json", {"actor": job.actor, "reply": str(job.reply)})
        cell = ray.remote(_Cell).options(name=job.actor, namespace=NAMESPACE, lifetime="detached", **self.options)
        cell.remote(str(job.reply), function, dict(work), self.processes)
        return job

    def known(self, directory: Path) -> RayJob | None:
        """The unfinished actor of an earlier dispatcher, if there is one."""
        file = directory / "ray.json"
        if not file.exists():
            return None
        try:
            found = expect(read_json(file), file, actor=str, reply=str)
        except StateError:
            return None
        job = RayJob(found["actor"], Path(found["reply"]))
        return job if not job.reply.exists() and job.ended() is None else None


class _Cell:
    """Works in its constructor: Ray's head schedules that itself, also when the process that asked is gone."""

    def __init__(self, reply: str, function: str, work: dict[str, Any], processes: int) -> None:
        import os

        call_to(reply, function, work, processes)
        os._exit(0)  # gives the resources back; nobody may be there to ask for it
