"""How OpenMP's threads wait. To be called before torch is loaded: it reads the environment once."""

import os
from collections.abc import MutableMapping

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # each says it in its own way


def wait_asleep(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let idle threads sleep, unless the user has said how they should wait.

    By default they spin at the end of every loop until the slowest is there. Alone on a machine that gains a little;
    with a second busy process the slowest waits for a core that a spinning thread holds, and both crawl.
    """
    if not any(name in environment for name in WAITING):
        environment["OMP_WAIT_POLICY"] = "PASSIVE"
