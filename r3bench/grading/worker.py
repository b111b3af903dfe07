"""`python -m r3bench.grading.worker`: grades JSON lines from stdin until it closes, one reply a line.

Replies leave by a private copy of stdout, so that whatever a library prints can't be taken for one. Each item gets
`budget` seconds of this process's CPU time; then the kernel ends the process (SIGPROF), even inside a C function
that never returns to Python. CPU time and not wall-clock, so that a busy machine doesn't change a verdict.
"""

import contextlib
import json
import os
import resource
import signal
import sys

MEMORY = 4 << 30  # bytes of address space; an answer that needs more is wrong


def main(budget: float) -> None:
    """Serve requests `{"answer", "gold"}` with replies `{"correct", "reason"}`; `{"ready": true}` comes first."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # meant for the run: it ends us when it has saved
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    from r3bench.grading.verify import same_value

    same_value("x+1", "1+x")  # pays for the imports before the first item's clock starts
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or hard > MEMORY:
        with contextlib.suppress(ValueError, OSError):  # not every system has this limit
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, hard))
    print('{"ready": true}', file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, budget)
        try:
            correct, reason = same_value(request["answer"], request["gold"])
        except (RecursionError, MemoryError) as error:
            correct, reason = False, f"grader gave up: {type(error).__name__}"
        except Exception as error:  # noqa: BLE001, hostile text: any failure of the parser is a wrong answer
            correct, reason = False, f"grader failed: {type(error).__name__}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps({"correct": bool(correct), "reason": reason}), file=replies, flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
