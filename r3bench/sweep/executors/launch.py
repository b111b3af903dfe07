"""One run on several processes: torchrun's agent in this process, a rank per GPU (on CPU: per process, over gloo)."""

import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from r3bench import project
from r3bench.config.load import parse_recipe, resolved, run_id
from r3bench.config.sections import Recipe
from r3bench.errors import R3BenchError
from r3bench.files import read_json, write_json
from r3bench.records import RunPaths, RunRecord, read_record
from r3bench.serving.training import served, split_devices
from r3bench.streams import steady
from r3bench.sweep.attempts import classify
from r3bench.sweep.cell_run import finished, lead, run_cell
from r3bench.sweep.executors.child import die_with_parent, exits_are_told
from r3bench.sweep.executors.outcome import Outcome
from r3bench.sweep.strategy import Strategy, check_launch, rank_environment

SAVING = 600  # seconds the ranks get to finish the batch and save after a signal; then they are killed
AGAIN = "the same command resumes from the newest checkpoint"


@dataclass(frozen=True)
class World:
    """The processes of a run."""

    gpus: int = 1  # processes on each node
    nodes: int = 1  # machines on which the same command is given
    strategy: Strategy = "ddp"  # how the model is spread over them
    master: str | None = None  # HOST:PORT of one node, reached from all; needed with several nodes


def launch(recipe: Recipe, directory: Path, world: World, *, quiet: bool = False, probe: bool = False) -> Any:
    """Train and evaluate `recipe` on `world`; returns when every rank of this node has ended.

    Args:
        recipe: checked recipe.
        directory: run directory.
        world: the processes.
        quiet: no progress output.
        probe: instead of the run, two updates on rows of full length (see `r3bench.training.probe`).

    Returns:
        The run's record (None on a node that doesn't see the run directory of the first rank), or the probe's figures.

    Raises:
        ConfigError: numbers that don't fit `world`, before any process is started.
        R3BenchError: a rank failed or was killed; the others have been ended.
    """
    check_launch(recipe, world.gpus, world.nodes, world.strategy, world.master)
    paths = RunPaths(directory)
    record: RunRecord | None = None if probe else finished(recipe, paths)
    if record is not None:
        return record
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="r3bench-") as folder:
        job = {"recipe": resolved(recipe), "directory": str(directory.absolute()), "quiet": quiet, "probe": probe}
        job["home"] = str(project.home())
        write_json(Path(folder, "job.json"), job)
        failures = _run_ranks(directory, run_id(recipe), world, folder, split_devices(recipe.trainer, world.gpus))
        replies = {int(path.stem.split("-")[1]): read_json(path) for path in Path(folder).glob("rank-*.json")}
        if failures or any("failure" in reply for reply in replies.values()):
            raise _error(directory, failures, replies)
        if probe:
            return replies[min(replies)]["result"]
    return read_record(paths) if paths.record.exists() else None


