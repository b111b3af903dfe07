"""A process that samples: `python -m r3bench.evaluation.sampler`, started and fed by `backends.pool`.

JSON lines on stdin: the model first, then jobs. JSON lines on stdout: {"ready": ...} first. With transformers a job is
a stretch, and any number of {"done": answers} and one {"answers": [...]} follow. With vLLM it is a single answer, asked
for under a number, and {"answers": {number: ...}} follow for those that have ended. Or {"error": ...}. What libraries
print goes to stderr. It leads a session of its own and ends all of it with its stdin, so nothing of an engine outlives
an evaluation that was killed.
"""

import contextlib
import dataclasses
import json
import os
import queue
import signal
import sys
import threading
from typing import Any

from r3bench.config.sections import EvalSection
from r3bench.config.strict import build
from r3bench.errors import R3BenchError
from r3bench.evaluation.backends.sampling import Draw, Sampling


def main() -> int:
    """Until stdin ends."""
    for number in (
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGUSR2,
    ):  # a scheduler's are for the job's process, which ends us
        signal.signal(number, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    jobs: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read, args=(jobs,), daemon=True).start()

    def reply(**message: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody listens any more: stdin ends as well
            replies.write(json.dumps(message) + "\n")
            replies.flush()

    from r3bench.evaluation.choose_backend import load

    first = jobs.get()
    try:
        section = build(EvalSection, first["section"], "eval")
        backend: Any = load(first["model"], section, first["tensor_parallel"], vllm=first["vllm"])
        slots = getattr(backend, "slots", None)
        ready = {"fingerprint": backend.fingerprint, "context": backend.context, "details": backend.details}
        reply(ready=ready | {"slots": slots})
        while slots is not None:
            while not jobs.empty() or not backend.busy:  # waits only for an engine without work
                job = jobs.get()
                backend.add(job["number"], Draw(**job["draw"]), Sampling(**job["sampling"]))
            if ended := backend.step():
                reply(answers={number: dataclasses.asdict(answer) for number, answer in ended.items()})
        while True:
            job = jobs.get()
            draws = [Draw(**draw) for draw in job["draws"]]
            answers = backend.generate(draws, Sampling(**job["sampling"]), lambda count: reply(done=count))
            reply(answers=[dataclasses.asdict(answer) for answer in answers])
    except R3BenchError as error:
        reply(error={"kind": type(error).__name__, "message": str(error)})
        return error.exit_code


def _read(jobs: "queue.Queue[dict[str, Any]]") -> None:
    for line in sys.stdin:
        jobs.put(json.loads(line))
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
