"""Cells as SLURM jobs through submitit (extra `slurm`).

Some time before a job's limit SLURM sends it SIGUSR2 (see `signals.stoppable`): it saves and ends with a reply that
says so, and the dispatcher submits it again. That costs no retry as long as each job gets further than the one before.
"""

import re
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r3bench.errors import ConfigError, StateError
from r3bench.files import expect, read_json, write_json
from r3bench.sweep.attempts import FailureKind
from r3bench.sweep.executors.child import NO_ROOM_CODE, call_to
from r3bench.sweep.executors.queued import QueueExecutor
from r3bench.sweep.grid import ExecutorSection

SUBMITIT_TIME = 5  # minutes, submitit's limit for jobs that name none
ENDED: Mapping[str, FailureKind] = {  # SLURM state of a job that left no reply -> class
    "OUT_OF_MEMORY": "out_of_memory",
    "TIMEOUT": "preempted",  # its time limit, and the warning came too late for it to save
    "PREEMPTED": "preempted",
    "NODE_FAIL": "preempted",
    "CANCELLED": "preempted",
    "BOOT_FAIL": "preempted",
    "DEADLINE": "preempted",
    "GONE": "preempted",
    "COMPLETED": "bug",
    "FAILED": "bug",
}


def warning_before(minutes: Any = SUBMITIT_TIME) -> int:
    """Seconds before its time limit at which a job is told to save and stop: a quarter of the limit, at most 10 min.

    Args:
        minutes: the limit as SLURM takes it: minutes, or a text such as '30', '1:30:00' or '1-12'. One that isn't
            understood is taken to be long.
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", str(minutes))
    if found is None:
        return 600
    days, *parts = (int(part or 0) for part in found.groups())
    hours_first = found[1] is not None or found[4] is not None  # else the first part is minutes, then seconds
    seconds = sum(part * unit for part, unit in zip(parts, (3600, 60, 1) if hours_first else (60, 1, 0), strict=True))
    return min(600, (86_400 * days + seconds) // 4)


@dataclass
class SlurmJob:
    """A submitted job."""

    number: str  # SLURM's
    reply: Path  # where it leaves its result
    local: Any = None  # submitit's job, of its own local executor

    @property
    def name(self) -> str:
        """For messages."""
        return f"job {self.number}"

    def ended(self) -> tuple[str, FailureKind] | None:
        """How it ended; None while it is queued or running, or SLURM can't be reached."""
        state, code = self._state()
        if state == "FAILED" and code == NO_ROOM_CODE:
            return "FAILED (no room)", "disk"
        return (state, ENDED[state]) if state else None

    def _state(self) -> tuple[str | None, int | None]:
        if self.local is not None:
            return ("FAILED" if self.local.done() else None), None
        command = ["scontrol", "show", "job", "-o", self.number]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return ("GONE" if "Invalid job id" in done.stderr else None), None
        found = re.search(r"JobState=(\w+)", done.stdout)
        code = re.search(r"ExitCode=(\d+)", done.stdout)
        return (found[1] if found and found[1] in ENDED else None), int(code[1]) if code else None

    def cancel(self) -> None:
        """Ask for its end."""
        if self.local is not None:
            self.local.cancel(check=False)
        else:
            subprocess.run(["scancel", self.number], check=False)


class SlurmExecutor(QueueExecutor):
    """Submits cells with submitit.

    Args:
        section: `options` are submitit's SLURM parameters without their prefix (partition, time, mem, ...);
            `gpus` is asked for per node unless the options say otherwise.
        cluster: 'slurm', or 'local' for submitit's own executor on this machine, to try things out.
        poll: seconds between looks at the queue.
    """

    def __init__(self, section: ExecutorSection, cluster: str = "slurm", poll: float = 5.0) -> None:
        try:
            import submitit
        except ImportError as error:
            raise ConfigError("executor.kind: slurm needs submitit; install r3bench[slurm]") from error
        if cluster == "slurm" and submitit.SlurmExecutor.affinity() < 0:
            raise ConfigError("executor.kind: slurm, but there is no srun on this machine")
        super().__init__(poll)
        self._make = lambda folder: submitit.AutoExecutor(folder=folder, cluster=cluster)
        self.section = section
        self.cluster = cluster

    def enqueue(self, function: str, work: Mapping[str, Any], directory: Path) -> SlurmJob:
        """Submit; the job id is left in `slurm.json`, since a queued cell holds no lock yet."""
        folder = directory / "slurm"
        executor = self._make(folder)
        executor.update_parameters(name=f"r3bench-{directory.name}"[:60])
        if self.cluster == "slurm":
            options: dict[str, Any] = {
                "gpus_per_node": self.section.gpus,
                "signal_delay_s": warning_before(self.section.options.get("time", SUBMITIT_TIME)),
                **self.section.options,
            }
            executor.update_parameters(**{f"slurm_{key}": value for key, value in options.items() if value is not None})
        reply = folder / f"reply-{uuid.uuid4().hex[:12]}.json"
        job = executor.submit(call_to, str(reply), function, dict(work), self.section.gpus)
        write_json(directory / "slurm.json", {"job": str(job.job_id), "reply": str(reply)})
        return SlurmJob(str(job.job_id), reply, None if self.cluster == "slurm" else job)

    def known(self, directory: Path) -> SlurmJob | None:
        """The unfinished job of an earlier dispatcher, if there is one."""
        file = directory / "slurm.json"
        if self.cluster != "slurm" or not file.exists():
            return None
        try:
            found = expect(read_json(file), file, job=str, reply=str)
        except StateError:
            return None
        job = SlurmJob(found["job"], Path(found["reply"]))
        return job if not job.reply.exists() and job.ended() is None else None
