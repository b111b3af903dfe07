"""Runs a command that must not outlive the process that asked for it: `... guard PID PIPE COMMAND...`.

The command leads a session of its own, whose number is written to the descriptor PIPE. When the process PID ends in
whatever way, or this one is told to stop, the whole session is asked to end and killed after a while: an engine's own
processes would otherwise keep a GPU's memory.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time

EVERY = 0.2  # seconds between looks at the parent
PR_SET_PDEATHSIG = 1
GRACE = 10.0  # seconds from SIGTERM to SIGKILL


def main(arguments: list[str]) -> int:
    """Exit code of the command, 128 + signal where one ended it."""
    parent, told, *command = arguments
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: stopping.append(number))
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # SLURM warns a job: training still needs us to finish its batch
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_with_me,  # noqa: PLW1509, there are no threads here
    )
    with os.fdopen(int(told), "w") as pipe:
        pipe.write(f"{process.pid}")
    while process.poll() is None and not stopping and os.getppid() == int(parent):
        time.sleep(EVERY)
    end(process)
    code = process.returncode
    return code if code >= 0 else 128 - code


def _with_me() -> None:
    """In the command's process: SIGTERM when this one is killed (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def end(process: "subprocess.Popen[bytes]") -> None:
    """End the session that `process` leads."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def end_orphans(session: int) -> None:
    """End what is left of a command's session after its guard was killed: at once, nobody waits for it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
