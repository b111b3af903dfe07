"""Cells as SLURM jobs through submitit (extra `slurm`). Jobs outlive the dispatcher; a new one adopts them.

A running cell is known by its lock. One that is still queued has none, so each submission leaves its job id in
`slurm.json` in the run directory; a job that SLURM still knows is waited for instead of being submitted again.
"""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from r3bench.errors import ConfigError, StateError
from r3bench.files import read_json, write_json
from r3bench.sweep.attempts import Failure, FailureKind, WorkerFailed
from r3bench.sweep.child import call_on, log_file, name_of
from r3bench.sweep.grid import ExecutorSection
from r3bench.sweep.outcome import Outcome

POLL = 5.0  # seconds between looks at the queue
ENDED: Mapping[str, FailureKind] = {  # SLURM state of a job without a result -> class
    "OUT_OF_MEMORY": "out_of_memory",
    "TIMEOUT": "preempted",  # its time limit; it resumes from its checkpoint
    "PREEMPTED": "preempted",
    "NODE_FAIL": "preempted",
    "CANCELLED": "preempted",
    "BOOT_FAIL": "preempted",
    "REQUEUED": "preempted",
    "DEADLINE": "preempted",
}


class JobFuture(Future[Any]):
    """A future whose work is a queued or running job."""

    job: Any = None
    queues = True  # time without progress counts only once the job runs

    def stop(self, grace: float, dump: bool = False) -> None:
        """Cancel the job when it hangs (`dump`); when the dispatcher is drained it goes on, for the next one."""
        if dump and self.job is not None:
            self.job.cancel(check=False)
        elif not self.done():
            self.set_exception(WorkerFailed(Failure("preempted", "left running; a new dispatcher adopts it")))


class SlurmExecutor(Executor):
    """Submits cells with submitit.

    Args:
        section: `options` are submitit parameters without the `slurm_` prefix (partition, time, mem, ...);
            `gpus` is asked for per node unless the options say otherwise.
        cluster: 'slurm', or submitit's 'local' and 'debug' executors for trying things out.
        poll: seconds between looks at the queue.
    """

    def __init__(self, section: ExecutorSection, cluster: str = "slurm", poll: float = POLL) -> None:
        try:
            import submitit
        except ImportError as error:
            raise ConfigError("executor.kind: slurm needs submitit; install r3bench[slurm]") from error
        if cluster == "slurm" and submitit.SlurmExecutor.affinity() < 0:
            raise ConfigError("executor.kind: slurm, but there is no srun on this machine")
        self._make = lambda folder: submitit.AutoExecutor(folder=folder, cluster=cluster)
        self.section = section
        self.cluster = cluster
        self.poll = poll
        self._waiting: dict[JobFuture, Path] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> JobFuture:
        """Queue `fn(work)`, or adopt the job that an earlier dispatcher queued for the same directory."""
        (work,) = args
        future = JobFuture()
        future.set_running_or_notify_cancel()
        directory = Path(work["directory"])
        future.job = self._queued(directory) or self._queue(name_of(fn), work, directory)
        with self._lock:
            self._waiting[future] = log_file(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="slurm-queue", daemon=True)
                self._thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop watching the queue; jobs go on."""
        self._closing.set()
        if self._thread is not None and wait:
            self._thread.join()

    def _queue(self, function: str, work: Mapping[str, Any], directory: Path) -> Any:
        folder = directory / "slurm"
        executor = self._make(folder)
        prefix = f"{self.cluster}_" if self.cluster == "slurm" else ""
        executor.update_parameters(name=f"r3bench-{directory.name}"[:60])
        if self.cluster == "slurm":
            options: dict[str, Any] = {"gpus_per_node": self.section.gpus, **self.section.options}
            executor.update_parameters(**{f"{prefix}{key}": value for key, value in options.items()})
        job = executor.submit(call_on, function, dict(work), self.section.gpus)
        write_json(directory / "slurm.json", {"job": str(job.job_id), "folder": str(folder)})
        return job

    def _queued(self, directory: Path) -> Any:
        """The unfinished job of an earlier dispatcher, if there is one."""
        file = directory / "slurm.json"
        if self.cluster != "slurm" or not file.exists():
            return None
        import submitit

        try:
            known = read_json(file)
        except StateError:
            return None
        job: Any = submitit.SlurmJob(folder=known["folder"], job_id=known["job"])
        return None if job.done() else job

    def _watch(self) -> None:
        while not self._closing.wait(self.poll):
            with self._lock:
                waiting = dict(self._waiting)
            for future in waiting:
                if future.done():
                    gone = True
                else:
                    gone = bool(future.job.done())
                    if gone:
                        _result(future.job).settle(future)
                if gone:
                    with self._lock:
                        del self._waiting[future]


def _result(job: Any) -> Outcome:
    """A finished job's reply, or why there is none."""
    outcome = Outcome()
    for _ in range(3):  # its result file may lag behind its state on a shared file system
        if job.paths.result_pickle.exists():
            break
        time.sleep(1.0)
    with Outcome() as reading:
        reading.value = job.result()
    reply = reading.value
    if reading.error is None and "result" in reply:
        outcome.value = reply["result"]
    elif reading.error is None:
        outcome.error = WorkerFailed(Failure(**reply["failure"]))
    else:
        state = str(job.state).split()[0]
        message = (str(reading.error).strip().splitlines() or [""])[0]
        outcome.error = WorkerFailed(Failure(ENDED.get(state, "bug"), f"job {job.job_id} {state}: {message}"[:500]))
    return outcome
