"""torchrun's agent, with two differences: a failure ends the other ranks soon, and those on other nodes hear of it.

torchrun gives ranks that a signal is passed on to as long as they need to save (`shutdown_timeout`), and the same time
when the agent itself fails, as when another node has gone. Then there is nothing to save: a rank that waits for one
that is no more would hold its node all that time, or until NCCL gives up.
"""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.launcher import api

ENDING = 30  # seconds ranks get to end after another has failed; torchrun's own figure on the node where it did
FAILED = "r3bench/failed"  # set in the agents' common store by a node whose rank failed


class NodeLost(Exception):
    """Another node of the run has failed or has gone."""


class Agent(LocalElasticAgent):  # type: ignore[misc]
    """Runs this node's ranks."""

    def run(self, *args: Any, **kwargs: Any) -> RunResult:
        try:
            return super().run(*args, **kwargs)
        except (RendezvousError, RuntimeError) as error:  # the store of the agents, on one of the nodes
            if self.get_worker_group().state == WorkerState.HEALTHY:
                raise NodeLost from error
            raise

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result = super()._monitor_workers(worker_group)
        store: Any = worker_group.store
        if (worker_group.group_world_size or 1) > 1:
            if result.state == WorkerState.FAILED:
                with contextlib.suppress(RuntimeError):  # its node has gone: nobody is left to be told
                    store.set(FAILED, "1")
            elif result.state == WorkerState.HEALTHY and store.check([FAILED]):
                raise NodeLost
        return result

    def _shutdown(self, death_sig: signal.Signals | None = None, timeout: int = ENDING) -> None:
        if death_sig is None:  # not a signal that is passed on
            super()._shutdown(timeout=min(timeout, ENDING))
        else:
            super()._shutdown(death_sig, timeout)


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Let `elastic_launch` use `Agent`."""
    old = api.LocalElasticAgent
    api.LocalElasticAgent = Agent  # type: ignore[misc]
    try:
        yield
    finally:
        api.LocalElasticAgent = old  # type: ignore[misc]
