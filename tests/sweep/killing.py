"""SIGKILL at the n-th write: an audit hook that counts what changes files below a folder."""

import os
import signal
import sys
import traceback

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod"}


def kill_at(n, folder, counted=None):
    """From now on die just before the `n`-th change (from 1) below `folder`; n = 0 only counts, into `counted`."""
    folder = str(folder)
    seen = [0]

    def hook(event, arguments):
        if event == "open":
            path, mode, flags = arguments
            writes = (mode and set(mode) & set("wax+")) or (flags or 0) & (os.O_WRONLY | os.O_RDWR)
            if not writes or not isinstance(path, str | os.PathLike) or not os.fspath(path).startswith(folder):
                return
        elif event not in CHANGES:
            return
        seen[0] += 1
        if counted is not None:
            counted[0] = seen[0]
        if seen[0] == n:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def in_child(function):
    """Run `function` in a forked child; its exit code, or minus the signal that ended it."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = function() or 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