def _run_ranks(directory: Path, name: str, world: World, folder: str, devices: Mapping[str, str]) -> dict[int, int]:
    """Run the ranks of this node; rank -> exit code (minus the signal) of those that failed, the first one first."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from r3bench.sweep.executors.agent import NodeLost, installed

    alone = world.nodes == 1
    config = LaunchConfig(
        min_nodes=world.nodes,
        max_nodes=world.nodes,
        nproc_per_node=world.gpus,
        run_id=f"{name}-{os.getpid()}" if alone else name,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0" if alone else str(world.master),
        local_addr="localhost" if alone else None,
        max_restarts=0,
        shutdown_timeout=SAVING,
    )
    with _environment({**rank_environment(world.strategy), **devices}), _silent(), installed():
        try:
            elastic_launch(config, sys.executable)("-m", "r3bench.sweep.executors.launch", folder)
        except ChildFailedError as error:
            return {rank: failure.exitcode for rank, failure in error.failures.items()}
        except NodeLost as error:
            raise R3BenchError(
                f"{directory}: another node of the run failed or has gone (its own message says more), and the ranks "
                f"here were ended; {AGAIN}"
            ) from error
        except RendezvousError as error:
            raise R3BenchError(
                f"the nodes didn't find each other at {world.master} (the same command on all {world.nodes}, one of "
                "them that machine, and the port open?); try again"
            ) from error
        except SignalException:
            pass  # the ranks have saved and said so
    return {}


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    old = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in old.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without the agent's log lines: what went wrong is said once, by `_error`."""
    logging.disable(logging.CRITICAL)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        with contextlib.suppress(ValueError):  # not in the main thread: the agent has set none either
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _error(directory: Path, failures: Mapping[int, int], replies: Mapping[int, Mapping[str, Any]]) -> R3BenchError:
    """What to tell the user: a rank's message meant for them, else what happened first.

    When a rank goes, the others fail too (their connection closes, or they are killed), so theirs is never the cause.

    Args:
        directory: run directory.
        failures: rank -> exit code, minus the signal; the rank that was seen to end first comes first.
        replies: rank -> what it said.
    """
    said = {rank: reply["failure"] for rank, reply in replies.items() if "failure" in reply}
    own = [failure for _, failure in sorted(said.items()) if failure["exit_code"] is not None]
    if own:
        error = R3BenchError(own[0]["message"])
        error.exit_code = own[0]["exit_code"]
        return error
    first = next(iter(failures), None)
    if first is not None and failures[first] < 0:  # nobody had been ended by the agent then
        return _killed(directory, first, -failures[first])
    broke = {rank: failure for rank, failure in said.items() if failure["kind"] != "preempted"} or said
    if broke:
        rank, failure = min(broke.items(), key=lambda item: item[1]["time"])
        if failure["kind"] != "out_of_memory":
            print(failure["detail"], file=sys.stderr)
        return R3BenchError(f"{directory}: rank {rank} failed: {failure['message']}")
    if first is not None:
        return R3BenchError(
            f"{directory}: rank {first} ended with exit code {failures[first]}, the others were ended; {AGAIN}"
        )
    return R3BenchError(f"{directory}: ended by a signal; {AGAIN}")


def _killed(directory: Path, rank: int, number: int) -> R3BenchError:
    hint = " (the system does that when memory runs out)" if number == signal.SIGKILL else ""
    name = signal.Signals(number).name
    return R3BenchError(f"{directory}: rank {rank} was killed by {name}{hint}, the others were ended; {AGAIN}")


def main(folder: str) -> int:
    """A rank: `python -m r3bench.sweep.executors.launch FOLDER`, started by `launch` under torchrun's agent."""
    die_with_parent()
    steady()
    rank = int(os.environ["RANK"])
    job = json.loads(Path(folder, "job.json").read_text())
    directory = Path(job["directory"])
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # not about the user's code
    if not lead():  # its warnings are the first rank's; what matters comes back as its reply
        log = os.open(directory / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 2)
    os.dup2(2, 1)  # stdout is the command's result alone

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def leave(reply: Mapping[str, Any]) -> None:
        if "failure" in reply:
            reply = {"failure": {"exit_code": None, "time": time.time(), **reply["failure"]}}
        write_json(Path(folder, f"rank-{rank}.json"), reply)

    exits_are_told(leave)
    with Outcome(everything=True) as outcome:
        project.enter(job["home"])
        recipe = parse_recipe(job["recipe"], str(directory / "config.json"))
        if job["probe"]:
            from r3bench.training.context import served_context
            from r3bench.training.models.load import model_folder
            from r3bench.training.probe import probe

            model = partial(model_folder, recipe.model.name, recipe.model.revision, recipe.model.warmup)
            told = directory / "server.log"
            server = served(recipe, model, served_context, told, say) if lead() else contextlib.nullcontext(recipe)
            with server as full:
                outcome.value = probe(full)
        else:
            run_cell(recipe, directory, quiet=job["quiet"])
    reply: dict[str, Any] = {"result": outcome.value}
    error = outcome.error
    if error is not None:
        failure = classify(error)
        own = isinstance(error, R3BenchError)
        code = error.exit_code if isinstance(error, R3BenchError) else None
        message = str(error) if own else failure.message
        reply = {"failure": {**asdict(failure), "message": message, "exit_code": code}}
    leave(reply)
    return 0 if error is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
