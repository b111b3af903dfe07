"""What a fork server of the tests has loaded."""

import gc
import os

calls = []


def warm():
    """Called by the server before it forks."""
    calls.append(os.getpid())


def look(work):
    """What a child finds."""
    return {
        "warmed_by": calls,
        "server": os.getppid(),
        "frozen": gc.get_freeze_count(),
        "threshold": os.environ.get("MALLOC_TRIM_THRESHOLD_"),
    }
